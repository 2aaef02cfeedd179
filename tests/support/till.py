"""A till: a tool that pays, which is counted, and one that looks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from perstack.core.definitions import PluginSkill
from perstack.ports.toolkit import Toolkit

SKILL = PluginSkill(name="till", plugin="till")


def till(paid: Counter[str], seen: Callable[[str], str]) -> Toolkit:
    """Counts what was paid by its key; `seen` is what a look at a key finds."""
    kit = Toolkit("till")

    @kit.tool()
    async def pay(key: str) -> str:
        """Pay."""
        paid[key] += 1
        await asyncio.sleep(0.001)
        return "paid"

    @kit.tool(effect="readOnly")
    async def look(key: str) -> str:
        """Look."""
        return seen(key)

    return kit
