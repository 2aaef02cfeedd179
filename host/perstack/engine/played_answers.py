"""What a recording answers where a Job that plays it is stopped: at a question, or in a call that began."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from perstack.core.by import By
from perstack.core.events import Settlement
from perstack.core.job import Job
from perstack.core.overrides import RECORDED
from perstack.core.policy.approvals import Approval
from perstack.core.questions import Answer, Question
from perstack.core.runs.asking import OpenQuestion
from perstack.core.runs.resuming import new_limits
from perstack.core.runs.state import Run, call_key, is_unsettled
from perstack.engine.logs.runs import LoadedJob
from perstack.engine.setup import Setup
from perstack.errors import PerstackError
from perstack.ports.provider import Provider, plays_recording

if TYPE_CHECKING:
    from perstack.engine.driver import Driver  # whoever only looks at Jobs drives none
    from perstack.engine.session import Session

DOOR = "recording"
"""The door through which a recording answers."""


def plays(job: Job) -> bool:
    """Whether a Run of a Job plays a recording."""
    return any(tally.start.provider == RECORDED for tally in job.runs.values())


def played_answer(setup: Setup, loaded: LoadedJob) -> Callable[[Driver], Session] | None:
    """What takes a Job up with the recorded answer to the question that it is stopped at.

    None if nothing is asked, it plays no recording, or the recording has no answer to it: then a person is asked.
    """
    asking = loaded.job.question
    asked = None if asking is None else loaded.runs.get(asking.run_id)
    if asking is None or asked is None:
        return None
    run = loaded.runs[loaded.job.coordinator.start.run_id]
    if run.status != "stoppedByInteractiveTool":
        return None
    provider = _provider(setup, asked)
    answer = None if provider is None else _said(provider, loaded, asking, asked)
    if answer is None:
        return None

    def take_up(driver: Driver) -> Session:
        driver.answers[asking.run_id], driver.answered_by = answer, By(door=DOOR)
        return driver.take_up(run, "answer", limits=new_limits(run, setup.overrides))

    return take_up


def played_again(setup: Setup, loaded: LoadedJob) -> dict[str, Settlement]:
    """The calls that began and have no result, by their keys, which a recording answers: no effect can be doubled."""
    if not plays(loaded.job):
        return {}
    from perstack.engine.playing import played_calls

    found: dict[str, Settlement] = {}
    for run in loaded.runs.values():
        provider = _provider(setup, run)
        calls = () if provider is None else played_calls(provider, run, setup.plugins.skills)
        found.update({call_key(run, call): "retry" for call in calls if is_unsettled(call)})
    return found


def _provider(setup: Setup, run: Run) -> Provider | None:
    """The provider of a Run that plays a recording."""
    try:
        provider = setup.providers.for_run(run, setup.project, setup.overrides).provider
    except PerstackError:
        return None
    return provider if plays_recording(provider) else None


def _said(provider: Provider, loaded: LoadedJob, asking: OpenQuestion, run: Run) -> str | Answer | Approval | None:
    from perstack.core.recording.model import SaidApproval, SaidForm, SaidText
    from perstack.core.run_place import places_of
    from perstack.ports.playing import player_of

    player = player_of(provider)
    if player is None:
        return None
    place = places_of(tally.start for tally in loaded.job.runs.values())[run.id]
    where = (place, asking.tool_call_id, run.step)
    if asking.call_digest:
        approval = player.said(*where, SaidApproval)
        is_offered = approval is not None and approval.rule in ("", *asking.offers)
        return approval.approval if approval is not None and is_offered else None
    if asking.requested_schema is not None:
        form = player.said(*where, SaidForm, len(run.calls[asking.tool_call_id].answers))
        if form is None or form.action is None:
            return None
        question = Question(message=asking.text, requested_schema=asking.requested_schema)
        return Answer(question=question, action=form.action, content=form.content)
    text = player.said(*where, SaidText)
    return None if text is None else text.text
