"""User actions on a Job whose worker is gone while another worker still drives one of its delegates."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from delegate_workers import Fleet, abandoned, check_whole, leftovers, until_empty
from hosts import Bench, expert, open_storage, wait_for

from perstack.audit.storage_admin import copy_storage
from perstack.core.definitions.project import Workspace
from perstack.engine.log.delegate_leases_and_stop_requests import DelegateLeases
from perstack.errors import Conflict
from perstack.host import Host
from perstack.testing.scripted import text, tool, turn

PARTS = 4
BOSS = [turn(*(tool("helper", {"query": f"part {n}"}) for n in range(PARTS))), text("All done.")]
TEAM = (expert("boss", delegates=("helper",)), expert("helper"))
SLOW_TURNS = [text("Part.", delay_ms=60_000)]


@pytest.fixture
def fleet(bench: Bench) -> Fleet:
    return Fleet(bench, {"[[boss]]": BOSS, "[[helper]]": SLOW_TURNS}, TEAM)


async def lines(host: Host) -> dict[str, list[bytes]]:
    return {log.run_id: list(log.lines) for log in await host.jobs.logs("job")}


def test_nothing_is_taken_out_of_a_job_while_a_delegate_of_it_is_driven(fleet: Fleet) -> None:
    """Its worker has the text in memory, and would write it to a checkpoint again."""

    async def work() -> None:
        async with abandoned(fleet) as rest:
            host, (taken,) = fleet.host(), rest.of("taken")
            before = await lines(host)
            for event_id in ("job-1-1", f"{taken.facts['run']}-1"):
                with pytest.raises(Conflict, match=f"{taken.facts['run']} is being driven"):
                    await host.audit.redact(event_id, ["query"], reason="a secret")
            assert await lines(host) == before
            await host.cancel("job")
            await host.audit.redact("job-3-1", ["query"], reason="a secret")
            report = await host.audit.verify("job")
            assert report.ok, report
            assert not [report for report in rest.of("again") if "run" in report.facts]
            await until_empty(fleet.engine)
            await host.jobs.delete("job")
            assert await leftovers(host) == []

    wait_for(work(), 60)


def test_while_a_text_is_taken_out_of_a_delegate_that_waits_nobody_takes_it_up(fleet: Fleet) -> None:
    async def work() -> None:
        async with abandoned(fleet) as rest:
            rest.worker.leave()
            await rest.task
            host = fleet.host()
            async with DelegateLeases(host.storage).lease_all_idle("job", "a redaction", ["job-5"]):
                with pytest.raises(Conflict, match="driven by a redaction"):
                    await host.job_server.serve("job", worker="other", run_id="job-5")
            assert "job-5" not in await leftovers(host)
            await host.audit.redact("job-5-1", ["query"], reason="a secret")
            report = await host.audit.verify("job")
            assert report.ok, report
            await host.jobs.delete("job")
            assert await leftovers(host) == []

    wait_for(work(), 60)


def test_what_delegates_have_done_since_their_job_was_left_is_no_finding(fleet: Fleet) -> None:
    """Their workers do not write the Job's summary: neither while they are at work nor when they have ended."""

    async def work() -> None:
        fleet.script["[[helper]]"] = [turn(tool("todo", {"newTodos": ["a"]}), delay_ms=50, repeat=1_000)]
        async with abandoned(fleet) as rest:
            host = fleet.host()
            summary = await host.storage.summary("job")
            await rest.steps(rest.worker.counters.steps + 2)
            report = await host.audit.verify("job")
            assert report.ok, report
            rest.worker.leave()
            await rest.task
        fleet.script["[[helper]]"] = [turn(text="Part.", repeat=True)]
        for number in range(2, 2 + PARTS):
            await fleet.host().job_server.serve("job", worker="other", run_id=f"job-{number}")
            report = await host.audit.verify("job")
            assert report.ok, report
        assert {run.status for run in (await host.jobs.load("job")).runs.values()} == {"queued", "completed"}
        assert await host.storage.summary("job") == summary
        await host.jobs.delete("job")

    wait_for(work(), 60)


def test_a_job_that_is_continued_with_another_query_stops_the_delegates_of_before(fleet: Fleet) -> None:
    async def work() -> None:
        async with abandoned(fleet) as rest:
            fleet.script = {"[[boss]]": [BOSS[0], text("Other.")], "[[helper]]": SLOW_TURNS}
            host = fleet.host()
            async with asyncio.timeout(25):
                job = await host.jobs.continue_job("boss", "Do other things.", job_id="job")
            assert (job.status, job.text) == ("completed", "Other.")
            runs = (await host.jobs.load("job")).runs
            delegates = [run for run in runs.values() if not run.is_coordinator]
            assert [run.status for run in delegates] == ["stoppedByInterrupt"] * PARTS
            await until_empty(fleet.engine)
            assert not rest.of("failed", "lost")
            await check_whole(host, job)

    wait_for(work(), 60)


def test_a_delegate_of_before_is_driven_no_more_though_it_could_not_be_stopped(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker did not answer who continued the Job: it was frozen."""
    monkeypatch.setattr("perstack.workers.remote_delegates._RELEASE_TIMEOUT_S", 0.2)
    monkeypatch.setattr("perstack.engine.log.delegate_leases_and_stop_requests._STOP_TIMEOUT_S", 0.2)

    async def work() -> None:
        async with abandoned(fleet) as rest:
            rest.worker.leave()
            await rest.task
        fleet.script = {"[[boss]]": [BOSS[0], text("Other.")], "[[helper]]": [text("Never.")]}
        host = fleet.host()
        async with DelegateLeases(host.storage).lease("job-5", "a frozen worker"):
            await host.jobs.continue_job("boss", "Do other things.", job_id="job")
        before = await lines(host)
        await fleet.host().job_server.serve("job", worker="other", run_id="job-5")
        assert await lines(host) == before
        assert (await host.jobs.load("job")).runs["job-5"].status == "queued"

    wait_for(work(), 60)


def test_a_job_is_not_copied_while_a_delegate_of_it_is_driven(fleet: Fleet, tmp_path: Path) -> None:
    async def work() -> None:
        async with abandoned(fleet) as rest:
            (taken,) = rest.of("taken")
            host, target = fleet.host(), open_storage("sqlite:copy.db", tmp_path)
            (copied,) = [one async for one in copy_storage(host.storage, target)]
            assert (copied.state, copied.records) == ("left", 0)
            assert copied.problem.startswith(f"{taken.facts['run']}, one of its delegates, is being driven")
            assert not await target.has_job("job")
            await host.cancel("job")
            (copied,) = [one async for one in copy_storage(host.storage, target)]
            assert copied.state == "copied"
            await target.close()

    wait_for(work(), 60)


def test_no_file_is_rewound_while_a_delegate_is_driven_in_the_folder(fleet: Fleet) -> None:
    async def work() -> None:
        fleet.settings["workspace"] = Workspace(snapshots=True)
        async with abandoned(fleet) as rest:
            (taken,) = rest.of("taken")
            host = fleet.host()
            shot = next(line.event for line in await host.events("job-1") if line.event.type == "recordSnapshot")
            with pytest.raises(Conflict, match=f"{taken.facts['run']}, a delegate, is driven in"):
                await host.files.rewind("job", shot.id)
            await host.cancel("job")

    wait_for(work(), 60)
