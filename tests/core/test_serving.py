"""What becomes of an order, decided from what came of its Job."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perstack.core.definitions.job_status import JobStatus, RunStatus, lifecycle_of
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.events.lifecycle import ResumeRun, StopRunByInterrupt
from perstack.workers.orders import (
    MAX_TAKEOVERS,
    Done,
    DriveOutcome,
    Requeue,
    after_delegate,
    after_drive,
    consecutive_takeovers,
    count_progress,
    drivers_in,
    ends_its_workers,
    retry_delay_ms,
)

NOW = 1_000_000
STAMP: dict[str, Any] = {
    "id": "j-1-1",
    "timestamp": NOW,
    "job_id": "j",
    "run_id": "j-1",
    "expert_key": "a",
    "step_number": 1,
    "checkpoint_id": "c",
}


def job(status: JobStatus, **fields: object) -> JobSummary:
    return JobSummary(
        id="j",
        expert_key="a",
        query="q",
        status=status,
        lifecycle=lifecycle_of(status),
        coordinator_run_id="j-1",
        **fields,
    )


@pytest.mark.parametrize(
    ("came", "status", "after"),
    [
        ("stopped", "completed", Done()),
        ("stopped", "stoppedByInteractiveTool", Done()),
        ("stopped", "stoppedByError", Done()),
        ("left", "stoppedByInterrupt", Requeue(0)),
        ("left", "completed", Done()),
        ("left", "stoppedByBudget", Done()),
        ("cancelled", "stoppedByInterrupt", Done()),
        ("busy", "running", Requeue(NOW + 1_000)),
        ("busy", "completed", Done()),
        ("unable", "running", Requeue(0, "no key")),
        ("unable", "completed", Done()),
        ("lost", "running", Done()),
    ],
)
def test_an_order_waits_again_only_where_somebody_is_to_drive_its_job(
    came: DriveOutcome, status: JobStatus, after: Done | Requeue
) -> None:
    assert after_drive(came, job(status), NOW, failed_tries=2, reason="no key") == after


def test_a_pause_for_the_providers_rate_is_over_when_it_says_so() -> None:
    paused = job("stoppedByInterrupt", pause_reason="rate_limit", resume_at=NOW + 60_000)
    for came in ("stopped", "left"):
        assert after_drive(came, paused, NOW) == Requeue(NOW + 60_000)


def test_what_cannot_be_read_waits_and_what_is_not_there_is_left_to_others() -> None:
    assert after_drive("unreachable", None, NOW) == Requeue(NOW + retry_delay_ms(0))
    for came in ("missing", "newer"):
        assert after_drive(came, None, NOW, reason="no such Job") == Requeue(0, "no such Job")
    for came in ("damaged", "deleted"):
        assert after_drive(came, None, NOW) == Done()


@given(st.sampled_from(get_args(DriveOutcome)), st.sampled_from(get_args(JobStatus)), st.integers(0, 10**6))
def test_a_job_that_needs_nobody_has_no_order(came: DriveOutcome, status: JobStatus, tries: int) -> None:
    after = after_drive(came, job(status), NOW, failed_tries=tries)
    if status in ("completed", "stoppedByInteractiveTool") and came not in ("unreachable", "missing", "newer"):
        assert after == Done()
    if isinstance(after, Requeue):
        assert after.due <= NOW + 4_000


def test_takeovers_count_only_without_work_between_them() -> None:
    begun = ["startRun", "resumeRun", "startGeneration"]
    before = count_progress(begun)
    assert count_progress([*begun, "resumeRun", "startGeneration", "retry", "stopRunByInterrupt"]) == before
    assert count_progress([*begun, "finishGeneration"]) == before + 1
    takeovers = 0
    for count in range(1, MAX_TAKEOVERS + 1):
        takeovers = consecutive_takeovers(takeovers, before, before)
        assert takeovers == count
    assert consecutive_takeovers(takeovers, before, before + 1) == 1


def test_who_drove_a_run_is_read_from_its_log_but_for_those_that_left_by_themselves() -> None:
    def resumption_by(worker: str) -> ResumeRun:
        return ResumeRun(**STAMP, reason="crash", worker=worker)

    left = StopRunByInterrupt(**STAMP)
    events = [
        resumption_by("w1"),
        left,
        resumption_by("w2"),
        resumption_by(""),
        resumption_by("w3"),
        left,
        resumption_by("w4"),
    ]
    assert drivers_in(events) == ("w2", "w4")


@pytest.mark.parametrize(
    ("takeovers", "drivers", "live", "ends"),
    [
        (2, ("a", "b", "c"), (), False),
        (3, ("a", "b", "c"), (), True),
        (3, ("a", "b", "c"), ("b", "x"), False),
        (4, ("a", "b", "c", "d"), ("b",), True),
        (3, ("a", "b", "b"), (), False),
        (3, ("old", "a", "b", "b"), (), False),
        (9, ("a",), ("a",), False),
        (10, ("a",), ("a",), True),
    ],
)
def test_a_job_answers_for_workers_that_have_ended_over_it(
    takeovers: int, drivers: tuple[str, ...], live: tuple[str, ...], ends: bool
) -> None:
    assert ends_its_workers(takeovers, drivers, live) is ends


@pytest.mark.parametrize(
    ("came", "status", "after"),
    [
        ("stopped", "completed", Done()),
        ("left", "queued", Requeue(0)),
        ("busy", "running", Requeue(NOW + retry_delay_ms(2))),
        ("unable", "queued", Requeue(0, "why")),
        ("deleted", None, Done()),
        ("missing", None, Requeue(0, "why")),
        ("unreachable", None, Requeue(NOW + retry_delay_ms(2))),
        ("newer", None, Requeue(0, "why")),
    ],
)
def test_an_order_for_a_delegate_waits_again_only_while_there_is_something_to_drive(
    came: DriveOutcome, status: RunStatus | None, after: Done | Requeue
) -> None:
    assert after_delegate(came, status, NOW, failed_tries=2, reason="why") == after
