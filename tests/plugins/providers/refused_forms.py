"""Rows of the conformance suite for requests that endpoints refuse: optional fields, and texts without a character."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from provider_suite import capability, run_under_rule
from wire import Said, Wire
from wire_openai import ChatWire, ResponsesWire

from perstack.support.http.messages import REQUIRED_FIELDS

_CALL = Said(calls=(("c1", "a"),))
_DONE = Said("Done.")


@capability("Each optional field that is refused")
def refused_field(wire: Wire) -> str:
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
