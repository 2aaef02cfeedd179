"""Delegates driven by other worker processes on PostgreSQL: killed, frozen, drained, stopped, taken over."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from hosts import wait_for
from postgres_server import PostgresServer
from terminal import Terminal, reply
from worker_processes import TOML, Cluster, Process

from perstack.core.jobs.summary import JobSummary

TEAM = """delegates = ["helper"]
[experts.helper]
instruction = "You help."
permissions = { allow = ["exec"] }
[workers]
delegates = "distributed"
"""
HELPERS = 4
STEPS = 3


@pytest.fixture
def team(terminal: Terminal, postgres: PostgresServer) -> Cluster:
    """Return a project whose Expert has four concurrent delegates with three effects each."""
    cluster = Cluster(terminal, postgres.address())
    calls = [("helper", {"query": f"part {n}"}) for n in range(HELPERS)]
    # a worker's own file of effects shows when it is inside a call
    scripts = (f"echo {n} >> effects; echo {n} >> effects-of-$LOGNAME; sleep 0.7" for n in range(STEPS))
    helper = [*(reply("", ("exec", {"command": "sh", "args": ["-c", script]})) for script in scripts), reply("part")]
    terminal.project(TOML.format(storage=cluster.storage) + TEAM, a=[reply("", *calls), reply("done")], helper=helper)
    return cluster


@contextmanager
def workers(cluster: Cluster, *names: str) -> Iterator[list[Process]]:
    """Yield workers that drive one Job each, when all are ready."""
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                cluster.worker("--concurrency", "1", name=name, env={**cluster.terminal.env, "LOGNAME": name})
            )
            for name in names
        ]
        for one in processes:
            one.wait_until(lambda news, one=one: bool(one.of("ready")))  # type: ignore[misc]
        yield processes


def has_taken(process: Process, *, run: bool) -> bool:
    return any(("run" in news) is run for news in process.of("taken"))


def one_of(processes: list[Process], condition: Callable[[Process], bool], seconds: float = 60) -> Process:
    """Wait for a process that meets the condition, and return it."""
    deadline = time.monotonic() + seconds
    while True:
        for process in processes:
            if condition(process):
                return process
        assert time.monotonic() < deadline, [process.news for process in processes]
        time.sleep(0.02)  # a poll of what other processes do, bounded above


def until_inside_of_a_call(cluster: Cluster, name: str) -> None:
    """Wait until a call of this worker has had its effect: one that is killed before has none, and is not repeated."""
    path = cluster.terminal.workspace / f"effects-of-{name}"
    deadline = time.monotonic() + 60
    size = path.stat().st_size if path.exists() else 0
    while not path.exists() or path.stat().st_size == size:
        assert time.monotonic() < deadline
        time.sleep(0.01)  # a poll of what another process does, bounded above


def is_done(process: Process) -> bool:
    return any("run" not in news and news.get("status") == "completed" for news in process.of("ended"))


def checked(cluster: Cluster, job_id: str = "job") -> JobSummary:
    """Return the Job, after checking that its logs are complete and match its totals."""

    async def work() -> JobSummary:
        async with cluster.host() as host:
            for report in (await host.audit.verify(job_id), await host.audit.replay(job_id)):
                assert report.ok, report
            job = await host.job(job_id)
            assert job.total_steps == sum(run.steps for run in job.runs)
            assert job.usage.total_tokens == sum(run.usage.total_tokens for run in job.runs)
            return job

    return wait_for(work())


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM], ids=["killed", "frozen", "left"])
@pytest.mark.parametrize("of_job", [True, False], ids=["of-the-job", "of-a-delegate"])
def test_whichever_worker_ends_the_tree_is_whole_and_nothing_is_done_twice(
    team: Cluster, sign: signal.Signals, of_job: bool
) -> None:
    names = ("one", "two", "three")
    with workers(team, *names) as all_:
        team.submit("job")
        team.until_effects(4)
        driver = one_of(all_, lambda process: has_taken(process, run=False))
        victim = (
            driver if of_job else one_of([one for one in all_ if one is not driver], lambda p: has_taken(p, run=True))
        )
        until_inside_of_a_call(team, names[all_.index(victim)])  # the driver of the Job drives a delegate as well
        victim.popen.send_signal(sign)
        others = [one for one in all_ if one is not victim]
        one_of(others if of_job else [driver], is_done, 90)
        if sign == signal.SIGSTOP:
            victim.popen.send_signal(signal.SIGCONT)
            victim.wait_until(lambda news: bool(victim.of("lost", "again", "ended")))
    job = checked(team)
    assert (job.status, len(job.runs)) == ("completed", 1 + HELPERS)
    assert job.total_steps == 2 + HELPERS * (STEPS + 1)
    assert Counter(team.effects) == {str(n): HELPERS for n in range(STEPS)}


def test_who_stops_the_job_stops_its_delegates_wherever_they_are(team: Cluster) -> None:
    with workers(team, "one", "two") as all_:
        team.submit("job")
        team.until_effects(2)
        done = team.terminal.run("cancel", "job", seconds=60)
        assert done.code == 0, done
        job = checked(team)
        assert {run.status for run in job.runs} == {"stoppedByInterrupt"}
        count = len(team.effects)
        one_of(all_, lambda process: bool(process.of("ended")))
        assert len(team.effects) == count
    done = team.terminal.run("resume", "job", seconds=90)  # here, without any worker
    assert done.code == 0, done
    job = checked(team)
    assert (job.status, len(job.runs)) == ("completed", 1 + HELPERS)
    assert Counter(team.effects) == {str(n): HELPERS for n in range(STEPS)}


def test_a_job_whose_worker_died_is_resumed_here_and_its_delegates_are_taken_back(team: Cluster) -> None:
    names = ("one", "two")
    with workers(team, *names) as all_:
        team.submit("job")
        team.until_effects(2)
        driver = one_of(all_, lambda process: has_taken(process, run=False))
        until_inside_of_a_call(team, names[all_.index(driver)])
        driver.popen.kill()
        driver.popen.wait()
        other = next(one for one in all_ if one is not driver)
        deadline = time.monotonic() + 60
        while (done := team.terminal.run("resume", "job", seconds=90)).code and not is_done(other):
            assert time.monotonic() < deadline, done
            assert "being driven" in done.err, done  # by the lease of who died, or by who has taken it over
    job = checked(team)
    assert (job.status, len(job.runs)) == ("completed", 1 + HELPERS)
    assert Counter(team.effects) == {str(n): HELPERS for n in range(STEPS)}
