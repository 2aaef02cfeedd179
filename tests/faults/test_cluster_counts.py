"""What the proof of many machines would not miss."""

from __future__ import annotations

from cluster_counts import MINUTE, Counts, Totals, check_occurrences, check_totals, compare
from cluster_project import INPUT, KINDS, OUTPUT

from perstack.core.base.usage import Usage
from perstack.core.jobs.summary import JobSummary, RunSummary

NOW = 1_000 * MINUTE
WRITTEN = {"j-1-1": "aa", "j-1-2": "bb", "j-1-3": "cc"}


def compared(*told: tuple[str, str]) -> Counts:
    counts = Counts()
    compare(counts, [*told], WRITTEN, {"j-"})
    return counts


def test_what_was_told_as_written_is_there_as_it_was() -> None:
    counts = compared(("j-1-1", "aa"), ("j-1-2", "bb"), ("other-1-1", "xx"))
    assert counts.faults == {}
    assert (counts.told, counts.untold) == (2, 1)
    assert compared(("j-1-4", "dd")).lost_events == ["j-1-4"]
    assert compared(("j-1-2", "xx")).other_events == ["j-1-2"]
    assert compared(("j-1-2", "bb"), ("j-1-2", "bb")).other_events == ["j-1-2: told 2 times"]


def occurred(*minutes: int, begun: int = 0, took: int = MINUTE // 2) -> Counts:
    """Of one schedule, so many minutes before now."""
    jobs = {}
    for before in minutes:
        at = NOW - before * MINUTE
        started = at + 1_000 + begun
        jobs[at] = JobSummary(
            id=f"schedule-x-{before}",
            expert_key="timed",
            query="go",
            status="completed",
            lifecycle="completed",
            coordinator_run_id="x-1",
            started_at=started,
            finished_at=started + took,
        )
    counts = Counts()
    check_occurrences(counts, {"x": jobs}, NOW + 40_000)
    return counts


def test_each_occurrence_is_to_come_once_and_of_missed_ones_the_latest() -> None:
    assert occurred(3, 2, 1, 0).faults == {}
    assert occurred(3, 2, 0).wrong_occurrences == [f"x did not occur at {NOW - MINUTE}"]
    assert occurred(3, 2, 1).wrong_occurrences == [f"x did not occur at {NOW}"]
    assert occurred().wrong_occurrences == ["x never occurred"]
    assert occurred(3, 2, 1, 0, begun=5 * MINUTE).wrong_occurrences == [
        "schedule-x-3 is not the latest of those that were missed"
    ]
    passed = occurred(3, 2, 0, took=MINUTE)
    assert (passed.faults, passed.passed_over) == ({}, 1)


DUE = KINDS["boss"].steps
"""Steps of the Expert `boss` and its delegates, as its script has them."""


def totals(*, steps: int = DUE, summary: int = DUE, appends: int = 4, poisoned: int = 0) -> list[str]:
    """Return the wrong totals of a Job of `boss` whose events have `steps`, and whose summary says `summary`."""
    usage = Usage(input_tokens=steps * INPUT, output_tokens=steps * OUTPUT)
    run = RunSummary(id="j-1", expert_key="boss", status="completed", steps=summary, usage=usage)
    job = JobSummary(
        id="j", expert_key="boss", query="go", status="completed", lifecycle="completed", coordinator_run_id="j-1",
        started_at=0, finished_at=1, total_steps=summary, usage=usage, runs=(run,),
    )  # fmt: skip
    counts = Counts()
    found = Totals(steps, steps * (INPUT + OUTPUT), appends)
    check_totals(counts, job, found, poisoned=poisoned, errors=[])
    return counts.wrong_totals


def test_totals_are_those_of_the_script_unless_a_delegate_was_stopped_as_poison() -> None:
    assert totals() == []
    assert totals(steps=DUE - 1)
    assert totals(summary=DUE - 1)
    assert totals(appends=3)
    assert totals(steps=DUE - 1, summary=DUE - 1)
    assert totals(steps=DUE - 1, summary=DUE - 1, appends=3, poisoned=1) == []
    assert totals(steps=DUE - 2, summary=DUE - 1, appends=3, poisoned=1) == [], "a step that had no reply yet"
    assert totals(steps=DUE, summary=DUE - 1, poisoned=1), "the events and the summary still have to agree"
    assert totals(steps=DUE + 1, summary=DUE + 1, poisoned=1), "no call may be made twice"
