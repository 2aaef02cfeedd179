"""A program that ends with the block that it is used in, and, by its guard, with our own process, however that ends."""

from __future__ import annotations

from asyncio.subprocess import Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from perstack.ports.processes.group import end_group
from perstack.ports.processes.guard import GUARD
from perstack.ports.processes.start import reaped


@asynccontextmanager
async def owned(process: Process) -> AsyncGenerator[None]:
    """After the block nothing is left of a process that `launch` started, which leads its own group, and of that group.

    What left the group on purpose (`setsid`) continues to run.
    """
    try:
        yield
    finally:
        # however often this is cancelled, all signals come before it returns
        try:
            await end_group(process)
        finally:
            try:
                await reaped(process)
            finally:
                GUARD.forget(process)
