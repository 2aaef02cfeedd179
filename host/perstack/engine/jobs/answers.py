"""Check answers to the question that a Job is stopped at, or to an earlier one, in a branch. Writes nothing."""

from __future__ import annotations

from perstack.core.base.ids import By, event_id_of
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.permissions import Approval
from perstack.core.definitions.settings import RECORDED, Overrides
from perstack.core.jobs.answers import GivenAnswer
from perstack.core.jobs.job import Job
from perstack.core.jobs.resuming import check_signal, new_limits
from perstack.core.jobs.summary import places_of
from perstack.core.runs.facts import Answer, ContinuedFrom, Question, Settlement
from perstack.core.runs.questions import OpenQuestion
from perstack.core.runs.state import Run, call_key, is_unsettled
from perstack.engine.context.host_context import HostContext
from perstack.engine.jobs.reader import JobReader
from perstack.engine.runs.beginning import NewRun, ResumedRun
from perstack.engine.runs.decisions import PersonAnswer, PersonDecisions
from perstack.errors import Conflict, PerstackError, UsageError
from perstack.next_steps import AnswerEarlier, Continue, Inspect
from perstack.ports.provider import Provider


def answer_current(loaded: Job, run: Run, answer: GivenAnswer, overrides: Overrides) -> ResumedRun:
    """Return the Coordinator's Run, resumed with an answer to the Job's question.

    Raises UsageError if nothing is asked, or the answer does not fit, and Conflict if it was answered already.
    """
    question = loaded.question
    check_signal(loaded, answer.signal)
    if answer.question_id is not None and (question is None or question.id != answer.question_id):
        raise Conflict(f"question {answer.question_id} has been answered already", next_steps=(Inspect("inbox"),))
    if run.status != "stoppedByInteractiveTool" or question is None:
        steps = (Continue(loaded.id, run.start.expert_key), AnswerEarlier(loaded.id))
        raise UsageError(f"Job {loaded.id} asks nothing ({run.status})", next_steps=steps)
    answers = {question.run_id: PersonAnswer(answer.to(question), answer.by)}
    decisions = PersonDecisions(answers=answers, signal=answer.signal)
    return ResumedRun(run, "answer", new_limits(run, overrides), decisions=decisions)


async def answer_in_branch(
    reader: JobReader, base: Run, checkpoint_id: str, expert: Expert, given_answer: GivenAnswer
) -> NewRun:
    """Return a Run that starts where `base` asked, with another answer.

    Raises UsageError if nothing was asked there, if a delegate asked, or if the answer does not fit.
    """
    answer = given_answer.meaning(_question_at(base, checkpoint_id))
    origin = ContinuedFrom(run_id=base.id, checkpoint_id=event_id_of(base.id, base.head.seq), answers=True)
    person_answer = PersonAnswer(answer, given_answer.by)
    return NewRun(expert, base.start.query, continued_from=origin, base=base, answer=person_answer)


def _question_at(base: Run, checkpoint_id: str) -> OpenQuestion:
    if any(call.delegation is not None for call in base.open_calls):
        raise UsageError(
            f"a delegate was at work at {checkpoint_id}: only a question of a Coordinator can be answered again"
        )
    question = None if base.asked is None else base.questions.get(base.asked)
    if question is None:
        raise UsageError(f"nothing was asked at {checkpoint_id}", next_steps=(Inspect("questions", base.start.job_id),))
    return question


# Answers of a recording to a stopped Job: to its question, or for calls that began and have no result. Answers of a
# person count only if the caller named the recording: a definition must not bring its own consent.

DOOR = "recording"  # the door that is recorded for answers of a recording


def plays(job: Job) -> bool:
    """Return whether a Run of the Job plays a recording."""
    return any(tally.start.provider == RECORDED for tally in job.runs.values())


def recorded_answer(context: HostContext, loaded: Job) -> ResumedRun | None:
    """Return the Coordinator's Run, resumed with the recorded answer; None without one that counts, or a question."""
    if not context.overrides.names_recording:
        return None
    question = loaded.question
    asking_run = None if question is None else loaded.runs.get(question.run_id)
    if question is None or asking_run is None:
        return None
    run = loaded.coordinator
    if run.status != "stoppedByInteractiveTool":
        return None
    provider = _recorded_provider(context, asking_run)
    answer = None if provider is None else _recorded_answer(provider, loaded, question, asking_run)
    if answer is None:
        return None
    decisions = PersonDecisions(answers={question.run_id: PersonAnswer(answer, By(door=DOOR))})
    return ResumedRun(run, "answer", new_limits(run, context.overrides), decisions=decisions)


def recorded_settlements(context: HostContext, loaded: Job) -> dict[str, Settlement]:
    """Return the unsettled calls that a recording answers, by key, to be retried: no effect can be doubled."""
    if not plays(loaded):
        return {}
    from perstack.recordings.playback import played_calls

    settlements: dict[str, Settlement] = {}
    for run in loaded.runs.values():
        provider = _recorded_provider(context, run)
        calls = () if provider is None else played_calls(provider, run, context.plugins.skills)
        settlements.update({call_key(run, call): "retry" for call in calls if is_unsettled(call)})
    return settlements


def _recorded_provider(context: HostContext, run: Run) -> Provider | None:
    try:
        provider = context.providers.for_run(run, context.project, context.overrides).provider
    except PerstackError:
        return None
    return provider if provider.player is not None else None


def _recorded_answer(provider: Provider, loaded: Job, asking: OpenQuestion, run: Run) -> str | Answer | Approval | None:
    from perstack.recordings.model import SaidApproval, SaidForm, SaidText

    player = provider.player
    if player is None:
        return None
    place = places_of(tally.start for tally in loaded.runs.values())[run.id]
    call_place = (place, asking.tool_call_id, run.step)
    if asking.call_digest:
        approval = player.answer_to(*call_place, SaidApproval)
        is_offered = approval is not None and approval.rule in ("", *asking.offers)
        return approval.approval if approval is not None and is_offered else None
    if asking.requested_schema is not None:
        form = player.answer_to(*call_place, SaidForm, len(run.calls[asking.tool_call_id].answers))
        if form is None or form.action is None:
            return None
        question = Question(message=asking.text, requested_schema=asking.requested_schema)
        return Answer(question=question, action=form.action, content=form.content)
    text = player.answer_to(*call_place, SaidText)
    return None if text is None else text.text
