"""Checks against schemas that may take a while, without keeping the event loop."""

from __future__ import annotations

import asyncio

from pydantic import JsonValue

from perstack.core.checking import FULL, QUICK, Checker, Violation
from perstack.core.schema_keywords import Meter


async def violation_of(checker: Checker, value: JsonValue) -> Violation | None:
    """What of a value does not fit; None if all does. What takes more than a moment is done in a thread.

    A value that cannot be checked to the end within some seconds does not fit. Never raises.
    """
    found = checker.violation(value, Meter(QUICK))
    if found is None or not found.is_unfinished:
        return found
    return await asyncio.to_thread(checker.violation, value, Meter(FULL))
