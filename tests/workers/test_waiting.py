"""`perstack submit --wait` and `perstack log --follow`, while worker processes drive the Job."""

from __future__ import annotations

import json
import signal

import pytest
from hosts import wait_for
from postgres_server import PostgresServer
from processes import Attended, start
from terminal import ASKING, Terminal, reply
from worker_processes import TOML, Cluster, effect

FAILING = {"error": {"message": "no more", "status": 400}}


def stored_lines(cluster: Cluster, job_id: str) -> list[str]:
    async def work() -> list[str]:
        async with cluster.host() as host:
            return [
                line.line.decode() for log in await host.jobs.logs(job_id) for line in await host.events(log.run_id)
            ]

    return wait_for(work())


def test_it_shows_each_event_once_and_exits_as_run_does(cluster: Cluster) -> None:
    cluster.terminal.script(a=[effect(1), effect(2), reply("The end.")])
    with start(cluster.terminal, "submit", "a", "q", "--job-id", "job", "--wait") as waiting:
        assert waiting.stdout is not None
        assert waiting.stderr is not None
        begun = waiting.stdout.readline()  # no worker is there yet
        with cluster.worker():
            rest, err = waiting.stdout.read(), waiting.stderr.read()
    assert waiting.returncode == 0
    assert "error" not in err
    assert [line for line in (begun + rest).splitlines() if '"digest"' in line] == stored_lines(cluster, "job")
    ran = cluster.terminal.call("run", "a", "q", "--job-id", "ran")
    kinds = [event["type"] for event in ran.events if "digest" in event]
    shown = [json.loads(line)["type"] for line in (begun + rest).splitlines()]
    assert shown == [kinds[0], "queueRun", "resumeRun", *kinds[1:]]


def test_the_result_alone_and_what_a_person_sees_are_as_of_run(cluster: Cluster) -> None:
    cluster.terminal.script(a=[effect(1), reply("The end.")])
    with cluster.worker():
        alone = cluster.terminal.run("submit", "a", "q", "--wait", "--output", "text")
        assert (alone.code, alone.out) == (0, "The end.\n")
        seen = cluster.terminal.look("submit", "a", "q", "--wait", "--job-id", "job")
    assert "The end." in seen
    assert "waits for a worker" in seen
    assert "a completed: 2 steps" in seen


def test_a_failed_job_and_one_that_asks_end_it_with_the_status_of_run(cluster: Cluster) -> None:
    cluster.terminal.project(
        TOML.format(storage=cluster.storage) + ASKING,
        a=[FAILING],
        guest=[reply("", ("askUser", {"question": "Tea?"})), reply("Thanks.")],
    )
    with cluster.worker():
        failed = cluster.terminal.run("submit", "a", "q", "--wait", "--job-id", "fails")
        assert failed.code == 1
        assert "a failed after" in failed.err
        assert "perstack resume fails" in failed.err
        asked = cluster.terminal.run("submit", "guest", "q", "--wait", "--job-id", "asks")
        assert asked.code == 3
        assert asked.events[-1]["type"] == "stopRunByInteractiveTool"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_the_job_to_the_workers_and_says_how_to_see_it(cluster: Cluster, number: signal.Signals) -> None:
    cluster.terminal.script(a=[effect(1), effect(2, 1.5), reply("The end.")])
    waiting = Attended(cluster.terminal, "submit", "a", "q", "--job-id", "job", "--wait")
    assert waiting.process.stdout is not None
    waiting.process.stdout.readline()
    waiting.process.send_signal(number)
    _, told = waiting.end()
    assert waiting.process.returncode == 130
    assert "Job job still waits for a worker; see it with: perstack log job --follow\n" in told
    assert "stopping" not in told
    following = Attended(cluster.terminal, "log", "job", "--follow", "--json", provider="")
    again = Attended(cluster.terminal, "submit", "a", "q", "--job-id", "two", "--wait")
    assert again.process.stdout is not None
    again.process.stdout.readline()  # it is submitted, whichever process is the quicker
    with cluster.worker() as worker:
        cluster.until_effects(2)
        again.process.send_signal(number)
        _, told = again.end()
        assert again.process.returncode == 130
        assert "Job two continues on the workers; see it with: perstack log two --follow\n" in told
        worker.until_event("ended", 2)
        out, _ = following.end()
    assert cluster.status("two") == cluster.status("job") == "completed"
    assert out.splitlines() == stored_lines(cluster, "job")
    assert sorted(cluster.effects) == ["1", "1", "2", "2"]


def test_a_reader_that_ends_ends_the_showing_and_not_the_job(cluster: Cluster) -> None:
    cluster.terminal.script(a=[*(effect(number) for number in range(5)), reply("The end.")])
    waiting = start(cluster.terminal, "submit", "a", "q", "--job-id", "job", "--wait")
    assert waiting.stdout is not None
    assert waiting.stderr is not None
    waiting.stdout.readline()
    waiting.stdout.close()
    with cluster.worker() as worker:
        assert worker.until_event("ended")["status"] == "completed"
        assert waiting.wait(60) == 130
    assert waiting.stderr.read().count("error") == 0
    waiting.stderr.close()


def test_it_outlives_the_worker_and_a_restart_of_the_server(terminal: Terminal) -> None:
    server = PostgresServer()
    try:
        cluster = Cluster(terminal, server.start().address())
        cluster.terminal.script(a=[*(effect(number, 0.3) for number in range(4)), reply("The end.")])
        waiting = start(cluster.terminal, "submit", "a", "q", "--job-id", "job", "--wait")
        with cluster.worker(name="first") as first:
            cluster.until_effects(1)
            first.popen.kill()
        server.stop()
        server.start()
        with cluster.worker(name="second"):
            out, err = waiting.communicate(timeout=60)
        assert waiting.returncode == 0, err
        assert [line for line in out.splitlines() if '"digest"' in line] == stored_lines(cluster, "job")
    finally:
        server.close()


def test_a_job_is_followed_from_the_worker_that_dies_to_the_one_that_takes_it_over(cluster: Cluster) -> None:
    cluster.terminal.script(a=[effect(1), effect(2, 3), reply("The end.")])
    cluster.submit("job")
    following = Attended(cluster.terminal, "log", "job", "--follow", "--json", provider="")
    with cluster.worker(name="dies") as dies:
        cluster.until_effects(2)
        dies.popen.kill()
        dies.popen.wait()
    with cluster.worker(name="next") as worker:
        worker.until_event("ended")
    out, _ = following.end()
    assert following.process.returncode == 0
    assert out.splitlines() == stored_lines(cluster, "job")
