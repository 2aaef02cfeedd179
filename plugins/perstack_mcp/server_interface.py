"""Interface between a session and its server, errors of servers, and the cache of known protocol revisions.

The SDK's probe for stateless revisions waits ten seconds on a server that ignores unknown messages. So a process is
first offered the handshake, which servers of both kinds accept, and probed only after refusing it; a process in the
cache is probed at once. A remote server is probed first, which such servers expect, and offered the handshake first if
it is in the cache. Losing the cache costs one more attempt.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from perstack.core.secrets.masking import masked_error
from perstack.dataclass import dataclass
from perstack.errors import PerstackError, SkillError
from perstack.next_steps import NextStep
from perstack.system.files import read_regular, replace_private_file
from perstack.system.user import user_directory

if TYPE_CHECKING:
    from mcp.client import Transport

LEGACY = "legacy"  # mode: the handshake of revisions up to 2025-11-25

AUTO = "auto"  # mode: a probe for the stateless revisions from 2026-07-28, then the handshake


@dataclass(frozen=True, slots=True)
class ConnectionAttempt:
    """A way to connect: one transport in one mode."""

    mode: str
    transport: Callable[[], Transport]
    on_success: Callable[[bool], Awaitable[None]] | None = None
    """Function that is called when a server has answered, with True if its revision is stateless."""


class McpServer(Protocol):
    """A server that can be started, and started again after it has ended."""

    @property
    def name(self) -> str:
        """The name of the skill."""
        ...

    @property
    def workspace(self) -> Path:
        """Directory that the server gets as its root."""
        ...

    @property
    def show(self) -> Callable[[str], None]:
        """The function that shows a line to the person."""
        ...

    def up(self) -> AbstractAsyncContextManager[None]:
        """Keep the server running during the block.

        Must not import the SDK, which is imported while the process starts.
        """
        ...

    def attempts(self) -> Sequence[ConnectionAttempt]:
        """Return the connection attempts, the most likely first. Imports the SDK."""
        ...

    def exit_summary(self) -> str:
        """Describe how the server ended; empty if that is unknown."""
        ...


_MAX_ENTRIES = 500
_MAX_BYTES = 1 << 20


class ServerProtocols:
    """Cache of servers' protocol revisions, keyed by digests of command lines or addresses, which may hold secrets."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def of_user(cls, env: Mapping[str, str]) -> ServerProtocols:
        """Return the cache in the user's cache directory."""
        return cls(user_directory("cache", env) / "mcp-eras.json")

    def is_stateless(self, argv: Sequence[str]) -> bool:
        """Return whether a process has refused the handshake before."""
        return _digest_of(argv) in self._read_digests()

    def remember_stateless(self, argv: Sequence[str]) -> None:
        """Remember that a process refuses the handshake."""
        self._remember(_digest_of(argv))

    def takes_handshake(self, endpoint: str) -> bool:
        """Return whether a remote server is known to use the handshake."""
        return _digest_of(("handshake", endpoint)) in self._read_digests()

    def remember_handshake(self, endpoint: str) -> None:
        """Remember that a remote server uses the handshake."""
        self._remember(_digest_of(("handshake", endpoint)))

    def _remember(self, digest: str) -> None:
        digests = [*self._read_digests(), digest][-_MAX_ENTRIES:]
        # a cache that cannot be written is not an error
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_private_file(self._path, json.dumps(digests).encode())

    def _read_digests(self) -> list[str]:
        try:
            digests: object = json.loads(read_regular(self._path, _MAX_BYTES))
        except (OSError, ValueError):
            return []
        return [str(entry) for entry in digests] if isinstance(digests, list) else []  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  # JSON: any value becomes text


def _digest_of(argv: Sequence[str]) -> str:
    return sha256("\0".join(argv).encode("utf-8", "surrogatepass")).hexdigest()


_MAX_ERROR_CHARS = 10_000  # maximum characters of an error's text that are processed


class ServerEnded(SkillError):
    """Error of a call during which the connection closed."""


LOST_SESSION = secrets.token_hex(8)
"""Data of the error of a request that was not executed, because the server no longer knows its session."""

NOT_SENT = secrets.token_hex(8)
"""Data of the error of a request that was not sent, as there is no answer from the address."""

BROKEN = secrets.token_hex(8)
"""Data of the error of a request whose connection broke, so that it may have been executed.

Each process generates its own value, so that no server can send it.
"""


class Unauthorized(SkillError):
    """Error of a request that the server or its authorization server rejected; other requests may continue."""


def root_cause(error: BaseException) -> BaseException:
    """Return the first error inside an exception group other than a cancellation."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    inner = cast("BaseExceptionGroup[BaseException]", error).exceptions
    return root_cause(next((error for error in inner if not isinstance(error, asyncio.CancelledError)), inner[0]))


def next_steps_of(error: BaseException) -> tuple[NextStep, ...]:
    """Return the next steps of the root error."""
    cause = root_cause(error)
    return cause.next_steps if isinstance(cause, PerstackError) else ()


def describe(error: BaseException) -> str:
    """Describe the root error on one line, without its next steps and with secrets in addresses masked."""
    cause = root_cause(error)
    message = cause.message if isinstance(cause, PerstackError) else str(cause)
    text = masked_error(" ".join(message.split())[:_MAX_ERROR_CHARS])
    return text[:500] if text else type(cause).__name__


MAX_LINES = 1000  # maximum lines per time window; further lines are only counted

_WINDOW_S = 10.0  # length of the window in seconds

MAX_LINE_CHARS = 1000


class RateLimitedOutput:
    """Rate-limited output of lines to the person. Shortens each line and reports how many were omitted."""

    def __init__(self, show: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._show = show
        self._clock = clock
        self._until = clock() + _WINDOW_S
        self._lines = 0

    def __call__(self, line: str) -> None:
        """Show a line, or count it."""
        now = self._clock()
        if now >= self._until:
            self._until, left_out, self._lines = now + _WINDOW_S, self._lines - MAX_LINES, 0
            if left_out > 0:
                self._show(f"({left_out} lines were not shown)")
        self._lines += 1
        if self._lines <= MAX_LINES:
            self._show(line[:MAX_LINE_CHARS].rstrip())
        elif self._lines == MAX_LINES + 1:
            self._show(f"(more than {MAX_LINES} lines at once: further lines are not shown)")


_MAX_NOTES = 1000  # maximum number of different notes that are shown


class ShownOnce:
    """Output of notes about repairs, each shown only once: a faulty server repeats its fault in every message."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._shown: set[tuple[str, str]] = set()

    def __call__(self, subject: str, notes: Sequence[str]) -> None:
        """Show those of the notes that are new, on one line."""
        new = [note for note in dict.fromkeys(notes) if (subject, note) not in self._shown]
        if new and len(self._shown) < _MAX_NOTES:
            self._shown.update((subject, note) for note in new)
            self._show(f"({subject}: {'; '.join(new)})")
