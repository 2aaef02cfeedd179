"""Every provider passes the same suite, and docs/provider-matrix.md says what it found."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import rows
from provider_matrix import PAGE
from provider_suite import CAPABILITIES, WIRES, body_of, request_of
from wire import KEY, Said, Wire
from wire_anthropic import ANTHROPIC
from wire_bedrock import BEDROCK
from wire_google import GOOGLE
from wire_openai import COMPATIBLE, OLLAMA, OPENAI

from perstack.errors import DefinitionError

every_wire = pytest.mark.parametrize("wire", WIRES, ids=str)
SAID = Said("Grüß Gott 😀\u2028 yes", thinking="Hm 😀, yes.", calls=(("c1", "ä.txt"), ("c2", "b")))


FIRST = (ANTHROPIC, OPENAI, COMPATIBLE, GOOGLE, BEDROCK)
"""A wire of each codec: all of its cells are tried, and of the wires that share it a third, unless with `make docs`."""


def _cells() -> Iterator[pytest.ParameterSet]:
    tries_all = os.environ.get("PERSTACK_MATRIX") == "all"
    for wire in WIRES:
        for row in CAPABILITIES:
            if tries_all or wire in FIRST or crc32(f"{wire} {row}".encode()) % 3 == 0:
                yield pytest.param(wire, row, id=f"{row}-{wire}")


@pytest.mark.parametrize(("wire", "row"), list(_cells()))
def test_the_page_says_what_the_provider_does(wire: Wire, row: str) -> None:
    cells = {cells[0]: cells[1:] for cells in rows(PAGE.read_text())}
    assert CAPABILITIES[row](wire) == cells[row][WIRES.index(wire)], "write it again: make matrix"


def test_the_page_has_a_row_for_each_capability_and_a_column_for_each_wire() -> None:
    lines = PAGE.read_text().splitlines()
    head = next(line for line in lines if line.startswith("| "))
    assert [cell.strip() for cell in head.strip("|").split("|")][1:] == [wire.title for wire in WIRES]
    assert [cells[0] for cells in rows(PAGE.read_text())] == list(CAPABILITIES)


@every_wire
def test_a_wrong_setting_is_told_with_its_key(wire: Wire) -> None:
    with pytest.raises(DefinitionError, match=r"provider\.setting\.baseURL"):
        wire.provider(None, baseURL="x")


@every_wire
def test_of_its_settings_it_tells_those_that_change_replies_and_no_secret(wire: Wire) -> None:
    setting = {"maxTokens": 99, "temperature": 0.5, "topP": 0.9, "readTimeout": 5}
    told = wire.provider("http://localhost:1", headers={"X-Team": KEY}, **setting).reply_settings
    assert told.pop("documents", False) is False
    assert told.pop("structuredOutput", True) is True
    assert told == {"maxTokens": 99, "temperature": 0.5, "topP": 0.9}
    assert told.keys() >= wire.provider("http://localhost:1").reply_settings.keys() - {"documents", "structuredOutput"}


@every_wire
def test_plain_http_goes_to_this_machine_and_to_ollama_only(wire: Wire) -> None:
    assert wire.provider("http://localhost:1")
    if wire is OLLAMA:
        assert wire.provider("http://192.168.1.20:11434")
        return
    with pytest.raises(DefinitionError, match=r"provider\.setting\.baseUrl: http:// is allowed to this machine only"):
        wire.provider("http://192.168.1.20:11434")


@every_wire
def test_each_reasoning_budget_makes_a_request_of_its_own_and_none_given_says_nothing_of_it(wire: Wire) -> None:
    told = {budget: body_of(wire, request_of(wire, reasoning_budget=budget)) for budget in (None, "none", "high", 5000)}
    assert told["none"] != told[None] != told["high"] != told["none"]
    assert told[5000] not in (told[None], told["none"])


def _split(stream: bytes, places: Iterable[int]) -> Iterator[bytes]:
    ends = sorted({place % (len(stream) + 1) for place in places})
    for start, end in zip([0, *ends], [*ends, len(stream)], strict=True):
        yield stream[start:end]


@every_wire
def test_any_splitting_of_a_stream_gives_the_same_reply(wire: Wire) -> None:
    stream = b"".join(wire.reply(SAID).chunks)
    whole = wire.decode([stream])
    assert whole[0].reply.text == SAID.text
    assert len(whole[0].reply.tool_calls) == 2

    @given(st.lists(st.integers(min_value=0, max_value=len(stream)), max_size=40))
    def decodes_alike(places: list[int]) -> None:
        assert wire.decode(_split(stream, places)) == whole

    decodes_alike()
