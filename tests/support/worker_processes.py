"""Workers in separate processes that share one server."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import warm
from hosts import wait_for
from terminal import Terminal, reply

from perstack.host import Host
from perstack.ports.dispatcher import Load

TOML = """
storage = "{storage}"
model = "m"
[provider]
providerName = "scripted"
[experts.a]
permissions = {{ allow = ["exec"] }}
instruction = "You work."
"""


def effect(number: int, seconds: float = 0.0) -> dict[str, Any]:
    """Return a step that appends a line to the file of effects."""
    script = f"echo {number} >> effects; sleep {seconds}"
    return reply("", ("exec", {"command": "sh", "args": ["-c", script]}))


@dataclass
class Process:
    """A running worker process."""

    popen: subprocess.Popen[str]
    news: list[dict[str, Any]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def read(self) -> None:
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            with self.changed:
                self.news.append(json.loads(line) if line.startswith("{") else {"event": "stray", "text": line})
                self.changed.notify_all()

    def wait_until(self, there: Callable[[list[dict[str, Any]]], bool], seconds: float = 40) -> None:
        deadline = time.monotonic() + seconds
        with self.changed:
            while not there(self.news):
                left = deadline - time.monotonic()
                assert left > 0, self.news
                self.changed.wait(left)

    def of(self, *events: str) -> list[dict[str, Any]]:
        return [one for one in self.news if one["event"] in events]

    def until_event(self, event: str, count: int = 1) -> dict[str, Any]:
        self.wait_until(lambda news: sum(one["event"] == event for one in news) >= count)
        return self.of(event)[count - 1]


@contextmanager
def worker(terminal: Terminal, *options: str, name: str = "w", env: dict[str, str] | None = None) -> Iterator[Process]:
    """Run `perstack worker` in the terminal's folder, and end it."""
    popen = warm.perstack(
        *("worker", "--log", "json", "--name", name, *options),
        cwd=terminal.workspace,
        env=terminal.env if env is None else env,
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


class Cluster:
    """A project on a server, with workers."""

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

    def worker(
        self, *options: str, name: str = "w", env: dict[str, str] | None = None
    ) -> AbstractContextManager[Process]:
        return worker(self.terminal, *options, name=name, env=env)

    @property
    def effects(self) -> list[str]:
        path = self.terminal.workspace / "effects"
        return path.read_text().split() if path.exists() else []

    def load(self) -> Load:
        """Return the dispatcher's queue statistics."""

        async def work() -> Load:
            async with self.host() as host:
                assert host.dispatcher is not None
                return await host.dispatcher.load()

        return wait_for(work())

    def until_effects(self, count: int, seconds: float = 40) -> None:
        deadline = time.monotonic() + seconds
        while len(self.effects) < count:
            assert time.monotonic() < deadline
            time.sleep(0.02)  # a poll of another process, bounded above

    def status(self, job_id: str) -> str:
        async def work() -> str:
            async with self.host() as host:
                report = await host.audit.verify(job_id)
                assert report.ok, report
                return (await host.job(job_id)).status

        return wait_for(work())
