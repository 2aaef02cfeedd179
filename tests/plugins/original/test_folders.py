"""The filesystem storage shows Jobs of the original Perstack, and goes on with them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from perstack.core.base.chain import EMPTY_LOG, check, seal
from perstack.core.runs.events import StoredEvent, parse_event
from perstack.errors import Conflict, StorageError
from perstack.ports.formats import ForeignJob, ReadableFolder
from perstack.ports.storage import RunRef
from perstack.testing.storage_fixture import payload, wait_for
from perstack_filesystem.storage import FilesystemStorage
from perstack_original.plugin import perstack_formats

GOLDEN = Path(__file__).parents[2] / "golden"
CASES = ["b_files", "c_parallel_delegates", "d_interactive"]


@pytest.fixture(params=CASES)
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The folder of a Job of the original, in a copy."""
    shutil.copytree(GOLDEN / request.param / "perstack", tmp_path / "perstack")
    (folder,) = (tmp_path / "perstack" / "jobs").iterdir()
    return folder


def open_storage(job: Path) -> FilesystemStorage:
    """The storage that the folder stands in."""
    return FilesystemStorage(job.parents[1], formats=perstack_formats())


@pytest.fixture
def storage(job: Path):
    storage = open_storage(job)
    yield storage
    wait_for(storage.close())


def test_its_runs_are_listed_and_read_as_sealed_events_of_ours(job: Path, storage: FilesystemStorage) -> None:
    assert wait_for(storage.jobs()).ids == (job.name,)
    runs = wait_for(storage.runs(job.name)).ids
    assert runs[0] == f"{job.name}-1"
    for run in runs:
        head = EMPTY_LOG
        for line in wait_for(storage.read(RunRef(job.name, run))):
            sealed, head = check(head, line)
            assert parse_event(sealed.payload).run_id == run
        assert head.seq > 5


def test_parts_of_its_logs_are_read_like_any_others(job: Path, storage: FilesystemStorage) -> None:
    run = RunRef(job.name, f"{job.name}-1")
    whole = wait_for(storage.read(run))
    assert wait_for(storage.read(run, after=2, limit=3)) == whole[2:5]
    assert wait_for(open_storage(job).read(run)) == whole


def test_looking_changes_nothing(job: Path, storage: FilesystemStorage) -> None:
    before = sorted(job.rglob("*"))
    wait_for(storage.runs(job.name))
    wait_for(storage.checkpoints(job.name))
    wait_for(storage.read(RunRef(job.name, f"{job.name}-1")))
    assert sorted(job.rglob("*")) == before


def test_a_run_that_goes_on_here_keeps_what_the_original_wrote(job: Path, storage: FilesystemStorage) -> None:
    run = RunRef(job.name, f"{job.name}-1")
    whole = wait_for(storage.read(run))
    head = EMPTY_LOG
    for line in whole:
        _, head = check(head, line)
    records, _ = seal(head, [payload("on"), payload("and on")])
    wait_for(storage.append(run, head.seq, records))
    assert wait_for(storage.read(run)) == whole + records
    later = open_storage(job)
    assert wait_for(later.read(run)) == whole + records
    assert wait_for(later.runs(job.name)) == wait_for(storage.runs(job.name))
    wait_for(later.close())


def test_a_stale_writer_is_refused_there_too(job: Path, storage: FilesystemStorage) -> None:
    records, _ = seal(EMPTY_LOG, [payload("x")])
    with pytest.raises(Conflict):
        wait_for(storage.append(RunRef(job.name, f"{job.name}-1"), 0, records))


def test_a_new_run_of_ours_stands_beside_the_originals(job: Path, storage: FilesystemStorage) -> None:
    records, _ = seal(EMPTY_LOG, [payload("x")])
    earlier = wait_for(storage.runs(job.name)).ids
    new = RunRef(job.name, f"{job.name}-{len(earlier) + 1}")
    wait_for(storage.append(new, 0, records))
    assert wait_for(storage.runs(job.name)).ids == (*earlier, new.run_id)
    assert wait_for(storage.read(new)) == records


def test_without_their_format_nothing_of_them_is_shown(job: Path) -> None:
    storage = FilesystemStorage(job.parents[1])
    assert wait_for(storage.jobs()).ids == (job.name,)
    assert wait_for(storage.runs(job.name)).ids == ()


def test_of_several_formats_the_one_that_reads_the_folders_counts(job: Path, storage: FilesystemStorage) -> None:
    class Another:
        name = writer = "another"

        def read(self, job_id: str, runs: ReadableFolder, names: Sequence[str]) -> ForeignJob:
            return ForeignJob()

        def write(self, logs: Mapping[str, Sequence[StoredEvent]], blobs: Mapping[str, bytes]) -> dict[str, bytes]:
            return {}

    both = FilesystemStorage(job.parents[1], formats=[Another(), *perstack_formats()])
    assert wait_for(both.runs(job.name)) == wait_for(storage.runs(job.name))
    assert set(wait_for(both.unsealed_runs(job.name)).values()) == {"the original Perstack"}


def test_folders_that_are_not_of_the_original_are_left_alone(tmp_path: Path) -> None:
    notes = tmp_path / "perstack" / "jobs" / "mine" / "runs" / "notes"
    notes.mkdir(parents=True)
    (notes / "run-setting.json").write_text("nothing of the original")
    storage = FilesystemStorage(tmp_path / "perstack", formats=perstack_formats())
    assert wait_for(storage.runs("mine")).ids == ()


def test_a_file_that_does_not_read_is_named(job: Path, storage: FilesystemStorage) -> None:
    broken = next(job.glob("runs/*/event-*-startRun.json"))
    broken.write_text('{"type": "startRun"')
    with pytest.raises(StorageError, match=str(broken)):
        wait_for(storage.runs(job.name))
