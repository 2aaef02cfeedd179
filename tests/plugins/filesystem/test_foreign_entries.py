"""A Job whose folder has entries that are not of perstack is deleted as a whole, or refused as a whole."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from perstack.errors import StorageError
from perstack.testing.storage_fixture import JOB, RUN, new_writer, wait_for
from perstack_filesystem import directories
from perstack_filesystem.storage import FilesystemStorage


def link(at: Path, outside: Path) -> None:
    at.symlink_to(outside)


def dangling(at: Path, outside: Path) -> None:
    at.symlink_to(outside / "nowhere")


def pipe(at: Path, outside: Path) -> None:
    os.mkfifo(at)


def bound_socket(at: Path, outside: Path) -> None:
    here = Path.cwd()
    os.chdir(at.parent)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(at.name)
    os.chdir(here)


def folder(at: Path, outside: Path) -> None:
    at.mkdir()
    (at / "file").write_text("x")


PLACES = ("x", "blobs", "checkpoints", "blobs/" + "a" * 64, "runs/x", f"runs/{RUN.run_id}/x", "job.json")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Return a folder with a file, outside of the storage."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / ("a" * 64)).write_text("mine")
    return folder


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("plant", [link, dangling, pipe, bound_socket, folder])
def test_a_foreign_entry_goes_with_its_job_and_what_it_leads_to_stays(
    tmp_path: Path, outside: Path, place: str, plant: Callable[[Path, Path], None]
) -> None:
    storage = FilesystemStorage(tmp_path / "perstack")

    async def work() -> None:
        await (await new_writer(storage)).append("x")
        at = tmp_path / "perstack" / "jobs" / JOB / place
        at.parent.mkdir(exist_ok=True)
        plant(at, outside)
        await storage.delete_job(JOB)
        assert not await storage.has_job(JOB)
        await storage.close()

    wait_for(work())
    assert [path.name for path in (tmp_path / "perstack" / "jobs").iterdir() if path.is_dir()] == []
    assert [path.read_text() for path in outside.iterdir()] == ["mine"]


@pytest.mark.parametrize("plant", [link, pipe, bound_socket, folder])
def test_a_foreign_entry_in_place_of_the_lease_refuses_the_deletion_and_the_job_stays(
    tmp_path: Path, outside: Path, plant: Callable[[Path, Path], None]
) -> None:
    storage = FilesystemStorage(tmp_path / "perstack")

    async def work() -> None:
        await (await new_writer(storage)).append("x")
        plant(tmp_path / "perstack" / "jobs" / JOB / "lease", outside)
        with pytest.raises(StorageError, match="lease"):
            await storage.delete_job(JOB)
        assert (await storage.jobs()).ids == (JOB,)
        assert len(await storage.read(RUN)) == 1
        await storage.close()

    wait_for(work())


def test_a_mounted_folder_refuses_the_deletion_before_anything_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FilesystemStorage(tmp_path / "perstack")
    stat = directories.OpenDirectory.stat

    def mounted(self: directories.OpenDirectory, name: str) -> os.stat_result | None:
        found = stat(self, name)
        if found is None or name != "mnt":
            return found
        fields = [*found]
        fields[2] += 1  # the device
        return os.stat_result(fields)

    async def work() -> None:
        await (await new_writer(storage)).append("x")
        (tmp_path / "perstack" / "jobs" / JOB / "runs" / "mnt").mkdir()
        monkeypatch.setattr(directories.OpenDirectory, "stat", mounted)
        with pytest.raises(StorageError, match="runs/mnt: it is a mount point; unmount it"):
            await storage.delete_job(JOB)
        assert (await storage.jobs()).ids == (JOB,)
        assert len(await storage.read(RUN)) == 1
        await storage.close()

    wait_for(work())


def test_a_job_whose_files_cannot_be_removed_stays_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = FilesystemStorage(tmp_path / "perstack")

    def refuse(path: str, **options: object) -> None:
        raise PermissionError(1, "Operation not permitted", "events.jsonl")

    async def work() -> None:
        await (await new_writer(storage)).append("x")
        with monkeypatch.context() as patched:
            patched.setattr(shutil, "rmtree", refuse)
            with pytest.raises(StorageError, match=r"events\.jsonl: operation not permitted"):
                await storage.delete_job(JOB)
        assert (await storage.jobs()).ids == (JOB,)
        assert len(await storage.read(RUN)) == 1
        await storage.delete_job(JOB)
        assert (await storage.jobs()).ids == ()
        await storage.close()

    wait_for(work())
