"""`perstack worker` on a Temporal server: the commands as people give them, and processes that are killed."""

from __future__ import annotations

import asyncio
import signal
import time

from temporal_server import TemporalServer
from terminal import ASKING, Terminal, reply
from worker_processes import Cluster, Process, effect

from perstack.ports.dispatcher import TAKEN_OVER_WITHIN

_EFFECTS = 8


def test_jobs_are_submitted_driven_left_taken_over_asked_about_and_answered(
    terminal: Terminal, temporal: TemporalServer
) -> None:
    """One day of three workers: what takes seconds goes on beside the rest."""
    cluster = Cluster(terminal, "sqlite:perstack/state.db")
    with (terminal.workspace / "perstack.toml").open("a") as file:
        file.write(f'{ASKING}\n[workers]\ndispatcher = "{temporal.address()}"\n')
    works, asks = [effect(number, 0.5) for number in range(_EFFECTS)], reply("", ("askUser", {"question": "Tea?"}))
    terminal.script(a=[*works, reply("done")], guest=[asks, reply("Served.")])

    def submitted(expert: str, *options: str) -> str:
        done = terminal.call("submit", expert, "q", *options)
        assert done.code == 0, done.err
        return done.out.strip()

    async def wait_until_offered(*job_ids: str) -> None:
        """Have their workflows done what they do before a worker looks: any process of ours does it for them."""
        async with cluster.host() as host:
            assert host.dispatcher is not None
            for job_id in job_ids:
                assert await host.dispatcher.order(job_id) is not None

    low, high = submitted("guest"), submitted("guest", "--priority", "2")
    asyncio.run(asyncio.wait_for(wait_until_offered(low, high), 40))
    with cluster.worker("--concurrency", "1", name="first") as first:
        first.until_event("ended", 2)
        assert [one["job"] for one in first.of("taken")] == [high, low]
        with cluster.worker(name="second") as second, cluster.worker(name="third") as third:
            for one in (second, third):
                one.until_event("ready")
            long = submitted("a")
            cluster.until_effects(1)
            leaves = driver_of(long, first, second, third)
            leaves.popen.terminate()
            assert leaves.popen.wait(20) == 0
            assert leaves.of("again")[0]["came"] == "left"
            cluster.until_effects(len(cluster.effects) + 1)
            others = [one for one in (first, second, third) if one is not leaves]
            dies = driver_of(long, *others)
            assert "takeovers" not in dies.of("taken")[-1]
            (last,) = (one for one in others if one is not dies)
            listed = terminal.call("workers", "--json").events
            assert sorted(one["jobs"] for one in listed) == [[], [long]]
            dies.popen.send_signal(signal.SIGKILL)
            died = time.monotonic()
            answered = terminal.call("answer", low, "yes")
            assert answered.code == 0, answered.err
            last.wait_until(lambda news: any(one.get("takeovers") for one in last.of("taken")))
            assert time.monotonic() - died < TAKEN_OVER_WITHIN
            last.wait_until(lambda news: {one["job"] for one in last.of("ended")} >= {low, long})
    assert sorted(map(int, cluster.effects)) == list(range(_EFFECTS))
    assert [cluster.status(one) for one in (low, high, long)] == ["completed", "stoppedByInteractiveTool", "completed"]


def driver_of(job_id: str, *workers: Process) -> Process:
    (driver,) = (one for one in workers if any(news["job"] == job_id for news in one.of("taken")))
    return driver
