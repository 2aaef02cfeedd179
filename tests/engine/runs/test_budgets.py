"""A budget is reserved before it is spent, and never exceeded."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hosts import Bench, Seen, crashing, expert, results, wait_for
from hypothesis import given
from hypothesis import strategies as st
from sampling_skill import Summing

from perstack.core.base.ids import number_of_run
from perstack.core.definitions.models import Price
from perstack.core.definitions.settings import Budget
from perstack.core.definitions.skills import McpStdioSkill, ToolSpec
from perstack.core.jobs.budget_ledger import Ledger
from perstack.core.messages.media import image_type
from perstack.core.messages.messages import BlobPart, TextPart, ToolMessage, UserMessage
from perstack.errors import PerstackError
from perstack.media.file_headers import image_size
from perstack.ports.hooks import hookimpl
from perstack.ports.provider import Generation, GenerationRequest
from perstack.ports.skill import SampleRequest, SkillFactory, SkillSession, ToolCall, ToolResult, Toolset
from perstack.testing.crashing_storage import Crash, CrashPoint
from perstack.testing.scripted import ScriptedProvider, TurnLike, fail, text, tool, turn

PRICE = Price(name="scripted/scripted", input=1, output=10)
"""Dollars per million tokens: a thousand input tokens cost $0.001."""


def thoughts(usage: tuple[int, int] = (1000, 100)):
    """Return a script that never ends."""

    def reply(request: GenerationRequest) -> TurnLike:
        return turn(tool("think", {"thought": f"thought {len(request.messages)}"}), usage=usage)

    return reply


def tokens_and_dollars(seen: Seen) -> tuple[int, float]:
    """Return tokens and dollars of all replies."""
    usages = [event.usage for event in seen.of("finishGeneration")]
    return sum(one.total_tokens for one in usages), round(sum(one.cost_usd or 0 for one in usages), 9)


def test_a_job_ends_where_its_next_call_could_cross_the_budget_and_goes_on_with_more(bench: Bench) -> None:
    seen = Seen()
    host = bench.host(thoughts(), expert("a"), prices=(PRICE,), max_cost=0.05)
    job = wait_for(host.run("a", "q", on_event=seen))
    assert (job.status, job.lifecycle, job.pause_reason) == ("stoppedByBudget", "paused", "checkpoint")
    _, spent = tokens_and_dollars(seen)
    assert 0.045 <= spent <= 0.05
    assert seen.of("startRun")[0].limits.budget == Budget(max_cost=0.05)
    (stop,) = seen.of("stopRunByExceededBudget")
    assert (stop.budget, stop.limit, stop.spent, stop.expert) == ("maxCost", 0.05, spent, None)
    assert stop.spent + stop.needed > 0.05
    more = Seen()
    host = bench.host(thoughts(), expert("a"), prices=(PRICE,), max_cost=0.08)
    again = wait_for(host.resume(job.id, on_event=more))
    assert again.status == "stoppedByBudget"
    assert 0.07 <= spent + tokens_and_dollars(more)[1] <= 0.08
    (resumed,) = more.of("resumeRun")
    assert (resumed.reason, resumed.limits.budget, resumed.by.door) == ("budget", Budget(max_cost=0.08), "python")
    assert wait_for(host.audit.replay(job.id)).findings == ()
    assert wait_for(host.audit.verify(job.id)).findings == ()


def test_a_budget_of_tokens_needs_no_price(bench: Bench) -> None:
    seen = Seen()
    job = wait_for(bench.host(thoughts(), expert("a"), max_tokens=30_000).run("a", "q", on_event=seen))
    assert job.status == "stoppedByBudget"
    assert 27_000 <= tokens_and_dollars(seen)[0] <= 30_000


def test_without_a_budget_nothing_is_reserved_and_no_limit_is_sent(bench: Bench) -> None:
    provider, seen = ScriptedProvider([text("done")]), Seen()
    wait_for(bench.host(provider, expert("a")).run("a", "q", on_event=seen))
    (started,) = seen.of("startGeneration")
    assert (started.max_tokens, started.reserved, provider.requests[0].max_tokens) == (None, None, None)


def test_a_model_without_a_price_beside_a_budget_in_dollars_is_an_error_before_anything_is_written(
    bench: Bench,
) -> None:
    host = bench.host([text("done")], expert("a"), max_cost=1)
    with pytest.raises(PerstackError, match=r'\[prices."scripted/scripted"\] with `input` and `output`') as refused:
        wait_for(host.run("a", "q", job_id="j"))
    assert refused.value.exit_code == 2
    assert wait_for(host.jobs.list()).jobs == ()


def test_the_length_of_a_reply_is_lowered_to_what_fits_and_one_that_it_cuts_short_is_a_stop(bench: Bench) -> None:
    def long(request: GenerationRequest) -> TurnLike:
        assert request.max_tokens is not None
        return turn(text="so far", usage=(500, request.max_tokens), finish_reason="length")

    provider, seen = ScriptedProvider(long), Seen()
    job = wait_for(bench.host(provider, expert("a"), max_tokens=12_000).run("a", "q", on_event=seen))
    assert job.status == "stoppedByBudget"
    assert tokens_and_dollars(seen)[0] <= 12_000
    assert provider.requests[0].max_tokens == seen.of("startGeneration")[0].max_tokens
    assert not seen.of("errorRun")
    done = wait_for(bench.host([text("whole", usage=(500, 3000))], expert("a"), max_tokens=40_000).resume(job.id))
    assert (done.status, done.text) == ("completed", "whole")


def test_a_reply_that_is_longer_than_what_is_asked_for_at_first_is_asked_for_again(bench: Bench) -> None:
    def long(request: GenerationRequest) -> TurnLike:
        most = request.max_tokens or 0
        return (
            text("whole", usage=(500, 20_000))
            if most >= 20_000
            else turn(text="so far", usage=(500, most), finish_reason="length")
        )

    job = wait_for(bench.host(long, expert("a"), max_tokens=100_000).run("a", "q"))
    assert (job.status, job.text) == ("completed", "whole")


@pytest.mark.parametrize(
    ("error", "uncharged"),
    [(fail(503, retry_after=0), True), (fail(name="CutStream", retry_after=0), False)],
    ids=["refused", "cut off"],
)
def test_a_try_that_may_have_been_charged_for_counts_as_all_that_it_could_cost(
    bench: Bench, error: TurnLike, uncharged: bool
) -> None:
    seen = Seen()
    host = bench.host([error, text("done", usage=(100, 10))], expert("a"), max_tokens=60_000)
    assert wait_for(host.run("a", "q", on_event=seen)).status == "completed"
    (retry,), starts = seen.of("retry"), seen.of("startGeneration")
    assert (retry.uncharged, len(starts)) == (uncharged, 2)
    run = wait_for(host.jobs.load(host_job(seen))).runs
    (state,) = run.values()
    assert state.spending.assumed == (None if uncharged else starts[0].reserved)


def host_job(seen: Seen) -> str:
    return seen.of("startRun")[0].job_id


@pytest.mark.parametrize("usage", [(0, 0), (-5, -5), (100, 0)], ids=["missing", "negative", "without the reply"])
def test_a_reply_whose_endpoint_does_not_say_what_it_used_counts_as_all_that_was_reserved(
    bench: Bench, usage: tuple[int, int]
) -> None:
    seen = Seen()
    job = wait_for(bench.host(thoughts(usage), expert("a"), max_tokens=50_000).run("a", "q", on_event=seen))
    assert job.status == "stoppedByBudget"
    assert all(event.unreported for event in seen.of("finishGeneration"))
    reserved = [event.reserved.tokens for event in seen.of("startGeneration")]
    assert sum(reserved) <= 50_000
    assert seen.of("stopRunByExceededBudget")[0].spent == sum(reserved)


def test_usage_above_what_was_reserved_is_recorded_said_and_counted(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    seen = Seen()
    job = wait_for(bench.host(thoughts((70_000, 10)), expert("a"), max_tokens=60_000).run("a", "q", on_event=seen))
    (finished,) = seen.of("finishGeneration")
    (started,) = seen.of("startGeneration")
    assert finished.over_reserved.tokens == 70_010 - started.reserved.tokens
    assert (job.status, job.usage.total_tokens) == ("stoppedByBudget", 70_010)
    assert "than was reserved: " in capfd.readouterr().err


def test_calls_of_tools_are_counted_before_any_of_them_is_made(bench: Bench) -> None:
    seen = Seen()
    script = [turn(*(tool("think", {"thought": f"{n}"}, id=f"{n}{m}") for m in range(2))) for n in range(4)]
    job = wait_for(bench.host(script, expert("a"), max_tool_calls=5).run("a", "q", on_event=seen))
    assert (job.status, len(seen.of("finishToolCall"))) == ("stoppedByBudget", 4)
    (stop,) = seen.of("stopRunByExceededBudget")
    assert (stop.budget, stop.limit, stop.spent, stop.needed) == ("maxToolCalls", 5, 4, 2)
    done = wait_for(bench.host([*script, text("done")], expert("a"), max_tool_calls=9).resume(job.id))
    assert done.status == "completed"


def test_the_time_of_work_is_bounded_and_waiting_for_a_person_is_no_work(bench: Bench) -> None:
    slow = [tool("askUser", {"question": "?"}), turn(text="never", delay_ms=60_000)]
    host = bench.host(slow, expert("a", ask=True), max_time=2_000)
    asked = wait_for(host.run("a", "q"))
    assert asked.status == "stoppedByInteractiveTool"
    bench.clock.move(3_600_000)
    seen = Seen()
    job = wait_for(host.answer("yes", job_id=asked.id, on_event=seen))
    assert job.status == "stoppedByBudget"
    (stop,) = seen.of("stopRunByExceededBudget")
    assert (stop.budget, stop.limit) == ("maxTime", 2_000)
    done = wait_for(bench.host([slow[0], text("done")], expert("a", ask=True), max_time=60_000).resume(job.id))
    assert done.status == "completed"


# --- the whole tree -----------------------------------------------------------------------------------------------


def test_the_budget_is_that_of_all_runs_together(bench: Bench) -> None:
    calls = [tool("w", {"query": f"{n}"}, id=f"c{n}") for n in range(6)]
    script = {"[[boss]]": lambda request: turn(*calls, usage=(500, 50)), "[[w]]": thoughts()}

    def reply(request: GenerationRequest) -> TurnLike:
        return script["[[boss]]" if "[[boss]]" in request.instruction else "[[w]]"](request)

    seen = Seen()
    host = bench.host(reply, expert("boss", delegates=("w",)), expert("w"), max_tokens=150_000, max_steps=0)
    job = wait_for(host.run("boss", "q", on_event=seen))
    assert job.status == "stoppedByBudget"
    assert 135_000 <= tokens_and_dollars(seen)[0] <= 150_000
    assert {run.status for run in job.runs} == {"stoppedByBudget"}
    assert wait_for(host.audit.replay(job.id)).findings == ()


def test_an_experts_own_budget_ends_its_runs_and_the_others_go_on(bench: Bench) -> None:
    def reply(request: GenerationRequest) -> TurnLike:
        if "[[w]]" in request.instruction:
            return thoughts()(request)
        if isinstance(request.messages[-1], ToolMessage):
            return text("without it", usage=(500, 10))
        return turn(tool("w", {"query": "go"}), usage=(500, 10))

    seen = Seen()
    worker = expert("w", budget=Budget(max_tokens=25_000))
    host = bench.host(reply, expert("boss", delegates=("w",)), worker, max_tokens=500_000)
    job = wait_for(host.run("boss", "q", on_event=seen))
    assert (job.status, job.text) == ("completed", "without it")
    assert results(seen, "w")[0].startswith("Delegation failed: Expert w may spend 25,000 tokens")
    assert sum(event.usage.total_tokens for event in seen.of("finishGeneration", run="-2")) <= 25_000
    assert wait_for(host.audit.replay(job.id)).findings == ()


def test_a_generation_waits_for_what_a_parallel_one_may_give_back(bench: Bench) -> None:
    class Slow(ScriptedProvider):
        at_once = 0
        most = 0

        async def generate(self, request: GenerationRequest, on_delta) -> Generation:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            await asyncio.sleep(0.05)
            self.at_once -= 1
            return await super().generate(request, on_delta)

    calls = [tool("w", {"query": f"{n}"}, id=f"c{n}") for n in range(8)]
    script = {
        "[[boss]]": [turn(*calls, usage=(500, 50)), text("all", usage=(500, 50))],
        "[[w]]": [text("done", usage=(500, 50))],
    }
    provider = Slow(script)
    host = bench.host(provider, expert("boss", delegates=("w",)), expert("w"), max_tokens=30_000)
    job = wait_for(host.run("boss", "q"))
    assert (job.status, job.text) == ("completed", "all")
    assert provider.most < 8


def test_generations_that_waited_for_room_in_the_budget_do_not_exceed_the_step_limit(bench: Bench) -> None:
    calls = [tool("w", {"query": f"{n}"}, id=f"c{n}") for n in range(8)]
    script = {"[[boss]]": [turn(*calls, usage=(50, 5))], "[[w]]": [text("done", usage=(50, 5))]}
    team = expert("boss", delegates=("w",)), expert("w")
    job = wait_for(bench.host(script, *team, max_tokens=9_000, max_steps=4).run("boss", "q"))
    assert (job.status, job.total_steps) == ("stoppedByMaxSteps", 4)


# --- killed at random ---------------------------------------------------------------------------------------------


class Charging(ScriptedProvider):
    """A provider that charges for every request, whether or not its reply was received."""

    def __init__(self, seed: int, calls: int) -> None:
        super().__init__(self._reply)
        self.chance = random.Random(seed)
        self.calls = [tool("w", {"query": f"{n}"}, id=f"c{n}") for n in range(calls)]
        self.charged = 0
        self.tokens_in_ten_bytes = self.chance.randrange(2, 10)

    def _reply(self, request: GenerationRequest) -> TurnLike:
        size = len(request.instruction) + sum(len(message.to_json()) for message in request.messages)
        sent = max(1, size * self.tokens_in_ten_bytes // 10)  # it counts the same in the same way
        usage = (sent, self.chance.randrange(1, (request.max_tokens or 0) + 1))
        self.charged += sum(usage)
        kind = self.chance.randrange(12)
        if kind == 0:
            return fail(name="CutStream", retry_after=0)
        if kind == 1:
            usage = (0, 0)
        if "[[boss]]" in request.instruction and not isinstance(request.messages[-1], ToolMessage):
            return turn(*self.calls, usage=usage)
        return turn(tool("think", {"thought": f"{len(request.messages)}"}), usage=usage, delay_ms=kind)


@pytest.mark.parametrize("seed", range(3))
def test_a_job_that_is_killed_and_resumed_at_random_is_never_charged_more_than_its_budget(
    bench: Bench, seed: int
) -> None:
    cap, experts = 400_000, (expert("boss", delegates=("w",)), expert("w", max_retries=50))
    provider = Charging(seed, 6)

    async def drive(point: CrashPoint | None) -> str | None:
        limits = {"max_tokens": cap, "max_steps": 0}
        wrap = None if point is None else crashing(point)
        async with bench.host(provider, *experts, wrap=wrap, **limits) as host:
            try:
                job = host.resume("j") if await has_begun(host) else host.run("boss", "q", job_id="j")
                return (await job).status
            except Crash:
                return None

    status: str | None = None
    for _ in range(40):
        point = CrashPoint("after" if provider.chance.randrange(2) else "before", provider.chance.randrange(1, 25))
        status = wait_for(drive(point), 60)
        assert provider.charged <= cap
        if status is not None:
            break
    status = status or wait_for(drive(None), 60)
    assert status == "stoppedByBudget"
    assert provider.charged <= cap
    host = bench.host(provider, *experts)
    ledger = Ledger(None)
    for _, run in sorted(wait_for(host.jobs.load("j")).runs.items(), key=lambda item: number_of_run(item[0])):
        ledger.update(run, at_rest=True)
    assert 0.9 * cap <= ledger.used().tokens <= cap
    assert wait_for(host.audit.replay("j")).findings == ()
    assert wait_for(host.audit.verify("j")).findings == ()


async def has_begun(host) -> bool:
    return bool([job for job in (await host.jobs.list()).jobs if job.id == "j"])


# --- images and documents -------------------------------------------------------------------------------------------

TINY_PDF = b"%PDF-1.7\n" + b"/Kids [2 0 R 2 0 R 2 0 R]\n" * 34
"""A document of less than 1,000 bytes with any number of pages: each page of the tree is the same tree again."""


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes(20)


def jpeg(width: int, height: int) -> bytes:
    thumbnail = b"\xff\xe1\0\x0a" + b"\xff\xc0\0\x08\x08\0\x01\0"
    return b"\xff\xd8" + thumbnail + b"\xff\xc2\0\x11\x08" + height.to_bytes(2, "big") + width.to_bytes(2, "big")


def webp(width: int, height: int) -> bytes:
    canvas = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF\0\0\0\0WEBPVP8X" + bytes(8) + canvas


@pytest.mark.parametrize("budget", [{"max_tokens": 1_000_000}, {"max_cost": 1.0, "prices": (PRICE,)}], ids=["t", "$"])
@pytest.mark.parametrize("how", ["attached", "read", "from a tool", "in a sample"])
@pytest.mark.parametrize(
    "data",
    [TINY_PDF, png(20_000, 20_000), jpeg(20_000, 20_000), webp(16_000, 16_000), b"GIF89a\x01\0\x01\0\0\0\0"],
    ids=["pdf", "png", "jpeg", "webp", "gif"],
)
def test_a_medium_of_few_bytes_is_not_sent_if_what_it_comes_to_may_cross_the_budget(
    bench: Bench, data: bytes, how: str, budget: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(data) < 1_000
    seen, showing = Seen(), Showing(data, samples=how == "in a sample")
    (bench.workspace / "a.bin").write_bytes(data)
    kind = "readPdfFile" if data is TINY_PDF else "readImageFile"
    first = {"read": tool(kind, {"path": "a.bin"})}.get(how, tool("show"))
    script = {"[[calculator]]": [text("never")], "[[a]]": [turn(first, usage=(9, 1)), text("never")]}
    one = expert("a").model_copy(update={"skills": (McpStdioSkill(name="showing", command="x", sampling=True),)})
    provider = ScriptedProvider(script)
    host = bench.host(provider, one, plugins=(showing,), **budget)
    job = wait_for(host.run("a", "q", attachments=[data] if how == "attached" else [], on_event=seen))
    if how == "in a sample":
        assert results(seen) == ["ExceededBudget"]
        return
    assert job.status == "stoppedByBudget"
    assert len(provider.requests) == (0 if how == "attached" else 1), "the model was not sent it"
    if data is TINY_PDF:
        assert "the tokens of a document are not known" in capsys.readouterr().err


def test_a_budget_that_holds_a_whole_context_holds_a_document_which_is_then_known(bench: Bench) -> None:
    seen = Seen()
    script = [turn(tool("think", {"thought": "hm"}), usage=(150_000, 100)), text("Read.", usage=(150_000, 100))]
    host = bench.host(script, expert("a", context_window=200_000), max_tokens=400_000)
    job = wait_for(host.run("a", "q", attachments=[TINY_PDF], on_event=seen))
    assert job.status == "completed"
    first, second = (event.reserved.tokens for event in seen.of("startGeneration"))
    assert 200_000 <= first < 220_000
    assert 150_000 <= second < 170_000, "the endpoint has counted it"
    assert wait_for(host.audit.replay(job.id)).findings == ()


def test_a_small_image_needs_a_small_budget(bench: Bench) -> None:
    for data in (png(100, 100), jpeg(512, 512), webp(1, 512)):
        job = wait_for(bench.host([text("ok")], expert("a"), max_tokens=30_000).run("a", "q", attachments=[data]))
        assert job.status == "completed"


@given(st.binary(max_size=64), st.sampled_from([png(3, 4), jpeg(3, 4), webp(3, 4), b"RIFF\0\0\0\0WEBPVP8L", b"GIF89a"]))
def test_a_header_of_any_bytes_is_read_or_has_no_size(tail: bytes, head: bytes) -> None:
    for data in (head + tail, head[: len(tail)], head[:12] + tail, b"\xff\xd8" + b"\xff" * len(tail) + tail):
        size = image_size(data)
        assert size is None or min(size) > 0
    assert {image_size(one) for one in (png(3, 4), jpeg(3, 4), webp(3, 4))} == {(3, 4)}


@pytest.mark.parametrize("kind", [0x00, 0xD9])
def test_no_frame_hides_behind_bytes_of_a_jpeg_that_decoders_pass_over(kind: int) -> None:
    frame = b"\xff\xc2\0\x11\x08" + (20_000).to_bytes(2, "big") * 2 + bytes(10)
    hidden = b"\xff\xd8\xff" + bytes((kind,)) + (2 + len(frame)).to_bytes(2, "big") + frame
    assert image_size(hidden + jpeg(1, 1)[2:]) is None


class Showing(SkillFactory, SkillSession):
    """A skill whose tool `show` returns a blob; with `samples` it asks the model about it."""

    name = "showing"

    def __init__(self, data: bytes, *, samples: bool) -> None:
        self.data = data
        self.samples = samples

    def handles(self, definition) -> bool:
        return isinstance(definition, McpStdioSkill) and definition.name == "showing"

    async def open(self, definition, context):
        return self

    async def tools(self) -> Toolset:
        return Toolset((ToolSpec(name="show"),))

    async def call(self, call: ToolCall) -> ToolResult:
        kind = image_type(self.data) or "application/pdf"
        part = BlobPart(sha256=await call.blobs.put(self.data), mime_type=kind, size=len(self.data))
        if not self.samples:
            return ToolResult((part,))
        assert call.sample is not None
        with pytest.raises(PerstackError) as caught:
            await call.sample(SampleRequest((UserMessage(contents=(part,)),), "[[calculator]]", max_tokens=500))
        return ToolResult.text(getattr(caught.value, "name", ""))

    async def close(self) -> None:
        pass

    @hookimpl
    def perstack_skills(self):
        return [self]


# --- generations that a tool asks for -----------------------------------------------------------------------------


class SummingAtOnce(Summing):
    """A skill whose tool `sum` asks the model four times concurrently."""

    async def call(self, call: ToolCall) -> ToolResult:
        assert call.sample is not None
        query = UserMessage(contents=(TextPart(text="2 + 2?"),))
        asked = (call.sample(SampleRequest((query,), "[[calculator]]", max_tokens=500)) for _ in range(4))
        found = await asyncio.gather(*asked, return_exceptions=True)
        return ToolResult.text(" ".join(getattr(one, "name", "4") for one in found))


@pytest.mark.parametrize(
    ("answer", "said"),
    [(text("4", usage=(100, 400)), "4"), (fail(name="CutStream", repeat=True), "CutStream"), (text("4"), "4")],
    ids=["counted", "cut off", "not told"],
)
def test_generations_that_a_tool_asks_for_are_reserved_and_counted(bench: Bench, answer: TurnLike, said: str) -> None:
    turns = [turn(tool("sum"), usage=(9, 1)), text("done", usage=(9, 1))]
    script, seen = {"[[calculator]]": [answer], "[[a]]": turns}, Seen()
    one = expert("a").model_copy(update={"skills": (McpStdioSkill(name="summing", command="x", sampling=True),)})
    host = bench.host(script, one, plugins=(SummingAtOnce(),), max_tokens=20_000)
    job = wait_for(host.run("a", "q", on_event=seen))
    (finished,) = seen.of("finishToolCall")
    assert results(seen) == [" ".join([said] * 4)]
    counted_of_call = (finished.usage.total_tokens if finished.usage else 0) + (
        finished.assumed.tokens if finished.assumed else 0
    )
    assert counted_of_call >= 2_000
    ledger = Ledger(None)
    for run in wait_for(host.jobs.load(job.id)).runs.values():
        ledger.update(run, at_rest=True)
    assert ledger.used().tokens == counted_of_call + 20
    assert wait_for(host.audit.replay(job.id)).findings == ()


def test_a_generation_that_a_tool_asks_for_and_that_does_not_fit_is_an_error_for_the_tool(bench: Bench) -> None:
    seen = Seen()
    one = expert("a").model_copy(update={"skills": (McpStdioSkill(name="summing", command="x", sampling=True),)})
    script = {"[[calculator]]": [text("4", usage=(9, 1))], "[[a]]": [turn(tool("sum"), usage=(8_000, 500))]}
    host = bench.host(script, one, plugins=(SummingAtOnce(),), max_tokens=9_500)
    job = wait_for(host.run("a", "q", on_event=seen))
    assert job.status == "stoppedByBudget"
    assert results(seen) == ["ExceededBudget ExceededBudget ExceededBudget ExceededBudget"]
