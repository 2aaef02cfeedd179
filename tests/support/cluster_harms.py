"""Harms to a cluster's workers, its PostgreSQL, and the clients that submit and answer."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from cluster_machines import Cluster, Machine

from perstack.errors import PerstackError
from perstack.ports.dispatcher import TAKEN_OVER_WITHIN, WorkerInfo

_LONG = (TAKEN_OVER_WITHIN + 0.5, TAKEN_OVER_WITHIN + 2)
"""Seconds after which a silent worker has lost its Jobs."""
_SHORT = (0.5, 4.0)
_AT_FIRST = 15
"""Jobs submitted before the first harm."""
_PATIENCE = 20.0
"""Seconds to wait until some worker has a Job."""
_AT_ONCE = 4
"""Harms done concurrently."""

Harm = Callable[[Cluster, "Machines"], Awaitable[None]]


class Machines:
    """The machines without a harm at the moment. Each harm takes one and heals it."""

    def __init__(self, running: Cluster) -> None:
        self._running = running
        self._well = list(running.machines)
        self._healed = asyncio.Condition()
        self.server = asyncio.Lock()
        """Held while PostgreSQL restarts."""

    async def harm(self, how: Callable[[Machine], None], seconds: tuple[float, float]) -> None:
        """Harm one machine, and heal it after a random time in the range `seconds`."""
        async with self._healed:
            await self._healed.wait_for(lambda: self._well)
            machine = await self._in_the_middle_of_a_job()
            self._well.remove(machine)
        try:
            await asyncio.to_thread(how, machine)
            await asyncio.sleep(self._running.random.uniform(*seconds))
        finally:
            machine.heal()
            async with self._healed:
                self._well.append(machine)
                self._healed.notify()

    async def _in_the_middle_of_a_job(self) -> Machine:
        """Return a machine that drives Jobs, or any other if there is none in time."""
        random = self._running.random
        with suppress(TimeoutError, PerstackError):
            async with asyncio.timeout(_PATIENCE):
                while True:
                    workers = await self._workers()
                    found = [machine for machine in self._well if any(map(machine.has_work_as, workers))]
                    if found:
                        return random.choice(found)
                    await asyncio.sleep(0.1)
        return random.choice(self._well)

    async def _workers(self) -> Sequence[WorkerInfo]:
        dispatcher = self._running.host.dispatcher
        return () if dispatcher is None else await dispatcher.workers()

    async def restart(self, sign: int) -> None:
        """Stop PostgreSQL and start it again."""
        async with self.server:
            await asyncio.sleep(self._running.random.uniform(0, 0.5))
            await asyncio.to_thread(self._running.server.stop, sign)
            await asyncio.sleep(self._running.random.uniform(0, 1.0))
            await asyncio.to_thread(self._running.server.start)


def _drain_then_kill(machine: Machine) -> None:
    machine.send(signal.SIGTERM)
    time.sleep(0.3)  # so that the worker is draining
    machine.kill()


async def _silence(how: Callable[[Machine], None], running: Cluster, machines: Machines) -> None:
    """Silence a worker briefly, or so long that others take over its Jobs."""
    await machines.harm(how, running.random.choice((_SHORT, _LONG)))


async def _silence_for_long(how: Callable[[Machine], None], running: Cluster, machines: Machines) -> None:
    await machines.harm(how, _LONG)


async def _restart(sign: int, running: Cluster, machines: Machines) -> None:
    await machines.restart(sign)


async def _drain(running: Cluster, machines: Machines) -> None:
    await machines.harm(Machine.drain, (0.0, 1.0))


async def _drain_and_restart(running: Cluster, machines: Machines) -> None:
    """Restart PostgreSQL while a worker returns its Jobs."""
    await asyncio.gather(_drain(running, machines), machines.restart(signal.SIGINT))


async def _kill_and_freeze(running: Cluster, machines: Machines) -> None:
    await asyncio.gather(machines.harm(Machine.kill, _SHORT), machines.harm(Machine.freeze, _LONG))


async def _cut_and_restart(running: Cluster, machines: Machines) -> None:
    await asyncio.gather(machines.harm(Machine.cut, _LONG), machines.restart(signal.SIGQUIT))


async def _restart_while_submitting(running: Cluster, machines: Machines) -> None:
    """Restart PostgreSQL while Jobs are submitted."""
    await asyncio.gather(running.submit(6), machines.restart(running.random.choice((signal.SIGINT, signal.SIGQUIT))))


HARMS: Mapping[str, Harm] = {
    "killed": partial(_silence, Machine.kill),
    "frozen": partial(_silence, Machine.freeze),
    "cut off": partial(_silence_for_long, Machine.cut),
    "PostgreSQL restarted": partial(_restart, signal.SIGINT),
    "PostgreSQL crashed": partial(_restart, signal.SIGQUIT),
    "drained": _drain,
    "killed as it drained": lambda running, machines: machines.harm(_drain_then_kill, _SHORT),
    "PostgreSQL restarted as one drained": _drain_and_restart,
    "killed and frozen at once": _kill_and_freeze,
    "cut off, and PostgreSQL crashed": _cut_and_restart,
    "PostgreSQL restarted as Jobs were submitted": _restart_while_submitting,
    "killed as it submitted": lambda running, _: running.submit_by_command_and_kill(),
    "killed as it answered": lambda running, _: running.answer_by_command_and_kill(),
}


async def harmed(running: Cluster, jobs: int, rounds: int, pause: tuple[float, float]) -> None:
    """Submit `jobs` Jobs, and meanwhile do each harm `rounds` times in random order.

    Some Jobs are submitted first, the others evenly over time. Returns when the last harm is over and all workers are
    healed.
    """
    machines = Machines(running)
    deck = [name for _ in range(rounds) for name in running.random.sample([*HARMS], len(HARMS))]
    running.leaves_questions, places = True, asyncio.Semaphore(_AT_ONCE)
    try:
        async with asyncio.TaskGroup() as group:
            for number, name in enumerate(deck):
                due = _AT_FIRST + (jobs - _AT_FIRST) * (number + 1) // len(deck) - len(running.jobs)
                group.create_task(running.submit(max(0, due)))
                await places.acquire()
                group.create_task(_do_harm(name, running, machines)).add_done_callback(lambda _: places.release())
                await asyncio.sleep(running.random.uniform(*pause))
    finally:
        running.leaves_questions, running.left = False, None
    await running.submit(max(0, jobs - len(running.jobs)))


async def _do_harm(name: str, running: Cluster, machines: Machines) -> None:
    """Do one harm and count it."""
    await HARMS[name](running, machines)
    running.done[name] += 1
