"""A worker with folders: each Job begins with the files that it was snapshotted with last."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hosting import Bench, expert, recording, wait_for
from working import Engine

from perstack.engine.workers.folders import JobFolders
from perstack.errors import UsageError
from perstack.testing.scripted import text, tool, turn

WRITES = turn(tool("writeTextFile", {"path": "made.txt", "text": "by the Job"}))
READS = [WRITES, turn(tool("todo", {}), delay_ms=300), tool("readTextFile", {"path": "made.txt"}), text("Done.")]


def test_a_job_has_its_files_on_another_machine_and_leaves_none_when_it_is_completed(tmp_path: Path) -> None:
    async def work() -> None:
        here = tmp_path / "here"
        here.mkdir()
        (here / "given.txt").write_text("from who submitted it")
        bench, engine = Bench(here, f"sqlite:{tmp_path}/state.db"), Engine()

        def host():
            return recording(bench.host(READS, expert("a"), dispatcher=engine.dispatcher))

        submitter = host()
        await submitter.submit("a", "q", job_id="job")
        roots = [tmp_path / "machines" / name for name in ("one", "two")]
        first = host()
        async with engine.at_work(first, drive=_serve(first, roots[0])) as at_work:
            await at_work.steps(1)
        assert (roots[0] / "job" / "given.txt").read_text() == "from who submitted it"
        assert (roots[0] / "job" / "made.txt").read_text() == "by the Job"
        assert sorted(path.name for path in here.iterdir()) == ["given.txt"]
        shutil.copytree(roots[0], roots[1])
        (roots[1] / "job" / "made.txt").write_text("of an earlier drive")
        second = host()
        async with engine.at_work(second, drive=_serve(second, roots[1])) as at_work:
            await at_work.until("ended")
            job = await second.job("job")
            assert (job.status, job.text) == ("completed", "Done.")
            assert "by the Job" in (await _read_back(second))
        assert not (roots[1] / "job").exists()

    wait_for(work())


def test_a_folder_with_anything_else_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    with pytest.raises(UsageError, match="is not empty: name a folder that is for workers alone"):
        JobFolders(Bench(tmp_path, "file:perstack").host([], expert("a")).jobs, tmp_path)


def _serve(host, root: Path):
    folders = JobFolders(host.jobs, root)

    async def serve(job_id: str, *, on_event):
        return await folders.serve(job_id, worker="w", on_event=on_event)

    return serve


async def _read_back(host) -> str:
    lines = await host.events("job-1")
    return "".join(line.line.decode() for line in lines if getattr(line.event, "tool_name", "") == "readTextFile")
