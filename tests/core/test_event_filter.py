"""Expressions that select events: what they mean, and that no text and no event breaks them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perstack.doors.shared.filter_expression import MAX_CHARS, MAX_DEPTH, matches, parse_filter

CALLS: dict[str, Any] = {
    "type": "callTools",
    "stepNumber": 5,
    "calls": [
        {"id": "c1", "toolName": "readTextFile", "skillName": "@perstack/base"},
        {"id": "c2", "toolName": "search", "skillName": "web"},
    ],
}
ERROR: dict[str, Any] = {"type": "errorRun", "stepNumber": 2, "error": {"name": "APIError", "isFatal": True}}
FINISHED: dict[str, Any] = {"type": "finishToolCall", "toolCallId": "c2", "toolName": "search", "contents": []}
ARGS: dict[str, Any] = {"c1": {"path": "notes.md"}}


def matches_filter(text: str, event: dict[str, Any]) -> bool:
    return matches(parse_filter(text), event, ARGS)


@pytest.mark.parametrize(
    "text",
    [
        '.type == "callTools"',
        ".type=='callTools'",
        ".type == callTools",
        '.type != "startRun"',
        ".stepNumber == 5",
        ".stepNumber >= 5 && .stepNumber <= 5.0",
        ".stepNumber > -1e3",
        '.toolCalls[].skillName == "web"',
        '.toolCalls.[].toolName == "search"',
        '.calls[].toolName == "search"',
        '.toolCalls[].args.path == "notes.md"',
        '!(.stepNumber < 5) && (.type == "x" || .toolCalls[].id == "c2")',
        '.type == "x" && .type == "y" || .stepNumber == 5',
        '!.missing == "x"',
    ],
)
def test_an_event_fits(text: str) -> None:
    assert matches_filter(text, CALLS)


@pytest.mark.parametrize(
    "text",
    [
        '.type == "completeRun"',
        '.stepNumber == "5"',
        ".stepNumber == true",
        '.missing != "x"',
        '.calls.toolName == "search"',
        '.type > "a"',
        '.calls[].toolName[].x != "x"',
        '.type == "callTools" && !.stepNumber == 5',
        '.stepNumber == 5 && (.type == "x" || .type == "y")',
    ],
)
def test_an_event_does_not_fit(text: str) -> None:
    assert not matches_filter(text, CALLS)


def test_the_names_of_the_original_are_names_of_the_event_here() -> None:
    assert matches_filter('.type == "stopRunByError" && .error.name == "APIError" && .error.isFatal == true', ERROR)
    assert not matches_filter('.type != "stopRunByError"', ERROR)
    assert not matches_filter(".error.isFatal == 1", ERROR)
    assert matches_filter('.type == "resolveToolResults" && .toolResults[].toolName == "search"', FINISHED)
    assert matches_filter('.type == "finishToolCall"', FINISHED)
    assert matches_filter(
        '.type == "completeRun" && .checkpoint.id == "a-1-2"', {"type": "finishRun", "checkpointId": "a-1-2"}
    )


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("", 1),
        ("type == 1", 1),
        (".type", 6),
        ('.type = "x"', 7),
        (".type ==", 9),
        ('.a == "x', 7),
        (".a[0] == 1", 3),
        ("(.a == 1", 9),
        (".a == 1)", 8),
        (".a == 1 .b == 2", 9),
        (".a == 1 &&", 11),
        ("(" * (MAX_DEPTH + 1) + ".a == 1" + ")" * (MAX_DEPTH + 1), MAX_DEPTH + 2),
        (" " * (MAX_CHARS + 1), MAX_CHARS + 1),
    ],
)
def test_a_malformed_expression_is_refused_with_its_column(text: str, column: int) -> None:
    with pytest.raises(ValueError, match=f"^column {column}: "):
        parse_filter(text)


SIGNS = st.sampled_from([".a", ".a[]", ".type", "==", "!=", "<", "&&", "||", "!", "(", ")", '"x"', "'", "7", "-", " "])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
)


@given(st.text(max_size=40) | st.lists(SIGNS, max_size=20).map(" ".join))
def test_any_text_is_a_condition_or_one_error_on_one_line(text: str) -> None:
    problem = ""
    try:
        matches(parse_filter(text), CALLS, ARGS)
    except ValueError as error:
        problem = str(error)
    assert "\n" not in problem
    if problem:
        assert 1 <= int(problem.split(":")[0].removeprefix("column ")) <= len(text) + 1


@given(
    st.sampled_from([".a", ".a[]", ".a[].b", ".a.b", ".toolCalls[].id", ".toolCall.id", ".reason"]),
    st.sampled_from(["==", "!=", "<", "<=", ">", ">="]),
    st.sampled_from(["1", "1e999", "true", '"x"']),
    st.sampled_from(["callTools", "callDelegate", "retry", "callInteractiveTool", 7]),
    JSON,
)
def test_any_event_fits_or_does_not_and_a_negation_is_the_opposite(
    path: str, operator: str, value: str, kind: object, content: Any
) -> None:
    event = {"type": kind, "a": content, "calls": content, "error": content}
    assert matches_filter(f"{path} {operator} {value}", event) is not matches_filter(
        f"!({path} {operator} {value})", event
    )
