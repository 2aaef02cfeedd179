"""Protocol for answering tools, questions and texts of a Run from a recording: `perstack.recordings.run_playback`.

The provider of such a Run has a `player`. Everything else in the loop is as for any other Run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from perstack.core.runs.commands import Complete, EndStep
from perstack.ports.parts import Part

if TYPE_CHECKING:
    from perstack.core.base.usage import Usage
    from perstack.core.runs.commands import Call, PerformedCommand
    from perstack.core.runs.facts import Question
    from perstack.core.runs.state import Run
    from perstack.engine.runs.job_drive import RunDrive
    from perstack.ports.provider import Provider
    from perstack.ports.skill import ToolResult, Toolset


class PlayedResult(Protocol):
    """Recorded result of a call."""

    @property
    def result(self) -> ToolResult | Question:
        """Result of the tool, or its question."""
        ...

    @property
    def usage(self) -> Usage | None:
        """Model usage of the tool, if it is known."""
        ...


class Playback(Protocol):
    """Functions that play a recording, for Runs whose provider has a `player`."""

    def played_skills(self, provider: Provider, run: Run) -> Mapping[str, Toolset]:
        """Return the skills of a Run that are not opened because the recording answers for their tools, by name."""
        ...

    async def played_results(self, run_drive: RunDrive, calls: Sequence[Call]) -> Mapping[str, PlayedResult] | None:
        """Return the recorded results of these calls, by id; None, and fail the Run, if one is missing."""
        ...

    async def fail_if_results_differ(self, run_drive: RunDrive) -> bool:
        """Fail the Run if a result of the latest reply differs from the recording; return True if one does."""
        ...

    def has_recorded_decision(self, run_drive: RunDrive, call: Call) -> bool:
        """Return True if the recording has a person's decision about a call that counts."""
        ...

    def is_last_step(self, run_drive: RunDrive, step: int) -> bool:
        """Return True if the recorded Run has no reply after this step, so that a cut reply was not continued."""
        ...

    def take_recorded_texts(self, run_drive: RunDrive) -> bool:
        """Record the texts that people posted before the next generation; return False without any."""
        ...


PLAYBACK: Part[Playback] = Part("playback of recordings")


def playback_of(run_drive: RunDrive) -> Playback:
    """Return the functions that play the recording of a Run."""
    return run_drive.drive.setup.parts.get(PLAYBACK)


async def fail_if_differs_from_recording(run_drive: RunDrive, command: PerformedCommand) -> bool:
    """Fail a Run that plays a recording if it differs from it at the end of a step; return True if it did."""
    if not isinstance(command, Complete | EndStep) or not run_drive.plays_recording:
        return False
    return await playback_of(run_drive).fail_if_results_differ(run_drive)
