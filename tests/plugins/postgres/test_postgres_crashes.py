"""Killed at any statement, a Job goes on and ends as if nothing was, and two processes never both drive it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import workload
from postgres_proxy import Cut, Proxy
from postgres_server import PostgresServer

from perstack.errors import NotFound
from perstack.host import Host
from perstack.testing.opener import wait_for

SECONDS = 60
THOROUGH = os.environ.get("PERSTACK_FAULTS") == "all"
KILLS = 2
"""Statements at which a process is killed, in an ordinary run of the tests."""


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    proxy = Proxy(postgres.folder)
    yield proxy
    proxy.close()


class Team:
    """A project whose Job asks, delegates and writes files, in a store of its own."""

    def __init__(self, folder: Path, server: PostgresServer, proxy: Proxy) -> None:
        self.folder, self._aside = folder / "project", folder
        self.folder.mkdir(parents=True)
        self._direct = server.address()
        schema = self._direct.rpartition("=")[2]
        workload.team(self.folder, folder, f"postgresql://postgres@/postgres?host={proxy.folder}&schema={schema}")

    def perstack(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "perstack", *args],
            cwd=self.folder,
            env=workload.env(self._aside),
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )

    def status(self) -> str | None:
        async def look() -> str | None:
            async with self._host() as host:
                try:
                    return (await host.job("job")).status
                except NotFound:
                    return None

        return wait_for(look())

    def _host(self) -> Host:
        """Past the proxy."""
        return Host.open(workspace=self.folder, storage=self._direct, env=workload.env(self._aside))

    def go_on(self) -> subprocess.CompletedProcess[str]:
        """The next command of a person who wants it done."""
        scripted = ("--provider", "scripted")
        match self.status():
            case None:
                return self.perstack("run", "boss", "go", "--job-id", "job", *scripted)
            case "stoppedByInteractiveTool":
                return self.perstack("answer", "job", "yes", *scripted)
            case _:
                return self.perstack("resume", "job", *scripted)

    def check_end(self) -> None:
        """Everything was done once, and the log says so."""
        for name in workload.FILES:
            assert (self.folder / name).read_text() == f"{name.removesuffix('.txt')}\n", name

        async def look() -> None:
            async with self._host() as host:
                assert (await host.verify("job")).findings == ()
                assert (await host.replay("job")).findings == ()

        wait_for(look())


def lives(team: Team) -> int:
    """Go on until it is done; returns how many processes that took."""
    for number in range(1, 20):
        done = team.go_on()
        if "Traceback" in done.stderr:
            raise AssertionError(done.stderr)
        if team.status() == "completed":
            return number
    raise AssertionError(done.stderr)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("cut", ["kill before", "kill after", "after"])
def test_a_job_ends_the_same_whichever_statement_its_process_dies_at(
    tmp_path: Path, postgres: PostgresServer, proxy: Proxy, cut: Cut
) -> None:
    plain = Team(tmp_path / "plain", postgres, proxy)
    proxy.arm(1 << 30, cut)
    assert lives(plain) == 2
    plain.check_end()
    statements = proxy.statements
    assert statements > 40
    tried = 0
    for at in workload.spread(statements, statements if THOROUGH else KILLS):
        team = Team(tmp_path / f"{at}", postgres, proxy)
        proxy.arm(at, cut)
        assert lives(team) >= 2
        team.check_end()
        tried += 1
    print(f"{tried} of {statements} statements, {cut}: 0 lost, 0 repeated")


def test_of_two_processes_on_one_job_the_second_is_refused(
    tmp_path: Path, postgres: PostgresServer, proxy: Proxy
) -> None:
    team = Team(tmp_path / "two", postgres, proxy)
    command = [sys.executable, "-m", "perstack", "run", "boss", "go", "--job-id", "job", "--provider", "scripted"]
    env = workload.env(tmp_path / "two")
    both = [
        subprocess.Popen(command, cwd=team.folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    ends = [(*one.communicate(timeout=SECONDS), one.returncode) for one in both]
    assert sorted(code for _, _, code in ends) in ([1, 3], [2, 3]), ends
    (refused,) = [err for _, err, code in ends if code != 3]
    assert "job" in refused
    assert "Traceback" not in refused
    assert lives(team) >= 1
    team.check_end()
