"""The names in a state folder by which it is recognised and protected are those that a host writes there."""

from __future__ import annotations

from pathlib import Path

from hosts import Bench, expert, wait_for

from perstack.audit.redact import redact_event
from perstack.core.base.ids import By
from perstack.core.definitions.experts import Iterate
from perstack.core.definitions.project import Schedule, Workspace
from perstack.core.files.file_names import STATE_CONTENT
from perstack.testing.scripted import text, tool, turn

MINUTE_MS = 60_000
SCRIPT = {
    "[[a]]": [
        turn(tool("writeTextFile", {"path": "a.txt", "text": "1"})),
        turn(tool("exec", {"command": "true", "args": []})),
        text("done"),
    ],
    "[[lead]]": [turn(tool("a", {"query": "Go."})), text("done")],
    "[[maker]]": [text("made")],
}


def test_whatever_a_host_does_writes_no_other_name_into_a_state_folder(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "file:perstack")
    maker = expert("maker", iterate=Iterate(evaluator="echo '{\"score\": 1}'", max_iterations=1))
    schedule = Schedule(name="s", cron="* * * * *", expert="a", query="Go.")
    (tmp_path / "a.txt").write_text("0")

    async def work() -> None:
        async with bench.host(SCRIPT, expert("a"), expert("lead", delegates=("a",)), maker) as host:
            place = Workspace(snapshots=True)
            host.use(host.project.model_copy(update={"schedules": (schedule,), "workspace": place}))
            await host.run("a", "go", job_id="j")
            await host.run("lead", "go", job_id="led")
            (first, *_) = (await host.storage.checkpoints("j")).ids
            await host.files.rewind("j", first)
            await host.tasks.create("chore", start=True)
            await host.iterations.begin("maker", "go", series_id="series")
            await host.schedules.once()
            bench.clock.move(MINUTE_MS)
            await host.schedules.once()
            await redact_event(host.storage, "j-1-1", reason="a password", by=By(user="ann", door="python"))

    wait_for(work())
    names = {path.name for path in (tmp_path / "perstack").iterdir()} - {".gitignore", "origin.json"}
    assert names <= STATE_CONTENT, "besides the mark, and what keeps git out"
    assert {"jobs", "tasks", "iterations", "schedules", ".blobs"} <= names
