"""An approved call runs once, wherever a process is killed, and no other call runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from approval_jobs import ME, append, files
from hosts import Bench, expert, sampled, until_it_crashes, wait_for

from perstack.core.definitions.permissions import Permissions
from perstack.errors import NotFound
from perstack.testing.crashing_storage import CrashingStorage, CrashPoint, crash_points
from perstack.testing.scripted import text, tool, turn

CRASHING = {
    "[[boss]]": [turn(append("boss.txt"), tool("hand", {"query": "go"})), text("done")],
    "[[hand]]": [turn(append("hand.txt"), append("free.txt")), text("written")],
}
RULES = Permissions(ask=("appendTextFile(boss.txt)", "appendTextFile(hand.txt)"))
CHANGED = {"path": "hand.txt", "text": "x, as changed\n"}
NAMES = ("boss.txt", "hand.txt", "free.txt")


async def live(bench: Bench, point: CrashPoint | None) -> int:
    """Run one process, which starts or continues the Job, approves calls, and crashes at the point."""
    experts = (expert("boss", delegates=("hand",)), expert("hand"))
    host = bench.host(CRASHING, *experts, wrap=lambda inner: CrashingStorage(inner, point))
    host.use(host.project.model_copy(update={"permissions": RULES}))
    async with host:
        storage = host.storage
        assert isinstance(storage, CrashingStorage)
        with until_it_crashes():
            try:
                job = await host.job("job")
            except NotFound:
                job = await host.run("boss", "go", job_id="job")
            else:
                # a call that began may have had its effect, so it is not repeated
                if job.asking is None and job.status != "completed":
                    calls = {call.key: "done" for call in await host.jobs.unsettled("job")}
                    job = await host.resume("job", settle=calls)
            while job.asking is not None:
                if job.asking.args["path"] == "hand.txt":
                    job = await host.answer(changed=CHANGED, question_id=job.asking.id, by=ME)
                else:
                    job = await host.answer("yes", question_id=job.asking.id, by=ME)
            assert job.status == "completed"
        return storage.appends


@pytest.mark.sweep
def test_killed_at_any_write_each_approved_call_has_run_once_and_no_other(tmp_path: Path) -> None:
    def fresh(name: str) -> Bench:
        folder = tmp_path / name
        folder.mkdir()
        bench = Bench(folder, "file:perstack")
        files(bench, *NAMES)
        return bench

    appends = wait_for(live(fresh("plain"), None))
    assert appends > 8
    for number, point in enumerate(sampled(crash_points(appends))):
        bench = fresh(str(number))
        wait_for(live(bench, point))
        lost = _files_of_open_calls(bench)
        wait_for(live(bench, None))
        written = {name: (bench.workspace / name).read_text().count("x") for name in NAMES}
        # nobody knows whether a call had its effect if the process died after the call began
        expected = {"boss.txt": 1, "hand.txt": 1, "free.txt": 1}
        assert (bench.workspace / "hand.txt").read_text() in ("", CHANGED["text"])
        assert all(expected[name] - written[name] in (0, lost.count(name)) for name in NAMES), (point, written, lost)
        host = bench.host(CRASHING)
        approvals, starts = [], []
        for run_id in ("job-1", "job-2"):
            events = [line.event for line in wait_for(host.events(run_id))]
            approvals += [(run_id, e.tool_call_id) for e in events if e.type in ("decideApproval", "changeCall")]
            starts += [(run_id, e.tool_call_id) for e in events if e.type == "startToolCall"]
        assert sorted(approvals) == sorted(set(approvals)) == sorted(starts), (point, approvals, starts)
        assert wait_for(host.audit.replay("job")).ok, point
        assert wait_for(host.audit.verify("job")).ok, point


def _files_of_open_calls(bench: Bench) -> list[str]:
    """Return the files of calls that began and have no result, because the process died before they had an effect."""

    async def look() -> list[str]:
        async with bench.host(CRASHING) as host:
            try:
                calls = await host.jobs.unsettled("job")
            except NotFound:
                return []
            return [json.loads(call.args)["path"] for call in calls]

    return wait_for(look())
