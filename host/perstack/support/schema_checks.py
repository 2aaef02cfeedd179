"""Schema checks that may take long, without blocking the event loop."""

from __future__ import annotations

import asyncio

from pydantic import JsonValue

from perstack.core.base.json_schema import FULL, QUICK, Checker, Meter, Violation


async def violation_of(checker: Checker, value: JsonValue) -> Violation | None:
    """Return how a value violates a schema, or None; a check that would take many seconds is one too."""
    found = checker.violation(value, Meter(QUICK))
    if found is None or not found.is_unfinished:
        return found
    return await asyncio.to_thread(checker.violation, value, Meter(FULL))
