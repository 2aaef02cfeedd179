"""What a command line comes to: simple commands, files that it is redirected to, and what cannot be read."""

from __future__ import annotations

from functools import cached_property
from itertools import takewhile

from perstack.dataclass import dataclass


@dataclass(frozen=True)
class Command:
    """One simple command."""

    words: tuple[str | None, ...]
    """None is one that is known when it runs, and may be many."""
    assignments: tuple[str, ...] = ()
    """Variables that are set for it and can change what it does, `NAME=value`."""
    reason: str = ""
    """Why it is asked about: what it runs is not what it is called."""
    is_around: bool = False
    """Whether it only runs others that are read as well: then only rules that name it count."""

    @cached_property
    def known(self) -> tuple[str, ...]:
        """The words up to the first that is not known."""
        return tuple(word for word in takewhile(lambda word: word is not None, self.words) if word is not None)

    @property
    def is_known(self) -> bool:
        return None not in self.words


@dataclass(frozen=True, slots=True)
class Redirect:
    """A file that is read or written by the shell itself."""

    shown: str
    path: str | None
    """None if it is known when it runs."""
    is_read: bool = False
    text: str = ""
    """The path as it is written, if it is seen from a folder that is known when it runs."""


@dataclass(frozen=True, slots=True)
class Unread:
    """What cannot be read, or is not known before it runs."""

    shown: str
    reason: str


Part = Command | Redirect | Unread
