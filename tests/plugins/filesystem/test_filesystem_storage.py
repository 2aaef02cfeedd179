"""What only the filesystem storage promises: its layout, its guard against links, its figures."""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from perstack.core.base.chain import EMPTY_LOG, seal
from perstack.errors import Conflict, Damaged, NotFound, StorageError
from perstack.ports.storage import RunRef
from perstack.testing.storage_fixture import JOB, RUN, Writer, new_writer, payload, text_of, wait_for
from perstack_filesystem.directories import OpenDirectory
from perstack_filesystem.entry_index import put_entry
from perstack_filesystem.log_file import Scan
from perstack_filesystem.plugin import FilesystemStorages
from perstack_filesystem.storage import FilesystemStorage


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "perstack"


@pytest.fixture
def storage(root: Path):
    storage = FilesystemStorage(root)
    yield storage
    wait_for(storage.close())


@pytest.fixture
def log(root: Path) -> Path:
    return root / "jobs" / JOB / "runs" / RUN.run_id / "events.jsonl"


def test_the_layout_is_that_of_the_documentation(root: Path, storage: FilesystemStorage, log: Path) -> None:
    async def work() -> str:
        writer = await new_writer(storage)
        await writer.append("x")
        await storage.put_summary(JOB, b"{}")
        await storage.put_run_setting(RUN, b"{}")
        await storage.put_checkpoint(JOB, f"{JOB}-1-1", b"{}")
        return await storage.put_blob(JOB, b"data")

    blob = wait_for(work())
    job = root / "jobs" / JOB
    assert sorted(str(path.relative_to(job)) for path in job.rglob("*") if path.is_file()) == sorted(
        [
            "job.json",
            f"checkpoints/{JOB}-1-1.json",
            f"runs/{JOB}-1/run-setting.json",
            f"runs/{JOB}-1/events.jsonl",
            f"blobs/{blob}",
        ]
    )
    assert log.read_bytes().endswith(b"}\n")


def test_looking_at_a_store_that_is_not_there_makes_nothing(root: Path, storage: FilesystemStorage) -> None:
    assert wait_for(storage.jobs()).ids == ()
    assert wait_for(storage.read(RUN)) == []
    assert not root.exists()


def test_the_location_is_relative_to_the_workspace(tmp_path: Path) -> None:
    assert FilesystemStorages().open("state/here", tmp_path).location == str(tmp_path / "state" / "here")
    assert FilesystemStorages().open("", tmp_path).location == str(tmp_path / "perstack")
    assert FilesystemStorages().open("/elsewhere", tmp_path).location == "/elsewhere"


@pytest.mark.parametrize("place", ["jobs", f"jobs/{JOB}", f"jobs/{JOB}/runs", f"jobs/{JOB}/runs/{RUN.run_id}"])
def test_a_linked_directory_never_leads_out(tmp_path: Path, root: Path, storage: FilesystemStorage, place: str) -> None:
    wait_for(wait_for(new_writer(storage)).append("secret"))
    wait_for(storage.close())
    outside = tmp_path / "outside"
    (root / place).rename(outside)
    (root / place).symlink_to(outside)
    records, _ = seal(EMPTY_LOG, [payload("x")])
    with pytest.raises(StorageError, match="symbolic link"):
        wait_for(storage.read(RUN))
    with pytest.raises(StorageError, match="symbolic link"):
        wait_for(storage.append(RUN, 0, records))


@pytest.mark.parametrize("name", ["events.jsonl", "job.json", "lease"])
def test_a_linked_file_is_neither_read_nor_written(
    tmp_path: Path, root: Path, storage: FilesystemStorage, log: Path, name: str
) -> None:
    async def lease() -> None:
        async with storage.lease(JOB, "me"):
            pass

    wait_for(storage.create_job(JOB))
    target = tmp_path / "target"
    target.write_text("precious")
    place = log if name == "events.jsonl" else root / "jobs" / JOB / name
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(target)
    work = {"events.jsonl": lambda: storage.read(RUN), "job.json": lambda: storage.summary(JOB), "lease": lease}[name]
    with pytest.raises(StorageError, match="symbolic link"):
        wait_for(work())
    assert target.read_text() == "precious"


def test_a_linked_job_is_not_listed_and_not_found(tmp_path: Path, root: Path, storage: FilesystemStorage) -> None:
    wait_for(storage.create_job(JOB))
    (root / "jobs" / "linked").symlink_to(tmp_path)
    (root / "jobs" / "a file").write_text("")
    (root / "jobs" / ".hidden").mkdir()
    assert wait_for(storage.jobs()).ids == (JOB,)


def test_a_job_without_a_summary_stands_at_its_folders_time(root: Path, storage: FilesystemStorage) -> None:
    for name, seconds in (("old", 1000), ("new", 3000)):
        wait_for(storage.create_job(name))
        os.utime(root / "jobs" / name, (seconds, seconds))
    wait_for(storage.create_job("middle"))
    wait_for(storage.put_summary("middle", b"{}"))
    os.utime(root / "jobs" / "middle" / "job.json", (2000, 2000))
    assert wait_for(storage.jobs()).ids == ("new", "middle", "old")


async def _comes_true(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


def test_a_log_that_a_thread_works_on_is_not_closed_under_it_when_its_job_is_deleted(
    tmp_path: Path, storage: FilesystemStorage, log: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")

    async def work() -> list[int]:
        writer = await new_writer(storage)
        await writer.append("a")
        storage._pace._mean = 1.0  # as on a slow disk: appends are done in a thread
        with log.open() as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            writing = asyncio.create_task(writer.append("b"))
            await _comes_true(lambda: any(one.is_used for one in storage._logs.values()))
            await storage.delete_job(JOB)
            # whoever opens a file now gets the number of one that was closed
            taken = [os.open(victim, os.O_RDWR) for _ in range(30)]
        with pytest.raises(Conflict, match="deleted"):
            await writing
        return taken

    taken = wait_for(work())
    for descriptor in taken:
        os.close(descriptor)
    assert victim.read_text() == "precious"


def test_an_append_that_is_cancelled_on_a_slow_disk_is_done_or_not_when_its_caller_hears_of_it(
    storage: FilesystemStorage, log: Path
) -> None:
    async def work() -> None:
        writer = await new_writer(storage)
        await writer.append("a")
        storage._pace._mean = 1.0
        with log.open() as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            writing = asyncio.create_task(writer.append("b"))
            await _comes_true(lambda: any(one.is_used for one in storage._logs.values()))
            writing.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not writing.done(), "nobody knows yet what becomes of it"
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert len(await storage.read(RUN)) == 2

    wait_for(work())


def test_a_state_folder_that_is_made_is_its_users_alone_and_left_out_of_git(
    root: Path, storage: FilesystemStorage
) -> None:
    async def work() -> None:
        await (await new_writer(storage)).append("x")
        await storage.put_summary(JOB, b"{}")
        await storage.put_entry(JOB, 1, b"{}")
        await storage.put_checkpoint(JOB, f"{JOB}-1-1", b"{}")
        await storage.put_blob(JOB, b"x")
        async with storage.lease(JOB, "me"):
            pass

    wait_for(work())
    ignored = root / ".gitignore"
    assert ignored.read_text() == "*\n"
    made = [root, *(path for path in root.rglob("*") if path != ignored)]
    assert {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in made} == {(True, 0o700), (False, 0o600)}


def test_a_state_folder_that_is_there_is_left_as_it_is(root: Path, storage: FilesystemStorage) -> None:
    root.mkdir()
    root.chmod(0o755)
    wait_for(storage.create_job(JOB))
    assert stat.S_IMODE(root.stat().st_mode) == 0o755
    assert not (root / ".gitignore").exists()


def test_damage_is_named_by_file_line_and_byte(storage: FilesystemStorage, log: Path) -> None:
    async def work() -> None:
        writer = await new_writer(storage)
        first = await writer.append("first")
        await writer.append("second")
        log.write_bytes(log.read_bytes().replace(b"second", b"Second"))
        with pytest.raises(Damaged) as raised:
            await storage.read(RUN)
        assert f"{log}, line 2, byte {len(first[0]) + 1}:" in str(raised.value)
        with pytest.raises(Damaged):
            await writer.append("third")

    wait_for(work())


def test_a_lost_line_in_the_middle_is_damage(storage: FilesystemStorage, log: Path) -> None:
    async def work() -> None:
        writer = await new_writer(storage)
        for text in "abc":
            await writer.append(text)
        lines = log.read_bytes().splitlines(keepends=True)
        log.write_bytes(lines[0] + lines[2])
        with pytest.raises(Damaged, match=r"line 2.*does not follow"):
            await storage.read(RUN)

    wait_for(work())


def test_a_last_record_whose_newline_an_editor_took_is_kept(storage: FilesystemStorage, log: Path) -> None:
    async def work() -> None:
        writer = await new_writer(storage)
        await writer.append("a", "b")
        log.write_bytes(log.read_bytes()[:-1])
        again = writer.again(FilesystemStorage(Path(storage.location)))
        assert await again.storage.read(RUN) == writer.written
        await again.append("c")
        assert log.read_bytes() == b"\n".join((*again.written, b""))
        await again.storage.close()

    wait_for(work())


def test_a_failed_write_leaves_nothing_of_itself(
    storage: FilesystemStorage, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        writer = await new_writer(storage)
        await writer.append("a")
        before = log.read_bytes()

        def full(fd: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr("perstack_filesystem.log_file.sync_data", full)
            with pytest.raises(StorageError, match="free some space"):
                await writer.append("b" * 100_000)
        assert log.read_bytes() == before
        await writer.append("c")
        assert await storage.read(RUN) == writer.written

    wait_for(work())


def test_every_append_is_one_write_and_one_sync_of_only_what_is_new(
    storage: FilesystemStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        writer = await new_writer(storage)
        await writer.append("begin")
        await writer.append("warm")
        calls: list[object] = []
        monkeypatch.setattr("perstack_filesystem.log_file.sync_data", lambda fd: calls.append("sync"))
        monkeypatch.setattr("perstack_filesystem.log_file.write_all", lambda fd, data: calls.append(os.write(fd, data)))
        monkeypatch.setattr(os, "pread", lambda *args: calls.append("read"))
        records = await writer.append("x", "y", "z")
        assert calls == [sum(len(record) + 1 for record in records), "sync"]

    wait_for(work())


def test_a_new_log_survives_power_loss_with_its_name(
    storage: FilesystemStorage, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    sync = OpenDirectory.sync
    monkeypatch.setattr(OpenDirectory, "sync", lambda self: (synced.append(self.path), sync(self))[1])
    wait_for(wait_for(new_writer(storage)).append("x"))
    assert {log.parent, log.parent.parent, log.parents[2], log.parents[3]} <= set(synced)
    assert synced[-1] == log.parent


def test_a_deletion_that_was_cut_short_leaves_no_job_and_is_cleared_by_the_next(
    root: Path, storage: FilesystemStorage
) -> None:
    for name in ("a", "b"):
        wait_for(storage.create_job(name))
    (root / "jobs" / "a").rename(root / "jobs" / ".deleted.a.1")
    assert wait_for(storage.jobs()).ids == ("b",)
    wait_for(storage.delete_job("b"))
    assert list((root / "jobs").iterdir()) == []


def test_a_log_of_a_deletion_that_was_cut_short_is_neither_read_nor_written_on(
    root: Path, storage: FilesystemStorage
) -> None:
    async def work() -> None:
        writer = await new_writer(storage)
        await writer.append("a")
        await writer.append("b")  # which keeps it open
        (root / "jobs" / JOB).rename(root / "jobs" / f".deleted.{JOB}.1")
        assert await storage.read(RUN) == []
        with pytest.raises(NotFound):
            await writer.append("c")
        other = await new_writer(FilesystemStorage(root))
        await other.append("new")
        assert [text_of(record) for record in await storage.read(RUN)] == ["new"]
        with pytest.raises(Conflict):
            await writer.append("c")

    wait_for(work())


def test_a_log_deleted_by_somebody_else_is_not_written_on(storage: FilesystemStorage) -> None:
    async def work() -> None:
        writer = await new_writer(storage)
        await writer.append("a")
        other = FilesystemStorage(Path(storage.location))
        await other.delete_job(JOB)
        with pytest.raises(NotFound):
            await writer.append("b")
        await other.create_job(JOB)
        with pytest.raises(Conflict):
            await writer.append("b")

    wait_for(work())


def test_a_damaged_blob_is_an_error(root: Path, storage: FilesystemStorage) -> None:
    wait_for(storage.create_job(JOB))
    name = wait_for(storage.put_blob(JOB, b"data"))
    (root / "jobs" / JOB / "blobs" / name).write_bytes(b"dada")
    with pytest.raises(StorageError, match="damaged"):
        wait_for(storage.blob(JOB, name))
    assert wait_for(storage.put_blob(JOB, b"data")) == name
    assert wait_for(storage.blob(JOB, name)) == b"data"


def test_reading_a_few_records_does_not_read_the_whole_log(storage: FilesystemStorage, log: Path) -> None:
    async def work() -> None:
        writer = await new_writer(storage)
        for _ in range(4):
            await writer.append(*("x" * 500 for _ in range(500)))

    wait_for(work())
    data, read = log.read_bytes(), 0

    def read_at(length: int, offset: int) -> bytes:
        nonlocal read
        read += len(data[offset : offset + length])
        return data[offset : offset + length]

    scan = Scan()
    assert len(scan.advance(read_at, "log", 1)) == 500
    assert read < len(data) / 2


def test_a_fresh_process_reads_only_what_is_new_once_it_knows_the_log(storage: FilesystemStorage) -> None:
    async def work() -> None:
        writer = await new_writer(storage)
        await writer.append(*("x" * 500 for _ in range(500)))
        watcher = FilesystemStorage(Path(storage.location))
        assert len(await watcher.read(RUN)) == 500
        await writer.append("new")
        assert await watcher.read(RUN, after=500) == writer.written[500:]
        assert await watcher.read(RUN, after=499) == writer.written[499:]
        await watcher.close()

    wait_for(work())


def test_the_number_of_open_files_is_bounded(storage: FilesystemStorage) -> None:
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    async def work() -> int:
        before = open_files()
        await storage.create_job(JOB)
        for number in range(130):
            writer = Writer(storage, RunRef(JOB, f"{JOB}-{number + 1}"))
            await writer.append("x")
            await writer.append("y")
        return open_files() - before

    if not Path("/proc/self/fd").exists():
        pytest.skip("counts the open files in /proc")
    assert wait_for(work()) < 130


def test_on_a_slow_disk_runs_that_work_side_by_side_sync_side_by_side(
    storage: FilesystemStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = 0
    most = 0
    lock = threading.Lock()
    several = threading.Event()

    def slow_sync(fd: int) -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
            if at_once > 1:
                several.set()
        several.wait(0.05)
        with lock:
            at_once -= 1

    monkeypatch.setattr("perstack_filesystem.log_file.sync_data", slow_sync)

    async def work() -> None:
        await storage.create_job(JOB)
        writers = [Writer(storage, RunRef(JOB, f"{JOB}-{number + 1}")) for number in range(4)]
        for writer in writers:
            await writer.append("first")
            await writer.append("slow")
        await asyncio.gather(*(writer.append("beside the others") for writer in writers))
        for writer in writers:
            assert len(await storage.read(writer.ref)) == 3

    wait_for(work())
    assert most > 1


def test_an_entry_that_comes_while_its_job_is_deleted_is_not_left(
    root: Path, storage: FilesystemStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = FilesystemStorage(root)

    async def deleted() -> None:
        await other.delete_job(JOB)
        await other.close()

    def late(*args: object, **kwargs: object) -> None:
        monkeypatch.undo()
        thread = threading.Thread(target=lambda: wait_for(deleted()))
        thread.start()
        thread.join()
        put_entry(*args, **kwargs)

    async def work() -> None:
        await storage.create_job(JOB)
        await storage.put_entry(JOB, 6, b"{}")
        monkeypatch.setattr("perstack_filesystem.storage.put_entry", late)
        with pytest.raises(NotFound, match=f"there is no Job {JOB}"):
            await storage.put_entry(JOB, 7, b"")
        assert await storage.entry(JOB) is None
        assert await storage.lost_jobs() == ()

    wait_for(work())
