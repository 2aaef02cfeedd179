"""`perstack cancel`: a Job is stopped by another process than the one that drives it."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest
from hosts import STORAGES, storage_line
from processes import start, wait_until
from terminal import SECONDS, TEAM, Terminal, reply

from perstack.errors import Conflict
from perstack.host import Host

SLOW_TURNS = [reply("", ("exec", {"command": "sh", "args": ["-c", "touch began; sleep 60"]})), reply("done")]


@pytest.fixture(params=STORAGES)
def busy(terminal: Terminal, request: pytest.FixtureRequest) -> Terminal:
    return terminal.project(storage_line(request, terminal.env) + TEAM, lead=SLOW_TURNS)


def has_begun(terminal: Terminal) -> bool:
    return (terminal.workspace / "began").exists()


def test_a_job_is_stopped_where_it_is_driven_recorded_and_resumed(busy: Terminal) -> None:
    with start(busy, "run", "lead", "go", "--job-id", "slow") as process:
        wait_until(lambda: has_begun(busy), "the command runs")
        result = busy.call("cancel", "slo")
        assert (result.code, result.err) == (0, "")
        assert result.out.startswith("Job slow: interrupted, 1 step")
        assert result.out.endswith("; continue with: perstack resume slow\n")
        out, err = process.communicate(timeout=SECONDS)
        assert (process.returncode, "Traceback" in err) == (130, False)
    assert json.loads(out.splitlines()[-1])["type"] == "stopRunByInterrupt"
    assert busy.call("verify", "slow").code == 0
    resumed = busy.call("resume", "slow")
    assert (resumed.code, resumed.events[-1]["type"]) == (0, "finishRun")


def test_a_job_that_nobody_drives_is_said_to_be_such(busy: Terminal) -> None:
    busy.script(lead=[reply("done")])
    assert busy.call("run", "lead", "go", "--job-id", "quick").code == 0
    result = busy.call("cancel", "quick")
    assert (result.code, result.out) == (2, "")
    assert "Job quick cannot be stopped: no process drives it" in result.err
    assert busy.call("cancel", "none").code == 2


def test_one_that_does_not_stop_in_time_is_said_and_the_request_withdrawn(
    busy: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perstack.engine.log.delegate_leases_and_stop_requests._STOP_TIMEOUT_S", 0.5)

    async def stop(host: Host) -> None:
        async with host:
            with pytest.raises(
                Conflict,
                match=r"was asked to stop, and pid [0-9]+ on \S+ has not stopped it: try again, or end that process",
            ):
                await host.cancel("slow")
            assert not await host.storage.space("stops").has_job("slow")

    with start(busy, "run", "lead", "go", "--job-id", "slow") as process:
        wait_until(lambda: has_begun(busy), "the command runs")
        os.kill(process.pid, signal.SIGSTOP)
        asyncio.run(stop(Host.open(config=busy.workspace / "perstack.toml", workspace=busy.workspace, env=busy.env)))
        os.kill(process.pid, signal.SIGCONT)
        process.kill()


def test_a_request_for_an_earlier_holder_stops_nobody(busy: Terminal) -> None:
    busy.script(lead=[reply("", ("exec", {"command": "sh", "args": ["-c", "touch began; sleep 2"]})), reply("done")])

    async def stale(host: Host) -> None:
        async with host:
            space = host.storage.space("stops")
            await space.create_job("slow")
            await space.put_summary("slow", b"pid 1 on elsewhere")

    asyncio.run(stale(Host.open(config=busy.workspace / "perstack.toml", workspace=busy.workspace, env=busy.env)))
    result = busy.call("run", "lead", "go", "--job-id", "slow")
    assert (result.code, result.events[-1]["type"]) == (0, "finishRun")


def test_a_job_is_closed_for_good_and_no_command_continues_it(busy: Terminal) -> None:
    with start(busy, "run", "lead", "go", "--job-id", "slow") as process:
        wait_until(lambda: has_begun(busy), "the command runs")
        result = busy.call("cancel", "slow", "--final", "--reason", "a wrong turn")
        assert (result.code, result.err) == (0, "")
        assert result.out.startswith("Job slow: interrupted, closed permanently by ")
        process.communicate(timeout=SECONDS)
    for way_on in (
        ("resume", "slow"),
        ("answer", "slow", "yes"),
        ("run", "lead", "more", "--continue-job", "slow"),
    ):
        refused = busy.call(*way_on)
        assert (refused.code, refused.out) == (2, "")
        assert refused.err.startswith("error: Job slow was closed for good by ")
        assert len(refused.err.splitlines()) == 1
    output = busy.call("log", "slow").out
    assert "interrupted, closed" in output
    assert ": a wrong turn" in output
    assert "perstack resume" not in output
    assert json.loads(busy.call("jobs", "--json").out)["lifecycle"] == "failed"
    assert busy.call("verify", "slow").code == 0
    assert busy.call("cancel", "slow", "--final").code == 0
    assert busy.call("cancel", "slow").code == 2
    assert busy.call("cancel", "slow", "--reason", "x").code == 2
