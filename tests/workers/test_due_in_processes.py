"""Due tasks in worker processes on PostgreSQL: handled once, returned, taken over."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hosts import wait_for
from terminal import reply
from worker_processes import Cluster, Process, effect

from perstack.ports.dispatcher import TAKEN_OVER_WITHIN
from perstack.tasks.state import TaskState


@pytest.fixture
def cluster(cluster: Cluster) -> Cluster:
    """Return a cluster with a due task. Its dispatcher is not named: it is the storage's server."""
    terminal = cluster.terminal
    terminal.script(a=[*(effect(number, 0.4) for number in range(4)), reply("done")])
    for line in (("create", "fix", "--agent", "a", "--start"), ("pause", "fix", "--reason", "human_input")):
        assert terminal.call("task", *line).code == 0
    assert terminal.call("task", "answer", "fix", "go on").code == 0
    return cluster


def task_of(cluster: Cluster) -> TaskState:
    async def work() -> TaskState:
        async with cluster.host() as host:
            return await host.tasks.get("fix")

    return wait_for(work())


@contextmanager
def pair(cluster: Cluster) -> Iterator[tuple[Process, Process]]:
    """Yield two workers, first the one that works on the task."""
    with cluster.worker(name="first") as first, cluster.worker(name="second") as second:
        cluster.until_effects(2)
        yield (first, second) if first.of("taken") else (second, first)


def until_completed(cluster: Cluster) -> None:
    deadline = time.monotonic() + 20
    while (task := task_of(cluster)).status != "completed":
        assert time.monotonic() < deadline, task
        time.sleep(0.1)  # a poll of what another process does, bounded above
    assert task.job_id is not None
    assert cluster.status(task.job_id) == "completed"


def test_a_task_that_is_due_is_worked_on_once_by_two_workers(cluster: Cluster) -> None:
    with pair(cluster) as (driver, other):
        listed = {
            one["name"].rpartition("-")[0]: one["jobs"] for one in cluster.terminal.call("workers", "--json").events
        }
        assert sorted(map(len, listed.values())) == [0, 1]
        until_completed(cluster)
        assert not other.of("taken")
        assert len(driver.of("taken")) == 1
    assert cluster.effects == ["0", "1", "2", "3"]


def test_one_that_is_asked_to_leave_leaves_a_task_to_another_at_once(cluster: Cluster) -> None:
    with pair(cluster) as (driver, other):
        driver.popen.terminate()
        assert driver.popen.wait(20) == 0
        assert driver.of("again")[0]["came"] == "left"
        assert "takeovers" not in other.until_event("taken")
        until_completed(cluster)
    assert cluster.effects == ["0", "1", "2", "3"]


def test_the_task_of_one_that_is_killed_is_taken_over_within_ten_seconds(cluster: Cluster) -> None:
    with pair(cluster) as (driver, other):
        driver.popen.send_signal(signal.SIGKILL)
        died = time.monotonic()
        assert other.until_event("taken")["takeovers"] == 1
        assert time.monotonic() - died < TAKEN_OVER_WITHIN
        until_completed(cluster)
    assert sorted(cluster.effects) == ["0", "1", "2", "3"]
