"""Schedules: what follows from a state, a time and the line; and no history in which an occurrence comes twice."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from fuzzing import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from perstack.core.base.records import IllegalEvent
from perstack.core.definitions.job_status import lifecycle_of
from perstack.core.definitions.project import Schedule
from perstack.core.jobs.due import NeedJob
from perstack.core.jobs.summary import JobSummary
from perstack.schedules.decide import AppendEvents, BeginJob, ContinueJob, ScheduleContext, latest_time, next_step
from perstack.schedules.schedule import (
    FinishOccurrence,
    ScheduleState,
    SetSchedule,
    SkipOccurrence,
    StartOccurrence,
    evolve_schedule,
    occurrence_job_id,
)

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR


@dataclass(frozen=True)
class Every:
    """Occurs at each multiple of a span."""

    span: int

    def next_after(self, moment: int) -> int | None:
        return (moment // self.span + 1) * self.span

    def stamp(self, moment: int) -> str:
        return f"{moment // MINUTE}"


HOURLY = Every(HOUR)


def schedule(overlap="skip", cron="0 * * * *") -> Schedule:
    return Schedule(name="s", cron=cron, expert="e", query="q", overlap=overlap)


def job(job_id: str, status="running", at: int = 0, **fields) -> JobSummary:
    return JobSummary(
        id=job_id,
        expert_key="e",
        query="q",
        status=status,
        lifecycle=lifecycle_of(status),
        updated_at=at,
        coordinator_run_id=f"{job_id}-1",
        **fields,
    )


@dataclass
class Scene:
    """A schedule, its Jobs, and a clock that is moved at will."""

    definition: Schedule
    times: Every = HOURLY
    state: ScheduleState | None = None
    jobs: dict[str, JobSummary] = field(default_factory=dict)
    resumes: bool = True
    started: list[int] = field(default_factory=list)
    did: list[tuple[str, int]] = field(default_factory=list)

    def look(self, now: int, begins: bool = True) -> str | None:
        """All that is due; what the last step was, if it was no record."""
        known = ScheduleContext(resumes=self.resumes)
        for _ in range(10):
            step = next_step(self.state, self.definition, self.times, known, now)
            match step:
                case None:
                    return None
                case NeedJob():
                    known = ScheduleContext({step.job_id: self.jobs.get(step.job_id)}, self.resumes)
                case AppendEvents():
                    for event in step.events:
                        self.state = evolve_schedule(self.state, event)
                    if step.did is not None:
                        self.did.append((step.did, step.at or 0))
                    if step.starts is not None:
                        assert step.starts not in self.jobs
                        self.started.append(step.at or 0)
                        if begins:
                            self.jobs[step.starts] = job(step.starts, at=now)
                        return "started"
                case BeginJob():
                    assert step.occurrence.job_id not in self.jobs
                    self.jobs[step.occurrence.job_id] = job(step.occurrence.job_id, at=now)
                    return "taken up"
                case ContinueJob():
                    return "continues"
        raise AssertionError("it does not come to an end")

    def end(self, now: int, status="completed", **fields) -> None:
        """The latest Job ends, or stops."""
        last = list(self.jobs)[-1]
        self.jobs[last] = job(last, status, now, **fields)


def first_seen(overlap="skip", now: int = 10 * MINUTE) -> Scene:
    """One that was seen for the first time at that moment."""
    scene = Scene(schedule(overlap))
    scene.look(now)
    return scene


def test_what_is_seen_for_the_first_time_makes_up_nothing_of_the_past() -> None:
    scene = Scene(schedule())
    assert scene.look(100 * DAY + MINUTE) is None
    assert scene.started == []
    scene.look(100 * DAY + HOUR)
    assert scene.started == [100 * DAY + HOUR]


def test_of_missed_ones_the_latest_is_made_up_once() -> None:
    scene = first_seen()
    scene.look(50 * HOUR + MINUTE)
    assert scene.started == [50 * HOUR]
    scene.end(50 * HOUR + 2 * MINUTE)
    scene.look(50 * HOUR + 3 * MINUTE)
    assert scene.started == [50 * HOUR]


def test_a_changed_line_counts_from_the_change() -> None:
    scene = first_seen()
    scene.definition, scene.times = schedule(cron="*/5 * * * *"), Every(5 * MINUTE)
    scene.look(59 * MINUTE)
    assert scene.started == []
    scene.look(60 * MINUTE)
    assert scene.started == [HOUR]


def test_two_lines_at_once_as_while_workers_are_upgraded_write_no_end_of_events_and_start_none_twice() -> None:
    scene = first_seen()
    both = [(schedule(), HOURLY), (schedule(cron="*/30 * * * *"), Every(HOUR // 2))]
    for now in range(10 * MINUTE, 5 * HOUR, MINUTE):
        for scene.definition, scene.times in both:
            if scene.look(now) == "started":
                scene.end(now)
    assert scene.started == [half * HOUR // 2 for half in range(1, 10)]
    assert scene.state is not None
    assert scene.state.version == 2 + 2 * len(scene.started)


def test_while_a_job_is_at_work_what_is_due_is_skipped() -> None:
    scene = first_seen()
    scene.look(HOUR)
    scene.look(2 * HOUR)
    scene.look(3 * HOUR + MINUTE)
    scene.end(3 * HOUR + 2 * MINUTE)
    scene.look(3 * HOUR + 3 * MINUTE)
    scene.look(4 * HOUR)
    assert scene.did == [("started", HOUR), ("skipped", 2 * HOUR), ("skipped", 3 * HOUR), ("started", 4 * HOUR)]


def test_what_was_due_while_it_worked_is_skipped_though_nobody_looked() -> None:
    scene = first_seen()
    scene.look(HOUR)
    scene.end(3 * HOUR + MINUTE)
    scene.look(3 * HOUR + 2 * MINUTE)
    assert scene.started == [HOUR]
    assert scene.state is not None
    assert scene.state.skipped == 3 * HOUR


def test_one_waits_in_a_queue_and_no_second() -> None:
    scene = first_seen("queue")
    scene.look(HOUR)
    scene.look(2 * HOUR)
    scene.look(3 * HOUR)
    scene.end(3 * HOUR + MINUTE)
    scene.look(3 * HOUR + 2 * MINUTE)
    assert scene.did == [("started", HOUR), ("queued", 2 * HOUR), ("skipped", 3 * HOUR), ("started", 2 * HOUR)]


@pytest.mark.parametrize("status", ["stoppedByError", "stoppedByMaxSteps", "stoppedByBudget"])
def test_a_job_that_nothing_continues_holds_nothing_up(status: str) -> None:
    scene = first_seen()
    scene.look(HOUR)
    scene.end(HOUR + MINUTE, status)
    scene.look(2 * HOUR)
    assert scene.started == [HOUR, 2 * HOUR]


def test_a_job_that_waits_for_a_person_holds_nothing_up() -> None:
    scene = first_seen()
    scene.look(HOUR)
    scene.end(HOUR + MINUTE, "stoppedByInteractiveTool")
    scene.look(HOUR + 2 * MINUTE)
    scene.look(2 * HOUR)
    assert scene.started == [HOUR, 2 * HOUR]


def test_a_job_that_waits_for_its_providers_rate_is_at_work() -> None:
    scene = first_seen()
    scene.look(HOUR)
    scene.end(HOUR + MINUTE, "stoppedByInterrupt", pause_reason="rate_limit")
    scene.look(2 * HOUR)
    assert scene.did[-1] == ("skipped", 2 * HOUR)


def test_an_interrupted_job_continues_or_is_left_to_a_person_where_others_take_over() -> None:
    scene = first_seen()
    scene.look(HOUR)
    scene.end(HOUR + MINUTE, "stoppedByInterrupt")
    assert scene.look(HOUR + 2 * MINUTE) == "continues"
    scene.resumes = False
    assert scene.look(HOUR + 2 * MINUTE) is None
    scene.look(2 * HOUR)
    assert scene.started == [HOUR, 2 * HOUR]


def test_a_job_that_never_began_is_taken_up_under_the_same_id_after_half_a_minute() -> None:
    scene = first_seen()
    scene.look(HOUR, begins=False)
    assert scene.look(HOUR + 20_000) is None
    assert scene.look(HOUR + 31_000) == "taken up"
    assert list(scene.jobs) == [occurrence_job_id("s", "60")]


def test_a_job_that_was_seen_and_is_gone_was_deleted_and_does_not_run_again() -> None:
    scene = first_seen()
    scene.look(HOUR)
    scene.look(HOUR + 10_000)
    scene.jobs.clear()
    assert scene.look(HOUR + MINUTE) is None
    assert scene.state is not None
    assert scene.state.last is not None
    assert scene.state.last.outcome == "deleted"


def test_a_clock_that_was_ahead_for_days_starts_one_and_that_only_once() -> None:
    scene = first_seen()
    scene.look(10 * DAY)
    scene.end(10 * DAY)
    for now in range(2 * HOUR, 10 * DAY + 1, HOUR):
        scene.look(now)
    assert scene.started == [10 * DAY]
    scene.look(10 * DAY + HOUR)
    assert scene.started == [10 * DAY, 10 * DAY + HOUR]


def test_a_line_that_is_changed_while_the_clock_is_back_brings_nothing_back() -> None:
    scene = first_seen()
    scene.look(HOUR)
    scene.definition = schedule(cron="*/30 * * * *")
    scene.look(HOUR - 1)
    scene.end(HOUR)
    scene.look(HOUR + MINUTE)
    assert scene.started == [HOUR]


@given(st.integers(1, 200), st.integers(0, 10**9), st.integers(0, 10**9))
def test_the_latest_is_found_as_by_looking_at_each(minutes: int, after: int, span: int) -> None:
    times, until = Every(minutes * MINUTE), after + span
    last = until // times.span * times.span
    assert latest_time(times, after, until) == (last if last > after else None)


@settings(max_examples=scaled(200), deadline=None)
@given(
    st.sampled_from(["skip", "queue"]),
    st.booleans(),
    st.lists(
        st.tuples(
            st.sampled_from(["look", "die", "end", "error", "asks", "limit", "interrupt", "delete", "change"]),
            st.integers(-3 * DAY, 3 * DAY) | st.integers(0, 2 * HOUR),
        ),
        max_size=60,
    ),
)
def test_whatever_happens_no_occurrence_is_started_twice_and_no_two_are_at_work(overlap, resumes, happens) -> None:
    scene = Scene(schedule(overlap), resumes=resumes)
    now = 20 * DAY
    for what, moves in happens:
        now = max(0, now + moves)
        status = {"end": "completed", "error": "stoppedByError", "asks": "stoppedByInteractiveTool"}.get(what)
        if what == "change":
            scene.definition = schedule(overlap, cron=f"{len(scene.definition.cron)} * * * *")
        elif what == "delete" and scene.jobs:
            scene.jobs.popitem()
        elif what in ("limit", "interrupt") and scene.jobs:
            scene.end(now, "stoppedByInterrupt", pause_reason="rate_limit" if what == "limit" else None)
        elif status is not None and scene.jobs:
            scene.end(now, status)
        before = [one for one in scene.jobs.values() if one.status == "running"]
        did = scene.look(now, begins=what != "die")
        assert did not in ("started", "taken up") or not before
        assert len(set(scene.started)) == len(scene.started)


def folded(*events) -> ScheduleState | None:
    state = None
    for event in events:
        state = evolve_schedule(state, event)
    return state


SET = SetSchedule(schedule="s", timestamp=0, line="UTC 0 * * * *")
START = StartOccurrence(schedule="s", timestamp=HOUR, at=HOUR, job_id="schedule-s-60")
FINISH = FinishOccurrence(schedule="s", timestamp=HOUR, job_id="schedule-s-60", outcome="completed")


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ((START,), "the first event is not setSchedule"),
        ((SET, SET), "a second setSchedule"),
        ((SET, START.model_copy(update={"schedule": "t"})), "in the log of s"),
        ((SET, START.model_copy(update={"job_id": "payroll"})), "cannot be one of this schedule"),
        ((SET, START, FINISH, START), "decided before"),
        ((SET, FINISH), "cannot follow"),
        ((SET, START, FINISH.model_copy(update={"job_id": "schedule-s-61"})), "not the current one"),
        ((SET, SkipOccurrence(schedule="s", timestamp=0, at=HOUR, job_id="schedule-s-60")), "cannot follow"),
    ],
)
def test_a_fact_that_cannot_follow_is_refused(events, words: str) -> None:
    with pytest.raises(IllegalEvent, match=words):
        folded(*events)
