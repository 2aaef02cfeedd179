"""A part of the history is summarised when the context is nearly full: as an event, once, and counted."""

from __future__ import annotations

import json

import pytest
from hosts import Bench, Seen, crashing, expert, results, sampled, wait_for
from long_runs import SmallModel, is_summary, texts_in
from toolkit_experts import with_kit

from perstack.core.definitions.models import Price
from perstack.core.definitions.settings import Budget
from perstack.core.messages.messages import ExpertMessage, UserMessage, text_of
from perstack.core.runs.log_rows import EventContext
from perstack.errors import UsageError
from perstack.ports.provider import GenerationRequest
from perstack.testing.crashing_storage import Crash, CrashingStorage, crash_points
from perstack.testing.scripted import ScriptedProvider, TurnLike, fail, text, tool, turn
from perstack.toolkit import Toolkit

WINDOW = 8_000
FILLING = "words that fill the context " * 60


def working(count: int, last: TurnLike = "done"):
    """Return a script that has a todo from its first step, and writes long thoughts at each other one."""

    def reply(request: GenerationRequest) -> TurnLike:
        if request.step == 1:
            return turn(tool("todo", {"newTodos": ["the last thing"]}), usage=(0, 20))
        if request.step > count:
            return last
        return turn(tool("think", {"thought": f"thought {request.step}: {FILLING}"}), usage=(0, 400))

    return reply


def compactions(seen: Seen) -> list:
    return seen.of("compactHistory")


def check_sound(host, job_id: str) -> None:
    assert wait_for(host.audit.replay(job_id)).findings == ()
    assert wait_for(host.audit.verify(job_id)).findings == ()


def test_older_turns_become_a_summary_and_the_task_and_the_todos_stay(bench: Bench) -> None:
    seen, model = Seen(), SmallModel(working(40), WINDOW)
    provider = ScriptedProvider(model)
    host = bench.host(provider, expert("a", context_window=WINDOW))
    job = wait_for(host.run("a", "count the stars", on_event=seen))
    assert (job.status, model.refused) == ("completed", 0)
    assert 2 <= len(compactions(seen)) <= 12
    assert max(model.sent) <= WINDOW
    last = [request for request in provider.requests if not is_summary(request)][-1]
    assert "count the stars" in texts_in(last)
    assert "Notes: it went on." in texts_in(last)
    assert "the last thing" in texts_in(last)
    event = compactions(seen)[0]
    assert event.model == "scripted/scripted"
    assert event.tokens_after < event.tokens_before <= WINDOW
    asked = next(request for request in provider.requests if is_summary(request))
    assert "count the stars" in texts_in(asked)
    assert "thought 3" in texts_in(asked)
    check_sound(host, job.id)


def test_the_first_query_of_a_continued_job_is_not_summarised(bench: Bench) -> None:
    provider = ScriptedProvider(SmallModel(working(30), WINDOW))
    host = bench.host(provider, expert("a", context_window=WINDOW))
    wait_for(host.run("a", "the first wish", job_id="job"))
    wait_for(host.continue_job("a", "the second wish", job_id="job"))
    last = [request for request in provider.requests if not is_summary(request)][-1]
    queries = [text_of(message.contents) for message in last.messages if isinstance(message, UserMessage)]
    assert [query for query in queries if query in ("the first wish", "the second wish")] == [
        "the first wish",
        "the second wish",
    ]
    check_sound(host, "job")


def test_every_wish_of_a_person_is_in_the_last_request_word_for_word_after_many_compactions(bench: Bench) -> None:
    wishes = [f"wish {number}: never email {number}@example.org before I have seen it" for number in range(6)]

    def reply(request: GenerationRequest) -> TurnLike:
        if request.step % 10 == 2 and request.step < 60:
            return turn(tool("askUser", {"question": "Anything else?"}), usage=(0, 20))
        if request.step > 70:
            return "done"
        return turn(tool("think", {"thought": f"thought {request.step}: {FILLING}"}), usage=(0, 400))

    seen, provider = Seen(), ScriptedProvider(SmallModel(reply, WINDOW))
    host = bench.host(provider, expert("a", ask=True, context_window=WINDOW))
    job = wait_for(host.run("a", "count the stars", on_event=seen))
    for wish in wishes:
        job = wait_for(host.answer(wish, on_event=seen))
    assert job.status == "completed"
    assert len(compactions(seen)) >= 6
    last = texts_in([request for request in provider.requests if not is_summary(request)][-1])
    assert [last.count(wish) for wish in wishes] == [1] * len(wishes)
    assert [last.index(wish) for wish in wishes] == sorted(last.index(wish) for wish in wishes)
    check_sound(host, job.id)
    said = next(event for event in seen.of("finishToolCall") if event.by is not None)
    found = wait_for(host.audit.redact(said.id, ("contents",), reason="a private address"))
    assert {event.id for event in compactions(seen)[1:]} <= set(found.copies)


@pytest.mark.parametrize(("keep_recent", "steps_kept"), [(0.1, 1), (0.3, 3), (0.5, 6)])
def test_the_latest_turns_within_keep_recent_are_never_summarised(
    bench: Bench, keep_recent: float, steps_kept: int
) -> None:
    provider = ScriptedProvider(SmallModel(working(20), WINDOW))
    host = bench.host(provider, expert("a", context_window=WINDOW, keep_recent=keep_recent))
    wait_for(host.run("a", "q"))
    summarised = next(index for index, one in enumerate(provider.requests) if is_summary(one))
    after = provider.requests[summarised + 1]
    kept = [message for message in after.messages if isinstance(message, ExpertMessage)]
    assert len(kept) == steps_kept
    assert kept[-1].tool_calls[0].args["thought"].startswith(f"thought {after.step - 1}:")


def test_a_summary_is_counted_in_the_usage_of_its_step_and_its_job(bench: Bench) -> None:
    seen, model = Seen(), SmallModel(working(30), WINDOW)
    host = bench.host(model, expert("a", context_window=WINDOW))
    job = wait_for(host.run("a", "q", on_event=seen))
    sent = sum(model.sent) + sum(model.summaries)
    assert job.usage.input_tokens == sent
    assert sum(event.usage.input_tokens for event in seen.of("finishStep")) == sent
    assert sum(event.usage.input_tokens for event in compactions(seen)) == sum(model.summaries) > 0


def test_a_request_that_does_not_fit_teaches_the_window_and_is_sent_once_more(bench: Bench) -> None:
    seen, model = Seen(), SmallModel(working(40), WINDOW)
    host = bench.host(model, expert("a"))
    job = wait_for(host.run("a", "q", on_event=seen))
    assert job.status == "completed"
    assert model.refused == 1
    (retry,) = seen.of("retry")
    assert (retry.overflow, retry.error.name, retry.delay_ms) == (WINDOW, "ContextOverflow", 0)
    types = seen.types()
    place = types.index("retry")
    assert types[place : place + 4] == ["retry", "startCompaction", "compactHistory", "startGeneration"]
    assert len(compactions(seen)) >= 3
    check_sound(host, job.id)


def test_a_refusal_that_does_not_say_how_much_fits_teaches_what_was_sent(bench: Bench) -> None:
    seen, model = Seen(), SmallModel(working(40), WINDOW, tells=False)
    job = wait_for(bench.host(model, expert("a")).run("a", "q", on_event=seen))
    assert job.status == "completed"
    assert model.refused <= 2
    assert WINDOW // 2 < seen.of("retry")[0].overflow <= WINDOW * 1.2


def test_what_cannot_get_below_the_window_is_named(bench: Bench) -> None:
    seen, model = Seen(), SmallModel(working(40), WINDOW)
    host = bench.host(model, expert("a", context_window=WINDOW))
    job = wait_for(host.run("a", "long " * 20_000, on_event=seen))
    assert job.status == "stoppedByError"
    assert "the first query, about 33," in (job.error or "")
    assert "cannot be reduced to the 8,000 of the model" in (job.error or "")
    assert model.sent == []


def test_a_result_that_is_too_large_for_the_window_is_named(bench: Bench) -> None:
    def reply(request: GenerationRequest) -> TurnLike:
        return turn(tool("exec", {"command": "seq", "args": ["1", "9000"]}))

    seen, model = Seen(), SmallModel(reply, 3_000)
    job = wait_for(bench.host(model, expert("a", context_window=3_000)).run("a", "q", on_event=seen))
    assert job.status == "stoppedByError"
    assert "the latest result of exec" in (job.error or "")


def test_a_summary_that_cannot_be_had_becomes_an_outline_and_the_run_goes_on(bench: Bench) -> None:
    seen, model = Seen(), SmallModel(working(20), WINDOW, summary=lambda request: fail(400, "no", name="BadRequest"))
    provider = ScriptedProvider(model)
    job = wait_for(bench.host(provider, expert("a", context_window=WINDOW)).run("a", "q", on_event=seen))
    assert job.status == "completed"
    first = compactions(seen)[0]
    assert (first.model, first.error.name) == ("", "BadRequest")
    assert "Called think" in first.text
    assert max(model.sent) <= WINDOW


def test_another_expert_writes_the_summary_if_the_definition_says_so(bench: Bench) -> None:
    seen, model = Seen(), SmallModel(working(20), WINDOW)
    provider = ScriptedProvider(model)
    writer = expert("notes", instruction="Write notes in French.", model="smaller")
    own = expert("a", context_window=WINDOW, compaction={"expert": "notes"})
    job = wait_for(bench.host(provider, own, writer).run("a", "q", on_event=seen))
    assert job.status == "completed"
    asked = next(request for request in provider.requests if is_summary(request))
    assert (asked.instruction, asked.model, asked.expert_key) == ("Write notes in French.", "smaller", "notes")
    assert compactions(seen)[0].model == "scripted/smaller"


def test_a_delegate_is_compacted_as_its_coordinator_is(bench: Bench) -> None:
    def reply(request: GenerationRequest) -> TurnLike:
        if request.expert_key == "boss":
            return text("ok") if request.step > 1 else turn(tool("worker", {"query": "do it"}))
        return working(20)(request)

    seen, model = Seen(), SmallModel(reply, WINDOW)
    boss, worker = expert("boss", delegates=("worker",)), expert("worker")
    host = bench.host(
        model, boss.model_copy(update={"context_window": WINDOW}), worker.model_copy(update={"context_window": WINDOW})
    )
    job = wait_for(host.run("boss", "q", on_event=seen))
    assert job.status == "completed"
    assert {event.run_id for event in compactions(seen)} == {f"{job.id}-2"}
    assert job.usage.input_tokens == sum(model.sent) + sum(model.summaries)
    check_sound(host, job.id)


@pytest.mark.parametrize("cap", [90_000, 130_000])
def test_a_budget_holds_over_summaries_as_well(bench: Bench, cap: int) -> None:
    seen, model = Seen(), SmallModel(working(400), WINDOW)
    host = bench.host(model, expert("a", context_window=WINDOW, budget=Budget(max_tokens=cap)))
    job = wait_for(host.run("a", "q", on_event=seen))
    assert job.status == "stoppedByBudget"
    assert compactions(seen)
    assert cap * 0.5 <= job.usage.total_tokens <= cap
    assert all(event.reserved is not None for event in seen.of("startCompaction"))


def test_a_summary_costs_what_its_model_costs(bench: Bench) -> None:
    seen, model = Seen(), SmallModel(working(20), WINDOW)
    host = bench.host(
        model, expert("a", context_window=WINDOW), prices=(Price(name="scripted/scripted", input=1, output=10),)
    )
    wait_for(host.run("a", "q", on_event=seen))
    assert all(event.usage.cost_usd > 0 for event in compactions(seen))


class Watching(CrashingStorage):
    """A storage that notes which of its appends belong to a compaction."""

    def __init__(self, inner) -> None:
        super().__init__(inner)
        self.around: set[int] = set()

    async def append(self, run, expected_seq, records) -> None:
        await super().append(run, expected_seq, records)
        if any(b"ompact" in record[:30] or b"shrink" in record[:30] for record in records):
            self.around |= {self.appends - 1, self.appends, self.appends + 1}


@pytest.mark.sweep
def test_killed_at_any_write_around_it_each_compaction_is_done_once(bench: Bench) -> None:
    def host_of(model: SmallModel, wrap=None):
        return bench.host(model, expert("a", context_window=WINDOW), wrap=wrap, max_steps=0)

    watching: list[Watching] = []

    def watched(inner):
        watching.append(Watching(inner))
        return watching[0]

    seen = Seen()
    host = host_of(SmallModel(working(22), WINDOW), watched)
    wait_for(host.run("a", "q", job_id="j", on_event=seen))
    assert len(compactions(seen)) >= 2
    wait_for(host.jobs.delete("j"))
    points = [point for point in crash_points(watching[0].appends) if point.append in watching[0].around]
    assert len(points) >= 12
    for point in sampled(points):
        model = SmallModel(working(22), WINDOW)
        with pytest.raises(Crash):
            wait_for(host_of(model, crashing(point)).run("a", "q", job_id="j"))
        again = host_of(model)
        job = wait_for(again.resume("j"))
        assert job.status == "completed", point
        (log,) = wait_for(again.jobs.logs("j"))
        made = [line for line in log.lines if line.startswith(b'{"type":"compactHistory"')]
        assert len(made) == len(compactions(seen)), point
        check_sound(again, "j")
        wait_for(again.jobs.delete("j"))


# --- what was left out --------------------------------------------------------------------------------------------


def recalled(seen: Seen) -> list[dict]:
    return [one for text in results(seen, "recallHistory") for one in json.loads(text)["found"]]


def tools_of(request: GenerationRequest) -> set[str]:
    return {spec.name for spec in request.tools}


def test_what_was_left_out_is_found_and_read_by_a_tool_that_is_offered_then(bench: Bench) -> None:
    def reply(request: GenerationRequest) -> TurnLike:
        if request.step == 2:
            return turn(tool("think", {"thought": "the colour of the door is Viridian " + FILLING}))
        if request.step == 20:
            return turn(tool("recallHistory", {"text": "colour DOOR"}))
        if request.step == 21:
            return turn(tool("recallHistory", {"step": 3, "tool": "think"}))
        return working(21)(request)

    seen = Seen()
    provider = ScriptedProvider(SmallModel(reply, WINDOW))
    host = bench.host(provider, expert("a", context_window=WINDOW))
    job = wait_for(host.run("a", "q", on_event=seen))
    assert job.status == "completed"
    by_words, by_step = recalled(seen)[0], recalled(seen)[-1]
    assert (by_words["step"], by_words["what"]) == (2, "your call of think")
    assert "Viridian" in by_words["text"]
    assert by_step["step"] == 3
    own = [request for request in provider.requests if not is_summary(request)]
    first = compactions(seen)[0].step_number
    assert all(("recallHistory" in tools_of(one)) == (one.step >= first) for one in own)
    check_sound(host, job.id)


def test_the_answer_of_a_search_is_bounded(bench: Bench) -> None:
    def reply(request: GenerationRequest) -> TurnLike:
        return turn(tool("recallHistory", {"text": "words"})) if request.step == 30 else working(30)(request)

    seen = Seen()
    wait_for(bench.host(SmallModel(reply, WINDOW), expert("a", context_window=WINDOW)).run("a", "q", on_event=seen))
    (text_of_it,) = [
        event.contents[0].text for event in seen.of("finishToolCall") if event.tool_name == "recallHistory"
    ]
    assert len(json.loads(text_of_it)["found"]) == 10
    assert "offset 10" in json.loads(text_of_it)["more"]
    assert len(text_of_it) < 8_000


def test_a_note_that_is_pinned_stays_as_it_is(bench: Bench) -> None:
    def reply(request: GenerationRequest) -> TurnLike:
        return turn(tool("pin", {"note": "the key is 4711"})) if request.step == 2 else working(40)(request)

    seen = Seen()
    provider = ScriptedProvider(SmallModel(reply, WINDOW))
    host = bench.host(provider, expert("a", context_window=WINDOW, compaction="auto"))
    job = wait_for(host.run("a", "q", on_event=seen))
    assert job.status == "completed"
    assert len(compactions(seen)) >= 2
    last = [request for request in provider.requests if not is_summary(request)][-1]
    calls = [call for message in last.messages if message.type == "expertMessage" for call in message.tool_calls]
    assert [call.args for call in calls if call.tool_name == "pin"] == [{"note": "the key is 4711"}]
    check_sound(host, job.id)


def test_the_result_of_a_tool_that_is_pinned_stays_as_it_is(bench: Bench) -> None:
    kit = Toolkit("kit")

    @kit.tool(effect="readOnly", pin=True)
    async def plan() -> str:
        """Read the plan."""
        return "step one, step two " * 40

    def reply(request: GenerationRequest) -> TurnLike:
        return turn(tool("plan")) if request.step == 2 else working(40)(request)

    provider = ScriptedProvider(SmallModel(reply, WINDOW))
    own = with_kit().model_copy(update={"context_window": WINDOW, "keep_results": 1})
    host = bench.host(provider, own, plugins=(kit,))
    job = wait_for(host.run("a", "q"))
    assert job.status == "completed"
    last = [request for request in provider.requests if not is_summary(request)][-1]
    assert "step one, step two " * 40 in texts_in(last)


def test_a_branch_from_before_a_compaction_sees_all_again_and_leaves_nothing_out(bench: Bench) -> None:
    def reply(request: GenerationRequest) -> TurnLike:
        return working(14)(request)

    seen = Seen()
    host = bench.host(SmallModel(reply, WINDOW), expert("a", context_window=WINDOW))
    job = wait_for(host.run("a", "count the stars", on_event=seen))
    assert len(compactions(seen)) == 1
    more = Seen()
    provider = ScriptedProvider(SmallModel(lambda request: text("I see it all"), 100_000))
    again = bench.host(provider, expert("a", context_window=WINDOW))
    branched = wait_for(again.jobs.resume_before_compaction(job.id, on_event=more))
    assert (branched.status, branched.text) == ("completed", "I see it all")
    start = more.of("startRun")[0]
    assert start.limits.context.is_off
    assert start.continued_from.as_it_was
    assert "thought 2:" in str(list(provider.requests[0].messages))
    assert not more.of("compactHistory")
    check_sound(again, job.id)
    plain = bench.host([text("done")], expert("b"))
    other = wait_for(plain.run("b", "q"))
    with pytest.raises(UsageError, match="no compaction"):
        wait_for(plain.jobs.resume_before_compaction(other.id))


def test_a_run_that_is_continued_still_finds_what_was_left_out_before(bench: Bench) -> None:
    host = bench.host(SmallModel(working(14), WINDOW), expert("a", context_window=WINDOW))
    job = wait_for(host.run("a", "the word is Heliotrope"))

    def reply(request: GenerationRequest) -> TurnLike:
        return turn(tool("recallHistory", {"text": "heliotrope"})) if request.step == 1 else text("ok")

    seen = Seen()
    again = bench.host(SmallModel(reply, WINDOW), expert("a", context_window=WINDOW))
    wait_for(again.continue_job("a", "which word?", job_id=job.id, on_event=seen))
    assert recalled(seen)[0] == {"step": 1, "what": "query", "text": "the word is Heliotrope", "run": f"{job.id}-1"}
    check_sound(again, job.id)


def test_a_job_with_compactions_is_exported_in_the_originals_form(bench: Bench) -> None:
    host = bench.host(SmallModel(working(20), WINDOW), expert("a", context_window=WINDOW))
    job = wait_for(host.run("a", "q"))
    files = wait_for(host.exports.export("perstack", job.id))
    assert any("checkpoint" in name for name in files)


def test_a_text_told_during_the_run_is_sent_word_for_word_after_a_compaction_until_it_is_removed(bench: Bench) -> None:
    wish, query = "never email ann@example.org before I have seen it", "count the stars"

    def reply(request: GenerationRequest) -> TurnLike:
        if request.step in (2, 30):
            return turn(tool("askUser", {"question": "Anything else?"}), usage=(0, 20))
        if request.step > 50:
            return "done"
        return turn(tool("think", {"thought": f"thought {request.step}: {FILLING}"}), usage=(0, 400))

    seen, provider = Seen(), ScriptedProvider(SmallModel(reply, WINDOW))
    host = bench.host(provider, expert("a", ask=True, context_window=WINDOW))
    wait_for(host.run("a", query, job_id="job", on_event=seen))
    wait_for(host.tell("job", wish))
    wait_for(host.answer("no", job_id="job", on_event=seen))
    first = len(compactions(seen))
    assert first >= 2
    last = provider.requests[-1]
    assert texts_in(last).count(wish) == 1
    (told,) = seen.of("tellRun")
    assert told.id not in [at for event in compactions(seen) for at in event.kept]
    assert all(query in texts_in(request) for request in provider.requests)
    wait_for(host.texts.drop("job", told.id))
    asked = len(provider.requests)
    wait_for(host.answer("no", job_id="job", on_event=seen))
    after = [request for request in provider.requests[asked:] if not is_summary(request)]
    assert not any(wish in texts_in(request) for request in after)
    assert len(compactions(seen)) > first
    check_sound(host, "job")


def test_what_always_holds_is_in_the_instruction_and_is_sent_again_after_each_compaction(bench: Bench) -> None:
    seen, provider = Seen(), ScriptedProvider(SmallModel(working(40), WINDOW))
    rules = ("never send mail", "write\nin English")
    host = bench.host(provider, expert("a", context_window=WINDOW, standing=rules))
    wait_for(host.run("a", "count the stars", job_id="job", on_event=seen))
    assert len(compactions(seen)) >= 2
    requests = [request for request in provider.requests if not is_summary(request)]
    assert all("This always holds:\n- never send mail\n" in request.instruction for request in requests)
    assert "never send mail" not in texts_in(requests[0])
    assert texts_in(requests[-1]).count("\n- never send mail\n- write\n  in English") == 1
    first = wait_for(host.texts.standing_texts("job"))[0]
    assert (first.text, first.is_of_definition, first.id) == ("never send mail", True, "")
    check_sound(host, "job")


def test_texts_past_their_share_of_the_window_are_left_out_and_the_person_sees_it(bench: Bench) -> None:
    seen, provider = Seen(), ScriptedProvider(SmallModel(working(40), WINDOW))
    rules = tuple(f"rule {number}: {'x' * 1_000}" for number in range(6))
    host = bench.host(provider, expert("a", context_window=WINDOW, standing=rules))
    wait_for(host.run("a", "count the stars", on_event=seen))
    event = compactions(seen)[-1]
    assert event.left_out == 6 - sum(f"- rule {number}:" in event.text for number in range(6))
    assert 0 < event.left_out < 6
    rows = event.describe(EventContext({}, str))
    words = f"{event.left_out} texts of people, the oldest, no longer sent: they take too much room"
    assert ("warning", words) in [row[:2] for row in rows]
