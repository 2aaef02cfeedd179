"""Requests that an endpoint refuses because of one part: adapted, recorded, repeated, and remembered."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stderr

import pytest
from hosts import Bench, Seen, crashing, expert, sampled, until_it_crashes, wait_for
from long_runs import SmallModel, is_summary
from sampling_skill import SAMPLING, TURNS, Summing

from perstack.core.base.chain import Head
from perstack.core.base.records import IllegalEvent, blank
from perstack.core.definitions.tool_definitions import definition_digest
from perstack.core.messages.adaptations import (
    MAX_RUNGS,
    Adaptation,
    in_words,
    names_in,
    new_adaptations,
    offered_tools,
    problem_of,
)
from perstack.core.messages.messages import BlobPart, ExpertMessage, TextPart, ThinkingPart, ToolCallPart, UserMessage
from perstack.core.runs.events.generations import AdaptRequest
from perstack.core.runs.evolve import evolve
from perstack.core.runs.facts import ErrorInfo
from perstack.core.runs.state import begin
from perstack.doors.shared.activity import JobActivity
from perstack.errors import ProviderError, UsageError
from perstack.http_providers.adapted_messages import adapted_message, thoughts_of
from perstack.ports.provider import Delta, Generation, GenerationRequest
from perstack.testing.crashing_storage import crash_points
from perstack.testing.scripted import ScriptedProvider, ScriptLike, TurnLike, fail, text, tool, turn

FIELD = Adaptation(part="field", form="omitted", name="top_p")
TOOL = Adaptation(part="tool", form="omitted", name="todo")
WINDOW = 8_000
HEAD = Head(1, "0" * 64)
REFUSED = "top_p is not supported"


class Strict(ScriptedProvider):
    """An endpoint that refuses requests that lack one of these adaptations, one after the other."""

    def __init__(self, script: ScriptLike, *needed: Adaptation, name: str = "scripted") -> None:
        super().__init__(script)
        self.name = name
        self.needed = needed
        self.refused = 0

    async def generate(self, request: GenerationRequest, on_delta) -> Generation:
        if self.missing(request):
            self.requests.append(request)
            self.refused += 1
            raise ProviderError(REFUSED, name="BadRequest", status_code=400)
        return await super().generate(request, on_delta)

    def adapt(self, request: GenerationRequest, error: ProviderError) -> Sequence[Adaptation]:
        return self.missing(request)[:1]

    def missing(self, request: GenerationRequest) -> list[Adaptation]:
        known = {(item.part, item.form, item.name) for item in request.adaptations}
        return [item for item in self.needed if (item.part, item.form, item.name) not in known]


TWO_STEPS = [tool("todo", {"newTodos": []}), text("done")]


def test_a_refused_part_is_left_out_from_then_on_with_one_event(bench: Bench) -> None:
    provider, seen = Strict(TWO_STEPS, FIELD), Seen()
    job = wait_for(bench.host(provider, expert("a")).run("a", "q", on_event=seen))
    assert (job.status, job.text, provider.refused) == ("completed", "done", 1)
    assert seen.types()[:5] == ["startRun", "startGeneration", "adaptRequest", "startGeneration", "finishGeneration"]
    (adapted,) = seen.of("adaptRequest")
    assert (adapted.model, adapted.adaptations) == ("scripted/scripted", (FIELD,))
    assert adapted.error is not None
    assert adapted.error.message == REFUSED
    assert [request.adaptations for request in provider.requests] == [(), (FIELD,), (FIELD,)]
    digests = [event.request_digest for event in seen.of("startGeneration")]
    assert digests[0] != digests[1], "what is sent is proved with its adaptations"
    assert wait_for(bench.host(provider, expert("a")).audit.replay(job.id)).findings == ()
    assert wait_for(bench.host(provider, expert("a")).audit.verify(job.id)).findings == ()


def test_a_tool_that_is_left_out_is_not_offered_and_the_run_goes_on_without_any(bench: Bench) -> None:
    provider = Strict([text("done")], TOOL)
    job = wait_for(bench.host(provider, expert("a")).run("a", "q"))
    assert job.text == "done"
    names = [[spec.name for spec in request.tools] for request in provider.requests]
    assert "todo" in names[0]
    assert names[1] == [name for name in names[0] if name != "todo"]


def test_a_ladder_ends_with_the_endpoints_own_words(bench: Bench) -> None:
    endless = (Adaptation(part="field", form="omitted", name=f"f{number}") for number in range(99))
    provider, seen = Strict([text("never")], *endless), Seen()
    job = wait_for(bench.host(provider, expert("a")).run("a", "q", on_event=seen))
    assert (job.status, job.error) == ("stoppedByError", REFUSED)
    assert (len(seen.of("adaptRequest")), provider.refused) == (MAX_RUNGS, MAX_RUNGS + 1)


def test_a_fault_in_a_providers_search_does_not_replace_the_endpoints_words(bench: Bench) -> None:
    class Faulty(Strict):
        def adapt(self, request: GenerationRequest, error: ProviderError) -> Sequence[Adaptation]:
            raise RuntimeError("oh")

    errors = io.StringIO()
    with redirect_stderr(errors):
        job = wait_for(bench.host(Faulty([text("x")], FIELD), expert("a")).run("a", "q"))
    assert job.error == REFUSED
    assert "RuntimeError: oh" in errors.getvalue()


def test_what_another_model_refuses_does_not_hold_for_its_fallback(bench: Bench) -> None:
    busy = [fail(529, "busy", name="Overloaded", retry_after=0, repeat=True)]
    first, second = Strict(busy, FIELD, name="first"), Strict([text("b")], TOOL, name="second")
    seen = Seen()
    host = bench.host(
        first, expert("a", model=("first/a", "second/b")), plugins=(second,), provider=None, max_retries=0
    )
    job = wait_for(host.run("a", "q", on_event=seen))
    assert job.text == "b"
    todo = next(spec for spec in second.requests[0].tools if spec.name == "todo")
    assert [(event.model, event.adaptations) for event in seen.of("adaptRequest")] == [
        ("first/a", (FIELD,)),
        ("second/b", (TOOL.model_copy(update={"definition": definition_digest(todo)}),)),
    ]
    assert second.requests[0].adaptations == ()
    assert wait_for(host.audit.replay(job.id)).findings == ()


def test_a_delegate_and_a_continued_job_need_no_refusal_of_their_own(bench: Bench) -> None:
    script = {
        "[[a]]": [tool("b", {"query": "go"}), text("a done"), text("again")],
        "[[b]]": [text("b done")],
    }
    provider, seen = Strict(script, FIELD), Seen()
    experts = (expert("a", delegates=("b",)), expert("b"))
    host = bench.host(provider, *experts)
    job = wait_for(host.run("a", "q", on_event=seen))
    assert (job.text, provider.refused) == ("a done", 1)
    refused, learned = seen.of("adaptRequest")
    assert (refused.error is None, learned.error is None) == (False, True)
    assert learned.run_id != refused.run_id
    wait_for(bench.host(provider, *experts).continue_job("a", "more", job_id=job.id))
    assert provider.refused == 1
    assert wait_for(host.audit.replay(job.id)).findings == ()


@pytest.mark.sweep
@pytest.mark.parametrize("budget", [{}, {"max_tokens": 100_000}], ids=["no budget", "budget"])
def test_a_job_that_is_killed_anywhere_resumes_with_what_it_has_learned(bench: Bench, budget: dict[str, int]) -> None:
    for number, point in enumerate(sampled(crash_points(12))):
        provider, job_id = Strict(TWO_STEPS, FIELD), f"j{number}"
        dying = bench.host(provider, expert("a"), wrap=crashing(point), **budget)
        with until_it_crashes():
            wait_for(dying.run("a", "q", job_id=job_id))
        host = bench.host(provider, expert("a"), **budget)
        try:
            status = wait_for(host.job(job_id)).status
        except UsageError:
            continue  # nothing was begun
        if status != "completed":
            assert wait_for(host.resume(job_id)).text == "done"
        assert provider.refused <= 2, "a refusal is repeated only if the process died before it was recorded"
        assert wait_for(host.audit.replay(job_id)).findings == ()


def test_a_refused_try_is_not_charged(bench: Bench) -> None:
    seen = Seen()
    provider = Strict([text("done", usage=(10, 5))], FIELD)
    job = wait_for(bench.host(provider, expert("a"), max_tokens=50_000).run("a", "q", on_event=seen))
    assert job.usage.total_tokens == 15
    assert seen.of("adaptRequest")[0].uncharged
    assert job.assumed is None


class StrictSummaries(Strict):
    """An endpoint that refuses requests for summaries alone."""

    async def generate(self, request: GenerationRequest, on_delta) -> Generation:
        return await (super() if is_summary(request) else super(Strict, self)).generate(request, on_delta)


def test_a_summary_climbs_the_ladder_too_and_what_it_learns_holds_for_the_next(bench: Bench) -> None:
    def work(request: GenerationRequest) -> TurnLike:
        thought = f"thought {request.step}: {'word ' * 300}"
        return "done" if request.step > 30 else turn(tool("think", {"thought": thought}), usage=(0, 400))

    provider, seen = StrictSummaries(SmallModel(work, WINDOW), FIELD), Seen()
    host = bench.host(provider, expert("a", context_window=WINDOW))
    job = wait_for(host.run("a", "q", on_event=seen))
    assert (job.status, provider.refused, len(seen.of("adaptRequest"))) == ("completed", 1, 1)
    summaries = [event for event in seen.of("compactHistory") if event.model]
    assert len(summaries) > 1
    types = seen.types()
    place = types.index("adaptRequest")
    assert types[place - 1 : place + 2] == ["startCompaction", "adaptRequest", "startCompaction"]
    assert wait_for(host.audit.replay(job.id)).findings == ()
    assert wait_for(host.audit.verify(job.id)).findings == ()


class StrictSamples(Strict):
    """An endpoint that refuses what tools ask for alone."""

    async def generate(self, request: GenerationRequest, on_delta) -> Generation:
        return await (super() if request.purpose == "sample" else super(Strict, self)).generate(request, on_delta)


@pytest.mark.parametrize("budget", [{}, {"max_tokens": 60_000}], ids=["no budget", "budget"])
def test_what_a_tool_asks_for_climbs_the_ladder_and_holds_for_the_run(bench: Bench, budget: dict[str, int]) -> None:
    provider, seen = StrictSamples(TURNS, FIELD), Seen()
    host = bench.host(provider, SAMPLING, plugins=(Summing(),), **budget)
    job = wait_for(host.run("a", "q", on_event=seen))
    assert (job.status, job.text) == ("completed", "done")
    assert provider.refused in (1, 2), "two are asked for at once"
    (adapted,) = seen.of("adaptRequest")
    assert (adapted.adaptations, adapted.model, adapted.error.message) == ((FIELD,), "scripted/scripted", REFUSED)
    assert adapted.tool_call_id == seen.of("callTools")[0].calls[0].id
    assert provider.requests[-1].adaptations == (FIELD,), "the Run's own request knows it too"
    assert job.usage.total_tokens == 1_520
    assert wait_for(host.audit.replay(job.id)).findings == ()
    assert wait_for(host.audit.verify(job.id)).findings == ()


def test_what_was_streamed_before_a_refusal_is_void_and_a_person_sees_why(bench: Bench) -> None:
    class Late(Strict):
        async def generate(self, request: GenerationRequest, on_delta) -> Generation:
            if not request.adaptations:
                on_delta(Delta("text", "half a th"))
            return await super().generate(request, on_delta)

    seen, live, shown = Seen(), JobActivity(), []
    wait_for(bench.host(Late([text("whole")], FIELD), expert("a")).run("a", "q", on_event=seen))
    for event in seen.events:
        shown += [update.row for update in live.apply(event)]
        if event.type == "adaptRequest":
            assert not next(iter(live.lanes.values())).text
    row = "sends requests without the field top_p (scripted/scripted refused it): top_p is not supported"
    assert ("adapts", row) in [(row.word, row.text) for row in shown]


# The fold.


@pytest.mark.parametrize(
    "item",
    [
        Adaptation(part="field", form="omitted"),
        Adaptation(part="tool", form="replaced", name="x"),
        Adaptation(part="tool", form="plain"),
        Adaptation(part="media", form="omitted", name="x", text="t"),
        Adaptation(part="media", form="replaced", name="x"),
        Adaptation(part="thinking", form="plain"),
    ],
    ids=lambda item: f"{item.part} {item.form}",
)
def test_a_log_with_an_adaptation_that_nothing_can_send_is_not_driven(bench: Bench, item: Adaptation) -> None:
    seen = Seen()
    wait_for(bench.host(Strict([text("x")], FIELD), expert("a")).run("a", "q", on_event=seen))
    events = [event for event in seen.events if event.type in ("startRun", "startGeneration", "adaptRequest")]
    run = begin(events[0], HEAD)
    run = evolve(run, events[1], HEAD)
    good = events[2]
    assert evolve(run, good, HEAD).adaptations == (FIELD,)
    with pytest.raises(IllegalEvent, match="adaptRequest names"):
        evolve(run, good.model_copy(update={"adaptations": (item,)}), HEAD)
    with pytest.raises(IllegalEvent, match="adaptRequest names nothing"):
        evolve(run, good.model_copy(update={"adaptations": ()}), HEAD)
    with pytest.raises(IllegalEvent, match="repeats"):
        evolve(evolve(run, good, HEAD), good, HEAD)


def test_a_redaction_leaves_an_event_that_still_folds_and_the_images_are_the_events_media() -> None:
    blob = BlobPart(sha256="f" * 64, mime_type="image/png", size=3)
    told = Adaptation(part="media", form="replaced", name="e" * 64, text="[image removed: a secret]")
    event = AdaptRequest(
        id="e",
        timestamp=0,
        job_id="j",
        run_id="j-1",
        expert_key="a",
        step_number=1,
        model="p/m",
        adaptations=(told, Adaptation(part="media", form="replaced", name="d" * 64, blob=blob)),
        error=ErrorInfo(name="BadRequest", message="a secret"),
    )
    left = blank(event)
    assert "secret" not in left.model_dump_json()
    assert not any(map(problem_of, left.adaptations))
    assert event.media == (blob,), "what export keeps and a redaction deletes"


# Messages, tools and words.


def test_refused_thinking_and_signatures_are_left_out_and_later_ones_are_not() -> None:
    thought = ThinkingPart(thinking="hm", opaque={"anthropic": {"signature": "s"}})
    call = ToolCallPart(tool_call_id="1", tool_name="t", args={}, opaque={"google": {"signature": "s"}})
    said = TextPart(text="so")
    reply = ExpertMessage(contents=(thought, said, call))
    item = Adaptation(part="thinking", form="omitted", thoughts=thoughts_of([reply]))
    left = adapted_message(reply, (item,))
    assert left.contents == (said, call.model_copy(update={"opaque": None}))
    later = ExpertMessage(contents=(ThinkingPart(thinking="new"),))
    assert adapted_message(later, (item,)) == later
    assert thoughts_of([reply, later], (item,)) == thoughts_of([later])
    assert adapted_message(UserMessage(contents=(said,)), (item,)).contents == (said,)


def test_an_image_is_replaced_wherever_it_is() -> None:
    blob = BlobPart(sha256="f" * 64, mime_type="image/png", size=3)
    item = Adaptation(part="media", form="replaced", name="f" * 64, text="[gone]")
    assert adapted_message(UserMessage(contents=(blob,)), (item,)).contents == (TextPart(text="[gone]"),)


def test_no_adaptation_is_made_twice_and_none_of_what_is_left_out() -> None:
    plain = TOOL.model_copy(update={"form": "plain"})
    assert new_adaptations((), [plain, plain, TOOL]) == (plain, TOOL)
    assert new_adaptations((plain,), [plain, TOOL]) == (TOOL,)
    assert new_adaptations((TOOL,), [plain, TOOL]) == ()
    assert names_in((plain, TOOL), "tool", "plain") == frozenset()
    assert offered_tools((), (TOOL,)) == ()


def test_many_adaptations_are_told_in_one_short_line() -> None:
    many = tuple(Adaptation(part="tool", form="plain", name=f"t{number}") for number in range(100))
    assert in_words(many).endswith("t4 and 95 more")
