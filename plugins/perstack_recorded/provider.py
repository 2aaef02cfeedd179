"""Provider that gives each Run the reply that it received when the Job was recorded.

`core.recordings.play` has the rules: the next reply follows from the request alone (its Run, purpose, step and
messages), so that Runs may be played concurrently and resumed after a crash. This module reads the settings and
converts recorded replies. The host asks the same player for results of tools and answers of persons (`player`).

A request that differs from the recording fails with `NotRecorded` instead of getting some other reply.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from typing_extensions import override

from perstack.core.base.records import JsonObject
from perstack.core.recordings.play import Player, chosen_tools, message_of, not_recorded
from perstack.core.runs.messages import TextPart, ThinkingPart
from perstack.errors import MissingCredential, UsageError
from perstack.ports.provider import Delta, Generation, GenerationRequest, Provider
from perstack.support.recordings import read_recording

_SETTINGS = ("recording", "tools", "definition")
_DEFINITIONS = ("same", "any")


class RecordedProvider(Provider):
    """Player of one recording, for any number of concurrent Runs."""

    def __init__(self, player: Player) -> None:
        """Play the recording of `player`."""
        self.player: Player = player

    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        """Return the recorded reply. Raises ProviderError `NotRecorded`, which names what is missing or differs."""
        if request.place is None:
            raise not_recorded(f"{self.player.name} plays Runs of Jobs only")
        purpose = "result" if request.purpose == "reply" and not request.allow_tools else request.purpose
        found = self.player.reply(request.place, purpose, request.step, request.messages)
        reply = message_of(found)
        for part in reply.contents:
            if isinstance(part, ThinkingPart):
                on_delta(Delta("reasoning", part.thinking))
            elif isinstance(part, TextPart):
                on_delta(Delta("text", part.text))
        usage = found.usage.plausible()
        if usage.cost_usd is not None and usage.cost_usd < 0:
            usage = usage.model_copy(update={"cost_usd": None})
        return Generation(reply, usage, found.finish_reason, found.context_window)

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
    player = Player(read_recording(Path(path)), path, tools, any_definition=definition == "any")
    return RecordedProvider(player)
