"""The port of a provider that plays a recording: it answers for tools, skills and people as well."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

from perstack.core.recording.model import MOST_BYTES, Recording, parse_recording
from perstack.core.recording.play import Player
from perstack.errors import UsageError
from perstack.ports.provider import Provider


@runtime_checkable
class PlaysRecording(Protocol):
    """What a provider may have beside: without it, tools are run and people are asked."""

    @property
    def player(self) -> Player: ...


def player_of(provider: Provider | PlaysRecording) -> Player | None:
    """What answers in place of tools and people; None with a provider that only generates.

    Whether there is one, `plays_recording` says for less.
    """
    return provider.player if isinstance(provider, PlaysRecording) else None


def read_recording(path: Path) -> Recording:
    """A recording from its file. Raises UsageError, one line with the place and what to do."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"the recording {path} cannot be read: {error.strerror or error}") from error
    return parse_recording(data, str(path))
