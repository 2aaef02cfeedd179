"""Directories stay open from one use to the next, and one that changes behind our back is found out."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from perstack.errors import NotFound, StorageError
from perstack.testing.storage_fixture import JOB, RUN, new_writer, wait_for
from perstack_filesystem.directories import OpenFolders
from perstack_filesystem.storage import FilesystemStorage

pytestmark = pytest.mark.linux  # which directories are open is read from /proc

SUPPORT = Path(__file__).parents[2] / "support"

ONE_RUN = f"""
import asyncio, json, os, sys, traceback
sys.path.insert(0, {str(SUPPORT)!r})
from pathlib import Path
from hosts import Bench, expert
from perstack.testing.scripted import text, tool

(Path.cwd() / "a.txt").write_text("hello")
host = Bench(Path.cwd(), "file:perstack").host([tool("readTextFile", {{"path": "a.txt"}}), text("done")], expert("a"))
opened = []

def note(event, args):
    if event != "open":
        return
    frame = sys._getframe(1)
    while frame and "perstack_filesystem" not in frame.f_code.co_filename:
        frame = frame.f_back
    if frame:
        opened.append([Path(str(args[0])).name, bool(args[2] & os.O_DIRECTORY)])

async def main():
    job = await host.run("a", "q", job_id="job")
    await host.close()
    assert job.status == "completed", job.status

sys.addaudithook(note)
asyncio.run(main())
print(json.dumps(opened))
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "perstack"


@pytest.fixture
def storage(root: Path):
    storage = FilesystemStorage(root)
    yield storage
    wait_for(storage.close())


def test_one_run_with_one_file_read_opens_each_directory_of_the_store_once(tmp_path: Path) -> None:
    found = subprocess.run([sys.executable, "-c", ONE_RUN], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert found.stderr == ""
    opened: list[tuple[str, bool]] = [(name, is_directory) for name, is_directory in json.loads(found.stdout)]
    for name in ("perstack", "jobs", "job", "runs", "blobs", "checkpoints"):
        assert opened.count((name, True)) == 1, opened
    assert len(opened) <= 33, opened


def test_a_job_that_is_replaced_behind_our_back_is_the_new_one(root: Path, storage: FilesystemStorage) -> None:
    async def work() -> None:
        await storage.create_job(JOB)
        await storage.put_summary(JOB, b"old")
        other = FilesystemStorage(root)
        await other.delete_job(JOB)
        assert not await storage.has_job(JOB)
        assert await storage.summary(JOB) is None
        with pytest.raises(NotFound):
            await storage.put_summary(JOB, b"older")
        await other.create_job(JOB)
        assert await storage.summary(JOB) is None
        await storage.put_summary(JOB, b"new")
        assert await other.summary(JOB) == b"new"
        await other.close()

    wait_for(work())


@pytest.mark.parametrize("place", ["", "jobs"])
def test_a_store_that_is_removed_and_made_anew_is_the_new_one(
    root: Path, storage: FilesystemStorage, place: str
) -> None:
    async def work() -> None:
        await storage.create_job(JOB)
        await storage.put_summary(JOB, b"old")
        (root / place).rename(root.parent / "moved")
        assert (await storage.jobs()).ids == ()
        assert not await storage.has_job(JOB)
        await storage.create_job(JOB)
        await storage.put_summary(JOB, b"new")

    wait_for(work())
    assert (root / "jobs" / JOB / "job.json").read_bytes() == b"new"
    moved = root.parent / "moved" / ("" if place else "jobs") / JOB / "job.json"
    assert moved.read_bytes() == b"old"


@pytest.mark.parametrize("place", ["jobs", f"jobs/{JOB}", f"jobs/{JOB}/blobs"])
def test_a_directory_that_becomes_a_link_while_it_is_open_leads_nowhere(
    tmp_path: Path, root: Path, storage: FilesystemStorage, place: str
) -> None:
    async def work() -> None:
        await storage.create_job(JOB)
        old = await storage.put_blob(JOB, b"old")
        (root / place).rename(tmp_path / "outside")
        (root / place).symlink_to(tmp_path / "outside")
        for use in (storage.put_blob(JOB, b"new"), storage.blob(JOB, old)):
            with pytest.raises(StorageError, match="symbolic link"):
                await use

    wait_for(work())
    assert [one.read_bytes() for one in (tmp_path / "outside").rglob("*") if one.is_file()] == [b"old"]


def test_a_job_whose_files_somebody_removed_is_not_there(root: Path, storage: FilesystemStorage) -> None:
    wait_for(wait_for(new_writer(storage)).append("x"))
    shutil.rmtree(root / "jobs" / JOB)
    assert wait_for(storage.read(RUN)) == []
    with pytest.raises(NotFound):
        wait_for(storage.put_blob(JOB, b"x"))


def test_few_jobs_are_open_however_many_there_are(storage: FilesystemStorage) -> None:
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    async def work() -> int:
        before = open_files()
        for number in range(100):
            await storage.create_job(f"job-{number}")
            await storage.put_blob(f"job-{number}", b"{}")
        return open_files() - before

    if not Path("/proc/self/fd").exists():
        pytest.skip("counts the open files in /proc")
    assert wait_for(work()) < 40


def test_a_job_stays_open_as_long_as_somebody_is_at_work_in_it(root: Path, storage: FilesystemStorage) -> None:
    async def make() -> None:
        for number in range(100):
            await storage.create_job(f"job-{number}")

    wait_for(make())
    folders = OpenFolders(root)
    with ExitStack() as opened:
        first = folders.find("jobs", "job-0")
        assert first is not None
        opened.enter_context(first)
        number = os.fstat(first.fd).st_ino
        for other in range(1, 100):
            found = folders.find("jobs", f"job-{other}")
            assert found is not None
            with found:
                pass
        folders.close()
        assert os.fstat(first.fd).st_ino == number == (root / "jobs" / "job-0").stat().st_ino
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(first.fd)


def test_more_folders_may_be_used_at_once_than_stay_open(root: Path, storage: FilesystemStorage) -> None:
    async def make() -> None:
        for number in range(50):
            await storage.create_job(f"job-{number}")

    wait_for(make())
    folders = OpenFolders(root)
    with ExitStack() as opened:
        for number in range(50):
            found = folders.find("jobs", f"job-{number}", "runs")
            assert found is not None
            opened.enter_context(found)
            assert found.entries() == []
    folders.close()


def test_lists_that_are_made_at_once_in_several_threads_are_whole(root: Path, storage: FilesystemStorage) -> None:
    async def make() -> None:
        for number in range(200):
            await storage.create_job(f"job-{number}")

    wait_for(make())
    lengths: list[int] = []

    def look() -> None:
        lengths.extend(len(asyncio.run(storage.entries())) for _ in range(20))

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lengths == [200] * 80
