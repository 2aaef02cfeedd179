"""A till: a tool that pays, counted by key, and one that looks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from perstack.core.definitions.skills import PluginSkill
from perstack.toolkit import Toolkit

SKILL = PluginSkill(name="till", plugin="till")


def till(paid: Counter[str], seen: Callable[[str], str]) -> Toolkit:
    """Return the toolkit. Payments are counted in `paid`; `seen` returns what a look finds."""
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
