"""A bucket tells nobody what is written to it: one small question at a time stands in for a look at every log."""

from __future__ import annotations

import asyncio
import time

from perstack.errors import StorageError
from perstack_s3.objects import Objects

_ASKS_EACH = 0.3
"""Seconds."""


class Watching:
    """Looks whether the Job's summary has changed, which is written as its steps end."""

    def __init__(self, objects: Objects, key: str) -> None:
        self._objects = objects
        self._key = key
        self._tag: str | None = None

    async def wait(self, seconds: float) -> None:
        """Returns when the summary was written since the last wait, and at the latest after so many seconds."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(_ASKS_EACH, left))
            if await self.has_changed():
                return

    async def has_changed(self) -> bool:
        """Whether it was written since this was asked last."""
        try:
            found = await self._objects.head(self._key)
        except StorageError:
            return False  # whoever looks at the logs next meets it, and says it
        tag = None if found is None else found.tag
        was, self._tag = self._tag, tag
        return tag != was
