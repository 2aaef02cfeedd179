"""What all Runs know together of an endpoint: a pure function of what it has answered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perstack.core.definitions.models import ProviderLimits
from perstack.core.runs.retries_and_fallbacks import MAX_WAIT_S
from perstack.pacing.rate_limit import (
    CIRCUIT_OPEN_S,
    MAX_FAILURES,
    NO_LIMITS,
    CircuitOpen,
    Delay,
    Pace,
    StartNow,
    after_cancellation,
    after_failure,
    after_rate_limit,
    after_refusal,
    after_start,
    after_success,
    decide_start,
)


@given(per_minute=st.integers(1, 6_000), asked=st.lists(st.floats(0, 0.5), min_size=2, max_size=200))
def test_no_more_begin_than_a_minute_may_have_however_they_come(per_minute: int, asked: list[float]) -> None:
    limits = ProviderLimits(name="p", requests_per_minute=per_minute)
    pace, now, moments = Pace(), 0.0, []
    for wait in asked:
        now += wait
        match decide_start(pace, limits, now):
            case Delay(at=at):
                assert at is not None
                now = at
            case found:
                assert isinstance(found, StartNow)
        pace = after_success(after_start(pace, limits, now, 1), limits, 0)
        moments.append(now)
    for index, first in enumerate(moments):
        within = sum(moment - first < 60 for moment in moments[index:])
        assert within <= per_minute + 1


def test_tokens_are_estimated_first_and_then_what_the_reply_says() -> None:
    limits = ProviderLimits(name="p", tokens_per_minute=600)
    pace = after_start(Pace(), limits, 0.0, 100)
    assert decide_start(pace, limits, 0.0) == Delay(10.0, "tokensPerMinute")
    pace = after_success(pace, limits, 200)
    assert decide_start(pace, limits, 0.0) == Delay(30.0, "tokensPerMinute")
    assert decide_start(pace, limits, 30.0) == StartNow()


def test_only_so_many_are_under_way_and_one_that_ends_makes_room() -> None:
    limits = ProviderLimits(name="p", concurrency=2)
    pace = after_start(after_start(Pace(), limits, 0, 1), limits, 0, 1)
    assert decide_start(pace, limits, 0) == Delay(None, "concurrency")
    for ended in (
        after_success(pace, limits, 0),
        after_failure(pace, 0, "x"),
        after_refusal(pace),
        after_cancellation(pace),
        after_rate_limit(pace, 0, None),
    ):
        assert ended.running_count == 1
    assert decide_start(after_cancellation(pace), limits, 0) == StartNow()


def test_what_is_longer_than_a_run_would_wait_holds_nobody_else() -> None:
    pace = after_rate_limit(after_start(Pace(), NO_LIMITS, 0, 1), 0, MAX_WAIT_S + 1)
    assert decide_start(pace, NO_LIMITS, 0) == StartNow()
    assert decide_start(after_rate_limit(pace, 0, MAX_WAIT_S), NO_LIMITS, 0) == Delay(MAX_WAIT_S, "rateLimit")


def test_after_a_429_nobody_begins_before_the_time_is_over_and_then_as_many_as_were_not_refused() -> None:
    pace = Pace()
    for _ in range(5):
        pace = after_start(pace, NO_LIMITS, 0, 1)
    pace = after_rate_limit(after_rate_limit(pace, 0, 7), 0, 3)
    assert decide_start(pace, NO_LIMITS, 6.9) == Delay(7, "rateLimit")
    assert decide_start(pace, NO_LIMITS, 7) == Delay(None, "rateLimit"), (
        "three are under way, and three were not refused"
    )
    pace = after_success(pace, NO_LIMITS, 0)
    assert decide_start(pace, NO_LIMITS, 7) == StartNow()
    assert pace.max_concurrent == 3
    for _ in range(2):
        pace = after_success(after_start(pace, NO_LIMITS, 7, 1), NO_LIMITS, 0)
    assert pace.max_concurrent == 4, "one more for as many as went well"


def test_the_circuit_opens_after_failures_in_a_row_lets_one_try_and_closes_when_that_goes_well() -> None:
    pace = Pace()
    for number in range(MAX_FAILURES):
        assert decide_start(pace, NO_LIMITS, 0) == StartNow()
        pace = after_failure(after_start(pace, NO_LIMITS, 0, 1), 0, f"down {number}")
    assert decide_start(pace, NO_LIMITS, 0) == CircuitOpen(CIRCUIT_OPEN_S, MAX_FAILURES, f"down {MAX_FAILURES - 1}")
    assert decide_start(pace, NO_LIMITS, CIRCUIT_OPEN_S) == StartNow()
    trying = after_start(pace, NO_LIMITS, CIRCUIT_OPEN_S, 1)
    assert decide_start(trying, NO_LIMITS, CIRCUIT_OPEN_S) == Delay(None, "circuit")
    again = after_failure(trying, CIRCUIT_OPEN_S, "still down")
    assert decide_start(again, NO_LIMITS, CIRCUIT_OPEN_S) == CircuitOpen(CIRCUIT_OPEN_S, MAX_FAILURES + 1, "still down")
    assert decide_start(after_cancellation(trying), NO_LIMITS, CIRCUIT_OPEN_S) == StartNow(), "another may try"
    closed = after_success(trying, NO_LIMITS, 0)
    assert (closed.failures, closed.is_open, decide_start(closed, NO_LIMITS, CIRCUIT_OPEN_S)) == (0, False, StartNow())


def test_an_answer_of_any_kind_ends_a_row_of_failures() -> None:
    pace = Pace()
    for _ in range(MAX_FAILURES - 1):
        pace = after_failure(after_start(pace, NO_LIMITS, 0, 1), 0, "down")
    for answered in (after_refusal(pace), after_rate_limit(pace, 0, None), after_success(pace, NO_LIMITS, 0)):
        assert answered.failures == 0
