"""Provider that gives each Run the reply that it received when the Job was recorded.

`recordings.play` has the rules: the next reply follows from the request alone (its Run, purpose, step and
messages), so that Runs may be played concurrently and resumed after a crash. This module reads the settings and
converts recorded replies. The host gets results of tools and answers of persons from the same player (`player`).

A request that differs from the recording fails with `NotRecorded` instead of getting some other reply.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from typing_extensions import override

from perstack.core.base.records import JsonObject
from perstack.core.messages.messages import ReplyPart, TextPart, ThinkingPart
from perstack.errors import MissingCredential, UsageError
from perstack.ports.provider import Delta, Generation, GenerationRequest, Provider
from perstack.recordings.play import Player, chosen_tools, message_of, not_recorded
from perstack.recordings.reading import read_recording

_SETTINGS = ("recording", "tools", "definition", "pace")
_DEFINITIONS = ("same", "any")
_MAX_PACE_S = 60


class RecordedProvider(Provider):
    """Player of one recording, for any number of concurrent Runs."""

    def __init__(self, player: Player, pace_s: float = 0) -> None:
        """Play the recording of `player`; each reply takes `pace_s` seconds, in which its text arrives word by word."""
        self.player: Player = player
        self._pace_s = pace_s

    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        """Return the recorded reply. Raises ProviderError `NotRecorded`, which names what is missing or differs."""
        if request.place is None:
            raise not_recorded(f"{self.player.name} plays only Runs of Jobs")
        purpose = "result" if request.purpose == "reply" and not request.allow_tools else request.purpose
        recorded = self.player.reply(request.place, purpose, request.step, request.messages)
        reply = message_of(recorded)
        deltas = [piece for part in reply.contents for piece in self._split_into_deltas(part)]
        for delta in deltas:
            on_delta(delta)
            if self._pace_s:
                await asyncio.sleep(self._pace_s / len(deltas))
        if self._pace_s and not deltas:
            await asyncio.sleep(self._pace_s)
        usage = recorded.usage.plausible()
        if usage.cost_usd is not None and usage.cost_usd < 0:
            usage = usage.model_copy(update={"cost_usd": None})
        return Generation(reply, usage, recorded.finish_reason, recorded.context_window)

    def _split_into_deltas(self, part: ReplyPart) -> Iterator[Delta]:
        if isinstance(part, ThinkingPart):
            yield from (Delta("reasoning", piece) for piece in self._split_into_words(part.thinking))
        elif isinstance(part, TextPart):
            yield from (Delta("text", piece) for piece in self._split_into_words(part.text))

    def _split_into_words(self, text: str) -> list[str]:
        return re.findall(r"\s*\S+\s*", text) if self._pace_s else [text]

    @override
    async def close(self) -> None:
        pass


def recorded_provider(setting: JsonObject, how_to_configure: str) -> RecordedProvider:
    """Create the provider for `[provider.setting]`. Raises MissingCredential and UsageError."""
    unknown = sorted(setting.keys() - {*_SETTINGS})
    if unknown:
        raise UsageError(f"[provider.setting] of recorded has no {unknown[0]}: it has {', '.join(_SETTINGS)}")
    path = setting.get("recording")
    if path is None or path == "":
        raise MissingCredential(f"provider recorded has no recording: {how_to_configure}")
    if not isinstance(path, str):
        raise UsageError("[provider.setting] recording must be the path of a recording, which `perstack record` writes")
    tools = chosen_tools(setting.get("tools"), "[provider.setting] tools")
    definition = setting.get("definition", "same")
    if definition not in _DEFINITIONS:
        raise UsageError(f"[provider.setting] definition is {definition!r}: use `same` or `any`")
    pace = setting.get("pace", 0)
    if isinstance(pace, bool) or not isinstance(pace, int | float) or not 0 <= pace <= _MAX_PACE_S:
        raise UsageError(f"[provider.setting] pace is {pace!r}: use seconds from 0 to {_MAX_PACE_S}")
    player = Player(read_recording(Path(path)), path, tools, any_definition=definition == "any")
    return RecordedProvider(player, pace)
