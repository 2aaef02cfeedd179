"""Which Jobs are meant, and which of them may be removed."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from perstack.core.definitions.project import Retention
from perstack.core.jobs.job_choice import JobChoice
from perstack.core.jobs.removal import expired_jobs, removable_jobs
from perstack.core.jobs.summary import JobSummary

EVERY = JobChoice()


def job(job_id: str, at: int, status: str = "completed", expert: str = "writer", **more: Any) -> JobSummary:
    return JobSummary.model_validate(
        {
            "id": job_id,
            "expertKey": expert,
            "query": "go",
            "status": status,
            "lifecycle": "completed",
            "updatedAt": at,
            "coordinatorRunId": f"{job_id}-1",
            **more,
        }
    )


def ids(jobs: list[JobSummary]) -> list[str]:
    return [one.id for one in jobs]


def test_all_conditions_must_hold() -> None:
    jobs = [
        job("a", 1, "stoppedByError", labels={"team": "x"}),
        job("b", 2, labels={"team": "x"}),
        job("c", 3, "stoppedByError"),
        job("d", 9, "stoppedByError", labels={"team": "x"}),
        job("e", 1, "stoppedByError", "critic", labels={"team": "x"}),
    ]
    choice = JobChoice.of(["stoppedByError"], ["writer"], {"team": "x"}, before=9)
    assert ids(removable_jobs(jobs, choice)) == ["a"]
    assert [one.id for one in jobs if JobChoice.of(since=3).matches(one)] == ["c", "d"]


def test_the_newest_of_each_expert_are_kept_counted_among_all_its_jobs() -> None:
    jobs = [
        job("old", 1, "stoppedByError"),
        job("mid", 2, "stoppedByError"),
        job("new", 3),
        job("other", 1, expert="x"),
    ]
    assert ids(removable_jobs(jobs, EVERY, keep_last=1)) == ["mid", "old"]
    assert ids(removable_jobs(jobs, JobChoice.of(["stoppedByError"]), keep_last=2)) == ["old"]


def test_what_runs_is_damaged_or_waits_is_kept() -> None:
    waiting = job("waits", 1, "stoppedByInteractiveTool", question="Which?")
    jobs = [waiting, job("runs", 1, "running"), job("bad", 1, "stoppedByError", damaged=True)]
    assert removable_jobs(jobs, EVERY) == []
    assert removable_jobs(jobs, EVERY, include_waiting=True) == [waiting]


def test_what_is_not_retained_is_what_perstack_toml_says_and_nothing_if_it_says_nothing() -> None:
    day = 86_400_000
    jobs = [job("old", 1, "stoppedByError"), job("older", 0), job("new", 9 * day, "stoppedByError")]
    assert expired_jobs(jobs, Retention(), 10 * day) == []
    assert ids(expired_jobs(jobs, Retention(older_than="2d"), 10 * day)) == ["old", "older"]
    assert ids(expired_jobs(jobs, Retention(older_than="2d", status=("failed",)), 10 * day)) == ["old"]
    assert expired_jobs(jobs, Retention(keep_last=3, status=("failed",)), 10 * day) == []


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 9), st.sampled_from(["completed", "running"]))),
    st.integers(0, 4),
)
def test_as_many_of_each_expert_stay_as_are_to_be_kept(made: list[tuple[str, int, str]], keep: int) -> None:
    jobs = [job(str(number), at, status, expert) for number, (expert, at, status) in enumerate(made)]
    gone = {one.id for one in removable_jobs(jobs, EVERY, keep_last=keep)}
    for expert in "ab":
        own = [one for one in jobs if one.expert_key == expert]
        left = [one for one in own if one.id not in gone]
        assert len(left) >= min(keep, len(own))
        oldest = min((one.updated_at for one in left if one.status != "running"), default=10)
        assert all(one.updated_at <= oldest for one in own if one.id in gone)
