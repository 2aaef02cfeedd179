"""Worker processes on PostgreSQL: killed, frozen, drained, and with their server restarted."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

import pytest
import warm
from hosts import wait_for
from postgres_server import PostgresServer
from processes import wait_until
from terminal import Terminal, reply
from worker_processes import TOML, Cluster, effect

from perstack.ports.dispatcher import TAKEN_OVER_WITHIN


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_a_job_of_a_worker_that_dies_continues_elsewhere_within_ten_seconds_and_nothing_is_done_twice(
    cluster: Cluster, sign: signal.Signals
) -> None:
    cluster.terminal.script(a=[*(effect(number, 0.3) for number in range(4)), reply("done")])
    cluster.submit("job")
    with cluster.worker(name="first") as first, cluster.worker(name="second") as second:
        first.wait_until(lambda news: bool(first.of("ready")))
        second.wait_until(lambda news: bool(second.of("ready")))
        cluster.until_effects(2)
        driver, other = (first, second) if first.of("taken") else (second, first)
        driver.popen.send_signal(sign)
        died = time.monotonic()
        taken = other.until_event("taken")
        assert time.monotonic() - died < TAKEN_OVER_WITHIN
        assert taken["takeovers"] == 1
        assert other.until_event("ended")["status"] == "completed"
        if sign == signal.SIGSTOP:
            driver.popen.send_signal(signal.SIGCONT)
            driver.wait_until(lambda news: bool(driver.of("lost", "again", "ended")))
    assert sorted(cluster.effects) == ["0", "1", "2", "3"]
    assert cluster.status("job") == "completed"


def test_sigterm_lets_the_step_in_hand_end_and_another_worker_continues_at_once(cluster: Cluster) -> None:
    cluster.terminal.script(a=[*(effect(number, 0.5) for number in range(4)), reply("done")])
    cluster.submit("job")
    with cluster.worker(name="first") as first:
        cluster.until_effects(2)
        first.popen.terminate()
        assert first.popen.wait(20) == 0
        assert first.of("again")[0]["came"] == "left"
        with cluster.worker(name="second") as second:
            assert second.until_event("ended")["status"] == "completed"
            assert "takeovers" not in second.of("taken")[0]
    assert cluster.effects == ["0", "1", "2", "3"]
    assert cluster.status("job") == "completed"


def test_a_worker_outlives_a_restart_of_its_server(terminal: Terminal) -> None:
    server = PostgresServer()
    try:
        cluster = Cluster(terminal, server.start().address())
        cluster.terminal.script(a=[*(effect(number, 0.3) for number in range(6)), reply("done")])
        cluster.submit("job")
        with cluster.worker() as worker:
            cluster.until_effects(2)
            server.stop(signal.SIGQUIT)
            time.sleep(0.5)  # for so long it is away
            server.start()
            assert worker.until_event("ended")["status"] == "completed"
            cluster.submit("later")
            worker.until_event("taken", 2)
        assert sorted(set(cluster.effects[:6])) == ["0", "1", "2", "3", "4", "5"]
        assert cluster.status("job") == "completed"
    finally:
        server.close()


def test_a_worker_whose_log_nobody_reads_drives_its_jobs_and_leaves_when_it_is_asked(cluster: Cluster) -> None:
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    with suppress(BlockingIOError):  # it is full
        while True:
            os.write(theirs, b"." * 4096)
    os.set_blocking(theirs, True)
    process = warm.perstack(
        *("worker", "--log", "json"), cwd=cluster.terminal.workspace, env=cluster.terminal.env, stderr=theirs
    )
    try:
        os.close(theirs)
        cluster.submit("job", "later")
        wait_until(
            lambda: [cluster.status(job) for job in ("job", "later")] == ["completed"] * 2, "the Jobs to be completed"
        )
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_what_one_worker_cannot_drive_another_does(cluster: Cluster) -> None:
    cluster.submit("job")
    without = {key: value for key, value in cluster.terminal.env.items() if key != "PERSTACK_PLUGINS"}
    with cluster.worker(name="without", env=without) as refusing:
        assert "no provider 'scripted' is installed" in refusing.until_event("refused")["error"]
        with cluster.worker(name="with") as worker:
            assert worker.until_event("ended")["status"] == "completed"
        assert len(refusing.of("taken")) == 1
    assert cluster.status("job") == "completed"


def test_a_job_that_was_recorded_and_never_ordered_is_found(cluster: Cluster) -> None:
    cluster.submit("job")

    async def lose() -> None:
        async with cluster.host() as host:
            assert host.dispatcher is not None
            assert await host.dispatcher.withdraw("job")

    wait_for(lose())
    with cluster.worker() as worker:
        assert worker.until_event("ended")["status"] == "completed"
        assert worker.of("again")[0]["text"] == "had no order, and is queued again"


def test_workers_are_listed_and_a_second_signal_ends_one_at_once(cluster: Cluster) -> None:
    cluster.terminal.script(a=[effect(1, 30), reply("done")])
    cluster.submit("job")
    idle_worker = cluster.worker("--labels", "team=x", "--concurrency", "3", name="idle")
    with idle_worker as idle, cluster.worker(name="busy") as busy:
        idle.wait_until(lambda news: bool(idle.of("ready")))
        cluster.until_effects(1)
        listed = cluster.terminal.call("workers", "--json")
        assert listed.code == 0, listed.err
        found = {event["name"].rpartition("-")[0]: event for event in listed.events}
        assert found["busy"]["jobs"] == ["job"]
        assert (found["idle"]["jobs"], found["idle"]["labels"]) == ([], {"team": "x"})
        table = cluster.terminal.look("workers")
        assert "0 Jobs queued; 0 later; 1 at work" in table
        assert max(map(len, table.splitlines())) <= 80
        busy.popen.terminate()
        busy.until_event("draining")
        time.sleep(0.2)  # one that comes at once is the first again
        busy.popen.terminate()
        assert busy.popen.wait(5) == 130


def test_a_worker_without_a_dispatcher_says_what_to_give(terminal: Terminal) -> None:
    terminal.project(TOML.format(storage="file:perstack"), a=[reply("done")])
    done = terminal.call("worker")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: no dispatcher is set: give --dispatcher postgresql://")
    assert done.err.count("\n") == 1
    for wrong in (["--labels", "x"], ["--name", "a b"], ["--drain", "soon"], ["--http", "nowhere"]):
        result = terminal.call("worker", "--dispatcher", "postgresql://postgres@localhost:1/x", *wrong)
        assert (result.code, result.err.count("\n")) == (2, 1), result.err
