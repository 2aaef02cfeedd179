"""Rows of the conformance suite for requests that an endpoint refuses because of one part, or of a blank text.

The endpoint enforces a rule, in its vendor's wording, on every body. So a row passes only if the part is found in that
wording, and the request that follows keeps the rule.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from provider_suite import HELLO, QUERY, TOOLS, body_of, capability, climb, generate, request_of, run_under_rule
from wire import READ, Said, Wire
from wire_anthropic import MessagesWire
from wire_bedrock import ConverseWire
from wire_google import GoogleWire
from wire_openai import ChatWire, ResponsesWire

from perstack.core.definitions.skills import ToolSpec
from perstack.core.messages.adaptations import in_words
from perstack.core.messages.messages import BlobPart, TextPart, ToolMessage, ToolResultPart, UserMessage
from perstack.errors import ProviderError
from perstack.http_providers.messages import REQUIRED_FIELDS
from perstack.ports.provider import Generation, OfferedProviderTool

_OTHER = ToolSpec(name="other", input_schema={"type": "object", "properties": {"word": {"type": "string"}}})
_CALL = Said(calls=(("c1", "a"),))
_DONE = Said("Done.")
_IMAGE = BlobPart(sha256="i", mime_type="image/png", size=3)


def _tool_words(wire: Wire, at: int) -> str:
    """Return the vendor's words for a tool that it does not take."""
    match wire:
        case MessagesWire():
            return f"tools.{at}.custom.input_schema: input_schema does not support oneOf at the top level"
        case ChatWire() | ResponsesWire():
            return f"Invalid schema for function '{READ}': schema must have type 'object'"
        case GoogleWire():
            return f"* GenerateContentRequest.tools[0].function_declarations[{at}].parameters.properties[x]: missing"
        case ConverseWire():
            return f"The value at toolConfig.tools.{at}.toolSpec.inputSchema.json.type must be one of: object."
        case _:
            raise AssertionError("name this wire's words for a refused tool")


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _names(wire: Wire, body: Any) -> list[str]:
    """Return the names of the tools in a body."""
    tools = wire.tools(body) or []
    tools = tools["tools"] if isinstance(tools, dict) else tools
    flat = tools[0]["functionDeclarations"] if tools and "functionDeclarations" in tools[0] else tools
    return [(tool.get("function") or tool.get("toolSpec") or tool)["name"] for tool in flat]


@capability("A tool whose schema is refused")
def refused_schema(wire: Wire) -> str:
    def rule(body: Any) -> str | None:
        sent = _compact(wire.tools(body))
        return _tool_words(wire, 1) if '"path":{' in sent else None

    end, adaptations, bodies = climb(wire, rule, request_of(wire, tools=(_OTHER, *TOOLS)))
    assert isinstance(end, Generation)
    assert [(one.part, one.form, one.name) for one in adaptations] == [("tool", "plain", READ)]
    assert _names(wire, bodies[-1]) == ["other", READ]
    assert '"word":{' in _compact(wire.tools(bodies[-1])), "the other tool is as it was"
    return in_words(adaptations)


@capability("A tool that is refused in any form")
def refused_tool(wire: Wire) -> str:
    def rule(body: Any) -> str | None:
        names = _names(wire, body)
        return _tool_words(wire, names.index(READ)) if READ in names else None

    end, adaptations, bodies = climb(wire, rule, request_of(wire, tools=(_OTHER, *TOOLS)))
    assert isinstance(end, Generation)
    assert [one.form for one in adaptations] == ["plain", "omitted"]
    assert _names(wire, bodies[-1]) == ["other"]
    end, adaptations, bodies = climb(wire, rule, request_of(wire, allow_tools=False))
    assert isinstance(end, Generation)
    assert wire.tools(bodies[-1]) is None, "without any tool a request has no list of them"
    assert not wire.forbids_tools(bodies[-1]) or not wire.no_tools
    return in_words(adaptations[-1:])


@capability("No tool is left after calls")
def no_tool_left_after_calls(wire: Wire) -> str:
    def rule(body: Any) -> str | None:
        names = _names(wire, body)
        return _tool_words(wire, names.index(READ)) if READ in names else None

    call = generate(wire, wire.reply(_CALL))[0].reply
    result = ToolResultPart(tool_call_id="c1", tool_name=READ, contents=(TextPart(text="found in a"),))
    request = request_of(wire, QUERY, call, ToolMessage(contents=(result,)))
    end, _, bodies = climb(wire, rule, request)
    assert isinstance(end, Generation), end
    assert "found in a" in _compact(wire.results(bodies[-1])), "the history is whole"
    return "no list" if wire.tools(bodies[-1]) is None else "a placeholder"


@capability("A tool of the provider's own that is refused")
def refused_provider_tool(wire: Wire) -> str:
    provider = wire.provider("http://127.0.0.1:9")
    names = [tool.name for tool in provider.tools if tool.name != "fileSearch"]
    if not names:
        return "—"
    offered = tuple(OfferedProviderTool(name) for name in names)
    kept = len(_tool_list(wire, body_of(wire, request_of(wire, provider_tools=offered[1:]))))
    for words in _provider_tool_words(wire, body_of(wire, request_of(wire, provider_tools=offered))):

        def rule(body: Any, words: str = words) -> str | None:
            return words if len(_tool_list(wire, body)) > kept else None

        end, adaptations, bodies = climb(wire, rule, request_of(wire, provider_tools=offered))
        assert isinstance(end, Generation), words
        assert [(one.part, one.form, one.name) for one in adaptations] == [("providerTool", "omitted", names[0])], words
        assert READ in _names(wire, bodies[-1])
    return in_words(adaptations)


def _tool_list(wire: Wire, body: Any) -> list[Any]:
    tools = wire.tools(body) or []
    return tools if isinstance(tools, list) else tools["tools"]


def _provider_tool_words(wire: Wire, body: Any) -> tuple[str, ...]:
    """Return the vendor's words for the first tool that it runs itself and does not take now."""
    match wire:
        case MessagesWire():
            kind = body["tools"][1]["type"]
            return (
                f"tools.1: Input tag '{kind}' found using 'type' does not match",
                f"no support for tool types: {kind}",
            )
        case ResponsesWire():
            return (f"Hosted tool '{body['tools'][1]['type']}' is not supported with gpt-4.1-nano.",)
        case GoogleWire():
            key = next(iter(body["tools"][1]))
            return f"Tool {key} is not supported by this model.", "Google_search is not supported by this model."
        case _:
            raise AssertionError("name this wire's words for a refused tool of the provider")


def _thinking_words(wire: Wire) -> str | None:
    match wire:
        case MessagesWire():
            return "messages.1.content.0: Invalid `signature` in `thinking` block"
        case ResponsesWire():
            return "The encrypted content gAAA= could not be verified. Reason: organization_id did not match."
        case GoogleWire():
            return "Thought signature is not valid."
        case ConverseWire():
            return (
                "The model returned the following errors: messages.1.content.0: Invalid `signature` in `thinking` block"
            )
        case _:
            return None


@capability("Thinking that is refused after a change of key")
def refused_thinking(wire: Wire) -> str:
    words = _thinking_words(wire)
    if words is None:
        return "—"
    reply = generate(wire, wire.reply(Said(thinking="Hm, yes.", calls=(("c1", "a"),))))[0].reply
    found = TextPart(text="found")
    result = ToolResultPart(tool_call_id="c1", tool_name=READ, contents=(found,))
    request = request_of(wire, QUERY, reply, ToolMessage(contents=(result,)))
    (mark,) = (words for words in wire.kept.values())
    end, adaptations, bodies = climb(wire, lambda body: words if mark in _compact(body) else None, request)
    assert isinstance(end, Generation)
    assert (mark in _compact(bodies[0]), mark in _compact(bodies[1])) == (True, False)
    assert "found" in _compact(wire.results(bodies[1]))
    later = request_of(wire, QUERY, reply, ToolMessage(contents=(result,)), end.reply, QUERY, adaptations=adaptations)
    end, same, bodies = climb(wire, lambda body: words if mark in _compact(body) else None, later)
    assert (isinstance(end, Generation), same, len(bodies)) == (True, adaptations, 1), "it is not tried again"
    return in_words(adaptations)


@capability("Thinking that is refused in each reply")
def always_refused_thinking(wire: Wire) -> str:
    words = _thinking_words(wire)
    if words is None:
        return "—"
    (mark,) = wire.kept.values()
    turns = [Said(thinking=f"Hm, {number}.", calls=((f"c{number}", "a"),)) for number in range(5)]
    replies = [wire.reply(said) for said in (*turns, _DONE)]
    job, seen, endpoint = run_under_rule(wire, lambda body: words if mark in _compact(body) else None, *replies)
    adapted = seen.of("adaptRequest")
    assert (job.status, len(adapted), len(endpoint.asked)) == ("completed", 3, 9)
    return adapted[-1].adaptations[0].words


@capability("Thinking of another model of the vendor")
def thinking_of_another_model(wire: Wire) -> str:
    if not wire.kept:
        return "—"
    reply = generate(wire, wire.reply(Said(thinking="Hm, yes.", calls=(("c1", "a"),))))[0].reply
    result = ToolResultPart(tool_call_id="c1", tool_name=READ, contents=(TextPart(text="found"),))
    request = request_of(wire, QUERY, reply, ToolMessage(contents=(result,)))
    (mark,) = wire.kept.values()
    bodies = [climb(wire, lambda body: None, one)[2][0] for one in (request, replace(request, model=f"{wire.model}-x"))]
    assert mark in _compact(bodies[0])
    return "sent" if mark in _compact(bodies[1]) else "left out"


def _image_words(wire: Wire) -> str:
    match wire:
        case MessagesWire():
            return "messages.0.content.1.image.source.base64.data: Could not process image"
        case ChatWire():
            return "Invalid image: messages[1].content[1].image_url"
        case ResponsesWire():
            return "The image data you provided does not represent a valid image: input[0].content[1].image_url"
        case GoogleWire():
            return "Unable to process input image: contents[0].parts[1].inline_data"
        case ConverseWire():
            return "The model returned the following errors: messages.0.content.1.image.source.bytes: Could not process"
        case _:
            raise AssertionError("name this wire's words for a refused image")


def _field_words(wire: Wire) -> tuple[str, str]:
    """Return the name of an optional field, and the vendor's words for refusing it."""
    match wire:
        case ConverseWire():
            return "topP", "The model returned the following errors: `topP` is not supported by this model."
        case GoogleWire():
            return (
                "topP",
                "Invalid JSON payload received. Unknown name \"topP\" at 'generation_config': Cannot find field.",
            )
        case MessagesWire():
            return "top_p", "top_p: Extra inputs are not permitted"
        case _:
            return "top_p", "Unsupported parameter: 'top_p' is not supported with this model."


@capability("An optional field that is refused, in the vendor's words")
def refused_field(wire: Wire) -> str:
    name, words = _field_words(wire)

    def rule(body: Any) -> str | None:
        return words if f'"{name}":' in _compact(body) else None

    end, adaptations, bodies = climb(wire, rule, request_of(wire), status=422, topP=0.9, temperature=0.5)
    assert isinstance(end, Generation)
    assert ("0.9" in _compact(bodies[0]), "0.9" in _compact(bodies[1]), "0.5" in _compact(bodies[1])) == (
        True,
        False,
        True,
    )
    return in_words(adaptations)


@capability("Each optional field that is refused")
def each_refused_field(wire: Wire) -> str:
    fields = {"temperature"}
    if isinstance(wire, ChatWire | ResponsesWire):
        job, _, _ = run_under_rule(wire, _noting(fields), wire.reply(_CALL), wire.reply(_DONE))
        assert (job.status, len(fields) > 1) == ("completed", True)
    for name in fields:
        job, seen, endpoint = run_under_rule(
            wire, _refusing(name), wire.reply(_CALL), wire.reply(_DONE), setting={"temperature": 0.5}
        )
        assert (job.status, job.text) == ("completed", "Done."), name
        assert len(endpoint.asked) == 3, f"{name}: refused once in a Run, and never sent again"
        assert len(seen.of("adaptRequest")) == 1
    return "repeated once without it"


def _noting(fields: set[str]) -> Callable[[Any], str | None]:
    def rule(body: Any) -> str | None:
        fields.update(body.keys() - REQUIRED_FIELDS)
        return None

    return rule


def _refusing(name: str) -> Callable[[Any], str | None]:
    return lambda body: f"Unsupported parameter: '{name}'" if name in _keys(body) else None


def _keys(value: Any) -> set[str]:
    """Return the keys of a request and of the groups in it, where some formats have their options."""
    groups = [inner for inner in value.values() if isinstance(inner, dict)]
    return {*value} | {name for group in groups for name in group}


@capability("Texts without a printing character")
def blank_texts(wire: Wire) -> str:
    blank = Said("\n \n", thinking="" if wire.kept else "Hm.", calls=(("c1", "blank"),))
    job, _, endpoint = run_under_rule(
        wire, _blank, wire.reply(blank), wire.reply(_DONE), files={"blank": " \n", "a": "found in a"}
    )
    assert (job.status, job.text, len(endpoint.asked)) == ("completed", "Done.", 2)
    return "replaced or left out"


def _blank(body: Any) -> str | None:
    for place, text in _texts(body):
        if not text.strip():
            return f"{place}: text content blocks must contain non-whitespace text"
    return None


def _texts(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text of the conversation with the name of its field; a reply with calls needs none."""
    if isinstance(value, dict):
        value = {name: inner for name, inner in value.items() if name != "content" or not value.get("tool_calls")}
        for name, inner in value.items():
            if name in ("text", "content", "output", "error") and isinstance(inner, str):
                yield f"{place}.{name}", inner
            elif name not in ("tools", "toolConfig", "arguments", "input_schema"):
                yield from _texts(inner, f"{place}.{name}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _texts(inner, f"{place}.{index}")


@capability("A refusal that names nothing that could be left out")
def refused_for_good(wire: Wire) -> str:
    for words in ("we do not like this", "tools.7.x: bad", "messages: none", "model: unknown", f"user wrote «{READ}s»"):
        end, adaptations, bodies = climb(wire, lambda body, words=words: words, request_of(wire))
        assert isinstance(end, ProviderError)
        assert (words in str(end), adaptations, len(bodies)) == (True, (), 1)
    return "the vendor's words"


@capability("Every request is refused, each time for another part")
def refused_for_ever(wire: Wire) -> str:
    reply = generate(wire, wire.reply(Said(thinking="Hm, yes.", calls=(("c1", "a"),))))[0].reply
    result = ToolResultPart(tool_call_id="c1", tool_name=READ, contents=(TextPart(text="x"),))
    asked = UserMessage(contents=(TextPart(text="look"), _IMAGE))
    request = request_of(wire, asked, reply, ToolMessage(contents=(result,)), tools=(_OTHER, *TOOLS))
    words = [_tool_words(wire, 1), _image_words(wire), _thinking_words(wire) or "", _field_words(wire)[1]]
    count = 0

    def rule(body: Any) -> str:
        nonlocal count
        count += 1
        return words[(count - 1) % len(words)]

    end, _, bodies = climb(wire, rule, request, topP=0.9)
    assert isinstance(end, ProviderError)
    assert len(bodies) <= 6
    return "ends"


@capability("A Run whose tool is refused")
def run_with_refused_tool(wire: Wire) -> str:
    def rule(body: Any) -> str | None:
        names = _names(wire, body)
        return _tool_words(wire, names.index(READ)) if READ in names else None

    job, seen, endpoint = run_under_rule(wire, rule, wire.reply(HELLO))
    assert (job.status, job.text, len(endpoint.asked)) == ("completed", HELLO.text, 3)
    adapted = seen.of("adaptRequest")
    assert [event.adaptations[0].form for event in adapted] == ["plain", "omitted"]
    assert not seen.of("retry")
    return "completes"
