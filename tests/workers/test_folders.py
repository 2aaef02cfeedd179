"""Workers with folders: each Job begins with the files of its last snapshot."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from engine_workers import Engine
from hosts import Bench, expert, recording, wait_for

from perstack.errors import UsageError
from perstack.host import Host
from perstack.testing.scripted import ScriptLike, fail, text, tool, turn
from perstack.workers.folders import WorkerFolders

WRITES = turn(tool("writeTextFile", {"path": "made.txt", "text": "by the Job"}))
READS = [WRITES, turn(tool("todo", {}), delay_ms=300), tool("readTextFile", {"path": "made.txt"}), text("Done.")]
CUT = [
    tool("exec", {"command": "sh", "args": ["-c", "echo half > made.txt; sleep 60"]}),
    tool("readTextFile", {"path": "made.txt"}),
    text("Done."),
]


class Scene:
    """Workers with folders on one storage and one engine."""

    def __init__(self, tmp_path: Path) -> None:
        self.here = tmp_path / "here"
        self.here.mkdir()
        (self.here / "given.txt").write_text("from who submitted it")
        self.bench, self.engine = Bench(self.here, f"sqlite:{tmp_path}/state.db"), Engine()
        self.roots = [tmp_path / "machines" / name for name in ("one", "two")]

    def host(self, script: ScriptLike = READS, **project: object) -> Host:
        return recording(self.bench.host(script, expert("a"), dispatcher=self.engine.dispatcher), **project)

    async def submit(self, script: ScriptLike = READS, job_id: str = "job") -> Host:
        submitter = self.host(script)
        await submitter.submit("a", "q", job_id=job_id)
        return submitter

    def kept_folders(self, root: int) -> list[str]:
        return sorted(path.name for path in self.roots[root].iterdir() if path.is_dir())


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_job_has_its_files_on_another_machine_and_leaves_none_where_it_was(scene: Scene) -> None:
    async def work() -> None:
        await scene.submit()
        first = scene.host()
        async with scene.engine.at_work(first, drive=_serve(first, scene.roots[0])) as at_work:
            await at_work.steps(1)
            assert (scene.roots[0] / "job" / "given.txt").read_text() == "from who submitted it"
            assert (scene.roots[0] / "job" / "made.txt").read_text() == "by the Job"
        assert scene.kept_folders(0) == []
        assert sorted(path.name for path in scene.here.iterdir()) == ["given.txt"]
        (scene.roots[1] / "job").mkdir(parents=True)
        (scene.roots[1] / ".perstack-workspaces").touch()
        (scene.roots[1] / "job" / "made.txt").write_text("of an earlier drive")
        second = scene.host()
        async with scene.engine.at_work(second, drive=_serve(second, scene.roots[1])) as at_work:
            await at_work.wait_for_report("ended")
            job = await second.job("job")
            assert (job.status, job.text) == ("completed", "Done.")
            assert "by the Job" in (await _read_back(second))
        assert scene.kept_folders(1) == []

    wait_for(work())


def test_a_step_that_is_cut_in_its_middle_continues_elsewhere_with_its_files(scene: Scene) -> None:
    async def work() -> None:
        await scene.submit(CUT)
        first = scene.host(CUT)
        async with scene.engine.at_work(first, drive=_serve(first, scene.roots[0]), drain=0.1):
            async with asyncio.timeout(20):
                while not (scene.roots[0] / "job" / "made.txt").exists():
                    await asyncio.sleep(0.01)  # a poll of what a program does, bounded above
        assert scene.kept_folders(0) == []
        events = [line.event.type for line in await first.events("job-1")]
        assert events[-3:] == ["recordSnapshot", "stopRunByInterrupt", "queueRun"]
        assert ((await first.audit.verify("job")).findings, (await first.audit.replay("job")).findings) == ((), ())
        second = scene.host(CUT)
        async with scene.engine.at_work(second, drive=_serve(second, scene.roots[1])) as at_work:
            await at_work.wait_for_report("ended")
            assert (await second.job("job")).status == "completed"
            assert "half" in (await _read_back(second))
            assert ((await second.audit.verify("job")).findings, (await second.audit.replay("job")).findings) == (
                (),
                (),
            )

    wait_for(work(), 60)


def test_without_snapshots_a_cut_step_records_none(tmp_path: Path) -> None:
    async def work() -> None:
        bench, engine = Bench(tmp_path, "file:perstack"), Engine()
        host = bench.host(CUT, expert("a"), dispatcher=engine.dispatcher)
        await host.submit("a", "q", job_id="job")
        async with engine.at_work(host, drain=0.1):
            async with asyncio.timeout(20):
                while not (tmp_path / "made.txt").exists():
                    await asyncio.sleep(0.01)  # a poll of what a program does, bounded above
        events = [line.event.type for line in await host.events("job-1")]
        assert "recordSnapshot" not in events
        assert events[-2:] == ["stopRunByInterrupt", "queueRun"]

    wait_for(work())


WORK = {
    "a file that it made": (WRITES, lambda there: (there / "made.txt").write_text("by the Job")),
    "a file that it changed": (
        tool("writeTextFile", {"path": "given.txt", "text": "by the Job"}),
        lambda there: (there / "given.txt").write_text("by the Job"),
    ),
    "a file that it removed": (
        tool("exec", {"command": "rm", "args": ["given.txt"]}),
        lambda there: (there / "given.txt").unlink(),
    ),
    "nothing yet": (tool("todo", {}), lambda there: (there / "given.txt").write_text("of another Job")),
}


@pytest.mark.parametrize("work", WORK)
def test_a_worker_without_folders_and_without_the_files_of_a_job_refuses_it_and_writes_nothing(
    scene: Scene, tmp_path: Path, work: str
) -> None:
    step, done = WORK[work]
    script = [step, turn(tool("todo", {}), delay_ms=300), tool("readTextFile", {"path": "made.txt"}), text("Done.")]
    there = tmp_path / "there"
    there.mkdir()
    if work != "nothing yet":  # the same project, as it was before the Job
        (there / "given.txt").write_text("from who submitted it")
    (there / "other.txt").write_text("of this machine")

    async def serve() -> None:
        await scene.submit(script)
        first = scene.host(script)
        async with scene.engine.at_work(first) as at_work:
            await at_work.steps(1)
        elsewhere = Bench(there, f"sqlite:{tmp_path}/state.db")
        second = recording(elsewhere.host(script, expert("a"), dispatcher=scene.engine.dispatcher))
        before = [line.line for line in await first.events("job-1")]
        async with scene.engine.at_work(second) as at_work:
            await at_work.wait_for_report("refused")
            assert "the files of Job job are not in" in str(at_work.of("refused")[0].facts["error"])
        assert [line.line for line in await first.events("job-1")] == before
        done(there)
        third = recording(elsewhere.host(script, expert("a"), dispatcher=scene.engine.dispatcher))
        async with scene.engine.at_work(third, name="third") as at_work:
            await at_work.wait_for_report("ended")
            assert (await third.job("job")).status == "completed"

    wait_for(serve())


@pytest.mark.parametrize("what", ["deleted", "changed"])
def test_a_job_whose_files_another_job_has_touched_in_a_shared_workspace_continues(scene: Scene, what: str) -> None:
    script = [
        WRITES,
        tool("writeTextFile", {"path": "more.txt", "text": "by the Job"}),
        turn(tool("todo", {}), delay_ms=300),
        text("Done."),
    ]

    async def serve() -> None:
        await scene.submit(script)
        first = scene.host(script)
        async with scene.engine.at_work(first) as at_work:
            await at_work.steps(2)
        if what == "deleted":
            (scene.here / "made.txt").unlink()
            (scene.here / "given.txt").unlink()
        else:
            for name in ("made.txt", "more.txt", "given.txt"):
                (scene.here / name).write_text("of another Job")
        second = scene.host(script)
        async with scene.engine.at_work(second, name="second") as at_work:
            await at_work.wait_for_report("ended")
            assert (await second.job("job")).status == "completed"

    wait_for(serve())


@pytest.mark.parametrize("how", ["fails", "cancelled"])
def test_a_job_that_stops_leaves_no_folder(scene: Scene, how: str) -> None:
    script = [WRITES, fail(400)] if how == "fails" else CUT

    async def work() -> None:
        await scene.submit(script)
        host = scene.host(script)
        async with scene.engine.at_work(host, drive=_serve(host, scene.roots[0])) as at_work:
            if how == "cancelled":
                async with asyncio.timeout(20):
                    while not (scene.roots[0] / "job" / "made.txt").exists():
                        await asyncio.sleep(0.01)  # a poll of what a program does, bounded above
                await host.jobs.cancel("job")
            await at_work.wait_for_report("ended")
            assert scene.kept_folders(0) == []
        assert "made.txt" in {file.path for file in (await host.files.diff("job")).files}

    wait_for(work(), 60)


def test_what_no_snapshot_has_stays(scene: Scene) -> None:
    """A file that is too large for a snapshot, and files of a Job without snapshots."""

    async def work() -> None:
        await scene.submit()
        large = recording(scene.bench.host(READS, expert("a"), dispatcher=scene.engine.dispatcher), max_file_size=5)
        await large.submit("a", "q", job_id="large")
        plain = scene.bench.host(READS, expert("a"), dispatcher=scene.engine.dispatcher)
        await plain.submit("a", "q", job_id="plain")
        host = scene.host()
        async with scene.engine.at_work(host, drive=_serve(host, scene.roots[0])) as at_work:
            await at_work.wait_for_report("ended", 3)
        assert scene.kept_folders(0) == ["large", "plain"]
        assert (scene.roots[0] / "plain" / "made.txt").read_text() == "by the Job"

    wait_for(work())


def test_a_worker_that_begins_removes_what_killed_ones_left_and_names_what_is_strange(scene: Scene) -> None:
    async def work() -> None:
        await scene.submit()
        host = scene.host()
        folders = WorkerFolders(host.jobs, scene.roots[0])
        async with host:
            await folders.serve("job", worker="w")
            assert scene.kept_folders(0) == []
            shots = [line.event.id for line in await host.events("job-1") if line.event.type == "recordSnapshot"]
            await host.files.write_files(shots[-1], scene.roots[0] / "job", job_id="job")
            shutil.copytree(scene.roots[0] / "job", scene.roots[0] / "gone")
            shutil.copytree(scene.roots[0] / "job", scene.roots[0] / "no id")
            assert await folders.remove_leftovers() == ("gone", "no id")
            assert scene.kept_folders(0) == ["gone", "no id"]
            (scene.roots[0] / "job").mkdir()
            (scene.roots[0] / "job" / "new.txt").write_text("in no snapshot")
            await folders.remove_leftovers()
            assert scene.kept_folders(0) == ["gone", "job", "no id"]

    wait_for(work())


def test_a_folder_with_anything_else_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    with pytest.raises(UsageError, match="is not empty: name an empty folder that only workers use"):
        WorkerFolders(Bench(tmp_path, "file:perstack").host([], expert("a")).jobs, tmp_path)


def _serve(host, root: Path):
    folders = WorkerFolders(host.jobs, root)

    async def serve(job_id: str, *, run_id, on_event, on_waiting):
        return await folders.serve(job_id, worker="w", run_id=run_id, on_event=on_event, on_waiting=on_waiting)

    return serve


async def _read_back(host) -> str:
    lines = await host.events("job-1")
    return "".join(line.line.decode() for line in lines if getattr(line.event, "tool_name", "") == "readTextFile")
