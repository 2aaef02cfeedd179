"""What goes wrong between workers and a Temporal server: no order is lost, and none is held by two."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest
from temporal_server import TemporalServer, free_port
from temporalio.client import Client

from perstack.errors import DispatcherError, UsageError
from perstack.ports.dispatcher import TAKEN_OVER_WITHIN, Dispatcher, Order, Seat
from perstack.testing.dispatcher_contract import next_claim
from perstack.testing.storage_fixture import wait_for
from perstack_temporal.job_workflow import JobWorkflow
from perstack_temporal.names import parse
from perstack_temporal.plugin import perstack_dispatchers

EVERY = os.environ.get("PERSTACK_FAULTS") == "all"
_ORDERS = 100 if EVERY else 20

_WORKER = """
import asyncio, importlib, sys
dispatcher = importlib.import_module("perstack_temporal.plugin").perstack_dispatchers()[0].open(sys.argv[1])

async def main():
    async with dispatcher.seat("killed") as seat:
        while (claim := await seat.claim()) is None:
            await seat.wait(1)
        print(claim.order.job_id, flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


def open_dispatcher(address: str) -> Dispatcher:
    return perstack_dispatchers()[0].open(address.partition(":")[2])


def test_two_seats_that_race_claim_each_order_once(temporal: TemporalServer) -> None:
    async def work() -> None:
        address = temporal.address()
        one, other = open_dispatcher(address), open_dispatcher(address)
        names = [f"job-{n}" for n in range(_ORDERS)]
        taken: list[str] = []

        async def slot(seat: Seat) -> None:
            while len(taken) < len(names):
                if (claim := await seat.claim()) is None:
                    await seat.wait(0.2)
                    continue
                taken.append(claim.order.job_id)
                assert not claim.is_taken_over
                await seat.release(claim)

        async with one.seat("w", concurrency=4) as first, other.seat("v", concurrency=4) as second:
            for n, name in enumerate(names):
                await one.submit(Order(name, priority=n % 3))
            await asyncio.gather(*(slot(seat) for seat in (first, second) for _ in range(4)))
            assert Counter(taken) == Counter(names)
            assert (await first.claim(), await second.claim()) == (None, None)
            for seat in (first, second):
                assert await seat.beat() == []
        await one.close()
        await other.close()

    asyncio.run(asyncio.wait_for(work(), 120))


@pytest.mark.parametrize("silent_after", [2.0, *([7.0] if EVERY else [])])
def test_the_job_of_a_worker_that_is_killed_is_taken_over(
    temporal: TemporalServer, monkeypatch: pytest.MonkeyPatch, silent_after: float
) -> None:
    monkeypatch.setattr("perstack_temporal.dispatcher.SILENT_AFTER", silent_after)
    address = temporal.address()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    command = [sys.executable, "-c", _WORKER, address.partition(":")[2]]

    async def work() -> None:
        dispatcher = open_dispatcher(address)
        await dispatcher.submit(Order("job"))
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as worker:
            assert worker.stdout is not None
            try:
                assert await asyncio.to_thread(worker.stdout.readline) == "job\n"
                async with dispatcher.seat("next") as seat:
                    assert await seat.claim() is None
                    worker.kill()
                    began = time.monotonic()
                    taken = await next_claim(seat, TAKEN_OVER_WITHIN)
                    assert (taken.order, taken.is_taken_over) == (Order("job"), True)
                    assert time.monotonic() - began <= TAKEN_OVER_WITHIN
                    await seat.release(taken)
                    assert await dispatcher.order("job") is None
            finally:
                worker.kill()
        await dispatcher.close()

    wait_for(work())


@pytest.mark.skipif(not EVERY, reason="a server of its own, twice started: asked for by PERSTACK_FAULTS=all")
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_is_restarted_costs_a_seat_nothing(sign: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perstack_temporal.dispatcher.SILENT_AFTER", 60.0)  # the server takes a while here
    server = TemporalServer().start()
    dispatcher = open_dispatcher(server.address())

    async def work() -> None:
        async with dispatcher.seat("w") as seat, dispatcher.seat("v") as other:
            await dispatcher.submit(Order("held"))
            await dispatcher.submit(Order("waits", due=int((time.time() + 3600) * 1000)))
            held = await next_claim(seat)
            await asyncio.to_thread(server.stop, sign)
            with suppress(DispatcherError):
                await other.claim()
            await asyncio.to_thread(server.start)
            assert await seat.beat() == []
            await dispatcher.submit(Order("new"))
            async with asyncio.timeout(60):
                while True:
                    with suppress(DispatcherError):
                        if (new := await other.claim()) is not None:
                            break
                    await other.wait(0.2)
            assert (new.order.job_id, new.is_taken_over) == ("new", False)
            await other.release(new)
            await seat.release(held)
            assert await dispatcher.order("held") is None
            assert await dispatcher.withdraw("waits")
        await dispatcher.close()

    try:
        wait_for(work())
    finally:
        server.close()


def test_a_ticket_that_a_worker_has_no_place_for_is_given_to_another(temporal: TemporalServer) -> None:
    async def work() -> None:
        dispatcher = open_dispatcher(temporal.address())
        async with dispatcher.seat("full") as full, dispatcher.seat("free") as free:
            assert await full.claim() is None
            await dispatcher.submit(Order("job"))
            await full.wait(10)  # it has come, and nobody asks for it

            async def beats() -> None:
                while True:
                    await full.beat()
                    await asyncio.sleep(0.2)

            beating = asyncio.create_task(beats())
            claim = await next_claim(free)
            assert (claim.order.job_id, claim.is_taken_over) == ("job", False)
            beating.cancel()
            await free.release(claim)
        await dispatcher.close()

    wait_for(work())


def test_an_order_that_comes_again_and_again_goes_on_in_new_runs_of_its_workflow_and_loses_nothing(
    temporal: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perstack_temporal.dispatcher.MAX_HISTORY_EVENTS", 20)

    async def work() -> None:
        address = temporal.address()
        dispatcher = open_dispatcher(address)
        order = Order("job", labels={"team": "x"}, submitted_at=5, refused={"other": "no key"})
        await dispatcher.submit(order)
        client = await Client.connect(f"127.0.0.1:{temporal.port}")
        workflow = client.get_workflow_handle(parse(address.partition(":")[2]).workflow_id("job"))
        runs = set[str]()
        async with dispatcher.seat("w") as seat:
            for number in range(6):
                claim = await next_claim(seat)
                order = replace(order, events=number)
                assert (claim.order, claim.is_taken_over) == (replace(order, events=max(0, number - 1)), False)
                runs.add((await workflow.describe()).run_id or "")
                await seat.release(claim, order)
            async with dispatcher.seat("leaves") as leaving:
                await next_claim(leaving)
            taken = await next_claim(seat)
            assert (taken.order, taken.is_taken_over) == (order, True)
            await seat.release(taken)
        assert len(runs) > 1
        await dispatcher.close()

    asyncio.run(asyncio.wait_for(work(), 60))


def test_what_is_wrong_with_a_server_is_said_on_one_line(
    temporal: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perstack_temporal.connection.CALL_TIMEOUT_S", 2.0)
    monkeypatch.setenv("TEMPORAL_API_KEY", "")
    for address, words in (
        (f"temporal://127.0.0.1:{free_port()}/default", "check that the server runs"),
        (f"temporal://127.0.0.1:{temporal.port}/no-such", "amespace"),
    ):
        dispatcher = open_dispatcher(address)
        with pytest.raises(DispatcherError, match=words) as error:
            wait_for(dispatcher.submit(Order("job")))
        assert "\n" not in str(error.value)
        wait_for(dispatcher.close())


@pytest.mark.parametrize(
    "address",
    [
        "temporal:host:7233/default",
        "temporal://u:hunter2@host/default",
        "temporal://host:7233/a/b",
        "temporal://host:port/a",
        "temporal://host/a?key=hunter2",
        "temporal://host/a?queue=a%20b",
        "temporal://host/a#hunter2",
        "temporal:///a",
    ],
)
def test_an_address_that_does_not_read_is_refused_and_not_shown(address: str) -> None:
    with pytest.raises(UsageError, match=r"^dispatcher: ") as error:
        open_dispatcher(address)
    assert "hunter2" not in str(error.value)


def test_an_address_has_the_usual_port_and_namespace() -> None:
    assert open_dispatcher("temporal://host").location == "temporal://host:7233/default"
    assert open_dispatcher("temporal://[::1]:99/space?queue=team").location == "temporal://[::1]:99/space?queue=team"


def test_the_workflow_passes_the_sandbox() -> None:
    from temporalio import workflow
    from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

    async def work() -> None:
        SandboxedWorkflowRunner().prepare_workflow(workflow._Definition.must_from_class(JobWorkflow))

    wait_for(work())
