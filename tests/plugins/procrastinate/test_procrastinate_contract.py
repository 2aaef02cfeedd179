"""The dispatcher in PostgreSQL passes the whole contract."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from postgres_proxy import Proxy
from postgres_server import PostgresServer

from perstack.ports.dispatcher import SILENT_AFTER
from perstack.testing.dispatcher_contract import DispatcherBed, DispatcherContract
from perstack_procrastinate.plugin import perstack_dispatchers

_IS_OLD = f"SELECT pg_postmaster_start_time() < now() - interval '{SILENT_AFTER + 0.5} s'"


def bed_on(server: PostgresServer, proxy: Proxy) -> DispatcherBed:
    """An engine in a new schema, reached by way of a proxy. Time passes there by making what is stored older."""
    address = server.address()
    schema = parse_qs(urlsplit(address).query)["schema"][0] + "_workers"
    location = f"//postgres@/postgres?host={proxy.folder}&schema={schema.removesuffix('_workers')}"
    passed = 0.0

    async def pass_time(seconds: float) -> None:
        nonlocal passed
        passed += seconds
        while not server.execute(_IS_OLD)[0][0]:  # a server that has just begun gives each seat its time again
            await asyncio.sleep(0.1)
        server.execute(
            f"SET search_path = {schema};"
            f" UPDATE procrastinate_workers SET last_heartbeat = last_heartbeat - make_interval(secs => {seconds});"
            f" UPDATE procrastinate_jobs SET scheduled_at = scheduled_at - make_interval(secs => {seconds})"
        )

    async def cut() -> None:
        proxy.shut()

    async def mend() -> None:
        proxy.open()

    return DispatcherBed(
        open=lambda: perstack_dispatchers()[0].open(location),
        pass_time=pass_time,
        now=lambda: int((time.time() + passed) * 1000),
        cut=cut,
        mend=mend,
    )


class TestProcrastinateDispatcher(DispatcherContract):
    @pytest.fixture
    def bed(self, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[DispatcherBed]:
        monkeypatch.setattr("perstack_postgres.connections.RETRY_TIMEOUT_S", 0.5)
        proxy = Proxy(postgres.folder)
        yield bed_on(postgres, proxy)
        proxy.close()
