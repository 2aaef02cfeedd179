"""Tools that the vendors run themselves, in each wire format: offered, read from the stream, and sent back."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic.types as anthropic
import pytest
from google.genai import types as google
from hosts import Seen, crashing, expert, open_storage, project_of, until_it_crashes
from openai.types.responses import ResponseFunctionWebSearch
from pydantic import TypeAdapter
from responses_stream import events_of, message
from wire import READ, Said, Wire
from wire_anthropic import ANTHROPIC, EVENT
from wire_bedrock import BEDROCK
from wire_google import GOOGLE, GOOGLE_OLDER
from wire_openai import DEEPSEEK, OPENAI

from perstack.core.base.records import JsonObject
from perstack.core.definitions.experts import Expert, FileSearchOptions, ProviderToolOptions, WebToolOptions
from perstack.core.definitions.permissions import Permissions
from perstack.core.definitions.settings import Budget, Overrides, ProviderSetting
from perstack.core.jobs.job import Job
from perstack.core.messages.messages import ProviderToolPart, usable_reply
from perstack.core.runs.log_rows import EventContext
from perstack.host import Host
from perstack.ports.storage import Storage
from perstack.streams.events import StreamReader, ToolCall, ToolResult
from perstack.testing.crashing_storage import CrashPoint
from perstack.testing.fake_endpoint import FakeEndpoint, PreparedReply, events
from perstack_anthropic.messages_api import MessagesDecoder

PAGE = "https://example.com/paris"
SEARCH = {"query": "capital of France"}


@dataclass(frozen=True)
class Vendor:
    """A vendor whose model searches the web and then reads a file, in one reply."""

    wire: Wire
    searches: Callable[[], PreparedReply]
    offered: JsonObject
    sent_back: tuple[JsonObject, ...]
    cost_usd: float

    def __str__(self) -> str:
        return str(self.wire)


# --- Anthropic ----------------------------------------------------------------------------------------------------


USE: JsonObject = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": SEARCH}
FOUND: JsonObject = {
    "type": "web_search_result", "title": "Paris", "url": PAGE, "encrypted_content": "ENC=", "page_age": "1 day"
}  # fmt: skip
RESULT: JsonObject = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [FOUND]}


def messages(*blocks: JsonObject, stop: str = "end_turn", searches: int = 0) -> PreparedReply:
    """Return the stream of a reply of whole blocks, written by the official SDK's types."""
    usage = {"input_tokens": 100, "output_tokens": 1}
    whole = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "m", "usage": usage}
    found: list[JsonObject] = [
        {"type": "message_start", "message": {**whole, "stop_reason": None, "stop_sequence": None}}
    ]
    for index, block in enumerate(blocks):
        start, delta = dict(block), None
        if block["type"] in ("server_tool_use", "tool_use"):
            start["input"], delta = {}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        if block["type"] == "text":
            start["text"], delta = "", {"type": "text_delta", "text": block["text"]}
        found.append({"type": "content_block_start", "index": index, "content_block": start})
        if delta is not None:
            found.append({"type": "content_block_delta", "index": index, "delta": delta})
        found.append({"type": "content_block_stop", "index": index})
    counts = {"output_tokens": 50, "server_tool_use": {"web_search_requests": searches, "web_fetch_requests": 0}}
    found.append({"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": counts})
    found.append({"type": "message_stop"})
    return PreparedReply(events(*(EVENT.validate_python(event).to_json(indent=None) for event in found)))


def text_part(text: str) -> JsonObject:
    return {"type": "text", "text": text}


READS: JsonObject = {"type": "tool_use", "id": "c1", "name": READ, "input": {"path": "b"}}
ANTHROPICS = Vendor(
    ANTHROPIC,
    lambda: messages(text_part("I look."), USE, RESULT, text_part("Paris."), READS, stop="tool_use", searches=1),
    offered={"type": "web_search_20250305", "name": "web_search", "max_uses": 3, "allowed_domains": ["example.com"]},
    sent_back=(USE, RESULT),
    cost_usd=0.01,
)

# --- OpenAI -------------------------------------------------------------------------------------------------------

CALL: JsonObject = {
    "id": "ws_1", "type": "web_search_call", "status": "completed",
    "action": {"type": "search", **SEARCH, "sources": [{"type": "url", "url": PAGE}]},
}  # fmt: skip
OPENED: JsonObject = {
    "id": "ws_2", "type": "web_search_call", "status": "completed", "action": {"type": "open_page", "url": PAGE},
}  # fmt: skip


def responses(*items: JsonObject) -> PreparedReply:
    for item in items:
        if item["type"] == "web_search_call":
            ResponseFunctionWebSearch.model_validate(item)
    return PreparedReply(events(*(json.dumps(event) for event in events_of(*items))))


READS_B: JsonObject = {
    "type": "function_call", "id": "f1", "call_id": "c1", "name": READ, "arguments": json.dumps({"path": "b"}),
    "status": "completed",
}  # fmt: skip
OPENAIS = Vendor(
    OPENAI,
    lambda: responses(CALL, OPENED, message("msg_1", "Paris."), READS_B),
    offered={"type": "web_search", "filters": {"allowed_domains": ["example.com"]}},
    sent_back=(CALL, OPENED),
    cost_usd=0.01,
)

# --- Google -------------------------------------------------------------------------------------------------------

GROUNDING = google.GroundingMetadata(
    web_search_queries=["capital of France", "Paris"],
    grounding_chunks=[google.GroundingChunk(web=google.GroundingChunkWeb(uri=PAGE, title="Paris"))],
)
TOOL_CALL: JsonObject = {
    "id": "g1",
    "toolType": "GOOGLE_SEARCH_WEB",
    "args": {"queries": ["capital of France", "Paris"]},
}
TOOL_RESPONSE: JsonObject = {"id": "g1", "toolType": "GOOGLE_SEARCH_WEB", "response": {"search_suggestions": "<p>"}}


def contents(*parts: google.Part, grounding: google.GroundingMetadata | None = GROUNDING) -> PreparedReply:
    """Return the stream of a reply, written by the official SDK's types."""
    candidates = [google.Candidate(index=0, content=google.Content(role="model", parts=[part])) for part in parts]
    stop = google.FinishReason("STOP")
    candidates.append(google.Candidate(index=0, finish_reason=stop, grounding_metadata=grounding))
    usage = google.GenerateContentResponseUsageMetadata(prompt_token_count=100, candidates_token_count=50)
    chunks = [google.GenerateContentResponse(candidates=[one]) for one in candidates]
    chunks[-1].usage_metadata = usage
    data = [one.model_dump_json(by_alias=True, exclude_none=True) for one in chunks]
    return PreparedReply(tuple(f"data: {one}\r\n\r\n".encode() for one in data))


def server_parts() -> list[google.Part]:
    """Return the call and the response that newer models show, the first one signed."""
    return [
        google.Part(tool_call=google.ToolCall.model_validate(TOOL_CALL), thought_signature=b"sig"),
        google.Part(tool_response=google.ToolResponse.model_validate(TOOL_RESPONSE)),
    ]


def function_part() -> google.Part:
    return google.Part(function_call=google.FunctionCall(id="c1", name=READ, args={"path": "b"}))


GOOGLES = Vendor(
    GOOGLE,
    lambda: contents(*server_parts(), google.Part(text="Paris."), function_part()),
    offered={"googleSearch": {}},
    sent_back=({"toolCall": TOOL_CALL, "thoughtSignature": "c2ln"}, {"toolResponse": TOOL_RESPONSE}),
    cost_usd=0.028,
)
OLDER = Vendor(
    GOOGLE_OLDER,
    lambda: contents(google.Part(text="Paris."), function_part()),
    offered={"googleSearch": {}},
    sent_back=(),
    cost_usd=0.035,
)

VENDORS = (ANTHROPICS, OPENAIS, GOOGLES, OLDER)


def options_of(vendor: Vendor) -> ProviderToolOptions | None:
    if "google" in str(vendor.wire):
        return None
    return ProviderToolOptions(web_search=WebToolOptions(max_uses=3, allowed_domains=("example.com",)))


def host_of(
    folder: Path, wire: Wire, url: str, searcher: Expert, storage: Storage | str | None = None, **overrides: Any
) -> Host:
    config = wire.config(url)
    provider = ProviderSetting(provider_name=wire.factory.name, setting=config.setting)
    project = project_of(searcher).model_copy(update={"model": wire.model, "provider": provider})
    return Host(project, workspace=folder, storage=storage, env=config.env, overrides=Overrides(**overrides))


def run(
    folder: Path, wire: Wire, searcher: Expert, *replies: PreparedReply, **overrides: Any
) -> tuple[Job, Seen, list[Any]]:
    """Run the Expert at a real local server; return the Job, its events and the bodies of the requests."""
    (folder / "b").write_text("found in b")
    seen = Seen()

    async def scenario() -> tuple[Job, list[Any]]:
        async with FakeEndpoint(*replies) as endpoint, asyncio.timeout(30):
            host = host_of(folder, wire, endpoint.url, searcher, **overrides)
            try:
                job = await host.run("a", "What is the capital of France?", on_event=seen)
                assert (await host.audit.verify(job.id)).ok
                assert (await host.audit.replay(job.id)).ok
            finally:
                await host.close()
            return job, [json.loads(one.body) for one in endpoint.asked]

    job, bodies = asyncio.run(scenario())
    return job, seen, bodies


def uses(seen: Seen) -> list[ProviderToolPart]:
    return [part for event in seen.of("finishGeneration") for part in event.message.provider_tools]


def contains(body: Any, wanted: JsonObject) -> bool:
    """Return whether a document has this object somewhere; it may have more keys."""
    match body:
        case dict():
            is_it = all(body.get(key) == value for key, value in wanted.items())
            return is_it or any(contains(one, wanted) for one in body.values())
        case list():
            return any(contains(one, wanted) for one in body)
        case _:
            return False


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
def test_a_search_is_offered_read_priced_and_sent_back(tmp_path: Path, vendor: Vendor) -> None:
    searcher = expert("a", provider_tools=("webSearch",), provider_tool_options=options_of(vendor))
    job, seen, bodies = run(tmp_path, vendor.wire, searcher, vendor.searches(), vendor.wire.reply(Said("Done.")))
    assert (job.status, job.text, job.total_steps) == ("completed", "Done.", 2)
    first, *_ = uses(seen)
    assert (first.tool_name, first.is_error) == ("webSearch", False)
    assert "capital of France" in str(first.args)
    assert PAGE in first.result
    assert all(contains(body, vendor.offered) for body in bodies)
    assert all(contains(bodies[1], block) for block in vendor.sent_back)
    (charged,) = [event.usage for event in seen.of("finishGeneration") if event.usage.provider_tools]
    assert charged.cost_usd == pytest.approx(vendor.cost_usd, abs=0.002)
    assert job.usage.provider_tools == charged.provider_tools
    assert seen.of("startGeneration")[0].provider_settings["providerTools"].keys() == {"webSearch"}


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
def test_what_was_not_offered_is_left_out_and_said(
    tmp_path: Path, vendor: Vendor, capfd: pytest.CaptureFixture[str]
) -> None:
    denying = expert("a", provider_tools=("webSearch",), permissions=Permissions(deny=("webSearch",)))
    replies = vendor.searches(), vendor.wire.reply(Said("Done."))
    job, seen, bodies = run(tmp_path, vendor.wire, denying, *replies)
    assert (job.status, job.text) == ("completed", "Done.")
    assert uses(seen) == []
    assert not any(contains(body, vendor.offered) for body in bodies)
    assert PAGE not in json.dumps(bodies)
    assert "reports uses of webSearch" in capfd.readouterr().err


def taken_over(folder: Path, vendor: Wire, other: Wire, reply: PreparedReply) -> Any:
    """Return the request to the other vendor, whose model takes over after a reply of the first."""
    (folder / "b").write_text("found in b")

    async def scenario() -> Any:
        async with (
            FakeEndpoint(reply, vendor.error_reply(529, "overloaded")) as first,
            FakeEndpoint(other.reply(Said("Done."))) as second,
            asyncio.timeout(30),
        ):
            config = [vendor.config(first.url), other.config(second.url)]
            settings = [
                ProviderSetting(provider_name=wire.factory.name, setting=one.setting)
                for wire, one in zip((vendor, other), config, strict=True)
            ]
            models = tuple(f"{wire.factory.name}/{wire.model}" for wire in (vendor, other))
            searcher = expert("a", provider_tools=("webSearch",), model=models, provider=settings[1])
            project = project_of(searcher).model_copy(update={"provider": settings[0]})
            env = {**config[0].env, **config[1].env}
            host = Host(project, workspace=folder, env=env, overrides=Overrides(max_retries=0))
            try:
                job = await host.run("a", "q")
            finally:
                await host.close()
            assert (job.status, job.text) == ("completed", "Done.")
            return json.loads(second.asked[-1].body)

    return asyncio.run(scenario())


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
def test_a_vendor_is_told_what_another_has_found_as_text(tmp_path: Path, vendor: Vendor) -> None:
    for other in (ANTHROPIC, OPENAI, GOOGLE, DEEPSEEK, BEDROCK):
        if other.factory.name != vendor.wire.factory.name:
            body = taken_over(tmp_path, vendor.wire, other, vendor.searches())
            assert "[webSearch(" in json.dumps(body)
            assert PAGE in json.dumps(body)
            assert not any(contains(body, block) for block in vendor.sent_back)
            assert "Continue." not in json.dumps(body)


@pytest.mark.parametrize("other", [OPENAI, GOOGLE, DEEPSEEK, BEDROCK], ids=str)
def test_another_vendor_is_asked_to_continue_a_paused_reply(tmp_path: Path, other: Wire) -> None:
    paused = messages(text_part("I look."), USE, stop="pause_turn")
    body = taken_over(tmp_path, ANTHROPIC, other, paused)
    turns = body.get("messages") or body.get("input") or body["contents"]
    assert turns[-1]["role"] == "user"
    assert "Continue." in json.dumps(turns[-1])


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
def test_a_job_whose_process_died_sends_back_what_the_vendor_had_found(tmp_path: Path, vendor: Vendor) -> None:
    (tmp_path / "b").write_text("found in b")
    searcher = expert("a", provider_tools=("webSearch",))
    dying = crashing(CrashPoint("after", 3))(open_storage("file:perstack", tmp_path))

    async def scenario() -> tuple[Job, Any]:
        replies = vendor.searches(), vendor.wire.reply(Said("Done."))
        async with FakeEndpoint(*replies) as endpoint, asyncio.timeout(30):
            first = host_of(tmp_path, vendor.wire, endpoint.url, searcher, storage=dying)
            with until_it_crashes():
                await first.run("a", "q", job_id="j")
            await first.close()
            assert len(endpoint.asked) == 1
            endpoint.replies = [vendor.wire.reply(Said("Done."))]
            second = host_of(tmp_path, vendor.wire, endpoint.url, expert("a"), storage="file:perstack")
            try:
                job = await second.resume("j")
                assert (await second.audit.replay("j")).ok
            finally:
                await second.close()
            return job, json.loads(endpoint.asked[-1].body)

    job, body = asyncio.run(scenario())
    assert (job.status, job.text, job.total_steps) == ("completed", "Done.", 2)
    assert all(contains(body, block) for block in vendor.sent_back)
    assert "found in b" in json.dumps(body)


def test_a_paused_reply_is_sent_back_and_goes_on(tmp_path: Path) -> None:
    searcher = expert("a", provider_tools=("webSearch",))
    paused = messages(text_part("I look."), USE, stop="pause_turn")
    goes_on = messages(RESULT, text_part("Paris."), searches=1)
    job, seen, bodies = run(tmp_path, ANTHROPIC, searcher, paused, goes_on)
    assert (job.status, job.text, job.total_steps) == ("completed", "Paris.", 2)
    assert [event.finish_reason for event in seen.of("finishGeneration")] == ["paused", "stop"]
    *_, last = bodies[1]["messages"]
    assert last["role"] == "assistant"
    assert [block["type"] for block in last["content"]] == ["text", "server_tool_use"]
    assert [part.result for part in uses(seen)] == ["", f"Paris {PAGE}"]
    words = [row.word for event in seen.of("finishGeneration") for row in event.describe(EventContext({}, str))]
    assert words == ["says", "calls", "result", "says"]
    reader = StreamReader()
    shown = [one for event in seen.of("finishGeneration") for one in reader.read(event)]
    call, result = (one for one in shown if isinstance(one, ToolCall | ToolResult))
    assert (type(call), type(result), call.id) == (ToolCall, ToolResult, result.id)


def test_a_vendor_that_pauses_for_ever_is_stopped_by_the_limit_of_steps(tmp_path: Path) -> None:
    searcher = expert("a", provider_tools=("webSearch",))
    job, _, bodies = run(tmp_path, ANTHROPIC, searcher, messages(text_part("…"), stop="pause_turn"), max_steps=3)
    assert (job.status, len(bodies)) == ("stoppedByMaxSteps", 3)
    job, _, _ = run(tmp_path, ANTHROPIC, searcher, messages(stop="pause_turn"))
    assert (job.status, job.total_steps) == ("stoppedByError", 1)


def test_blocks_of_uses_at_once_are_sent_back_in_their_order(tmp_path: Path) -> None:
    second = {**USE, "id": "srvtoolu_2", "input": {"query": "Lyon"}}
    answer = {**RESULT, "tool_use_id": "srvtoolu_2", "content": []}
    blocks = (USE, second, answer, RESULT)
    reply = messages(text_part("I look."), *blocks, READS, stop="tool_use", searches=2)
    searcher = expert("a", provider_tools=("webSearch",))
    _, seen, bodies = run(tmp_path, ANTHROPIC, searcher, reply, ANTHROPIC.reply(Said("Done.")))
    assert [(part.id, part.result) for part in uses(seen)] == [
        ("srvtoolu_1", f"Paris {PAGE}"),
        ("srvtoolu_2", "nothing found"),
    ]
    turns = [block for turn in bodies[1]["messages"] for block in turn["content"]]
    assert [block for block in turns if block["type"] in (USE["type"], RESULT["type"])] == list(blocks)


def test_an_error_of_the_vendors_tool_is_shown_and_sent_back(tmp_path: Path) -> None:
    failed = {**RESULT, "content": {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}}
    reply = messages(USE, failed, READS, stop="tool_use")
    searcher = expert("a", provider_tools=("webSearch",))
    _, seen, bodies = run(tmp_path, ANTHROPIC, searcher, reply, ANTHROPIC.reply(Said("Done.")))
    (part,) = uses(seen)
    assert (part.result, part.is_error) == ("max_uses_exceeded", True)
    assert contains(bodies[1], failed)
    assert seen.of("finishGeneration")[0].usage.provider_tools == {}


def test_a_fetched_page_is_shown_with_the_beginning_of_its_text(tmp_path: Path) -> None:
    use = {**USE, "name": "web_fetch", "input": {"url": PAGE}}
    source = {"type": "text", "media_type": "text/plain", "data": "Paris is " + "big " * 2_000}
    document = {"type": "document", "title": "Paris", "source": source, "citations": None}
    page = {"type": "web_fetch_result", "url": PAGE, "content": document, "retrieved_at": None}
    result = {"type": "web_fetch_tool_result", "tool_use_id": "srvtoolu_1", "content": page}
    searcher = expert("a", provider_tools=("webFetch",))
    _, seen, bodies = run(tmp_path, ANTHROPIC, searcher, messages(use, result, text_part("Big.")))
    (part,) = uses(seen)
    assert part.tool_name == "webFetch"
    assert part.result.startswith(f"Paris {PAGE}\nParis is big")
    assert len(part.result) < 4_100
    assert contains(bodies[0], {"type": "web_fetch_20250910", "name": "web_fetch"})


def test_more_than_a_log_should_hold_of_a_result_is_told_as_text(tmp_path: Path) -> None:
    large = {**RESULT, "content": [{**FOUND, "encrypted_content": "x" * (5 << 20)}]}
    reply = messages(USE, large, READS, stop="tool_use", searches=1)
    searcher = expert("a", provider_tools=("webSearch",))
    job, seen, bodies = run(tmp_path, ANTHROPIC, searcher, reply, ANTHROPIC.reply(Said("Done.")))
    assert job.text == "Done."
    assert [part.opaque for part in uses(seen)] == [None]
    assert len(json.dumps(bodies[1])) < 100_000
    assert "[webSearch(query=capital of France): Paris" in json.dumps(bodies[1])


def test_files_are_searched_in_the_stores_that_the_expert_names(tmp_path: Path) -> None:
    found = [{"file_id": "f", "filename": "notes.md", "text": "Paris", "score": 0.9, "attributes": {}}]
    item = {"id": "fs_1", "type": "file_search_call", "status": "completed", "queries": ["Paris"], "results": found}
    options = ProviderToolOptions(file_search=FileSearchOptions(vector_store_ids=("vs_1",)))
    searcher = expert("a", provider_tools=("fileSearch",), provider_tool_options=options)
    _, seen, bodies = run(tmp_path, OPENAI, searcher, responses(item, message("msg_1", "Paris.")))
    assert contains(bodies[0], {"type": "file_search", "vector_store_ids": ["vs_1"]})
    assert "file_search_call.results" in bodies[0]["include"]
    (part,) = uses(seen)
    assert (part.tool_name, part.args, part.result) == ("fileSearch", {"queries": ["Paris"]}, "notes.md Paris")
    (usage,) = [event.usage for event in seen.of("finishGeneration")]
    assert usage.provider_tools == {"fileSearch": 1}
    assert usage.cost_usd == pytest.approx(0.0025, abs=0.001)


def test_the_limit_of_uses_is_sent_to_openai_for_all_its_tools_together(tmp_path: Path) -> None:
    searcher = expert("a", provider_tools=("webSearch",), provider_tool_options=options_of(OPENAIS))
    _, _, bodies = run(tmp_path, OPENAI, searcher, OPENAI.reply(Said("Done.")))
    assert bodies[0]["max_tool_calls"] == 3
    assert "web_search_call.action.sources" in bodies[0]["include"]


def test_code_that_google_has_run_is_shown_and_sent_back(tmp_path: Path) -> None:
    code = google.Part(
        executable_code=google.ExecutableCode(code="print(6*7)", language=google.Language("PYTHON")),
        thought_signature=b"sig",
    )
    outcome = google.CodeExecutionResult(outcome=google.Outcome("OUTCOME_OK"), output="42\n")
    reply = contents(code, google.Part(code_execution_result=outcome), function_part(), grounding=None)
    searcher = expert("a", provider_tools=("codeExecution",))
    _, seen, bodies = run(tmp_path, GOOGLE, searcher, reply, GOOGLE.reply(Said("Done.")))
    (part,) = uses(seen)
    assert (part.tool_name, part.args, part.result) == ("codeExecution", {"code": "print(6*7)"}, "42\n")
    assert contains(
        bodies[1], {"thoughtSignature": "c2ln", "executableCode": {"code": "print(6*7)", "language": "PYTHON"}}
    )
    assert contains(bodies[1], {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "42\n"}})
    assert seen.of("finishGeneration")[0].usage.provider_tools == {}


@pytest.mark.parametrize(("vendor", "is_set"), [(GOOGLES, True), (OLDER, None)], ids=str)
def test_newer_models_of_google_are_asked_for_the_calls_of_its_tools(
    tmp_path: Path, vendor: Vendor, is_set: bool | None
) -> None:
    searcher = expert("a", provider_tools=("googleSearch", "urlContext"))
    _, _, bodies = run(tmp_path, vendor.wire, searcher, vendor.wire.reply(Said("Done.")))
    assert bodies[0].get("toolConfig", {}).get("includeServerSideToolInvocations") is is_set
    assert {"urlContext": {}} in bodies[0]["tools"]


def test_the_most_that_searches_can_cost_is_reserved(tmp_path: Path) -> None:
    def reserved(*tools: str) -> float:
        searcher = expert("a", provider_tools=tools, provider_tool_options=options_of(ANTHROPICS))
        budget = Budget(max_cost=5.0)
        _, seen, _ = run(tmp_path, ANTHROPIC, searcher, ANTHROPIC.reply(Said("Done.")), max_cost=budget.max_cost)
        (event,) = seen.of("startGeneration")
        return event.reserved.cost_usd

    assert reserved("webSearch") - reserved() == pytest.approx(0.03)


def test_searches_count_against_a_budget(tmp_path: Path) -> None:
    searcher = expert("a", provider_tools=("webSearch",))
    dear = messages(USE, RESULT, READS, stop="tool_use", searches=60)
    job, seen, _ = run(tmp_path, ANTHROPIC, searcher, dear, ANTHROPIC.reply(Said("Done.")), max_cost=0.5)
    assert job.status == "stoppedByBudget"
    (event,) = seen.of("finishGeneration")
    assert event.over_reserved is not None
    assert job.usage.cost_usd == pytest.approx(0.6, abs=0.01)


def test_a_hostile_reply_of_very_many_uses_is_read_in_bounded_time() -> None:
    decoder = MessagesDecoder(lambda delta: None)
    number = 20_000
    blocks = [{**USE, "id": f"u{index}", "name": "x" * 99, "input": {}} for index in range(number)]
    blocks += [{**RESULT, "tool_use_id": f"u{index}"} for index in range(number)]
    for index, block in enumerate(blocks):
        decoder.feed(json.dumps({"type": "content_block_start", "index": index, "content_block": block}))
    decoder.feed(json.dumps({"type": "message_stop"}))
    began = time.process_time()
    reply = usable_reply(decoder.finish().reply)
    assert time.process_time() - began < 10
    assert len(reply.provider_tools) == number
    assert {part.result for part in reply.provider_tools} == {f"Paris {PAGE}"}


def test_the_blocks_of_these_tests_are_those_of_the_official_library() -> None:
    for block in (USE, RESULT, {**RESULT, "content": []}):
        TypeAdapter(anthropic.ContentBlock).validate_python(block)
