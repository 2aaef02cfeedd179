"""What of a Run is made once: in every format, through the provider, against a server on this machine."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import pytest
from provider_suite import WIRES, request_of, using
from wire import READ, Said, Wire

from perstack.core.messages.messages import (
    BlobPart,
    ExpertMessage,
    History,
    TextPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from perstack.ports.provider import Provider

REQUESTS = 4
ONE, TWO = (BlobPart(sha256=name, mime_type="image/png", size=3) for name in ("one", "two"))


class Watched(UserMessage):
    """A query that notes each look into it."""

    def __getattribute__(self, name: str) -> Any:
        if name == "contents":
            LOOKS.append(name)
        return super().__getattribute__(name)


LOOKS: list[str] = []


class Run:
    """Sends a Run's requests, each with one step more; with one memo for all of them, or with none."""

    def __init__(self, wire: Wire, *, keeps: bool) -> None:
        self.wire = wire
        self.memo: dict[Hashable, object] | None = {} if keeps else None
        self.blobs: list[str] = []
        self.looks: list[int] = []
        self.bodies = [asked.body for asked in using(wire, wire.reply(Said("Yes.")), act=self._send).asked]

    async def _send(self, provider: Provider) -> None:
        messages = History([Watched(contents=(TextPart(text="See."), ONE))])
        for number in range(REQUESTS):
            asked = replace(request_of(self.wire), messages=messages, blobs=self._blob)
            LOOKS.clear()
            await provider.generate(asked if self.memo is None else replace(asked, memo=self.memo), lambda delta: None)
            self.looks.append(len(LOOKS))
            call = ToolCallPart(tool_call_id=f"c{number}", tool_name=READ, args={"path": "a"})
            result = ToolResultPart(tool_call_id=f"c{number}", tool_name=READ, contents=(TWO,))
            messages = messages.append(ExpertMessage(contents=(call,))).append(ToolMessage(contents=(result,)))

    async def _blob(self, sha256: str) -> bytes:
        self.blobs.append(sha256)
        return sha256.encode()


@pytest.mark.parametrize("wire", WIRES, ids=str)
def test_each_message_is_written_once_and_its_blobs_are_read_once_however_often_they_are_sent(wire: Wire) -> None:
    anew, kept = Run(wire, keeps=False), Run(wire, keeps=True)
    assert kept.bodies == anew.bodies
    assert len(set(kept.bodies)) == REQUESTS
    assert kept.looks[0] > 0
    assert kept.looks[1:] == [0] * (REQUESTS - 1)
    assert kept.blobs == ["one", *["two"] * (REQUESTS - 1)], "each when its message is written"
