"""What is known of the eras of servers: a small file of the user, so that each is asked only once.

The SDK's probe for the stateless era waits ten seconds on a server that ignores what it does not know. So a process is
offered the handshake first, which servers of both eras take, and probed only once it has refused that; one that is in
this file is probed at once. A server on the web is probed, for which servers there are ready, and offered the handshake
at once if it is in this file. Losing the file costs one more question.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from perstack.ports.private_file import replace_private_file

_MOST = 500


class Eras:
    """The remembered servers, by a digest of their command lines or addresses: they may hold secrets."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def of_user(cls, env: Mapping[str, str]) -> Eras:
        """In the user's cache directory."""
        base = env.get("XDG_CACHE_HOME") or str(Path(env.get("HOME") or Path.home()) / ".cache")
        return cls(Path(base) / "perstack" / "mcp-eras.json")

    def is_stateless(self, argv: Sequence[str]) -> bool:
        """Whether a process has refused the handshake before."""
        return _digest(argv) in self._read()

    def remember_stateless(self, argv: Sequence[str]) -> None:
        """A process refuses the handshake."""
        self._remember(_digest(argv))

    def takes_handshake(self, endpoint: str) -> bool:
        """Whether a server on the web was of that era."""
        return _digest(("handshake", endpoint)) in self._read()

    def remember_handshake(self, endpoint: str) -> None:
        """A server on the web is of that era."""
        self._remember(_digest(("handshake", endpoint)))

    def _remember(self, digest: str) -> None:
        known = [*self._read(), digest][-_MOST:]
        # a cache that cannot be written is not an error
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_private_file(self._path, json.dumps(known).encode())

    def _read(self) -> list[str]:
        try:
            found: object = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return []
        return [str(one) for one in found] if isinstance(found, list) else []  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  # JSON: whatever it is, it becomes text


def _digest(argv: Sequence[str]) -> str:
    return sha256("\0".join(argv).encode("utf-8", "surrogatepass")).hexdigest()
