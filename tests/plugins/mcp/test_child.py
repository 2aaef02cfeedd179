"""A server's process, started and ended."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path

import pytest
from hosts import wait_for

from perstack_mcp.server_process import Launch, run_server


@pytest.mark.linux
@pytest.mark.parametrize("patience", range(9))
def test_wherever_its_start_is_cancelled_and_its_end_too_all_is_reaped_and_closed(
    tmp_path: Path, patience: int
) -> None:
    async def hold_server() -> None:
        launch = Launch(("cat",), {"PATH": os.environ["PATH"]}, tmp_path)
        async with run_server(launch, lambda line: None):
            await asyncio.Event().wait()

    async def run(place: int) -> None:
        holding = asyncio.create_task(hold_server())
        for turns in (place, patience):
            for _ in range(turns):
                await asyncio.sleep(0)
            holding.cancel()
        await asyncio.wait({holding})

    def handles() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = handles()
    for place in range(20):
        wait_for(run(place))
        # a process that was not waited for says so when it is collected
        gc.collect()
    assert handles() == before
