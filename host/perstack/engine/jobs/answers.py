"""Answer a question of a Job: the one that it is stopped at, or an earlier one, in a branch."""

from __future__ import annotations

from collections.abc import Callable

from perstack.core.base.ids import event_id_of
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.overrides import Overrides
from perstack.core.jobs.answers import Given, read_job_answer
from perstack.core.jobs.job import Job
from perstack.core.jobs.resuming import check_signal, new_limits
from perstack.core.runs.facts import ContinuedFrom
from perstack.core.runs.questions import OpenQuestion, approval_question, open_question
from perstack.core.runs.state import Run
from perstack.core.runs.step_events import CallInteractiveTool, RequestApproval
from perstack.engine.jobs.reader import JobReader
from perstack.engine.log.run_session import RunSession
from perstack.engine.runs.loop import Driver
from perstack.errors import Conflict, UsageError
from perstack.next_steps import AnswerEarlier, Continue, Inspect


def answer_open(loaded: Job, run: Run, given: Given, overrides: Overrides) -> Callable[[Driver], RunSession]:
    """Return the function that resumes the Coordinator's Run with an answer to the question that the Job is stopped at.

    Raises UsageError if nothing is asked, or the answer does not fit, and Conflict if it was answered already.
    """
    asking = loaded.question
    check_signal(loaded, given.signal)
    if given.question_id is not None and (asking is None or asking.id != given.question_id):
        raise Conflict(f"question {given.question_id} has been answered already", next_steps=(Inspect("inbox"),))
    if run.status != "stoppedByInteractiveTool" or asking is None:
        steps = (Continue(loaded.id, run.start.expert_key), AnswerEarlier(loaded.id))
        raise UsageError(f"Job {loaded.id} asks nothing ({run.status})", next_steps=steps)
    answer = given.to(asking)

    def take_up(driver: Driver) -> RunSession:
        driver.answers[asking.run_id], driver.signal, driver.answered_by = answer, given.signal, given.by
        return driver.take_up(run, "answer", limits=new_limits(run, overrides))

    return take_up


async def answer_again(
    reader: JobReader, base: Run, checkpoint_id: str, expert: Expert, given: Given
) -> Callable[[Driver], RunSession]:
    """Return the function that starts a Run where `base` asked, with another answer; both are written together.

    Raises UsageError if nothing was asked there, if a delegate asked, or if the answer does not fit.
    """
    answer = read_job_answer(await _question_at(reader, base, checkpoint_id), given.text)
    place = ContinuedFrom(run_id=base.id, checkpoint_id=event_id_of(base.id, base.head.seq), answers=True)

    def begin(driver: Driver) -> RunSession:
        session = driver.begin_run(expert, base.start.query, continued_from=place, base=base)
        driver.answered_by = given.by
        driver.record_answer(session, answer)
        return session

    return begin


async def _question_at(reader: JobReader, base: Run, checkpoint_id: str) -> OpenQuestion:
    job_id = base.start.job_id
    if any(call.delegation is not None for call in base.open_calls):
        raise UsageError(
            f"a delegate was at work at {checkpoint_id}: only a question of a Coordinator can be answered again"
        )
    if base.asked is not None:
        for line in reversed(await reader.events(base.id, job_id=job_id, limit=base.head.seq)):
            match line.event:
                case CallInteractiveTool() as asked if asked.tool_call_id == base.asked:
                    return open_question(asked)
                case RequestApproval() as asked if asked.tool_call_id == base.asked:
                    return approval_question(asked)
                case _:
                    continue
    raise UsageError(f"nothing was asked at {checkpoint_id}", next_steps=(Inspect("questions", job_id),))
