"""What a series of iterations does next, and how its log folds into its state."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perstack.core.base.usage import Usage
from perstack.core.definitions.experts import Iterate
from perstack.errors import UsageError
from perstack.iterations.evolve import begin_series, check_resumable, evolve_series, summary_of_series
from perstack.iterations.next_step import BeginIteration, Evaluate, Finish, RunExpert, expert_query, pending_series
from perstack.iterations.state import (
    Case,
    FailSeries,
    FinishArtefact,
    FinishIteration,
    FinishSeries,
    PauseSeries,
    ResumeSeries,
    SeriesState,
    StartIteration,
    StartSeries,
    StoredSeriesEvent,
    is_better_score,
    is_target_reached,
    measurement_in,
    measurement_of,
    parse_series_event,
)

NAMES = ("a", "b", "c")
METRICS = ("x", "y")
ID = "it"

measures = st.fixed_dictionaries({name: st.integers(-5, 5).map(float) for name in METRICS})
cases = st.dictionaries(st.sampled_from(NAMES), st.booleans()).map(
    lambda found: tuple(Case(name=name, passed=passed) for name, passed in found.items())
)
choices = st.builds(
    Iterate,
    evaluator=st.just("check"),
    target=st.none() | st.integers(-5, 5).map(float),
    max_iterations=st.integers(1, 6),
    metric=st.sampled_from(["x", METRICS]),
    direction=st.sampled_from(["higher", "lower"]),
    accumulate=st.booleans(),
)


@dataclass
class Drive:
    """A driver without effects, which stops wherever it is told to; and a model of what was measured."""

    iterate: Iterate
    events: list[StoredSeriesEvent] = field(default_factory=list)
    states: list[SeriesState] = field(default_factory=list)
    measured: list[tuple[float, tuple[Case, ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.note(StartSeries(expert_key="solo", query="do it", iterate=self.iterate, **self.stamp))

    @property
    def stamp(self) -> dict:
        return {"series_id": ID, "timestamp": 1000 + len(self.events)}

    @property
    def state(self) -> SeriesState:
        return self.states[-1]

    def note(self, event: StoredSeriesEvent) -> None:
        self.states.append(evolve_series(self.state, event) if self.states else begin_series(event))
        self.events.append(event)

    def step(self, metrics: dict[str, float], found: tuple[Case, ...]) -> None:
        match pending_series(self.state):
            case BeginIteration(number):
                self.note(StartIteration(number=number, job_id=f"{ID}-i{number}", **self.stamp))
            case RunExpert(number):
                usage = Usage.of(10, 1)
                made = FinishArtefact(number=number, artefact=f"made {number}", duration=7, usage=usage, **self.stamp)
                self.note(made)
            case Evaluate(number, artefact):
                assert artefact == f"made {number}"
                worst = (min if self.iterate.direction == "higher" else max)(
                    metrics[name] for name in (METRICS if self.iterate.metric == METRICS else ("x",))
                )
                self.measured.append((worst, found))
                self.note(FinishIteration(number=number, metrics=metrics, cases=found, duration=3, **self.stamp))
            case Finish(reason):
                self.note(FinishSeries(reason=reason, **self.stamp))
            case None:
                raise AssertionError("nothing was to be done")

    def stop(self, kind: int) -> None:
        """Something comes between, and then it goes on."""
        in_hand = self.state.current_iteration
        if kind == 1:
            self.note(PauseSeries(reason="checkpoint", message="interrupted", **self.stamp))
        elif kind == 2:
            answered = in_hand is not None and in_hand.artefact is not None
            self.note(FailSeries(error="broke", invalid_answer=answered, **self.stamp))
        else:
            return
        assert pending_series(self.state) is None
        check_resumable(self.state, 0, None)
        self.note(ResumeSeries(**self.stamp))
        assert self.state.current_iteration == in_hand


@settings(deadline=None)
@given(choices, st.lists(st.tuples(st.integers(0, 4), measures, cases), min_size=30, max_size=40))
def test_whatever_comes_between_it_ends_with_the_best_of_what_was_measured(iterate: Iterate, script: list) -> None:
    drive = Drive(iterate)
    for kind, metrics, found in script:
        if drive.state.status == "completed":
            break
        drive.stop(kind)
        drive.step(metrics, found)
    end = drive.state
    assert end.status == "completed"
    scores = [score for score, _ in drive.measured]
    assert [one.score for one in end.done] == scores
    assert [one.job_id for one in end.iterations] == [f"{ID}-i{n}" for n in range(1, len(scores) + 1)]
    best = (max if iterate.direction == "higher" else min)(scores)
    assert end.best_iteration == scores.index(best) + 1
    reached = [is_target_reached(iterate, score) for score in scores]
    assert not any(reached[:-1])
    assert len(scores) == iterate.max_iterations or reached[-1]
    assert end.finish_reason == ("targetReached" if reached[-1] else "iterationsUsed")
    assert end.current_artefact == f"made {len(scores)}"
    assert summary_of_series(end).usage.total_tokens == 11 * len(scores)


@settings(deadline=None)
@given(choices, st.lists(st.tuples(st.integers(0, 4), measures, cases), min_size=5, max_size=40))
def test_a_log_read_back_folds_into_the_same_states(iterate: Iterate, script: list) -> None:
    drive = Drive(iterate)
    for kind, metrics, found in script:
        if drive.state.status == "completed":
            break
        drive.stop(kind)
        drive.step(metrics, found)
    state: SeriesState | None = None
    for event, expected in zip(drive.events, drive.states, strict=True):
        read = parse_series_event(event.to_json())
        assert read == event
        state = begin_series(read) if isinstance(read, StartSeries) else evolve_series(state, read)
        assert state == expected
        assert pending_series(state) == pending_series(expected)
        assert SeriesState.model_validate_json(state.to_json()) == state


@settings(deadline=None)
@given(st.lists(cases, min_size=1, max_size=6))
def test_a_regression_is_a_case_that_passed_when_it_was_reported_last(reported: list) -> None:
    drive = Drive(Iterate(evaluator="check", metric="x", max_iterations=len(reported)))
    known: dict[str, bool] = {}
    for found in reported:
        for _ in range(3):
            drive.step({"x": 1.0}, found)
        expected = {case.name for case in found if not case.passed and known.get(case.name)}
        assert set(drive.state.iterations[-1].regressions) == expected
        known |= {case.name: case.passed for case in found}


@given(choices, st.floats(-5, 5), st.floats(-5, 5))
def test_better_is_an_order_and_the_target_is_good_enough(iterate: Iterate, one: float, other: float) -> None:
    assert not is_better_score(iterate, one, one)
    assert is_better_score(iterate, one, other) + is_better_score(iterate, other, one) == (one != other)
    aim = iterate.model_copy(update={"target": other})
    assert is_target_reached(aim, one) == (not is_better_score(iterate, other, one))


def drive_to_end(iterate: Iterate, *scores: float) -> Drive:
    drive = Drive(iterate)
    for score in scores:
        for _ in range(3):
            drive.step({"x": score}, ())
    drive.step({}, ())
    return drive


def test_an_invalid_answer_has_the_name_in_the_log_that_it_always_had() -> None:
    line = b'{"type":"failSeries","id":"it-1","timestamp":1,"seriesId":"it","error":"broke","spoilt":true}'
    event = parse_series_event(line)
    assert isinstance(event, FailSeries)
    assert event.invalid_answer
    assert b'"spoilt":true' in event.to_json()
    assert b"nvalid" not in event.to_json()


def test_a_completed_series_goes_on_with_more_iterations_or_a_better_target_only() -> None:
    used = drive_to_end(Iterate(evaluator="check", metric="x", max_iterations=2, target=5), 1, 3)
    for more, target in ((0, None), (0, 4.0), (0, 2.0), (3, 3.0)):
        with pytest.raises(UsageError):
            check_resumable(used.state, more, target)
    check_resumable(used.state, 10, None)
    used.note(ResumeSeries(more=10, target=4, **used.stamp))
    assert (used.state.settings.max_iterations, used.state.settings.target) == (12, 4)
    assert pending_series(used.state) == BeginIteration(3)
    reached = drive_to_end(Iterate(evaluator="check", metric="x", max_iterations=9, target=3), 1, 3)
    with pytest.raises(UsageError, match="has reached its target, 3"):
        check_resumable(reached.state, 10, None)
    check_resumable(reached.state, 0, 4)


def test_thousands_of_failing_cases_are_counted_and_not_all_named() -> None:
    drive = Drive(Iterate(evaluator="check", metric="x"))
    many = tuple(Case(name=f"case {number}", passed=False) for number in range(5000))
    for _ in range(4):
        drive.step({"x": 0.0}, many)
    query = expert_query(drive.state)
    assert "case 99 and 4900 more" in query
    assert "case 100" not in query


@given(st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False)), st.text(), cases)
def test_an_answer_is_found_in_an_output_whole_in_its_last_line_or_between_braces(
    metrics: dict[str, float], analysis: str, found: tuple[Case, ...]
) -> None:
    answer = {"metrics": metrics, "analysis": analysis, "cases": [case.model_dump() for case in found]}
    wrapped: list[Callable[[str], str]] = [str, "noise\n{}\n".format, "So:\n```json\n{}\n```\n".format]
    for wrap in wrapped:
        measured = measurement_in(wrap(json.dumps(answer)))
        assert (measured.metrics, measured.analysis, measured.cases) == (metrics, analysis, found)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda one: st.lists(one)
    | st.dictionaries(st.sampled_from(["metrics", "analysis", "cases", "score", "name", "passed"]), one)))  # fmt: skip
def test_any_answer_is_a_measurement_or_told_to_be_none(answer: object) -> None:
    try:
        measured = measurement_of(answer)
    except ValueError:
        return
    assert all(isinstance(value, float) for value in measured.metrics.values())
