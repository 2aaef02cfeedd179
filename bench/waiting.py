"""The memory of many Jobs at once, for benchmarks: measured when all of them wait for their first reply.

Without a gate the first Jobs may end before the last ones begin, and a slower machine shows less memory. It imports
nothing of perstack, because bench/peers.py measures other projects by it.
"""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

_GATE_TIMEOUT_S = 900  # until a measurement fails because some Jobs never ask their model


class Gate:
    """Holds the first generation of each Job until all Jobs wait for theirs, and measures what they take then."""

    def __init__(self, jobs: int) -> None:
        """Expect this many Jobs."""
        self._missing = jobs
        self._open = asyncio.Event()
        self.resident_mb = 0.0  # memory of the process when all Jobs waited

    async def wait(self) -> None:
        """Wait until every Job does. Raises TimeoutError if one never comes."""
        self._missing -= 1
        if not self._missing:
            self.resident_mb = resident_megabytes()
            self._open.set()
        async with asyncio.timeout(_GATE_TIMEOUT_S):
            await self._open.wait()


def resident_megabytes() -> float:
    """Return the memory that this process has in use, as Linux counts it."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def peak_megabytes() -> float:
    """Return the most memory that this process has had in use."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
