"""Answer a stopped Job from a recording: its question, or its calls that began and have no result."""

from __future__ import annotations

from perstack.core.base.ids import By
from perstack.core.definitions.permissions import Approval
from perstack.core.jobs.job import Job
from perstack.core.jobs.resuming import new_limits
from perstack.core.jobs.summary import places_of
from perstack.core.runs.facts import Answer, Question, Settlement
from perstack.core.runs.open_questions import OpenQuestion
from perstack.core.runs.state import Run, call_key, is_unsettled
from perstack.engine.context.host_setup import HostSetup
from perstack.engine.runs.beginning import ResumedRun
from perstack.engine.runs.person_decisions import PersonAnswer, PersonDecisions
from perstack.errors import PerstackError
from perstack.ports.provider import Provider
from perstack.recordings.model import SaidApproval, SaidForm, SaidText
from perstack.recordings.run_playback import played_calls, player_of

DOOR = "recording"  # door that is recorded with answers from a recording


def recorded_answer(setup: HostSetup, job: Job) -> ResumedRun | None:
    """Return the Coordinator's Run, resumed with the recorded answer.

    Return None without a question or a recorded answer, and if the caller has not named the recording.
    """
    if not setup.overrides.names_recording:
        return None
    question = job.question
    asking_run = None if question is None else job.runs.get(question.run_id)
    if question is None or asking_run is None:
        return None
    run = job.coordinator
    if run.status != "stoppedByInteractiveTool":
        return None
    provider = _recorded_provider(setup, asking_run)
    answer = None if provider is None else _recorded_answer(provider, job, question, asking_run)
    if answer is None:
        return None
    decisions = PersonDecisions(answers={question.run_id: PersonAnswer(answer, By(door=DOOR))})
    return ResumedRun(run, "answer", new_limits(run, setup.overrides), decisions=decisions)


def recorded_settlements(setup: HostSetup, job: Job) -> dict[str, Settlement]:
    """Return a retry for each unsettled call that a recording answers, by key: playing it again has no effect."""
    if not job.plays_recording:
        return {}
    settlements: dict[str, Settlement] = {}
    for run in job.runs.values():
        provider = _recorded_provider(setup, run)
        calls = () if provider is None else played_calls(provider, run, setup.plugins.skills)
        settlements.update({call_key(run, call): "retry" for call in calls if is_unsettled(call)})
    return settlements


def _recorded_provider(setup: HostSetup, run: Run) -> Provider | None:
    try:
        provider = setup.providers.for_run(run, setup.project, setup.overrides).provider
    except PerstackError:
        return None
    return provider if provider.player is not None else None


def _recorded_answer(
    provider: Provider, job: Job, asking_question: OpenQuestion, run: Run
) -> str | Answer | Approval | None:
    player = player_of(provider)
    if player is None:
        return None
    place = places_of(counted_run.start for counted_run in job.runs.values())[run.id]
    call_place = (place, asking_question.tool_call_id, run.step)
    if asking_question.call_digest:
        approval = player.answer_to(*call_place, SaidApproval)
        is_offered = approval is not None and approval.rule in ("", *asking_question.offers)
        return approval.approval if approval is not None and is_offered else None
    if asking_question.requested_schema is not None:
        form = player.answer_to(*call_place, SaidForm, len(run.calls[asking_question.tool_call_id].answers))
        if form is None or form.action is None:
            return None
        tool_question = Question(message=asking_question.text, requested_schema=asking_question.requested_schema)
        return Answer(question=tool_question, action=form.action, content=form.content)
    text = player.answer_to(*call_place, SaidText)
    return None if text is None else text.text
