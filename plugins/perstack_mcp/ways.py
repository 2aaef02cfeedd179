"""What the session knows of a server without the SDK: how it is brought up, and the ways of talking to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from perstack.dataclass import dataclass

if TYPE_CHECKING:
    from mcp.client import Transport

LEGACY = "legacy"
"""The handshake of the revisions up to 2025-11-25."""

AUTO = "auto"
"""A probe for the stateless revisions from 2026-07-28, then the handshake."""


@dataclass(frozen=True, slots=True)
class Way:
    """One transport in one era."""

    mode: str
    transport: Callable[[], Transport]
    worked: Callable[[bool], Awaitable[None]] | None = None
    """Told when a server answered this way, and whether in the stateless era."""


class Server(Protocol):
    """A server that can be brought up, again after it has ended."""

    @property
    def name(self) -> str:
        """The skill's."""
        ...

    @property
    def workspace(self) -> Path:
        """What it is told if it asks for the roots."""
        ...

    @property
    def show(self) -> Callable[[str], None]:
        """Takes a line for a person."""
        ...

    def up(self) -> AbstractAsyncContextManager[None]:
        """Whatever has to be there while it is talked to. Imports no SDK: a process starts while that is imported."""
        ...

    def ways(self) -> Sequence[Way]:
        """The ways to try, the likeliest first. Imports the SDK."""
        ...

    def last_words(self) -> str:
        """What is known of how it ended."""
        ...
