"""What perstack does by itself about a Job, recorded for each of its owners and each state that the Job can be in.

`PERSTACK_KEEP_SCREENS=1` writes decisions.txt anew; look at each change before it is committed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, cast, get_args

import pytest

from perstack.core.base.ids import By
from perstack.core.definitions.experts import Iterate
from perstack.core.definitions.job_status import JobStatus, PauseReason, lifecycle_of, pause_reason_of
from perstack.core.definitions.project import Schedule
from perstack.core.definitions.settings import Budget
from perstack.core.jobs.due import DUE, JobOwner, JobState, is_resumable, job_state
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.facts import Closed, Queued
from perstack.iterations import next_step as iterations
from perstack.iterations.evolve import summary_of_series
from perstack.iterations.state import SeriesState, SeriesStatus
from perstack.schedules import decide as schedules
from perstack.schedules.schedule import Occurrence, ScheduleState
from perstack.tasks import due_tasks as tasks
from perstack.tasks.state import TaskState
from perstack.workers.orders import Done, DriveOutcome, Requeue, after_drive, is_over, needs_no_worker

KEPT = Path(__file__).with_name("decisions.txt")
NOW = 1_000_000_000
MINUTE = 60_000
BY = By(user="ann")


@dataclass(frozen=True)
class Seen:
    """A Job as its owner sees it; None if it has no Run, and how long ago its owner decided to start it."""

    job: JobSummary | None
    since: int = 10

    def __str__(self) -> str:
        job = self.job
        if job is None:
            return f"none for {self.since} ms"
        limit = job.resume_at and ("limited" if job.resume_at > NOW else "limit over")
        limit = "limited without a time" if job.pause_reason == "rate_limit" and limit is None else limit
        parts = (limit or job.status, job.queued and "submitted", job.closed and "closed")
        return " ".join(part for part in parts if part)


def every_state() -> Iterator[Seen]:
    """Yield every state that a Job can be in. A completed Job cannot be closed, and one in a queue was submitted."""
    yield from (Seen(None, since) for since in (-40_000, 30_000, 30_001))
    for status, is_submitted, is_closed in product(get_args(JobStatus), (False, True), (False, True)):
        if (status == "completed" and is_closed) or (status == "queued" and not is_submitted):
            continue
        pauses: list[tuple[PauseReason | None, int | None]] = [(pause_reason_of(status), None)]
        if status == "stoppedByInterrupt":
            pauses += [("rate_limit", NOW + 1), ("rate_limit", NOW), ("rate_limit", None)]
        for reason, resume_at in pauses[:1] if is_closed else pauses:
            yield Seen(
                JobSummary(
                    id="j",
                    expert_key="e",
                    query="q",
                    coordinator_run_id="j-1",
                    status=status,
                    lifecycle=lifecycle_of(status),
                    pause_reason=None if is_closed else reason,
                    resume_at=resume_at,
                    closed=Closed(by=BY, at=NOW) if is_closed else None,
                    queued=Queued(since=1, by=BY) if is_submitted else None,
                    text="made" if status == "completed" else None,
                    error="broke" if status == "stoppedByError" else None,
                    exceeded="$1 are used" if status == "stoppedByBudget" else None,
                    exceeded_budget="maxCost" if status == "stoppedByBudget" else None,
                    budget=Budget(max_cost=1),
                    question="Which?" if status == "stoppedByInteractiveTool" else None,
                    updated_at=NOW - 5,
                )
            )


SEEN = tuple(every_state())


def events_in_words(events: Sequence[Any]) -> str:
    """Return the events with everything in them but the owner and the time."""
    without = {"type", "timestamp", "task_id", "schedule", "series_id"}
    found: list[str] = []
    for one in events:
        values = one.model_dump(exclude=without, exclude_defaults=True)
        found.append(f"{one.type}({', '.join(f'{name}={value}' for name, value in values.items())})")
    return ", ".join(found)


# Tasks.


def of_task(task: TaskState, known: tasks.TaskContext, step: tasks.Step | None) -> str:
    """Return a step of a task in words."""
    match step:
        case None:
            return "-"
        case tasks.ContinueTask():
            return f"continue {step.job_id}"
        case tasks.AppendTaskEvents():
            job = f"; with {step.job_id or 'a new Job'}" if step.needs_job(task, known) else ""
            return f"{step.did}: {events_in_words(step.events)}{job}"
        case _:
            return repr(step)


def task_decision(one: Seen, *, is_expert: bool = True, **fields: Any) -> str:
    """Return what is decided about a task with that Job."""
    task = TaskState(task_id="t", name="t", version=3, job_id="j", updated_at=NOW - one.since, **fields)
    known = tasks.TaskContext(is_expert, jobs={"j": one.job})
    return of_task(task, known, tasks.next_step(task, known, NOW))


def task_after_drive(one: Seen) -> str:
    """Return what is decided about a running task when its Job was driven."""
    task = TaskState(task_id="t", name="t", version=3, job_id="j", updated_at=NOW - 10, status="running")
    known = tasks.TaskContext(is_expert=True)
    return "-" if one.job is None else of_task(task, known, tasks.settle_task(task, one.job, NOW))


# Schedules.


class Once:
    """Occurs at one minute, and not again."""

    def __init__(self, at: int) -> None:
        self.at = at

    def next_after(self, moment: int) -> int | None:
        """Return the occurrence, if it is later."""
        return self.at if self.at > moment else None

    def stamp(self, moment: int) -> str:
        """Return a name for an occurrence."""
        return str(moment)


def of_schedule(step: schedules.Step | None) -> str:
    """Return a step of a schedule in words."""
    match step:
        case None:
            return "-"
        case schedules.BeginJob():
            return f"start {step.occurrence.job_id} again"
        case schedules.ContinueJob():
            return f"continue {step.occurrence.job_id}"
        case schedules.AppendEvents():
            starts = "" if step.starts is None else f"; starts {step.starts}"
            return f"{step.did}: {events_in_words(step.events)}{starts}"
        case _:
            return repr(step)


def schedule_decision(one: Seen, *, resumes: bool, begun: bool, overlap: Any = "skip", due: int = 0) -> str:
    """Return what is decided about a schedule with that Job; `due`: the time of its next occurrence."""
    schedule = Schedule(name="s", cron="0 * * * *", expert="e", query="q", overlap=overlap)
    current = Occurrence(at=1, job_id="j", decided_at=NOW - one.since, begun=begun)
    state = ScheduleState(name="s", version=3, lines={schedule.line: 5}, current=current, updated_at=1)
    known = schedules.ScheduleContext({"j": one.job}, resumes)
    return of_schedule(schedules.next_step(state, schedule, Once(due), known, NOW))


# Orders of workers, series of iterations, and Jobs of nobody.


def of_order(after: Done | Requeue) -> str:
    """Return the next state of an order in words."""
    if isinstance(after, Done):
        return "done"
    due = f"in {after.due - NOW} ms" if after.due else "at once"
    return f"queued again {due}{'' if after.refused is None else ', refused'}"


def order_decision(job: JobSummary | SeriesState | None, came: DriveOutcome) -> str:
    """Return what becomes of an order."""
    return of_order(after_drive(came, job, NOW, reason="why"))


def drives(one: Seen) -> str:
    """Return whether a worker drives a claimed Job."""
    return "-" if one.job is None or needs_no_worker(one.job) else "drive"


def iteration_decision(one: Seen) -> str:
    """Return what a resumed series does with its Job."""
    if one.job is None:
        return "start"
    return "continue" if is_resumable(one.job) else "settle"


def iteration_after_drive(one: Seen) -> str:
    """Return the event of a series for its Job that was driven."""
    if one.job is None:
        return "-"
    stamp = iterations.SeriesStamp(series_id="s", timestamp=NOW)
    event = iterations.stop_event(one.job, stamp, Budget(max_cost=1))
    return "-" if event is None else events_in_words((event,))


def other_job(one: Seen) -> str:
    """Return what a scheduler does about a Job that belongs to no task or series."""
    return "continue" if one.job is not None and DUE[job_state(one.job, NOW)]["other"] == "continue" else "-"


def all_series() -> Iterator[tuple[str, SeriesState]]:
    """Yield every state that a series can be in."""
    settings = Iterate(evaluator="check", metric="x", max_iterations=3)
    for status in get_args(SeriesStatus):
        pauses: list[tuple[PauseReason | None, JobStatus | None, int | None]] = [(None, None, None)]
        if status == "paused":
            pauses = [("rate_limit", "stoppedByInterrupt", at) for at in (NOW + 1, NOW, None)]
            pauses += [(pause_reason_of(one) or "checkpoint", one, None) for one in get_args(JobStatus)]
            pauses += [("checkpoint", None, None), ("human_approval", "stoppedByInteractiveTool", None)]
        for reason, job_status, resume_at in pauses:
            name = " ".join(str(one) for one in (status, reason, job_status, resume_at and resume_at - NOW) if one)
            yield (
                name,
                SeriesState(
                    id="s",
                    expert_key="e",
                    user_input="q",
                    settings=settings,
                    status=status,
                    pause_reason=reason,
                    job_status=job_status,
                    resume_at=resume_at,
                    started_at=1,
                    updated_at=1,
                ),
            )


def other_series(series: SeriesState) -> str:
    """Return what a scheduler does about a series that nobody drives."""
    summary = summary_of_series(series)
    return "continue" if summary.status == "paused" and is_over(summary, NOW) else "-"


OWNERS: dict[str, Callable[[Seen], str]] = {
    "running task": lambda one: task_decision(one, status="running"),
    "running task of another agent": lambda one: task_decision(one, status="running", is_expert=False),
    "task that paused for a rate limit": lambda one: task_decision(
        one, status="paused", pause_reason="rate_limit", resume_at=NOW
    ),
    "task after a drive": task_after_drive,
    "iteration": iteration_decision,
    "iteration after a drive": iteration_after_drive,
    "Job of nobody": other_job,
    "claimed order": drives,
    **{f"order, {came}": lambda one, came=came: order_decision(one.job, came) for came in get_args(DriveOutcome)},
    **{
        f"schedule{'' if resumes else ' of workers'}, Job {'' if begun else 'not '}seen before{when}": (
            lambda one, resumes=resumes, begun=begun, more=more: schedule_decision(
                one, resumes=resumes, begun=begun, **more
            )
        )
        for resumes, begun, (when, more) in product(
            (True, False),
            (True, False),
            [
                ("", {}),
                (", skips", {"due": NOW - 5 * MINUTE}),
                (", queues", {"due": NOW - 5 * MINUTE, "overlap": "queue"}),
            ],
        )
    },
}
SERIES: dict[str, Callable[[SeriesState], str]] = {
    "series of nobody": other_series,
    "claimed order of a series": lambda series: "-" if needs_no_worker(series) else "drive",
    **{
        f"order of a series, {came}": lambda one, came=came: order_decision(one, came)
        for came in get_args(DriveOutcome)
    },
}


def decision_lines(decisions: Iterator[tuple[str, str]]) -> list[str]:
    """Return one line for each decision, with the states in which it is taken."""
    found: dict[str, list[str]] = {}
    for state, decision in decisions:
        found.setdefault(decision, []).append(state)
    return [f"  {decision}  <-  {', '.join(states)}" for decision, states in found.items()]


def decisions() -> list[str]:
    """Return every decision about every state, by owner."""
    lines: list[str] = []
    for owner, decide in OWNERS.items():
        lines += [owner, *decision_lines((str(one), decide(one)) for one in SEEN)]
    for owner, about in SERIES.items():
        lines += [owner, *decision_lines((name, about(series)) for name, series in all_series())]
    return lines


def test_each_decision_about_a_job_is_the_one_that_was_recorded() -> None:
    found = decisions()
    if os.environ.get("PERSTACK_KEEP_SCREENS"):
        KEPT.write_text("\n".join(found) + "\n")
    assert found == KEPT.read_text().splitlines()


def test_the_states_are_told_apart() -> None:
    assert len({str(one) for one in SEEN}) == len(SEEN) >= 30


@pytest.mark.parametrize("state", get_args(JobState))
def test_each_cell_of_the_table_counts_but_those_that_no_owner_sees(
    monkeypatch: pytest.MonkeyPatch, state: JobState
) -> None:
    before, row = decisions(), DUE[state]
    for owner in get_args(JobOwner):
        found = False
        for other in ("wait", "continue", "finish", "fail"):
            monkeypatch.setitem(cast("dict[Any, Any]", DUE), state, {**row, owner: other})
            found = found or is_noticed(before)
        assert found is (row[owner] != "-"), owner


def is_noticed(before: list[str]) -> bool:
    """Return whether decisions have changed, or cannot be made."""
    try:
        return decisions() != before
    except (TypeError, ValueError, AttributeError):
        return True
