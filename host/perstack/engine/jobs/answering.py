"""Check answers to the question that a Job is stopped at, or to an earlier one, in a branch. Writes nothing."""

from __future__ import annotations

from perstack.core.base.ids import event_id_of
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.settings import Overrides
from perstack.core.jobs.answer_reading import UnreadAnswer
from perstack.core.jobs.job import Job
from perstack.core.jobs.resuming import check_signal, new_limits
from perstack.core.runs.facts import ContinuedFrom
from perstack.core.runs.open_questions import OpenQuestion
from perstack.core.runs.state import Run
from perstack.engine.jobs.reader import JobReader
from perstack.engine.runs.beginning import NewRun, ResumedRun
from perstack.engine.runs.person_decisions import PersonAnswer, PersonDecisions
from perstack.errors import Conflict, UsageError
from perstack.next_steps import AnswerEarlier, Continue, Inspect


def answer_current(job: Job, run: Run, answer: UnreadAnswer, overrides: Overrides) -> ResumedRun:
    """Return the Coordinator's Run, to be resumed with an answer to the Job's question.

    Raises UsageError if nothing is asked or the answer does not fit, Conflict if the question was answered already.
    """
    question = job.question
    check_signal(job, answer.signal)
    if answer.question_id is not None and (question is None or question.id != answer.question_id):
        raise Conflict(f"question {answer.question_id} has been answered already", next_steps=(Inspect("inbox"),))
    if run.status != "stoppedByInteractiveTool" or question is None:
        steps = (Continue(job.id, run.start.expert_key), AnswerEarlier(job.id))
        raise UsageError(f"Job {job.id} has no open question ({run.status})", next_steps=steps)
    answers = {question.run_id: PersonAnswer(answer.read_for(question), answer.by)}
    decisions = PersonDecisions(answers=answers, signal=answer.signal)
    return ResumedRun(run, "answer", new_limits(run, overrides), decisions=decisions)


async def answer_in_branch(
    reader: JobReader, base_run: Run, checkpoint_id: str, expert: Expert, unread_answer: UnreadAnswer
) -> NewRun:
    """Return a Run that starts where `base_run` asked, with another answer.

    Raises UsageError if nothing was asked there, if a delegate asked, or if the answer does not fit.
    """
    answer = unread_answer.read_unchecked(_question_at(base_run, checkpoint_id))
    origin = ContinuedFrom(run_id=base_run.id, checkpoint_id=event_id_of(base_run.id, base_run.head.seq), answers=True)
    person_answer = PersonAnswer(answer, unread_answer.by)
    return NewRun(expert, base_run.start.query, continued_from=origin, base_run=base_run, answer=person_answer)


def _question_at(base_run: Run, checkpoint_id: str) -> OpenQuestion:
    if any(call.delegation is not None for call in base_run.open_calls):
        raise UsageError(
            f"delegates were running at {checkpoint_id}: only a Coordinator's question can be answered again"
        )
    question = None if base_run.asked_call_id is None else base_run.questions.get(base_run.asked_call_id)
    if question is None:
        raise UsageError(
            f"nothing was asked at {checkpoint_id}", next_steps=(Inspect("questions", base_run.start.job_id),)
        )
    return question
