"""A refusal without a reason may mean that the request is too large: room is made once, and never without effect."""

from __future__ import annotations

import pytest
from hosts import Bench, Seen, expert, wait_for
from long_runs import is_summary

from perstack.core.messages.messages import estimated_tokens
from perstack.ports.provider import GenerationRequest
from perstack.testing.scripted import ScriptedProvider, TurnLike, fail, text, tool, turn

FILLING = "words that fill the context " * 60
MAX_MESSAGES = 12


def refusing(failure: TurnLike, *, summaries: bool = True, always: bool = False):
    """Return a model that works for 15 steps and refuses requests of more than `MAX_MESSAGES` messages."""
    has_refused = False

    def reply(request: GenerationRequest) -> TurnLike:
        nonlocal has_refused
        if is_summary(request):
            return text("Notes: it went on.") if summaries else failure
        if len(request.messages) > MAX_MESSAGES or (always and has_refused):
            has_refused = True
            return failure
        if request.step > 15:
            return text("done")
        return turn(tool("think", {"thought": f"thought {request.step}: {FILLING}"}), usage=(10, 400))

    return reply


REFUSALS = {
    "400": fail(400, "no", name="BadRequest", may_not_fit=True),
    "422": fail(422, "no", name="BadRequest", may_not_fit=True),
    "500": fail(500, "no", name="ServerError", may_not_fit=True, retry_after=0),
}


@pytest.mark.parametrize("status", REFUSALS)
def test_room_is_made_for_the_largest_request_so_far(bench: Bench, status: str) -> None:
    seen = Seen()
    host = bench.host(refusing(REFUSALS[status]), expert("a", max_retries=1))
    job = wait_for(host.run("a", "q", on_event=seen))
    assert job.status == "completed"
    retries = [retry for retry in seen.of("retry") if retry.overflow is not None]
    assert retries
    assert all(retry.error.message == "no" for retry in retries)
    assert seen.of("compactHistory")[0].model, "a model has summarised"
    assert wait_for(host.audit.replay(job.id)).findings == ()
    assert wait_for(host.audit.verify(job.id)).findings == ()


def test_a_server_that_fails_is_tried_again_before_anything_is_left_out(bench: Bench) -> None:
    seen, model = Seen(), refusing(REFUSALS["500"])
    wait_for(bench.host(model, expert("a", max_retries=2)).run("a", "q", on_event=seen))
    first = next(index for index, retry in enumerate(seen.of("retry")) if retry.overflow is not None)
    assert first == 2


@pytest.mark.parametrize("status", REFUSALS)
def test_room_is_made_once_and_then_the_endpoints_own_words_are_the_error(bench: Bench, status: str) -> None:
    seen = Seen()
    host = bench.host(refusing(REFUSALS[status], always=True), expert("a", max_retries=0))
    job = wait_for(host.run("a", "q", on_event=seen))
    assert job.status == "stoppedByError"
    assert [retry.overflow is not None for retry in seen.of("retry")] == [True]
    (error,) = seen.of("errorRun")
    assert (error.error.message, error.error.status_code) == ("no", int(status))
    assert wait_for(host.audit.replay(job.id)).findings == ()


def test_the_history_stays_whole_where_the_summary_fails_too(bench: Bench) -> None:
    seen, failure = Seen(), REFUSALS["500"]
    provider = ScriptedProvider(refusing(failure, summaries=False))
    host = bench.host(provider, expert("a", max_retries=0))
    job = wait_for(host.run("a", "q", on_event=seen))
    assert (job.status, job.error) == ("stoppedByError", "no")
    assert not seen.of("compactHistory"), "the endpoint is down: no outline may replace the history"
    assert wait_for(host.audit.replay(job.id)).findings == ()
    again = wait_for(bench.host(lambda request: text("done"), expert("a")).resume(job.id))
    assert again.status == "completed"


@pytest.mark.parametrize(
    "script",
    [[REFUSALS["400"]], [tool("think", {"thought": "short"}), REFUSALS["400"]]],
    ids=["at first", "in a short Run"],
)
def test_nothing_is_left_out_where_that_cannot_be_the_reason(bench: Bench, script: list[TurnLike]) -> None:
    seen = Seen()
    job = wait_for(bench.host(script, expert("a")).run("a", "q", on_event=seen))
    assert (job.status, job.error) == ("stoppedByError", "no")
    assert not seen.of("retry")


def test_a_long_first_query_is_never_left_out(bench: Bench) -> None:
    seen = Seen()
    job = wait_for(bench.host([REFUSALS["400"]], expert("a")).run("a", FILLING * 20, on_event=seen))
    assert (job.status, job.error) == ("stoppedByError", "no")
    assert not seen.of("retry")
    assert estimated_tokens(len(FILLING * 20)) > 10_000


def test_a_refusal_with_a_reason_leaves_nothing_out(bench: Bench) -> None:
    seen = Seen()
    model = refusing(fail(400, "tools.0 is wrong", name="BadRequest"))
    job = wait_for(bench.host(model, expert("a")).run("a", "q", on_event=seen))
    assert (job.status, job.error) == ("stoppedByError", "tools.0 is wrong")
    assert not seen.of("retry")


@pytest.mark.parametrize(
    "failure", [REFUSALS["400"], fail(413, "too large", name="ContextOverflow")], ids=["400", "413"]
)
def test_without_compaction_no_room_is_made(bench: Bench, failure: TurnLike) -> None:
    seen = Seen()
    job = wait_for(bench.host(refusing(failure), expert("a", compaction="off")).run("a", "q", on_event=seen))
    assert job.status == "stoppedByError"
    assert not seen.of("retry")
    assert not seen.of("compactHistory")


def test_an_overflow_without_compaction_says_that_this_is_why(bench: Bench) -> None:
    model = refusing(fail(413, "too large", name="ContextOverflow", retryable=False))
    job = wait_for(bench.host(model, expert("a", compaction="off")).run("a", "q"))
    assert "too large (`compaction` is off, so no room is made)" in (job.error or "")
