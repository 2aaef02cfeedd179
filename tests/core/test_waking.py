"""What is to be done about a task without its agent: decided from facts, without a storage, a clock or a Job."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perstack.core.base.ids import By
from perstack.core.definitions.job_status import JobStatus, PauseReason, lifecycle_of
from perstack.core.jobs.due import NeedJob, is_resumable
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.facts import Closed
from perstack.tasks.due_tasks import (
    AppendTaskEvents,
    AskCommand,
    ContinueTask,
    PollResult,
    TaskContext,
    next_step,
    settle_task,
)
from perstack.tasks.events import FailTask, TaskConfig, WaitingFor
from perstack.tasks.evolve import evolve_task
from perstack.tasks.state import Dependency, TaskState, TaskStatus
from perstack.tasks.summaries import find_possibly_due, summary_of
from perstack.workers.orders import are_old, is_over

NOW = 1_000_000
PERSON = TaskContext(is_expert=False)
EXPERT = TaskContext(is_expert=True)
RUNNING = TaskState(task_id="t", name="t", status="running", version=2, job_id="j", updated_at=NOW - 10)


def paused(**fields) -> TaskState:
    return TaskState(task_id="t", name="t", status="paused", version=3, paused_at=NOW - 10, **fields)


def job(status: JobStatus, **fields) -> JobSummary:
    named = {"expert_key": "e", "query": "q", "coordinator_run_id": "j-1"}
    return JobSummary(id="j", lifecycle=lifecycle_of(status), status=status, **named, **fields)


def test_what_is_held_up_by_another_task_is_left_alone() -> None:
    held = Dependency(task_id="other", status="running")
    assert next_step(paused(answered=True, blocked_by=(held,)), PERSON, NOW) is None


def test_a_command_is_asked_before_a_task_that_waits_for_it_goes_on() -> None:
    task = paused(pause_reason="external_dependency", waiting_for=WaitingFor(command=("check",)))
    assert next_step(task, PERSON, NOW) == AskCommand(("check",))
    assert next_step(task, replace(PERSON, poll=PollResult(has_come=False)), NOW) is None
    step = next_step(task, replace(PERSON, poll=PollResult(has_come=True, value={"build": 7})), NOW)
    assert isinstance(step, AppendTaskEvents)
    assert [(one.type, one.timestamp) for one in step.events] == [("answerTask", NOW), ("resumeTask", NOW)]
    assert folded(task, step).input == {"build": 7}


def test_a_task_that_paused_for_a_rate_goes_on_with_its_job_only_if_that_paused_for_it_too() -> None:
    task = paused(pause_reason="rate_limit", resume_at=NOW, job_id="j")
    assert next_step(task, EXPERT, NOW) == NeedJob("j")
    for seen, goes_on in (
        (job("stoppedByInterrupt", pause_reason="rate_limit"), "j"),
        (job("stoppedByInterrupt"), None),
        (None, None),
    ):
        step = next_step(task, replace(EXPERT, jobs={"j": seen}), NOW)
        assert isinstance(step, AppendTaskEvents)
        assert step.job_id == goes_on
        assert step.needs_job(task, EXPERT)
        assert not step.needs_job(task, PERSON)


def test_a_job_that_never_began_is_replaced_after_half_a_minute_and_not_before() -> None:
    known = replace(EXPERT, jobs={"j": None})
    assert next_step(RUNNING, EXPERT, NOW) == NeedJob("j")
    assert next_step(RUNNING, known, RUNNING.updated_at + 30_000) is None
    assert next_step(RUNNING, known, RUNNING.updated_at + 30_001) == AppendTaskEvents((), "resumed")


def test_a_job_whose_process_died_goes_on_and_one_that_waits_for_a_rate_pauses_its_task() -> None:
    died = replace(EXPERT, jobs={"j": job("stoppedByInterrupt")})
    assert next_step(RUNNING, died, NOW) == ContinueTask("j")
    waits = replace(EXPERT, jobs={"j": job("stoppedByInterrupt", pause_reason="rate_limit", resume_at=NOW + 5)})
    step = next_step(RUNNING, waits, NOW)
    assert isinstance(step, AppendTaskEvents)
    after = folded(RUNNING, step)
    assert (after.status, after.pause_reason, after.resume_at) == ("paused", "rate_limit", NOW + 5)


@pytest.mark.parametrize(
    ("retried", "outcome", "works"), [(0, "retry", True), (1, "fail", False)], ids=["retried", "used up"]
)
def test_a_task_that_was_silent_for_too_long_fails_as_its_config_says(retried: int, outcome: str, works: bool) -> None:
    config = TaskConfig(timeout=10, on_failure="retry", max_retries=1)
    task = RUNNING.model_copy(update={"job_id": None, "config": config, "retry_count": retried})
    assert next_step(task, EXPERT, NOW - 1) is None
    step = next_step(task, EXPERT, NOW)
    assert isinstance(step, AppendTaskEvents)
    (event,) = step.events
    assert isinstance(event, FailTask)
    assert (event.outcome, event.error) == (outcome, "timed out: nothing was heard of it for 10 ms")
    assert step.needs_job(task, EXPERT) is works


def test_a_task_whose_job_was_closed_for_good_fails_and_no_new_job_takes_its_place() -> None:
    closed = Closed(by=By(user="ann"), at=NOW)
    waiting = paused(pause_reason="rate_limit", resume_at=NOW, job_id="j")
    for task in (RUNNING, waiting):
        known = replace(EXPERT, jobs={"j": job("stoppedByInterrupt", closed=closed)})
        step = next_step(task, known, NOW)
        assert isinstance(step, AppendTaskEvents)
        (event,) = step.events
        assert isinstance(event, FailTask)
        assert event.error == "Job j was closed for good by ann, python"


@pytest.mark.parametrize("status", get_args(JobStatus))
def test_what_a_jobs_end_means_for_its_task(status: JobStatus) -> None:
    step = settle_task(RUNNING, job(status, text="made", error="broke"), NOW)
    after = None if step is None else folded(RUNNING, step)
    ends = {
        "completed": "completed",
        "stoppedByError": "failed",
        "stoppedByMaxSteps": "paused",
        "stoppedByBudget": "paused",
    }
    expected = ends.get(status)
    assert (after and after.status) == expected
    assert settle_task(RUNNING.model_copy(update={"job_id": "another"}), job(status), NOW) is None
    assert is_resumable(job(status)) is (status not in ("completed", "stoppedByInteractiveTool"))


@settings(deadline=None)
@given(
    st.sampled_from(get_args(TaskStatus)),
    st.none() | st.sampled_from(get_args(PauseReason)),
    st.booleans(),
    st.booleans(),
    st.none() | st.integers(NOW - 2, NOW + 2),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, *get_args(JobStatus)]),
    st.sampled_from([TaskConfig(), TaskConfig(timeout=5), TaskConfig(timeout=5, on_failure="pause")]),
)
def test_whatever_is_decided_follows_and_what_is_in_no_list_has_nothing_due(
    status, reason, answered, polls, resume_at, has_job, is_expert, of_job, config
) -> None:
    task = TaskState(
        task_id="t",
        name="t",
        status=status,
        version=3,
        pause_reason=reason,
        answered=answered,
        waiting_for=WaitingFor(command=("check",)) if polls else None,
        resume_at=resume_at,
        job_id="j" if has_job else None,
        config=config,
        updated_at=NOW - 4,
        paused_at=NOW - 4,
    )
    known, steps = TaskContext(is_expert), []
    while (step := next_step(task, known, NOW)) is not None:
        steps.append(step)
        assert len(steps) <= 3
        match step:
            case AskCommand():
                known = replace(known, poll=PollResult(has_come=True))
            case NeedJob():
                known = replace(known, jobs={step.job_id: None if of_job is None else job(of_job)})
            case _:
                break
    if isinstance(step, AppendTaskEvents):
        after = folded(task, step)
        assert step.needs_job(task, known) is (is_expert and after.status == "running")
    if steps:
        assert find_possibly_due([summary_of(task).model_dump(by_alias=True)], NOW)


def test_a_task_that_waits_for_another_is_not_looked_after_until_that_is_completed() -> None:
    waits = paused(pause_reason="external_dependency", depends_on=("other",))
    first = RUNNING.model_copy(update={"task_id": "other", "job_id": None})
    for status, looked_after in (("running", []), ("failed", []), ("completed", ["t"])):
        tasks = (waits, first.model_copy(update={"status": status}))
        rows = [summary_of(task).model_dump(by_alias=True) for task in tasks]
        assert [row["taskId"] for row in find_possibly_due(rows, NOW)] == looked_after


def test_a_pause_for_a_rate_is_over_at_its_moment_and_nobody_pauses_for_longer_than_a_week() -> None:
    waits = job("stoppedByInterrupt", pause_reason="rate_limit", resume_at=NOW)
    assert [is_over(waits, now) for now in (NOW - 1, NOW)] == [False, True]
    assert not is_over(job("stoppedByInterrupt"), NOW)
    week = 7 * 24 * 3_600_000
    written = [job("completed", updated_at=1), job("completed", updated_at=NOW), job("stoppedByError", updated_at=0)]
    assert [are_old(written, now) for now in (NOW + week, NOW + week + 1)] == [False, True]
    assert not are_old(written[2:], NOW + 2 * week)


def folded(task: TaskState, step: AppendTaskEvents) -> TaskState:
    for event in step.events:
        task = evolve_task(task, event)
    return task
