"""Judging results without keeping the event loop."""

from __future__ import annotations

import asyncio

from perstack.core.base import JsonObject
from perstack.core.checking import QUICK
from perstack.core.results import Judged, judged

_SHORT = 50_000
"""Characters of a result that are read in a moment."""


async def judged_result(text: str, schema: JsonObject) -> Judged:
    """Whether a result fits a schema; what takes more than a moment is done in a thread. Never raises."""
    quick = judged(text, schema, QUICK) if len(text) <= _SHORT else None
    return quick if quick is not None else await asyncio.to_thread(judged, text, schema)
