"""The dispatcher on a Temporal server passes the whole contract."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator

import pytest
from temporal_server import TemporalServer, Wire
from temporalio.client import Client

from perstack.testing.dispatcher_contract import SOON, DispatcherBed, DispatcherContract
from perstack_temporal.dispatcher import TemporalDispatcher
from perstack_temporal.names import parse

EVERY = os.environ.get("PERSTACK_FAULTS") == "all"
_MATCHED = 0.05
"""Seconds within which the server has put in a queue what it has scheduled."""


def bed_on(server: TemporalServer, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> DispatcherBed:
    """An engine with queues of its own, reached by way of a wire that can be shut. Time passes there as it does."""
    address = parse(server.address(port=wire.port).partition(":")[2])
    passed: float | None = None
    client: Client | None = None

    async def pass_time(seconds: float) -> None:
        nonlocal passed
        spent = 0.0 if passed is None else time.monotonic() - passed  # what went by meanwhile is part of it
        await asyncio.sleep(max(0.0, seconds - spent))
        passed = time.monotonic()

    async def arrive(job_id: str) -> None:
        nonlocal client
        client = client or await Client.connect(f"127.0.0.1:{server.port}")
        workflow = client.get_workflow_handle(address.workflow_id(job_id))
        async with asyncio.timeout(SOON):
            while not (await workflow.describe()).raw_description.pending_activities:
                await asyncio.sleep(0.01)
        await asyncio.sleep(_MATCHED)

    async def cut() -> None:
        monkeypatch.setattr("perstack_temporal.connection.CALL_TIMEOUT_S", 0.4)
        wire.shut()

    async def mend() -> None:
        monkeypatch.setattr("perstack_temporal.connection.CALL_TIMEOUT_S", 10.0)
        wire.open()

    return DispatcherBed(
        open=lambda: TemporalDispatcher(address), pass_time=pass_time, arrive=arrive, cut=cut, mend=mend
    )


class TestTemporalDispatcher(DispatcherContract):
    @pytest.fixture
    def bed(self, temporal: TemporalServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[DispatcherBed]:
        wire = Wire(temporal.port)
        yield bed_on(temporal, wire, monkeypatch)
        wire.close()

    if not EVERY:  # they wait for as long as a worker may be silent, which the tests of faults do in less
        test_a_job_of_a_worker_that_died_is_taken_over_and_it_sees_that_if_it_was_not_dead = None  # type: ignore[assignment]
        test_who_was_silent_sees_at_its_next_beat_what_it_lost = None  # type: ignore[assignment]
