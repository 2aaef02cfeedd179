"""Answers of a recording to a stopped Job; `perstack.recordings.answer_playback` finds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from perstack.engine.context.host_setup import HostSetup
from perstack.ports.parts import Part

if TYPE_CHECKING:
    from perstack.core.jobs.job import Job
    from perstack.core.runs.facts import Settlement
    from perstack.engine.runs.beginning import ResumedRun  # reading Jobs does not need it


class RecordedAnswers(Protocol):
    """Functions that answer for a person whose answers were recorded."""

    def recorded_answer(self, setup: HostSetup, job: Job) -> ResumedRun | None:
        """Return the Coordinator's Run, to be resumed with the recorded answer; None without an answer."""
        ...

    def recorded_settlements(self, setup: HostSetup, job: Job) -> dict[str, Settlement]:
        """Return the unsettled calls that the recording answers, by key, to be retried."""
        ...


RECORDED_ANSWERS: Part[RecordedAnswers] = Part("recorded answers")
