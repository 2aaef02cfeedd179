"""Tables of one version under processes of another: what is made at once, what waits, and what is refused."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from postgres_server import PostgresServer

from perstack.errors import DispatcherError
from perstack.ports.dispatcher import Dispatcher, Order, Seat
from perstack.testing.storage_fixture import wait_for
from perstack_procrastinate.plugin import perstack_dispatchers

PRE, POST = "99.00.00_01_pre_more.sql", "99.00.00_50_post_more.sql"
LATER = "99.01.00_01_pre_later.sql"


def open_dispatcher(address: str) -> Dispatcher:
    return perstack_dispatchers()[0].open(address.partition(":")[2])


async def check_load(address: str) -> None:
    dispatcher = open_dispatcher(address)
    try:
        await dispatcher.load()
    finally:
        await dispatcher.close()


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """The migrations of a procrastinate to come."""
    (tmp_path / PRE).write_text("CREATE TABLE more (percent text DEFAULT '100%');")
    (tmp_path / POST).write_text("CREATE TABLE less ();")
    return tmp_path


class Tables:
    """Those of a test, made by the procrastinate that is installed."""

    def __init__(self, postgres: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.address = postgres.address(schema)
        self._postgres, self._schema, self._patch = postgres, schema, monkeypatch
        wait_for(check_load(self.address))

    def execute(self, query: str) -> list[tuple[object, ...]]:
        return self._postgres.execute(f"SET search_path = {self._schema}_workers; {query}")

    def has(self, table: str) -> bool:
        found = "SELECT count(*) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        return self._postgres.execute(
            f"{found} WHERE n.nspname = '{self._schema}_workers' AND relname = '{table}'"
        ) == [(1,)]

    @property
    def engine(self) -> object:
        ((found,),) = self._postgres.execute(f"SELECT engine FROM {self._schema}_workers.meta")
        return found

    def on(self, migrations: Path) -> None:
        """From now on a process has that procrastinate."""
        self._patch.setattr("procrastinate.schema.migrations_path", migrations)

    def seat(self) -> tuple[Dispatcher, AbstractAsyncContextManager[Seat]]:
        dispatcher = open_dispatcher(self.address)
        return dispatcher, dispatcher.seat("old", labels={}, concurrency=1)


@pytest.fixture
def tables(postgres: PostgresServer, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Tables:
    return Tables(postgres, request.node.originalname[5:45], monkeypatch)


def test_tables_of_a_newer_version_and_of_another_program_are_left_alone(tables: Tables) -> None:
    for change, words in (
        ("UPDATE meta SET version = 99", "newer perstack or procrastinate"),
        ("UPDATE meta SET version = 2, floor = '99.0_50_post.sql'", "newer perstack or procrastinate"),
        ("UPDATE meta SET floor = '', application = 'other'", "belongs to another program"),
    ):
        tables.execute(change)
        with pytest.raises(DispatcherError, match=words):
            wait_for(check_load(tables.address))


def test_tables_of_an_older_procrastinate_are_brought_to_the_one_that_is_installed(tables: Tables, newer: Path) -> None:
    tables.on(newer)
    wait_for(check_load(tables.address))
    wait_for(check_load(tables.address))
    assert (tables.has("more"), tables.has("less"), tables.engine) == (True, True, POST)


def test_tables_from_before_the_first_release_are_refused_in_one_line_and_left_as_they_are(
    tables: Tables, newer: Path
) -> None:
    tables.execute("ALTER TABLE meta DROP COLUMN floor; UPDATE meta SET version = 1")
    before, engine = tables.execute("SELECT * FROM meta"), tables.engine
    tables.on(newer)
    with pytest.raises(DispatcherError, match=r"before the first release of perstack \(schema 1\); name") as refused:
        wait_for(check_load(tables.address))
    assert "\n" not in str(refused.value)
    assert (tables.execute("SELECT * FROM meta"), tables.engine) == (before, engine)
    assert not tables.has("more")


def test_beneath_older_workers_only_what_they_bear_is_made_and_the_rest_when_they_are_gone(
    tables: Tables, newer: Path
) -> None:
    import procrastinate.schema as installed

    today = installed.migrations_path
    dispatcher, seat = tables.seat()

    async def work() -> None:
        async with seat as sitting:
            tables.on(newer)
            await check_load(tables.address)
            assert (tables.has("more"), tables.has("less"), tables.engine) == (True, False, PRE)
            await dispatcher.submit(Order("job"))
            claim = await sitting.claim()
            assert claim is not None
            assert await sitting.release(claim, None) is None
            tables.on(today)
            await check_load(tables.address)  # an old one that is started again
            tables.on(newer)
        await check_load(tables.address)
        assert (tables.has("less"), tables.engine) == (True, POST)
        tables.on(today)
        with pytest.raises(DispatcherError, match="newer perstack or procrastinate"):
            await check_load(tables.address)
        await dispatcher.close()

    wait_for(work())


def test_a_worker_that_cannot_be_beside_older_ones_says_which_and_changes_nothing(tables: Tables, newer: Path) -> None:
    (newer / LATER).write_text("CREATE TABLE later ();")
    dispatcher, seat = tables.seat()

    async def work() -> None:
        async with seat:
            tables.on(newer)
            with pytest.raises(DispatcherError, match=r"are running \(old\),.*: stop these workers first") as refused:
                await check_load(tables.address)
            assert "\n" not in str(refused.value)
            assert not tables.has("more")
        await check_load(tables.address)
        assert (tables.has("less"), tables.has("later"), tables.engine) == (True, True, LATER)
        await dispatcher.close()

    wait_for(work())
