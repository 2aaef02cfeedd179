"""Killed at any statement, a Job goes on and ends as if nothing was, and two processes never both drive it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import workload
from crash_team import Team
from postgres_proxy import Cut, Proxy
from postgres_server import PostgresServer

THOROUGH = os.environ.get("PERSTACK_FAULTS") == "all"
KILLS = 2
"""Statements at which a process is killed, in an ordinary run of the tests."""


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    proxy = Proxy(postgres.folder)
    yield proxy
    proxy.close()


def team_at(folder: Path, server: PostgresServer, proxy: Proxy) -> Team:
    direct = server.address()
    schema = direct.rpartition("=")[2]
    return Team(folder, f"postgresql://postgres@/postgres?host={proxy.folder}&schema={schema}", direct)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("cut", ["kill before", "kill after", "after"])
def test_a_job_ends_the_same_whichever_statement_its_process_dies_at(
    tmp_path: Path, postgres: PostgresServer, proxy: Proxy, cut: Cut
) -> None:
    plain = team_at(tmp_path / "plain", postgres, proxy)
    proxy.arm(1 << 30, cut)
    assert plain.lives() == 2
    plain.check_end()
    statements, tried = proxy.statements, 0
    assert statements > 40
    for at in workload.spread(statements, statements if THOROUGH else KILLS):
        team = team_at(tmp_path / f"{at}", postgres, proxy)
        proxy.arm(at, cut)
        assert team.lives() >= 2
        team.check_end()
        tried += 1
    print(f"{tried} of {statements} statements, {cut}: 0 lost, 0 repeated")


def test_of_two_processes_on_one_job_the_second_is_refused(
    tmp_path: Path, postgres: PostgresServer, proxy: Proxy
) -> None:
    team = team_at(tmp_path / "two", postgres, proxy)
    team.two_at_once()
    assert team.lives() >= 1
    team.check_end()
