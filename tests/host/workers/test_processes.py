"""Workers as processes, on PostgreSQL: killed, frozen, asked to leave, their server restarted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hosting import wait_for
from postgres_server import PostgresServer
from terminal import Terminal, reply

from perstack.host import Host
from perstack.ports.dispatcher import TAKEN_OVER_WITHIN

TOML = """
storage = "{storage}"
model = "m"
[provider]
providerName = "scripted"
[experts.a]
instruction = "You work."
"""


def effect(number: int, seconds: float = 0.0) -> dict[str, Any]:
    """A step that leaves a line in the file of effects."""
    script = f"echo {number} >> effects; sleep {seconds}"
    return reply("", ("exec", {"command": "sh", "args": ["-c", script]}))


@dataclass
class Process:
    """A worker at work."""

    popen: subprocess.Popen[str]
    news: list[dict[str, Any]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def read(self) -> None:
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            with self.changed:
                self.news.append(json.loads(line) if line.startswith("{") else {"event": "stray", "text": line})
                self.changed.notify_all()

    def until(self, there: Callable[[list[dict[str, Any]]], bool], seconds: float = 40) -> None:
        deadline = time.monotonic() + seconds
        with self.changed:
            while not there(self.news):
                left = deadline - time.monotonic()
                assert left > 0, self.news
                self.changed.wait(left)

    def of(self, *events: str) -> list[dict[str, Any]]:
        return [one for one in self.news if one["event"] in events]

    def until_event(self, event: str, count: int = 1) -> dict[str, Any]:
        self.until(lambda news: sum(one["event"] == event for one in news) >= count)
        return self.of(event)[count - 1]


class Cluster:
    """A project on a server, and workers."""

    def __init__(self, terminal: Terminal, storage: str) -> None:
        self.terminal = terminal
        self.storage = storage
        terminal.project(TOML.format(storage=storage), a=[reply("done")])

    def host(self, **options: Any) -> Host:
        folder = self.terminal.workspace
        return Host.open(config=folder / "perstack.toml", workspace=folder, env=self.terminal.env, **options)

    def submit(self, *job_ids: str) -> None:
        async def work() -> None:
            async with self.host() as host:
                for job_id in job_ids:
                    await host.submit("a", "q", job_id=job_id)

        wait_for(work())

    @contextmanager
    def worker(self, *options: str, name: str = "w", env: dict[str, str] | None = None) -> Iterator[Process]:
        popen = subprocess.Popen(
            [sys.executable, "-m", "perstack", "worker", "--log", "json", "--name", name, *options],
            cwd=self.terminal.workspace,
            env=self.terminal.env if env is None else env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        process = Process(popen)
        reader = threading.Thread(target=process.read)
        reader.start()
        try:
            yield process
        finally:
            popen.send_signal(signal.SIGCONT)
            popen.terminate()
            try:
                popen.wait(20)
            except subprocess.TimeoutExpired:
                popen.kill()
                popen.wait()
            reader.join()
            assert popen.stderr is not None
            popen.stderr.close()

    @property
    def effects(self) -> list[str]:
        path = self.terminal.workspace / "effects"
        return path.read_text().split() if path.exists() else []

    def until_effects(self, count: int, seconds: float = 40) -> None:
        deadline = time.monotonic() + seconds
        while len(self.effects) < count:
            assert time.monotonic() < deadline
            time.sleep(0.02)  # a poll of what another process does, bounded above

    def status(self, job_id: str) -> str:
        async def work() -> str:
            async with self.host() as host:
                report = await host.verify(job_id)
                assert report.ok
                return (await host.job(job_id)).status

        return wait_for(work())


@pytest.fixture
def cluster(terminal: Terminal, postgres: PostgresServer) -> Cluster:
    return Cluster(terminal, postgres.address())


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_a_job_of_a_worker_that_dies_continues_elsewhere_within_ten_seconds_and_nothing_is_done_twice(
    cluster: Cluster, sign: signal.Signals
) -> None:
    cluster.terminal.script(a=[*(effect(number, 0.3) for number in range(4)), reply("done")])
    cluster.submit("job")
    with cluster.worker(name="first") as first, cluster.worker(name="second") as second:
        first.until(lambda news: bool(first.of("ready")))
        second.until(lambda news: bool(second.of("ready")))
        cluster.until_effects(2)
        driver, other = (first, second) if first.of("taken") else (second, first)
        driver.popen.send_signal(sign)
        died = time.monotonic()
        taken = other.until_event("taken")
        assert time.monotonic() - died < TAKEN_OVER_WITHIN
        assert taken["takeovers"] == 1
        assert other.until_event("ended")["status"] == "completed"
        if sign == signal.SIGSTOP:
            driver.popen.send_signal(signal.SIGCONT)
            driver.until(lambda news: bool(driver.of("lost", "again", "ended")))
    assert sorted(cluster.effects) == ["0", "1", "2", "3"]
    assert cluster.status("job") == "completed"


def test_sigterm_lets_the_step_in_hand_end_and_another_worker_continues_at_once(cluster: Cluster) -> None:
    cluster.terminal.script(a=[*(effect(number, 0.5) for number in range(4)), reply("done")])
    cluster.submit("job")
    with cluster.worker(name="first") as first:
        cluster.until_effects(2)
        first.popen.terminate()
        assert first.popen.wait(20) == 0
        assert first.of("again")[0]["came"] == "left"
        with cluster.worker(name="second") as second:
            assert second.until_event("ended")["status"] == "completed"
            assert "takeovers" not in second.of("taken")[0]
    assert cluster.effects == ["0", "1", "2", "3"]
    assert cluster.status("job") == "completed"


def test_a_worker_outlives_a_restart_of_its_server(terminal: Terminal) -> None:
    server = PostgresServer()
    try:
        cluster = Cluster(terminal, server.start().address())
        cluster.terminal.script(a=[*(effect(number, 0.3) for number in range(6)), reply("done")])
        cluster.submit("job")
        with cluster.worker() as worker:
            cluster.until_effects(2)
            server.stop(signal.SIGQUIT)
            time.sleep(0.5)  # for so long it is away
            server.start()
            assert worker.until_event("ended")["status"] == "completed"
            cluster.submit("later")
            worker.until_event("taken", 2)
        assert sorted(set(cluster.effects[:6])) == ["0", "1", "2", "3", "4", "5"]
        assert cluster.status("job") == "completed"
    finally:
        server.close()


def test_what_one_worker_cannot_drive_another_does(cluster: Cluster) -> None:
    cluster.submit("job")
    without = {key: value for key, value in cluster.terminal.env.items() if key != "PERSTACK_PLUGINS"}
    with cluster.worker(name="without", env=without) as refusing:
        assert "no provider 'scripted' is installed" in refusing.until_event("refused")["error"]
        with cluster.worker(name="with") as worker:
            assert worker.until_event("ended")["status"] == "completed"
        assert len(refusing.of("taken")) == 1
    assert cluster.status("job") == "completed"


def test_a_job_that_was_recorded_and_never_ordered_is_found(cluster: Cluster) -> None:
    cluster.submit("job")

    async def lose() -> None:
        async with cluster.host() as host:
            assert host.dispatcher is not None
            assert await host.dispatcher.withdraw("job")

    wait_for(lose())
    with cluster.worker() as worker:
        assert worker.until_event("ended")["status"] == "completed"
        assert worker.of("again")[0]["text"] == "had no order, and is queued again"


def test_workers_are_listed_and_a_second_signal_ends_one_at_once(cluster: Cluster) -> None:
    cluster.terminal.script(a=[effect(1, 30), reply("done")])
    cluster.submit("job")
    with cluster.worker("--labels", "team=x", "--concurrency", "3", name="idle"), cluster.worker(name="busy") as busy:
        cluster.until_effects(1)
        listed = cluster.terminal.call("workers", "--json")
        assert listed.code == 0, listed.err
        found = {one["name"].rpartition("-")[0]: one for one in listed.events}
        assert found["busy"]["jobs"] == ["job"]
        assert (found["idle"]["jobs"], found["idle"]["labels"]) == ([], {"team": "x"})
        table = cluster.terminal.look("workers")
        assert "0 Jobs queued; 0 later; 1 at work" in table
        assert max(map(len, table.splitlines())) <= 80
        busy.popen.terminate()
        busy.until_event("draining")
        time.sleep(0.2)  # one that comes at once is the first again
        busy.popen.terminate()
        assert busy.popen.wait(5) == 130


def test_a_worker_without_a_dispatcher_says_what_to_give(terminal: Terminal) -> None:
    terminal.project(TOML.format(storage="file:perstack"), a=[reply("done")])
    done = terminal.call("worker")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: no dispatcher says who drives what: give --dispatcher postgresql://")
    assert done.err.count("\n") == 1
    for wrong in (["--labels", "x"], ["--name", "a b"], ["--drain", "soon"], ["--http", "nowhere"]):
        told = terminal.call("worker", "--dispatcher", "postgresql://postgres@localhost:1/x", *wrong)
        assert (told.code, told.err.count("\n")) == (2, 1), told.err
