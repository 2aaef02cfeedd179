"""A project whose processes die, on a storage kept by a server, and checks of the end result."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import warm
import workload

from perstack.errors import NotFound
from perstack.host import Host

SECONDS = 180
"""Maximum seconds of a command: several start at once on a loaded machine."""
OPTIONS = ("--provider", "scripted")
RUN = ("run", "boss", "go", "--job-id", "job", *OPTIONS)
_MOST_LIVES = 20
_INTERRUPTED = b"interrupted before its result was recorded"


class Team:
    """A project in its own store, with a Job that asks, delegates and writes files.

    `storage` is the address that its processes use, through something that fails; `direct` bypasses that.
    """

    def __init__(self, folder: Path, storage: str, direct: str, env: Mapping[str, str] | None = None) -> None:
        self.folder = folder / "project"
        self.folder.mkdir(parents=True)
        self._direct = direct
        definition = str(self.folder / "perstack.toml")
        self._env = {**workload.env(folder), "PERSTACK_TRUST": definition, **(env or {})}
        self._child: subprocess.Popen[str] | None = None
        self.said: list[tuple[str, int, str]] = []
        """Name, exit status and end of stderr of each command."""
        workload.team(self.folder, folder, storage)

    def start(self, *args: str) -> subprocess.Popen[str]:
        """Start a command that the caller waits for."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return warm.perstack(*args, cwd=self.folder, env=self._env, text=True, **pipes)

    def perstack(self, *args: str) -> str:
        """Run a command to its end and return its stderr."""
        with self.start(*args) as child:
            self._child = child
            _, err = child.communicate(timeout=SECONDS)
        self.said.append((args[0], child.returncode, err[-300:]))
        return err

    def kill(self) -> None:
        """Kill the running command with SIGKILL."""
        if self._child is not None:
            self._child.kill()

    def status(self) -> str | None:
        """Return the Job's status, or None without a Job. Waits until its lease is free."""

        async def look() -> str | None:
            until = time.monotonic() + SECONDS
            async with self._host() as host:
                while await host.storage.lease_info("job") is not None:
                    assert time.monotonic() < until, "its lease does not expire"
                    await asyncio.sleep(0.3)  # a poll of the server, bounded above
                try:
                    return (await host.job("job")).status
                except NotFound:
                    return None

        return asyncio.run(look())

    def go_on(self) -> str:
        """Run the command that a user would run next, and return its stderr."""
        match self.status():
            case None:
                return self.perstack(*RUN)
            case "stoppedByInteractiveTool":
                return self.perstack("answer", "job", "yes", *OPTIONS)
            case _:
                return self.perstack("resume", "job", *OPTIONS)

    def lives(self) -> int:
        """Run commands until the Job is done. Return the number of processes."""
        err = ""
        for number in range(1, _MOST_LIVES):
            err = self.go_on()
            assert "Traceback" not in err, err
            if self.status() == "completed":
                return number
        raise AssertionError(err)

    def check_end(self) -> None:
        """Check that everything was done once, and that the log says so.

        A process that died between the record of a call and its effect leaves the call undone; then the model must have
        been told.
        """
        texts = {name: (self.folder / name).read_text() for name in workload.FILES}

        async def look() -> int:
            async with self._host() as host:
                assert (await host.audit.verify("job")).findings == ()
                assert (await host.audit.replay("job")).findings == ()
                return sum(_INTERRUPTED in line for log in await host.jobs.logs("job") for line in log.lines)

        count = asyncio.run(look())
        for name, text in texts.items():
            assert text == f"{name.removesuffix('.txt')}\n" or (text == "" and count), (name, text, count, self.said)

    def two_at_once(self) -> str:
        """Start the same Job in two processes. Return the stderr of the refused one."""
        processes = [self.start(*RUN) for _ in range(2)]
        ends = [(*process.communicate(timeout=SECONDS), process.returncode) for process in processes]
        assert sorted(code for _, _, code in ends) in ([1, 3], [2, 3]), ends
        (refused,) = [err for _, err, code in ends if code != 3]
        assert "job" in refused
        assert "Traceback" not in refused
        return refused

    def _host(self) -> Host:
        return Host.open(workspace=self.folder, storage=self._direct, env=self._env)
