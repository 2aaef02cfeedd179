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


def nothing_held(live: LiveProject | None) -> str:
    """Why there is nothing that a person could agree to."""
    if live is not None and live.problem is not None:
        return "perstack.toml is broken: there is nothing to agree to."
    return "The definition in force is the one of the file."


async def changes_of(live: LiveProject) -> AsyncGenerator[bool]:
    """Look at its files, for ever; after each look, whether another definition holds."""

    def look() -> tuple[tuple[tuple[str, ...], ...], float]:
        began = time.monotonic()  # here, so that a loop that has much to do does not count
        return live.matched(), time.monotonic() - began

    while True:
        found, took = await asyncio.to_thread(look)
        yield live.refresh_matched(found)
        await asyncio.sleep(max(_LOOK_AGAIN, took * _SHARE))
