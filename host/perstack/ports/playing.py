"""The port of a provider that plays a recording: it also answers for tools, skills and people."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

from perstack.core.recordings.model import MOST_BYTES, Recording, parse_recording
from perstack.core.recordings.play import Player
from perstack.errors import UsageError
from perstack.ports.provider import Provider
from perstack.system.regular_files import opened


@runtime_checkable
class PlaysRecording(Protocol):
    """Optional ability of a provider. Without it, tools run and people are asked."""

    @property
    def player(self) -> Player:
        """The source of recorded answers."""
        ...


def player_of(provider: Provider | PlaysRecording) -> Player | None:
    """Return the player that answers in place of tools and people, or None for a provider that only generates.

    `ports.provider.plays_recording` tells whether there is one, without this module's imports.
    """
    return provider.player if isinstance(provider, PlaysRecording) else None


def read_recording(path: Path) -> Recording:
    """Read a recording from its file. Raises UsageError, one line with the place and what to do."""
    try:
        with opened(path, follow=True) as file, open(file, "rb", closefd=False) as reader:
            data = reader.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"the recording {path} cannot be read: {error.strerror or error}") from error
    return parse_recording(data, str(path))
