"""Parts of a host: what one package offers to another that must not import it.

A package that needs a service of a feature declares a `Part`, a typed key, with the protocol of the service. The Host
has one table of what it offers, `perstack/parts.py`, and makes each service when it is asked for. So the kernel names
no feature, and a Job pays for none that it does not use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar, cast

from perstack.errors import UsageError

_Service = TypeVar("_Service")


class Part(Generic[_Service]):
    """A typed key for a service of a host. Each key equals only itself."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        """`name` is shown in errors."""
        self.name = name

    def offer(self, make: Callable[[], _Service]) -> Offer:
        """Return a table entry that calls `make` when the service is first asked for."""
        return self, make


Offer = tuple[Part[Any], Callable[[], Any]]


class Parts:
    """The services that a host offers."""

    def __init__(self, offers: Iterable[Offer] = (), *others: Callable[[], Iterable[Offer]]) -> None:
        """Make no service yet. Each of `others` returns further offers; it is called if no earlier one has a part."""
        self._makers = dict(offers)
        self._others = list(others)
        self._made: dict[Part[Any], Any] = {}

    def has(self, part: Part[Any]) -> bool:
        """Return whether the host offers the service."""
        while part not in self._makers and self._others:
            self._makers |= dict(self._others.pop(0)())
        return part in self._makers

    def get(self, part: Part[_Service]) -> _Service:
        """Return the service. Raises UsageError if the host does not offer it."""
        if part not in self._made:
            if not self.has(part):
                raise UsageError(f"this host has no {part.name}: use `perstack.Host`, which has every part")
            self._made[part] = self._makers[part]()
        return cast("_Service", self._made[part])


NO_PARTS = Parts()
