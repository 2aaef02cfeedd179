"""What becomes of generations that fail."""

from __future__ import annotations

import pytest
from hosting import Bench, Seen, expert, wait_for

from perstack.core.retry import delay_before
from perstack.testing.scripted import fail, text, tool, turn


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_client_errors_are_not_retried_and_keep_status_and_message(bench: Bench, status: int) -> None:
    seen = Seen()
    job = wait_for(bench.host([fail(status, "their own words")], expert("a")).run("a", "q", on_event=seen))
    assert (job.status, job.lifecycle, job.error) == ("stoppedByError", "failed", "their own words")
    assert not seen.of("retry")
    error = seen.of("errorRun")[0].error
    assert (error.status_code, error.message, error.is_retryable) == (status, "their own words", False)


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503, 529, None])
def test_passing_errors_are_retried_and_the_run_goes_on(bench: Bench, status: int | None) -> None:
    seen = Seen()
    script = [fail(status, "later", retry_after=0, repeat=2), text("here", usage=(3, 1))]
    job = wait_for(bench.host(script, expert("a")).run("a", "q", on_event=seen))
    assert (job.status, job.total_steps, job.usage.total_tokens) == ("completed", 1, 4)
    assert [(event.attempt, event.error.status_code) for event in seen.of("retry")] == [(1, status), (2, status)]


def test_retries_end_at_max_retries_with_the_status_in_error_run(bench: Bench) -> None:
    seen = Seen()
    script = [fail(429, "slow down", retry_after=0, repeat=True)]
    job = wait_for(bench.host(script, expert("a"), max_retries=3).run("a", "q", on_event=seen))
    assert job.status == "stoppedByError"
    assert len(seen.of("retry")) == 3
    assert seen.of("errorRun")[0].error.status_code == 429


def test_a_generation_that_takes_too_long_is_a_timeout_that_says_so(bench: Bench) -> None:
    seen = Seen()
    script = [turn(text="never", delay_ms=60_000, repeat=True)]
    job = wait_for(bench.host(script, expert("a"), timeout=30, max_retries=0).run("a", "q", on_event=seen))
    assert job.status == "stoppedByError"
    error = seen.of("errorRun")[0].error
    assert (error.name, error.is_retryable) == ("Timeout", True)
    assert "30 ms" in error.message
    assert "--timeout" in error.message


def test_a_failed_job_is_resumed_in_the_same_step(bench: Bench) -> None:
    failing = [tool("todo", {"newTodos": ["x"]}), fail(401, "bad key")]
    job = wait_for(bench.host(failing, expert("a")).run("a", "q"))
    assert (job.status, job.total_steps) == ("stoppedByError", 2)
    seen = Seen()
    mended = [tool("todo", {"newTodos": ["x"]}), text("done")]
    job = wait_for(bench.host(mended, expert("a")).resume(job.id, on_event=seen))
    assert (job.status, job.total_steps, job.error) == ("completed", 2, None)
    assert seen.types()[:2] == ["resumeRun", "startGeneration"]
    assert seen.of("resumeRun")[0].reason == "error"


def test_retry_after_is_waited_in_full_and_backoff_grows_with_jitter() -> None:
    assert delay_before(1, 0.5, 7.5) == 7.5
    assert delay_before(3, 0.9, 0.0) == 0.0
    delays = [delay_before(attempt, 0.0, None) for attempt in range(1, 10)]
    assert delays[:4] == [0.5, 1.0, 2.0, 4.0]
    assert delays[-1] == 60.0
    assert delay_before(1, 0.999, None) >= 0.25
