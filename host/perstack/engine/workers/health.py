"""Whether a worker can do its work now."""

from __future__ import annotations

import asyncio
import time

from perstack.ports.storage import Storage

SILENT_AFTER = 10.0
"""Seconds without an answer after which what a worker needs counts as gone."""

_LOOKS_EACH = 2.0
_PATIENCE = 5.0
_NO_JOB = "health"


class Health:
    """When the dispatcher and the storage answered last."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._answered = dict.fromkeys(("dispatcher", "storage"), time.monotonic())
        self.drains = False
        """The worker is about to leave."""

    def beaten(self) -> None:
        """The dispatcher has taken a beat."""
        self._answered["dispatcher"] = time.monotonic()

    @property
    def problem(self) -> str | None:
        """Why the worker can do nothing now; None if it can."""
        if self.drains:
            return "the worker is leaving"
        now = time.monotonic()
        silent = {name: now - at for name, at in self._answered.items() if now - at > SILENT_AFTER}
        return "; ".join(f"the {name} has not answered for {seconds:.0f} s" for name, seconds in silent.items()) or None

    async def watch(self) -> None:
        """Ask the storage now and then, until it is cancelled."""
        while True:
            try:
                async with asyncio.timeout(_PATIENCE):
                    await self._storage.has_job(_NO_JOB)
            except Exception:  # noqa: BLE001, S110 - a storage may raise anything; how long it is silent is what counts
                pass
            else:
                self._answered["storage"] = time.monotonic()
            await asyncio.sleep(_LOOKS_EACH)
