"""The order of a deleted Job, held by a worker that died, is removed by the other workers of its storage."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from engine_workers import AtWork, Engine
from hosts import Bench, expert, wait_for
from terminal import reply
from worker_processes import Cluster, effect

from perstack.engine.log.storage_access import ensure_storage_name, read_storage_name
from perstack.host import Host
from perstack.ports.dispatcher import Claim, Load
from perstack.testing.scripted import text

DONE = [text("Done.")]


def host_of(bench: Bench, engine: Engine) -> Host:
    return bench.host(DONE, expert("a"), dispatcher=engine.dispatcher)


async def held_by_the_dead(host: Host, engine: Engine, job_id: str) -> Claim:
    """Submit a Job and return its claim by a worker that then died."""
    await host.submit("a", "q", job_id=job_id)
    async with engine.dispatcher.seat("dies") as seat:
        claim = await seat.claim()
        assert claim is not None
        return claim


async def said_of(at_work: AtWork, job_id: str) -> tuple[str, str]:
    """Return the kind and the text of a worker's last report on a Job."""
    await at_work.wait_until(lambda: any(report.job == job_id for report in at_work.of("ended", "refused", "again")))
    (news,) = [report for report in at_work.news if report.job == job_id]
    return news.event, news.text


def test_the_order_of_a_deleted_job_that_a_dead_worker_held_is_removed_by_the_next(bench: Bench) -> None:
    async def work() -> None:
        engine = Engine()
        host = host_of(bench, engine)
        await held_by_the_dead(host, engine, "job")
        await host.jobs.delete("job")
        assert not await engine.is_empty()
        async with engine.at_work(host_of(bench, engine)) as at_work:
            event, said = await said_of(at_work, "job")
        assert event == "ended"
        assert said == f"its order is removed: {host.storage.location} has no such Job any more"
        assert await engine.is_empty()

    wait_for(work())


def test_a_worker_of_another_storage_takes_no_order_away(bench: Bench, tmp_path: Path) -> None:
    """Of a Job that is there, of one that is deleted, of a delegate; whether it has had orders of its own or not."""

    async def work() -> None:
        engine, other = Engine(), bench.beside(tmp_path / "other")
        other.workspace.mkdir()
        host = host_of(bench, engine)
        await held_by_the_dead(host, engine, "deleted")
        await host.jobs.delete("deleted")
        await host.submit("a", "q", job_id="there")
        order = await engine.dispatcher.order("there")
        assert order is not None
        await engine.dispatcher.submit(replace(order, run_id="there-2"))
        for has_had_orders in (False, True):
            async with engine.at_work(host_of(other, engine), f"other-{has_had_orders}") as at_work:
                await at_work.wait_for_report("refused", 3)
                assert {one.text.rpartition("; ")[2] for one in at_work.of("refused")} == {"that is another storage's"}
                await at_work.host.submit("a", "q", job_id=f"own-{has_had_orders}")
                assert (await at_work.wait_for_report("ended")).facts["status"] == "completed"
        async with engine.at_work(host) as at_work:
            await at_work.wait_for_report("ended", 3)
            came = {(report.job, report.facts.get("run")): report.facts["came"] for report in at_work.of("ended")}
        assert came == {("deleted", None): "deleted", ("there", None): "stopped", ("there", "there-2"): "stopped"}
        assert await engine.is_empty()

    wait_for(work())


def test_an_order_without_a_storage_waits_and_of_a_delegate_is_removed(bench: Bench) -> None:
    """It does not say which storage it is of; who awaits a delegate orders it again."""

    async def work() -> None:
        engine = Engine()
        await engine.submit("job")
        await engine.submit("job", run_id="job-2")
        async with engine.at_work(host_of(bench, engine)) as at_work:
            assert "was it deleted, or is that another storage?" in (await at_work.wait_for_report("refused")).text
            assert (await at_work.wait_for_report("ended")).facts["run"] == "job-2"

    wait_for(work())


def test_processes_that_name_a_storage_at_once_agree(bench: Bench) -> None:
    async def work() -> None:
        engine = Engine()
        hosts = [host_of(bench, engine) for _ in range(4)]
        assert await read_storage_name(hosts[0].storage) is None
        names = await asyncio.gather(*(ensure_storage_name(host.storage) for host in hosts for _ in range(2)))
        assert set(names) == {await read_storage_name(hosts[0].storage)} != {None}

    wait_for(work())


def test_a_storage_gets_its_name_though_who_gave_it_died(bench: Bench) -> None:
    async def work() -> None:
        host = host_of(bench, Engine())
        await host.storage.space("identity").create_job("storage")
        assert await read_storage_name(host.storage) is None
        await host.submit("a", "q", job_id="job")
        assert await read_storage_name(host.storage) is not None

    wait_for(work())


async def until_free(cluster: Cluster, job_id: str) -> None:
    """Wait until the server has noticed that the holder of a Job's lease is gone. A busy machine delays that."""
    async with cluster.host() as host:
        while await host.storage.lease_info(job_id) is not None:
            await asyncio.sleep(0.02)  # a poll of the server, bounded by `wait_for`


def test_the_order_of_a_deleted_job_that_a_killed_worker_held_is_removed_in_postgresql(cluster: Cluster) -> None:
    cluster.terminal.script(a=[effect(1, 60), reply("done")])
    cluster.submit("job")
    with cluster.worker(name="dies") as dies:
        cluster.until_effects(1)
        dies.popen.kill()
        dies.popen.wait()
    wait_for(until_free(cluster, "job"))
    done = cluster.terminal.run("delete", "job", "--yes")
    assert done.code == 0, done
    with cluster.worker(name="next") as worker:
        worker.until_event("ready")
        assert cluster.load().running == 1
        ended = worker.until_event("ended")
    assert (ended["came"], ended["level"]) == ("deleted", "warning")
    assert cluster.load() == Load()
