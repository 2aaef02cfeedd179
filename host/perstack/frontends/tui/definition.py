"""The definition, read again when its files change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

from perstack.engine.live import LiveProject

_LOOK_AGAIN = 1.0
"""Seconds between two looks at the files, at least."""

_SHARE = 50
"""A look that takes long is followed by this many times its length of rest."""


async def changes_of(live: LiveProject) -> AsyncGenerator[bool]:
    """Look at its files, for ever; after each look, whether another definition holds."""
    while True:
        began = time.monotonic()
        found = await asyncio.to_thread(live.matched)
        took = time.monotonic() - began
        yield live.refresh_matched(found)
        await asyncio.sleep(max(_LOOK_AGAIN, took * _SHARE))
