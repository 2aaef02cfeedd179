"""Workflows that an older version has begun go on in this one: their histories are replayed, and each is whole.

`PERSTACK_KEEP_HISTORIES=1` adds those of today, under the version's name. Those that are there are never made anew:
they are what is out there.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from temporal_server import TemporalServer
from temporalio import workflow
from temporalio.client import Client, WorkflowHistory
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from perstack import __version__
from perstack.errors import DispatcherError
from perstack.ports.dispatcher import Claim, Dispatcher, Order, Seat
from perstack.testing.dispatcher_contract import next_claim
from perstack_temporal import names
from perstack_temporal.job_workflow import JobWorkflow, WorkflowState
from perstack_temporal.names import parse
from perstack_temporal.plugin import perstack_dispatchers

FOLDER = Path(__file__).parent / "histories"
HISTORIES = sorted(FOLDER.glob("*/*.json"))
Scene = Callable[[Dispatcher, Seat], Awaitable[None]]
FAR = 32_503_680_000_000
"""Milliseconds; the year 3000."""


async def waits(dispatcher: Dispatcher, seat: Seat) -> None:
    await dispatcher.submit(Order("job", due=FAR, labels={"team": "search", "x": "1"}))
    await dispatcher.submit(Order("job", due=FAR - 1, priority=2))
    async with asyncio.timeout(60):
        while True:
            with suppress(DispatcherError):  # the first that is asked of a server takes a while
                order = await dispatcher.order("job")
                assert order is not None
                assert order.priority == 2
                return


async def is_driven(dispatcher: Dispatcher, seat: Seat) -> None:
    await dispatcher.submit(Order("job", labels={"team": "search"}))
    await next_claim(seat)


async def comes_again(dispatcher: Dispatcher, seat: Seat) -> None:
    await dispatcher.submit(Order("job", submitted_at=1))
    claim = await next_claim(seat)
    changed = await seat.change(claim, Order("job", takeovers=2, events=7))
    await dispatcher.submit(Order("job", priority=1))
    await seat.release(changed, Order("job", due=FAR, refused={"other": "no key"}, takeovers=2, events=7))
    await wait_until_settled(dispatcher, claim)


async def was_taken_over(dispatcher: Dispatcher, seat: Seat) -> None:
    await dispatcher.submit(Order("job"))
    async with dispatcher.seat("dying") as dying:
        await next_claim(dying)
    claim = await next_claim(seat)
    assert claim.is_taken_over
    await seat.release(claim, Order("job", due=FAR))
    await wait_until_settled(dispatcher, claim)


async def is_over(dispatcher: Dispatcher, seat: Seat) -> None:
    await dispatcher.submit(Order("job", due=FAR))
    assert await dispatcher.withdraw("job")


async def wait_until_settled(dispatcher: Dispatcher, claim: Claim) -> None:
    """Until the workflow has seen what was released."""
    async with asyncio.timeout(10):
        while (order := await dispatcher.order("job")) is None or (order.due < FAR - 1 and order.priority != 1):
            await asyncio.sleep(0.02)  # a poll, bounded above


SCENES: dict[str, Scene] = {
    one.__name__.replace("_", "-"): one for one in (waits, is_driven, comes_again, was_taken_over, is_over)
}


def test_histories_of_every_kind_are_kept_for_this_version() -> None:
    assert {one.stem for one in (FOLDER / __version__).glob("*.json")} == SCENES.keys()


@pytest.mark.skipif(not os.environ.get("PERSTACK_KEEP_HISTORIES"), reason="adds histories: PERSTACK_KEEP_HISTORIES=1")
@pytest.mark.parametrize("name", SCENES)
def test_a_history_is_kept(temporal: TemporalServer, name: str) -> None:
    place = FOLDER / __version__ / f"{name}.json"
    assert not place.exists(), "what is kept stays"

    async def work() -> None:
        address = parse(temporal.address().partition(":")[2])
        dispatcher = perstack_dispatchers()[0].open(address.display_address.partition(":")[2])
        async with dispatcher.seat("w") as seat:
            await SCENES[name](dispatcher, seat)
            client = await Client.connect(address.target)
            history = await client.get_workflow_handle(address.workflow_id("job")).fetch_history()
        await dispatcher.close()
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(history.to_json_dict(), indent=1) + "\n")

    asyncio.run(asyncio.wait_for(work(), 90))


async def failures_of(of: type, *places: Path) -> dict[str, Exception]:
    """What each that cannot be replayed fails by, by the workflow's run."""
    histories = [WorkflowHistory.from_json(f"perstack-{one.stem}", one.read_text()) for one in places]

    async def each_history() -> AsyncIterator[WorkflowHistory]:
        for history in histories:
            yield history

    replayed = await Replayer(workflows=[of]).replay_workflows(each_history(), raise_on_replay_failure=False)
    return dict(replayed.replay_failures)


def test_what_older_versions_have_begun_goes_on_in_this_one() -> None:
    assert HISTORIES
    assert asyncio.run(asyncio.wait_for(failures_of(JobWorkflow, *HISTORIES), 60)) == {}


@workflow.defn(name=names.WORKFLOW)
class Other(JobWorkflow):
    """A change that no history of before can be replayed in: a command more."""

    @workflow.init
    def __init__(self, kept: WorkflowState) -> None:
        super().__init__(kept)

    @workflow.run
    async def run(self, kept: WorkflowState) -> None:
        await asyncio.sleep(1)
        await super().run(kept)


def test_a_change_that_older_workflows_cannot_follow_is_found() -> None:
    history = FOLDER / __version__ / "is-driven.json"
    (failure,) = asyncio.run(asyncio.wait_for(failures_of(Other, history), 60)).values()
    assert isinstance(failure, NondeterminismError)
