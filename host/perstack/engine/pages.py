"""Lists that come in pages, read from the first to the last."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Protocol, TypeVar

from perstack.ports.storage import Page


class _HasNext(Protocol):
    @property
    def next(self) -> str | None: ...


_P = TypeVar("_P", bound=_HasNext)


async def pages(page: Callable[[str | None], Awaitable[_P]]) -> AsyncGenerator[_P]:
    """All of them; `page` returns the one after a cursor."""
    after: str | None = None
    while True:
        found = await page(after)
        yield found
        after = found.next
        if after is None:
            return


async def every_id(page: Callable[[str | None], Awaitable[Page]]) -> list[str]:
    """The ids of all of them."""
    return [one async for found in pages(page) for one in found.ids]
