"""Failed generations and their retries."""

from __future__ import annotations

import time

import pytest
from hosts import Bench, Seen, crashing, expert, until_it_crashes, wait_for

from perstack.core.definitions.settings import Limits
from perstack.core.runs.retries_and_fallbacks import (
    GiveUp,
    PauseJob,
    RetryAfter,
    after_failure,
    attempt_timeout_s,
    delay_after_attempt_s,
)
from perstack.testing.crashing_storage import CrashPoint
from perstack.testing.scripted import ScriptedProvider, fail, text, tool, turn


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
    assert "give more time with `timeout`" in error.message


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
    assert delay_after_attempt_s(1, 0.5, 7.5) == 7.5
    assert delay_after_attempt_s(3, 0.9, 0.0) == 0.0
    delays = [delay_after_attempt_s(attempt, 0.0, None) for attempt in range(1, 10)]
    assert delays[:4] == [0.5, 1.0, 2.0, 4.0]
    assert delays[-1] == 60.0
    assert delay_after_attempt_s(1, 0.999, None) >= 0.25


@pytest.mark.parametrize(
    ("said", "reason", "name", "words"),
    [
        ("", "length", "OutputLimit", "maxTokens"),
        ("I will not.", "refusal", "Refusal", "the model declined to answer: I will not."),
    ],
)
def test_a_reply_that_was_cut_or_refused_is_no_completion(
    bench: Bench, said: str, reason: str, name: str, words: str
) -> None:
    seen = Seen()
    script = [tool("think", {"thought": "x"}), turn(text=said, finish_reason=reason, usage=(5, 2))]
    job = wait_for(bench.host(script, expert("a")).run("a", "q", on_event=seen))
    assert (job.status, job.text, job.total_steps) == ("stoppedByError", None, 2)
    error = seen.of("errorRun")[0].error
    assert error.name == name
    assert words in error.message
    assert job.usage.total_tokens == 7, "what it cost is counted"
    provider = ScriptedProvider([tool("think", {"thought": "x"}), text("well then", usage=(5, 1))])
    job = wait_for(bench.host(provider, expert("a")).resume(job.id))
    assert (job.status, job.text, job.total_steps, job.usage.total_tokens) == ("completed", "well then", 2, 13)
    assert len(provider.requests[0].messages) == 3, "the reply that was no use is not among the messages"
    assert wait_for(bench.host(script).audit.replay(job.id)).ok


def test_a_cut_reply_with_tool_calls_goes_on(bench: Bench) -> None:
    script = [turn(tool("think", {"thought": "x"}), finish_reason="length"), text("ok")]
    assert wait_for(bench.host(script, expert("a")).run("a", "q")).status == "completed"


def test_a_long_retry_after_pauses_the_job_rather_than_waiting_in_the_process(bench: Bench) -> None:
    script, seen = [fail(429, "come back tomorrow", retry_after=86_400)], Seen()
    job = wait_for(bench.host(script, expert("a")).run("a", "q", on_event=seen))
    assert (job.status, job.lifecycle, job.pause_reason) == ("stoppedByInterrupt", "paused", "rate_limit")
    assert job.resume_at is not None
    assert job.resume_at - seen.of("retry")[0].timestamp >= 86_400_000
    assert seen.of("retry")[0].error.message == "come back tomorrow"
    job = wait_for(bench.host([text("here again")], expert("a")).resume(job.id))
    assert (job.status, job.text, job.pause_reason, job.resume_at) == ("completed", "here again", None, None)


def test_a_job_whose_process_ends_after_its_pause_waits_for_no_limit_any_more(bench: Bench) -> None:
    job = wait_for(bench.host([fail(429, "come back tomorrow", retry_after=86_400)], expert("a")).run("a", "q"))
    with until_it_crashes():
        wait_for(bench.host([text("never")], expert("a"), wrap=crashing(CrashPoint("after", 1))).resume(job.id))
    host = bench.host([text("here again")], expert("a"))
    job = wait_for(host.job(job.id))
    assert (job.status, job.pause_reason, job.resume_at) == ("stoppedByInterrupt", "checkpoint", None)
    assert wait_for(host.resume(job.id)).text == "here again"


def test_a_delegates_long_pause_pauses_the_whole_job(bench: Bench) -> None:
    experts = (expert("boss", delegates=("worker",)), expert("worker"))
    script = {"[[boss]]": [tool("worker", {"query": "x"}), text("done")], "[[worker]]": [fail(429, retry_after=3600)]}
    job = wait_for(bench.host(script, *experts).run("boss", "q"))
    assert (job.status, job.pause_reason) == ("stoppedByInterrupt", "rate_limit")
    assert job.resume_at is not None
    script["[[worker]]"] = [text("worked")]
    assert wait_for(bench.host(script, *experts).resume(job.id)).text == "done"


def test_all_tries_together_have_a_deadline() -> None:
    limits = Limits(max_retries=100, retry_timeout=10_000)

    def decide(**facts):
        return after_failure(limits, **{"is_retryable": True, "retry_after_s": None, "jitter": 0.0, **facts})

    assert decide(attempt=1, spent_s=1.0) == RetryAfter(0.5)
    last = decide(attempt=4, spent_s=7.0)
    assert isinstance(last, GiveUp)
    assert "4 tries in 7 s" in last.reason
    assert isinstance(decide(attempt=1, spent_s=0.0, retry_after_s=11.0), GiveUp)
    assert decide(attempt=1, spent_s=0.0, retry_after_s=301.0) == PauseJob(301.0)
    assert decide(attempt=1, spent_s=0.0, is_retryable=False) == GiveUp()
    exhausted = decide(attempt=101, spent_s=8.0)
    assert exhausted == GiveUp("gave up after 101 tries in 8 s; raise `maxRetries` in perstack.toml to allow more")
    assert isinstance(decide(attempt=1, spent_s=10.0, retry_after_s=0.0), GiveUp), "no time is left for a try"


def test_a_try_may_take_what_is_left_of_all_tries_together() -> None:
    limits = Limits(timeout=3_000, retry_timeout=10_000)
    assert attempt_timeout_s(limits, 0.0) == (3.0, False)
    assert attempt_timeout_s(limits, 8.0) == (2.0, True)
    assert attempt_timeout_s(limits, 11.0) == (0.0, True)


def test_a_try_in_hand_ends_with_the_time_for_all_tries(bench: Bench) -> None:
    seen = Seen()
    script = [fail(503, "busy", retry_after=0), turn(text="never", delay_ms=60_000, repeat=True)]
    one = expert("a", retry_timeout=300)
    began = time.monotonic()
    job = wait_for(bench.host(script, one).run("a", "q", on_event=seen))
    assert time.monotonic() - began < 20, "not the minute that the model takes"
    assert job.status == "stoppedByError"
    error = seen.of("errorRun")[0].error
    assert error.name == "Timeout"
    assert "gave up after 2 tries" in error.message
    assert "`retryTimeout`" in error.message
    assert "`timeout`" not in error.message, "which was not what ended it"


def test_a_deadline_that_is_over_names_its_setting(bench: Bench) -> None:
    seen = Seen()
    one = expert("a", retry_timeout=10)
    job = wait_for(bench.host([fail(503, "busy", repeat=True)], one).run("a", "q", on_event=seen))
    assert job.status == "stoppedByError"
    assert "retryTimeout" in seen.of("errorRun")[0].error.message
