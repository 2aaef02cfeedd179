"""The SQLite storage passes the whole contract."""

from __future__ import annotations

import secrets
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perstack.ports.storage import RunRef
from perstack.testing.storage_contract import Opener, StorageContract
from perstack_sqlite.plugin import perstack_storages


def opener_in(workspace: Path) -> Opener:
    """A store in a new file."""
    path = workspace / f"{secrets.token_hex(4)}.db"

    def damage(run: RunRef, index: int) -> None:
        with closing(sqlite3.connect(path)) as db, db:
            query = "SELECT n FROM runs WHERE job_id = ? AND run_id = ?"
            key = db.execute(query, (run.job_id, run.run_id)).fetchone()[0] * 2**32 + index + 1
            line = db.execute("SELECT line FROM records WHERE key = ?", (key,)).fetchone()[0]
            line = line.replace(b'"text":"', b'"text":"X', 1)
            db.execute("UPDATE records SET line = ? WHERE key = ?", (line, key))

    factory = perstack_storages()[0]
    address = ("perstack_sqlite.plugin", str(path))
    return Opener(lambda: factory.open(str(path), Path.cwd()), address, damage=damage, shares_blobs=True)


class TestSqliteStorage(StorageContract):
    @pytest.fixture
    def make_opener(self, tmp_path):
        return lambda: opener_in(tmp_path)


class TestSqliteSpace(StorageContract):
    """A space of it keeps every promise too."""

    @pytest.fixture
    def make_opener(self, tmp_path):
        def make() -> Opener:
            whole = opener_in(tmp_path)
            return Opener(lambda: whole.open().space("kept"), shares_blobs=True)

        return make
