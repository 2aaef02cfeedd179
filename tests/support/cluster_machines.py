"""PostgreSQL, workers in network namespaces that share it, and a client that submits Jobs and answers questions."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import psycopg
from cluster_project import PLUGIN, kind_of, project, script
from namespaces import Network
from postgres_server import PostgresServer

from perstack.errors import PerstackError, UsageError
from perstack.host import Host
from perstack.ports.dispatcher import WorkerInfo

PROGRAM = str(Path(sys.executable).with_name("perstack"))

_MAX_INDIVIDUAL_READS = 60
"""Maximum number of Jobs that are read individually."""
_SUMMARIES = "SELECT job_id, convert_from(summary, 'UTF8') FROM cluster.jobs WHERE space = ''"
_MISSED = 10 * 60_000
"""Milliseconds without a worker before the first ones start."""


@dataclass
class Machine:
    """A worker and its machine."""

    number: int
    network: Network
    command: list[str]
    folder: Path
    env: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None
    is_frozen: bool = False
    is_cut: bool = False
    started_at: int = 0

    def start(self) -> None:
        self.started_at = int(time.time() * 1000)
        with (self.folder / "worker.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.network.command_prefix(self.network.machine(self.number)), *self.command],
                cwd=self.folder,
                env=dict(self.env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def is_there(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def has_work_as(self, worker: WorkerInfo) -> bool:
        """Return whether `worker` is this machine's current worker, and drives something."""
        is_its = worker.name.startswith(f"m{self.number}-") and worker.since >= self.started_at
        return is_its and bool(worker.jobs) and self.is_there

    def send(self, sign: int) -> None:
        if self.process is not None and self.is_there:
            self.process.send_signal(sign)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        if self.process is not None:
            self.process.wait(10)
        self.is_frozen = False

    def freeze(self) -> None:
        self.send(signal.SIGSTOP)
        self.is_frozen = True

    def cut(self) -> None:
        self.network.cut(self.number)
        self.is_cut = True

    def drain(self) -> None:
        """Ask the worker to leave, and wait until it has."""
        if self.process is not None:
            self.send(signal.SIGTERM)
            self.process.wait(60)

    def end(self, sign: int) -> None:
        if self.process is not None:
            self.send(signal.SIGCONT)
            self.send(sign)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
            self.process, self.is_frozen = None, False

    def heal(self) -> None:
        """Undo every harm to the machine."""
        if self.is_cut:
            self.network.join(self.number)
        if self.is_frozen:
            self.send(signal.SIGCONT)
        if not self.is_there:
            self.start()
        self.is_frozen = self.is_cut = False


class Past:
    """A clock that shows an earlier time."""

    def now(self) -> int:
        return int(time.time() * 1000) - _MISSED


@dataclass
class Cluster:
    """PostgreSQL and the workers that share it."""

    folder: Path
    server: PostgresServer
    machines: list[Machine]
    host: Host
    address: str
    """Address of the storage as reached without the workers' network."""
    random: random.Random
    env: Mapping[str, str]
    done: Counter[str] = field(default_factory=Counter[str])
    """Number of times that each harm was done."""
    jobs: list[str] = field(default_factory=list[str])
    answered: set[str] = field(default_factory=set[str])
    """Jobs whose question was answered."""
    left: str | None = None
    """A Job with a question, reserved for `perstack answer`."""
    leaves_questions: bool = False

    # --- state ----------------------------------------------------------------------------------------------------

    async def statuses(self) -> dict[str, str]:
        """Return the status of each Job that is not completed. Cached summaries may be older than the logs."""
        stored = await self._stored_summaries()
        unfinished = [job for job in stored if job.startswith("schedule-") and stored[job] != "completed"]
        unfinished += [job for job in self.jobs if stored.get(job) != "completed"]
        found = {job: stored.get(job) or "" for job in unfinished}
        for job in unfinished if len(unfinished) <= _MAX_INDIVIDUAL_READS else []:
            with suppress(PerstackError):  # the next round sees it
                found[job] = (await self.host.job(job)).status
        return {job: status for job, status in found.items() if status != "completed"}

    async def _stored_summaries(self) -> dict[str, str]:
        while True:
            try:
                rows = await asyncio.to_thread(self.server.execute, _SUMMARIES)
            except psycopg.OperationalError:  # it is being restarted
                await asyncio.sleep(0.1)  # not in the thread, which could not be cancelled
            else:
                return {str(name): "" if text is None else json.loads(str(text))["status"] for name, text in rows}

    def ledger(self) -> Counter[str]:
        file = self.folder / "ledger"
        return Counter(file.read_text().split()) if file.exists() else Counter()

    def confirmed_events(self) -> list[tuple[str, str]]:
        """Return id and digest of each event whose write a process saw confirmed."""
        lines = [line for file in (self.folder / "told").iterdir() for line in file.read_text().splitlines()]
        return [(event_id, digest) for event_id, _, digest in (line.partition(" ") for line in lines)]

    # --- actions of users -----------------------------------------------------------------------------------------

    async def submit(self, count: int, prefix: str = "job", kinds: Callable[[int], str] = kind_of) -> list[str]:
        """Submit `count` Jobs and return their ids. Some are due later."""
        places = asyncio.Semaphore(8)
        first = len(self.jobs)
        names = [f"{prefix}-{number:04}" for number in range(first, first + count)]
        self.jobs += names

        async def submit_one(number: int, name: str) -> None:
            at = int(time.time() * 1000) + 3000 if kinds is kind_of and number % 25 == 9 else None
            async with places:
                await self._submit_until_recorded(kinds(number), name, at)

        await asyncio.gather(*(submit_one(first + number, name) for number, name in enumerate(names)))
        return names

    async def _submit_until_recorded(self, kind: str, name: str, at: int | None = None) -> None:
        """Submit a Job, retrying until it is recorded. Workers find recorded Jobs that were not queued."""
        while True:
            try:
                await self.host.submit(kind, "go", job_id=name, at=at)
            except UsageError:
                if await self._is_recorded(name):
                    return
                raise
            except PerstackError:
                self.done["submitted again"] += 1
                await asyncio.sleep(0.2)
            else:
                return

    async def _is_recorded(self, name: str) -> bool:
        while True:
            try:
                return bool(await self.host.job(name))
            except PerstackError:  # its server is away
                await asyncio.sleep(0.2)

    async def submit_by_command_and_kill(self) -> None:
        """Run `perstack submit` and kill it at a random moment; then submit the Job again if it has not begun."""
        number = len(self.jobs)
        name = f"job-{number:04}"
        self.jobs.append(name)
        await self._call_and_kill("submit", kind_of(number), "go", "--job-id", name)
        await self._submit_until_recorded(kind_of(number), name)

    async def answer_by_command_and_kill(self) -> None:
        """Run `perstack answer` and kill it at a random moment; then answer again if the question is still open."""
        while (name := self.left) is None:
            await asyncio.sleep(0.1)
        try:
            await self._call_and_kill("answer", name, "yes")
        finally:
            self.left = None

    async def _call_and_kill(self, *command: str) -> None:
        process = await asyncio.create_subprocess_exec(
            *(PROGRAM, *command, "--storage", self.address),
            cwd=self.folder / "here",
            env=dict(self.env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), self.random.uniform(0.5, 2.0))
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    async def attend(self, statuses: Mapping[str, str]) -> None:
        """Answer all questions, and resume Jobs that stopped because three workers in a row ended."""
        asking_jobs = [job for job, status in statuses.items() if status == "stoppedByInteractiveTool"]
        for job in asking_jobs:
            if self.left is None and self.leaves_questions and job not in self.answered:
                self.left = job
            if job not in self.answered and job != self.left:
                with suppress(PerstackError):  # the next round does it
                    await self.host.answer("yes", job_id=job)
                    self.answered.add(job)
        for job in [job for job, status in statuses.items() if status == "stoppedByError"]:
            with suppress(PerstackError):
                error = (await self.host.job(job)).error or ""
                assert "workers in a row" in error, f"{job}: {error}"
                await self.host.resume(job, drive=False)
                self.done["poison"] += 1

    async def until_workers(self) -> None:
        """Start the workers and wait until all are registered."""
        for machine in self.machines:
            machine.start()
        assert self.host.dispatcher is not None
        async with asyncio.timeout(60):
            while len(await self.host.dispatcher.workers()) < len(self.machines):
                await asyncio.sleep(0.1)

    async def until_done(self, seconds: float, submitting: asyncio.Event | None = None) -> float:
        """Wait until every Job is completed and `submitting` is set. Return the seconds that took."""
        began = time.monotonic()
        while (unfinished := await self.statuses()) or (submitting is not None and not submitting.is_set()):
            await self.attend(unfinished)
            assert time.monotonic() - began < seconds, (
                f"after {seconds:g} s: {Counter(unfinished.values())} {[*unfinished][:5]}"
            )
            await asyncio.sleep(0.25)
        return time.monotonic() - began


@asynccontextmanager
async def cluster(
    workers: int, seed: int, delay: float = 100, concurrency: int = 8, *, old: Path | None = None
) -> AsyncGenerator[Cluster]:
    """Yield an idle cluster whose workers are not started yet, and remove all of it at the end.

    `old` is a checkout of another version, for the first worker.
    """
    network = Network(workers)
    folder = Path(tempfile.mkdtemp(prefix="cluster-"))
    server = PostgresServer(settings={"listen_addresses": Network.address, "fsync": "on"})
    server.within = (
        *network.command_prefix(network.hub),
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    )
    machines = list[Machine]()
    try:
        with (server.data / "pg_hba.conf").open("a") as rules:
            rules.write("host all all 10.77.0.0/24 trust\n")
        server.start()
        projects = ["here", *(f"m{number}" for number in range(workers))]
        trusted = os.pathsep.join(str(folder.resolve() / name) for name in projects)
        variables = {**_write_shared_files(folder, delay), "PERSTACK_TRUST": trusted}
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder), *(entry for entry in sys.path if entry)]),
            **variables,
        }
        storage = f"postgresql://postgres@{Network.address}/postgres?schema=cluster"
        for number in range(workers):
            command = [PROGRAM, "worker", "--storage", storage, "--name", f"m{number}", "--log", "json"]
            place = _create_machine_folder(folder / f"m{number}", distributed=number > 0)
            its = env if old is None or number else {**env, "PYTHONPATH": _path_with_checkout(old, env["PYTHONPATH"])}
            machines.append(Machine(number, network, [*command, "--concurrency", str(concurrency)], place, its))
        here, address = _create_machine_folder(folder / "here"), server.address("cluster")
        with mock.patch.dict(os.environ, variables), mock.patch.object(sys, "path", [str(folder), *sys.path]):
            async with Host.open(workspace=here, storage=address, dispatcher=address) as host:
                await host.jobs.list(limit=1)  # fails at once if the server was never there
                if host.dispatcher is not None:
                    await host.dispatcher.load()
                yield Cluster(folder, server, machines, host, address, random.Random(seed), env)
        shutil.rmtree(folder, ignore_errors=True)  # kept after a failure, for the workers' logs
    finally:
        for machine in machines:
            machine.end(signal.SIGKILL)
        server.close()
        network.close()


def _path_with_checkout(checkout: Path, path: str) -> str:
    """Return a module path on which another version's modules come first."""
    distributions = sorted((checkout / "plugins").glob("perstack-*"))
    return os.pathsep.join((*map(str, (checkout / "host", checkout / "plugins", *distributions)), path))


def _create_machine_folder(folder: Path, *, distributed: bool = False) -> Path:
    folder.mkdir()
    (folder / "perstack.toml").write_text(project(distributed=distributed))
    return folder


def _write_shared_files(folder: Path, delay: float) -> dict[str, str]:
    """Write the files that all processes share. Return the variables that locate them."""
    (folder / "told").mkdir()
    (folder / "cluster_ledger.py").write_text(PLUGIN)
    (folder / "script.json").write_text(json.dumps(script(delay)))
    return {
        "PERSTACK_PLUGINS": "perstack.testing.plugin,cluster_ledger",
        "PERSTACK_SCRIPT": str(folder / "script.json"),
        "CLUSTER_LEDGER": str(folder / "ledger"),
        "CLUSTER_TOLD": str(folder / "told"),
    }


async def schedules_since_long_ago(running: Cluster) -> None:
    """Create schedules that no worker has served for `_MISSED` milliseconds."""
    host, address = running.host, running.server.address("cluster")
    past = Host(host.project, workspace=host.workspace, storage=address, dispatcher=address, clock=Past())
    try:
        await past.schedules.once()
    finally:
        await past.close()
