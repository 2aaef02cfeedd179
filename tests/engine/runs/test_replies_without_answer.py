"""A reply without an answer is a failed try, and one that was cut is continued once: neither is a result."""

from __future__ import annotations

import pytest
from hosts import Bench, Seen, crashing, expert, until_it_crashes, wait_for

from perstack.core.messages.messages import ExpertMessage, UserMessage, text_of
from perstack.testing.crashing_storage import CrashPoint
from perstack.testing.scripted import ScriptedProvider, Turn, TurnLike, text, tool, turn

USAGE = (5, 2)
EMPTY: dict[str, Turn] = {  # what came, and the reply
    "nothing": turn(usage=USAGE),
    "blanks": turn(text=" \n\t\u200b ", usage=USAGE),
    "4 characters of thinking": turn(thinking="Hmm.", usage=USAGE),
    "4 characters of thinking and blanks": turn(thinking="Hmm.", text="\n", usage=USAGE),
}
CUT = turn(text="The answer is fo", finish_reason="length", usage=USAGE)


@pytest.mark.parametrize("what", EMPTY)
@pytest.mark.parametrize("reason", ["stop", "other", "toolCalls"])
def test_a_reply_without_an_answer_is_tried_again(bench: Bench, what: str, reason: str) -> None:
    seen, provider = Seen(), ScriptedProvider(_first(EMPTY[what].model_copy(update={"finish_reason": reason})))
    host = bench.host(provider, expert("a"))
    job = wait_for(host.run("a", "q", on_event=seen))
    assert (job.status, job.text) == ("completed", "done")
    (retry,) = seen.of("retry")
    assert retry.error.name == "EmptyReply"
    assert f"wrote {what} and ended it (finish reason `{reason}`)" in retry.error.message
    first, second = provider.requests
    assert first.messages == second.messages, "the model sees nothing of it"
    assert job.usage.total_tokens == 14, "what it cost is counted"
    assert wait_for(host.audit.replay(job.id)).findings == ()
    assert wait_for(host.audit.verify(job.id)).findings == ()


@pytest.mark.parametrize("what", EMPTY)
def test_without_an_answer_at_any_try_the_run_fails_and_can_be_resumed(bench: Bench, what: str) -> None:
    seen = Seen()
    host = bench.host(lambda request: EMPTY[what], expert("a", max_retries=1))
    job = wait_for(host.run("a", "q", on_event=seen))
    assert (job.status, job.text) == ("stoppedByError", None)
    (error,) = seen.of("errorRun")
    assert error.error.name == "EmptyReply"
    assert f"wrote {what} " in error.error.message
    assert "gave up after 2 tries" in error.error.message
    assert job.usage.total_tokens == 14
    assert wait_for(host.audit.replay(job.id)).findings == ()
    again = wait_for(bench.host(lambda request: text("done"), expert("a")).resume(job.id))
    assert (again.status, again.text) == ("completed", "done")


def test_a_text_before_a_call_that_was_lost_is_no_answer(bench: Bench) -> None:
    seen, lost = Seen(), turn(text="I call the tool now.", finish_reason="toolCalls", usage=USAGE)
    host = bench.host(_first(lost), expert("a"))
    job = wait_for(host.run("a", "q", on_event=seen))
    assert (job.status, job.text, job.usage.total_tokens) == ("completed", "done", 14)
    assert "ends for a tool call" in seen.of("retry")[0].error.message
    assert wait_for(host.audit.replay(job.id)).findings == ()
    failed = wait_for(bench.host(lambda request: lost, expert("a", max_retries=0)).run("a", "q"))
    assert (failed.status, failed.text) == ("stoppedByError", None)


def test_a_reply_that_pauses_before_it_begins_is_tried_again(bench: Bench) -> None:
    seen = Seen()
    job = wait_for(
        bench.host(_first(turn(finish_reason="paused", usage=USAGE)), expert("a")).run("a", "q", on_event=seen)
    )
    assert (job.status, job.text) == ("completed", "done")
    assert seen.of("retry")[0].error.name == "EmptyReply"


def test_a_text_is_needed_once_the_model_has_said_that_it_is_done(bench: Bench) -> None:
    seen = Seen()
    host = bench.host(
        _then(tool("attemptCompletion"), turn(tool("think", {"thought": "x"}))), expert("a", max_retries=0)
    )
    job = wait_for(host.run("a", "q", on_event=seen))
    assert job.status == "stoppedByError"
    assert "the reply has no text: the model wrote calls, which were not asked for" in (job.error or "")


def test_another_model_takes_over_from_one_that_answers_nothing(bench: Bench) -> None:
    def reply(request) -> TurnLike:
        return turn() if request.model == "scripted" else text("from the other")

    host = bench.host(reply, expert("a", max_retries=0, model=("scripted", "scripted/other")))
    job = wait_for(host.run("a", "q"))
    assert (job.status, job.text) == ("completed", "from the other")


def test_an_empty_try_is_charged_once_with_a_budget(bench: Bench) -> None:
    host = bench.host(_first(turn(usage=(500, 200))), expert("a"), max_tokens=60_000)
    job = wait_for(host.run("a", "q"))
    assert (job.status, job.usage.total_tokens) == ("completed", 707)
    (state,) = wait_for(host.jobs.load(job.id)).runs.values()
    assert (state.spending.reserved, state.spending.assumed) == (None, None)


def test_a_cut_text_is_continued_and_the_parts_are_one_result(bench: Bench) -> None:
    seen, provider = Seen(), ScriptedProvider(_then(CUT, text("rty-two.", usage=USAGE)))
    host = bench.host(provider, expert("a"))
    job = wait_for(host.run("a", "q", on_event=seen))
    assert (job.status, job.text, job.usage.total_tokens) == ("completed", "The answer is forty-two.", 14)
    sent = provider.requests[1].messages
    assert isinstance(sent[-2], ExpertMessage)
    assert sent[-2].text == "The answer is fo"
    assert isinstance(sent[-1], UserMessage)
    assert "Continue where you stopped" in text_of(sent[-1].contents)
    assert seen.of("finishGeneration")[0].continuation == text_of(sent[-1].contents)
    assert wait_for(host.audit.replay(job.id)).findings == ()
    assert wait_for(host.audit.verify(job.id)).findings == ()


def test_a_text_that_is_cut_again_is_an_error_that_names_the_setting(bench: Bench) -> None:
    seen = Seen()
    host = bench.host(lambda request: CUT, expert("a"))
    job = wait_for(host.run("a", "q", on_event=seen))
    assert (job.status, job.text, len(seen.of("finishGeneration"))) == ("stoppedByError", None, 2)
    assert "`maxTokens`" in (job.error or "")
    assert wait_for(host.audit.replay(job.id)).findings == ()


def test_a_later_reply_is_continued_too_and_an_earlier_text_is_no_part_of_the_result(bench: Bench) -> None:
    script = _then(CUT, turn(tool("think", {"thought": "x"}), text="rty-two, I think."), CUT, text("rty-three."))
    job = wait_for(bench.host(script, expert("a")).run("a", "q"))
    assert (job.status, job.text) == ("completed", "The answer is forty-three.")


def test_a_typed_result_may_come_in_two_parts(bench: Bench) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    script = _then(turn(text='{"n": 4', finish_reason="length"), text("2}"))
    job = wait_for(bench.host(script, expert("a", output=schema)).run("a", "q"))
    assert (job.status, job.result) == ("completed", {"n": 42})


def test_killed_between_the_parts_the_job_goes_on_with_the_second(bench: Bench) -> None:
    def reply(request) -> TurnLike:
        return text("rty-two.") if isinstance(request.messages[-2:][0], ExpertMessage) else CUT

    for point in (CrashPoint("after", number) for number in range(2, 6)):
        job_id = f"killed-{point.append}"
        with until_it_crashes():
            wait_for(bench.host(reply, expert("a"), wrap=crashing(point)).run("a", "q", job_id=job_id))
        host = bench.host(reply, expert("a"))
        job = wait_for(host.job(job_id))
        job = job if job.status == "completed" else wait_for(host.resume(job_id))
        assert job.text == "The answer is forty-two."
        assert wait_for(host.audit.replay(job_id)).findings == ()


def _then(*replies: TurnLike):
    remaining = list(replies)
    return lambda request: remaining.pop(0)


def _first(reply: TurnLike):
    return _then(reply, text("done", usage=USAGE))
