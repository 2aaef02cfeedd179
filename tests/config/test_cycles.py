"""Experts that delegate to each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perstack.toml_reader.experts import cycles

NAMES = st.sampled_from("abcdef")


NO_LIMITS = "maxSteps = 0\nmaxDepth = 0\n"


def expert(key: str, *delegates: str, more: str = "") -> str:
    return f'[experts.{key}]\ninstruction = "x"\ndelegates = {list(delegates)}\n{more}\n'


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (expert("a", "b") + expert("b", "a"), [(5, "experts.a.delegates[0]", "a → b → a")]),
        (expert("a", "a"), [(5, "experts.a.delegates[0]", "to itself")]),
        (
            expert("lead", "a") + expert("a", "x", "b") + expert("b", "c") + expert("c", "a") + expert("x"),
            [(9, "experts.a.delegates[1]", "a → b → c → a")],
        ),
        (
            expert("a", "b") + expert("b", "a") + expert("c", "c"),
            [(5, "experts.a.delegates[0]", "a → b → a"), (13, "experts.c.delegates[0]", "to itself")],
        ),
        (expert("a", "b") + expert("b", "a", more="maxSteps = 9"), []),
        ("maxSteps = 9\n" + expert("a", "b") + expert("b", "a"), []),
        (expert("a", "b", "c") + expert("b", "c") + expert("c"), []),
    ],
)
def test_a_cycle_of_delegates_where_both_limits_are_lifted_is_a_warning(problems, text, found):
    said = problems(text if text.startswith("maxSteps") else f"{NO_LIMITS}{text}")
    assert [(line, key) for _, line, key, _ in said] == [(line, key) for line, key, _ in found]
    assert problems(text) == []
    for (severity, _, _, message), (_, _, way) in zip(said, found, strict=True):
        assert severity == "warning"
        assert "without end" in message
        assert way in message
        assert "maxSteps" in message


@given(st.dictionaries(NAMES, st.lists(NAMES, max_size=4), max_size=6))
def test_every_cycle_that_is_found_is_one_and_without_them_there_is_none(edges):
    left = dict(edges)
    seen: set[str] = set()
    for found in cycles(edges):
        assert all(after in edges[node] for node, after in zip(found, [*found[1:], found[0]], strict=True))
        assert seen.isdisjoint(found)
        seen |= set(found)
        for node in found:
            del left[node]
    while ends := [node for node, targets in left.items() if not any(target in left for target in targets)]:
        for node in ends:
            del left[node]
    assert left == {}


def test_a_long_chain_is_no_cycle_and_takes_no_time():
    assert list(cycles({str(n): [str(n + 1)] for n in range(20_000)})) == []
