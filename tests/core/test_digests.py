"""Digests of what a model is sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from request_form import digest_of
from simulation import START, Simulation

from perstack.audit.request_check import request_difference
from perstack.core.base.chain import EMPTY_LOG, link
from perstack.core.base.records import canonical_record
from perstack.core.definitions.skills import ToolSpec
from perstack.core.messages.messages import (
    BlobPart,
    ExpertMessage,
    History,
    Message,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from perstack.core.runs.events import StoredEvent, parse_event
from perstack.core.runs.events.generations import FinishGeneration, StartGeneration
from perstack.core.runs.events.tool_calls import FinishToolCall
from perstack.core.runs.evolve import evolve
from perstack.core.runs.request_digest import request_digest, stored_tools, tools_blob
from perstack.core.runs.start import StartRun
from perstack.core.runs.state import Run, begin

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
objects = st.dictionaries(texts, values, max_size=2)
text_parts = st.builds(TextPart, text=texts)
blob_parts = st.builds(BlobPart, sha256=texts, mime_type=texts, size=st.integers(0, 9), name=st.none() | texts)
contents = st.lists(text_parts | blob_parts, max_size=2).map(tuple)
calls = st.builds(
    ToolCallPart,
    tool_call_id=texts,
    tool_name=texts,
    args=objects,
    raw_args=st.none() | texts,
    opaque=st.none() | objects,
)
thinking = st.builds(ThinkingPart, thinking=texts, opaque=st.none() | objects)
results = st.builds(ToolResultPart, tool_call_id=texts, tool_name=texts, contents=contents, is_error=st.booleans())
messages = (
    st.builds(UserMessage, contents=contents)
    | st.builds(ExpertMessage, contents=st.lists(text_parts | calls | thinking, max_size=2).map(tuple))
    | st.builds(ToolMessage, contents=st.lists(results, max_size=2).map(tuple))
)
tools = st.lists(st.builds(ToolSpec, name=texts, description=texts, input_schema=objects, skill_name=texts), max_size=2)
requests = st.fixed_dictionaries(
    {
        "model": texts,
        "instruction": texts,
        "guidance": texts,
        "reasoning_budget": st.sampled_from([None, "low", 1, 2]),
        "final": st.booleans(),
        "provider_settings": objects,
        "tools": tools,
        "messages": st.lists(messages, max_size=3),
    }
)
PARTS = ("model", "instruction", "guidance", "reasoning_budget", "final", "provider_settings", "tools", "messages")


def run_with_request(request: dict) -> tuple[Run, StartGeneration]:
    fields = ("model", "instruction", "reasoning_budget")
    stamp = {"id": "j-1-1", "timestamp": 1, "job_id": "j", "run_id": "j-1", "expert_key": "e", "step_number": 1}
    run = begin(StartRun(**stamp, **{**START, **{name: request[name] for name in fields}}), EMPTY_LOG)
    event = StartGeneration(
        **stamp,
        final=request["final"],
        guidance=request["guidance"],
        provider_settings=request["provider_settings"],
        tools_digest=stored_tools(request["tools"]).digest,
    )
    return replace(run, messages=History(request["messages"])), event


def digest(request: dict) -> str:
    return request_digest(*run_with_request(request))


def content_seen(request: dict) -> object:
    """What a model sees of it, as JSON texts, in which 1 is not true and -0.0 not 0."""
    run, event = run_with_request(request)
    shown = [(one.name, one.description) for one in request["tools"]]
    schemas = ToolCallPart(
        tool_call_id="", tool_name="", args={"s": [one.input_schema for one in request["tools"]]}
    ).to_json()
    said = evolve(run, event, EMPTY_LOG)
    provider = ToolCallPart(tool_call_id="", tool_name="", args=dict(sorted(said.provider_settings.items()))).to_json()
    return (
        said.start.model,
        said.instruction,
        said.start.reasoning_budget,
        said.is_final_generation,
        provider,
        shown,
        schemas,
        [message.to_json() for message in said.messages],
    )


@settings(deadline=None)
@given(requests, requests, st.sets(st.sampled_from(PARTS)))
def test_a_change_in_any_part_of_a_request_changes_its_digest_and_nothing_else_does(one, other, changed) -> None:
    mixed = {**one, **{name: other[name] for name in changed}}
    assert (digest(mixed) == digest(one)) == (content_seen(mixed) == content_seen(one))


@settings(deadline=None)
@given(requests)
def test_a_request_that_went_through_a_log_has_the_same_digest(request_) -> None:
    run, event = run_with_request(request_)
    again = [type(message).model_validate_json(message.to_json()) for message in run.messages]
    written = parse_event(event.to_json())
    assert isinstance(written, StartGeneration)
    assert request_digest(replace(run, messages=History(again)), written) == request_digest(run, event)


def test_the_digest_is_the_one_that_the_page_specifies() -> None:
    schema = {"type": "object", "properties": {"z": {"type": "number", "maximum": 1e-7}, "a": {}}}
    call = ToolCallPart(tool_call_id="c", tool_name="t", args={"ä": [1e16, 1.0, None, "\u2028\n"]})
    parts = {
        "model": "m",
        "instruction": "You…",
        "guidance": "Use t.",
        "reasoning_budget": "high",
        "final": True,
        "provider_settings": {"topP": 0.5, "maxTokens": 9},
        "tools": [ToolSpec(name="t", description="does", input_schema=schema, skill_name="s", effect="readOnly")],
        "messages": [UserMessage(contents=(TextPart(text="q"),)), ExpertMessage(contents=(call,))],
    }
    assert digest(parts) == digest_of(
        "You…\n\nUse t.",
        {"model": "m", "reasoningBudget": "high", "final": True, "provider": {"maxTokens": 9, "topP": 0.5}},
        [{"name": "t", "description": "does", "inputSchema": schema}],
        [
            {"type": "userMessage", "contents": [{"type": "textPart", "text": "q"}]},
            {
                "type": "expertMessage",
                "contents": [
                    {
                        "type": "toolCallPart",
                        "toolCallId": "c",
                        "toolName": "t",
                        "args": {"ä": [1e16, 1.0, None, "\u2028\n"]},
                    }
                ],
            },
        ],
    )
    assert digest(parts).startswith("v1:JQfW33IozF7EKFfVLlTJ3HF8DL_XwWnHtAOcKI_NTZU."), "for ever"


def test_what_is_not_finite_or_no_unicode_is_no_error() -> None:
    odd = ToolSpec(name="t", description="\ud800", input_schema={"maximum": float("inf"), "x": [float("nan")]})
    assert stored_tools([odd]).blob.endswith(b'"inputSchema":{"maximum":null,"x":[null]}}]')


@pytest.mark.parametrize("wrong", ["", "v1:", "v2:" + "0" * 64, "v1:" + "0" * 63, "v1:" + "g" * 64, "v1:../x"])
def test_a_tools_digest_of_another_form_names_no_blob(wrong: str) -> None:
    assert tools_blob(wrong) is None


# --- histories --------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9), st.booleans()), max_size=40))
def test_histories_that_grew_in_other_ways_have_equal_digests(growth: list[tuple[int, int, bool]]) -> None:
    versions = [History()]
    for which, number, ask in growth:
        history = versions[which % len(versions)]
        if ask:
            history.digest(len(history))
        versions.append(history.append(UserMessage(contents=(TextPart(text=str(number)),))))
    for history in versions:
        for length in range(len(history) + 1):
            assert history.digest(length) == History(history[:length]).digest(length)
        with pytest.raises(IndexError):
            history.digest(len(history) + 1)


def test_a_step_hashes_only_its_own_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []

    def hashed_bytes(message: UserMessage, **options: bool) -> bytes:
        hashed.append(message.contents[0].text)
        return canonical_record(message, **options)

    monkeypatch.setattr("perstack.core.messages.messages.canonical_record", hashed_bytes)
    history = History()
    for step in range(50):
        history = history.append(UserMessage(contents=(TextPart(text=str(step)),)))
        history.digest(len(history))
        branch = history.append(UserMessage(contents=(TextPart(text="b"),)))
        assert branch.digest(len(history)) == history.digest(len(history))
    assert hashed == [str(step) for step in range(50)]


# --- whole Runs -------------------------------------------------------------------------------------------------------


def choices(numbers: list[int]) -> Callable[[int], int]:
    stream = iter(numbers)
    return lambda below: next(stream, 1) % below


def differences(events: list[StoredEvent]) -> list[str]:
    """What folding a log anew says of each of its requests, until one differs."""
    head, run, known = EMPTY_LOG, None, 0
    for event in events:
        _, head = link(head, event.to_json())
        if run is None:
            assert isinstance(event, StartRun)
            run = begin(event, head)
            continue
        if isinstance(event, StartGeneration):
            wrong = request_difference(run, event, known)
            if wrong:
                return [wrong]
            known = len(run.messages)
        run = evolve(run, event, head)
    return []


def forged(event: StoredEvent) -> StoredEvent | None:
    match event:
        case StartRun():
            return event.model_copy(update={"query": "forged"})
        case FinishToolCall():
            return event.model_copy(update={"contents": (TextPart(text="forged"),)})
        case FinishGeneration() if event.finish_reason == "paused" and not event.reply:
            return None  # unusable as long as it is empty: with a text it would be sent back
        case FinishGeneration():
            return event.model_copy(update={"reply": (TextPart(text="forged"), *event.reply)})
        case _:
            return None


def sent(simulation: Simulation) -> list[tuple[Message, ...]]:
    pairs = zip(simulation.states, simulation.events[1:], strict=False)
    return [tuple(state.messages) for state, event in pairs if isinstance(event, StartGeneration)]


scripts = st.lists(st.integers(0, 1000), max_size=400).map(choices)


@settings(deadline=None)
@given(scripts)
def test_every_request_of_a_run_is_built_again_from_its_log_with_the_same_digest(choose) -> None:
    simulation = Simulation(choose)
    simulation.drive()
    assert differences([parse_event(event.to_json()) for event in simulation.events]) == []


@settings(deadline=None)
@given(scripts, st.integers(0, 1000))
def test_an_edit_of_what_a_later_request_was_made_of_is_found_there(choose, which) -> None:
    simulation = Simulation(choose)
    simulation.drive()
    place = which % len(simulation.events)
    edited = forged(simulation.events[place])
    if edited is None:
        return
    events = [*simulation.events[:place], edited, *simulation.events[place + 1 :]]
    later = [
        len(state.messages)
        for state, event in zip(simulation.states[place:], events[place + 1 :], strict=False)
        if isinstance(event, StartGeneration)
    ]
    earlier = len(simulation.states[place].messages)
    found = differences(events)
    is_used = bool(later) and (isinstance(edited, StartRun) or max(later) > _used_from(simulation, place, earlier))
    assert bool(found) == is_used
    if found:
        assert "message" in found[0]


def _used_from(simulation: Simulation, place: int, earlier: int) -> int:
    """How many messages there are before the one that this event is part of; no end if it is part of none."""
    event = simulation.events[place]
    if isinstance(event, FinishGeneration):
        return earlier - 1 if earlier > len(simulation.states[place - 1].messages) else 1 << 30
    before = simulation.states[place - 1]
    return len(before.messages) if event.tool_call_id in before.calls else 1 << 30  # type: ignore[attr-defined]
