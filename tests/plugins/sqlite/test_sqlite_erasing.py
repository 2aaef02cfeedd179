"""What SQLite keeps of bytes that were replaced: nothing, once its traces are erased."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from perstack.errors import StorageError
from perstack_sqlite.storage import SqliteStorage

SECRET = b"xyzzy" * 10_000


def holding(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file() and SECRET[:4_000] in path.read_bytes())


def test_free_pages_and_the_log_beside_the_file_hold_nothing_any_more(tmp_path: Path) -> None:
    async def work() -> None:
        storage = SqliteStorage(tmp_path / "s.db")
        await storage.create_job("job")
        await storage.put_summary("job", SECRET)
        await storage.put_summary("job", b"{}")
        assert "s.db-wal" in holding(tmp_path)
        await storage.close()
        careless = sqlite3.connect(tmp_path / "s.db", isolation_level=None)  # as SQLite is by default
        careless.execute("PRAGMA secure_delete = OFF")
        careless.execute("UPDATE jobs SET summary = ?", (SECRET,))
        careless.execute("UPDATE jobs SET summary = ?", (b"{}",))
        careless.close()
        assert holding(tmp_path) == ["s.db"], "its free pages"
        again = SqliteStorage(tmp_path / "s.db")
        await again.erase_traces("job")
        assert holding(tmp_path) == []
        assert await again.summary("job") == b"{}"
        await again.close()

    asyncio.run(work())


def test_a_process_that_reads_meanwhile_is_named_and_the_same_call_does_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perstack_sqlite.database.BUSY_TIMEOUT_S", 0.2)
    monkeypatch.setattr("perstack_sqlite.database.BUSY_TIMEOUT_S", 0.2)

    async def work() -> None:
        storage = SqliteStorage(tmp_path / "s.db")
        await storage.create_job("job")
        await storage.put_summary("job", SECRET)
        other = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM jobs").fetchone()
        await storage.put_summary("job", b"{}")
        with pytest.raises(StorageError, match=r"another process|locked"):
            await storage.erase_traces("job")
        other.execute("ROLLBACK")
        other.close()
        await storage.erase_traces("job")
        assert holding(tmp_path) == []
        await storage.close()

    asyncio.run(work())
