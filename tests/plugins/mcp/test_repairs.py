"""Whatever a server sends, what is made of it is what the SDK takes, and no text of it is lost."""

from __future__ import annotations

import json
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import jsonrpc_message_adapter
from mcp_types.methods import validate_server_result

from perstack_mcp.message_repairs import received_messages, repaired_greeting
from perstack_mcp.repairing_transport import is_valid_result
from perstack_mcp.result_repairs import repaired_result
from perstack_mcp.tool_repairs import OutputSchemas, repaired_page

VERSIONS = ("2024-11-05", "2025-11-25", "2026-07-28")
BLOCK_KEYS = ("type", "text", "data", "mimeType", "uri", "name", "title", "resource", "annotations", "_meta")
RESULT_KEYS = ("content", "structuredContent", "isError", "tools", "nextCursor", "inputSchema", "description")
MESSAGE_KEYS = ("jsonrpc", "id", "method", "params", "result", "error", "capabilities", "serverInfo", "version")
KEYS = st.sampled_from((*BLOCK_KEYS, *RESULT_KEYS, *MESSAGE_KEYS))
WORDS = st.sampled_from(("text", "image", "audio", "resource", "resource_link", "marker", "true", "", "x" * 50))
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6), max_leaves=25
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=8)


def _strings(value) -> list[str]:
    if isinstance(value, dict):
        return [one for inner in value.values() for one in _strings(inner)]
    if isinstance(value, list):
        return [one for inner in value for one in _strings(inner)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize("version", VERSIONS)
@given(result=OBJECTS)
def test_a_result_is_one_that_the_sdk_takes_and_is_not_repaired_again(version: str, result: dict) -> None:
    repair = partial(repaired_result, is_valid=partial(is_valid_result, version), is_stateless=version == VERSIONS[-1])
    repaired, _ = repair(result)
    assert is_valid_result(version, repaired)
    again, notes = repair(repaired)
    assert (again["content"], again["isError"], notes) == (repaired["content"], repaired["isError"], [])


@given(texts=st.lists(st.sampled_from(("marker1", "marker2", "marker3")), min_size=1, max_size=3), wrap=st.data())
def test_a_text_in_the_content_is_never_lost(texts: list[str], wrap: st.DataObject) -> None:
    forms = [
        lambda one: one,
        lambda one: [one],
        lambda one: {"type": "text", "text": one},
        lambda one: {"text": one},
        lambda one: {"type": "odd", "value": one},
        lambda one: {"type": "text", "value": one},
        lambda one: {"type": "resource", "text": one},
        lambda one: {"type": "image", "caption": one},
        lambda one: {"type": 7, "deep": {"er": [one]}},
    ]
    content = [wrap.draw(st.sampled_from(forms))(one) for one in texts]
    repaired, _ = repaired_result({"content": content}, partial(is_valid_result, VERSIONS[1]), is_stateless=False)
    shown = json.dumps(repaired["content"])
    assert all(one in shown for one in texts)


@given(flag=VALUES)
def test_a_flag_that_is_set_stays_set(flag) -> None:
    is_valid = partial(is_valid_result, VERSIONS[1])
    repaired, _ = repaired_result({"content": [], "isError": flag}, is_valid, is_stateless=False)
    if flag is True or flag == "true" or (isinstance(flag, int | float) and flag):
        assert repaired["isError"] is True
    if not flag:
        assert repaired["isError"] is False


@given(value=VALUES)
def test_what_is_received_is_a_message_of_the_sdk_or_none(value) -> None:
    for one in received_messages(json.dumps(value).encode(), 5):
        jsonrpc_message_adapter.validate_python(one.message, by_name=False)


@pytest.mark.parametrize("version", VERSIONS)
@given(page=VALUES)
def test_a_page_of_tools_is_one_that_the_sdk_takes_or_has_no_list(version: str, page) -> None:
    repaired, _ = repaired_page(page, version, OutputSchemas())
    if isinstance(repaired["tools"], list):
        repaired.pop("_meta", None)
        validate_server_result("tools/list", version, repaired)


@given(greeting=OBJECTS)
def test_a_greeting_is_repaired_without_an_error_and_only_once(greeting: dict) -> None:
    repaired, _ = repaired_greeting(greeting)
    assert repaired_greeting(repaired) == (repaired, [])
