"""Ctrl-C and SIGKILL."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest
import warm
from processes import Attended, alive, start, wait_until
from terminal import SECONDS, Terminal, reply

SOLO = '[experts.solo]\ninstruction = "You work alone."\n'
SLEEP = ("exec", {"command": "sh", "args": ["-c", "sleep 300 & echo $$ $! > pids; wait"], "timeout": 200_000})


def pids_of(terminal: Terminal) -> list[int]:
    file = terminal.workspace / "pids"
    wait_until(lambda: file.exists() and len(file.read_text().split()) == 2, "the tool's process")
    return [int(word) for word in file.read_text().split()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_ends_the_tools_children_records_the_interrupt_and_resume_goes_on(
    terminal: Terminal, number: signal.Signals
) -> None:
    terminal.project(SOLO, solo=[reply("", SLEEP), reply("went on")])
    command = Attended(terminal, "run", "solo", "q", "--job-id", "job")
    pids = pids_of(terminal)
    command.process.send_signal(number)
    out, err = command.end()
    assert command.process.returncode == 130
    assert json.loads(out.splitlines()[-1])["type"] == "stopRunByInterrupt"
    assert "perstack resume job" in err
    wait_until(lambda: not any(alive(pid) for pid in pids), "the tool's processes to end")
    resumed = terminal.call("resume", "job", "--provider", "scripted")
    assert resumed.code == 0
    assert "calls that began but have no result" in resumed.err
    assert "exec" in resumed.err
    assert "may have had its effect" in resumed.out


def test_ctrl_c_before_a_command_has_begun_is_no_traceback(
    terminal: Terminal, tmp_path_factory: pytest.TempPathFactory
) -> None:
    library = tmp_path_factory.mktemp("library")
    (library / "click.py").write_text("raise KeyboardInterrupt\n")
    result = terminal.run("jobs", env={"PYTHONPATH": str(library)})
    assert (result.code, result.out, result.err) == (130, "", "")


def test_a_second_ctrl_c_exits_at_once(terminal: Terminal) -> None:
    stubborn = {"command": "sh", "args": ["-c", "trap '' TERM; echo $$ $$ > pids; while :; do sleep 300; done"]}
    terminal.project(SOLO, solo=[reply("", ("exec", {**stubborn, "timeout": 200_000})), reply("end")])
    command = Attended(terminal, "run", "solo", "q", "--job-id", "job")
    process, pids = command.process, pids_of(terminal)
    process.send_signal(signal.SIGINT)
    command.reads("press again to stop at once")

    def has_left() -> bool:
        process.send_signal(signal.SIGINT)
        return process.poll() is not None

    wait_until(has_left, "the process to leave")
    command.end()
    assert process.returncode == 130
    for pid in pids:
        if alive(pid):
            os.killpg(os.getpgid(pid), signal.SIGKILL)
    assert terminal.call("resume", "job", "--provider", "scripted").code == 0


def test_two_signals_at_once_are_one(terminal: Terminal) -> None:
    slow = {**reply("late"), "delay_ms": 100_000}
    terminal.project(SOLO, solo=[reply("", ("todo", {"newTodos": ["kept"]})), slow])
    command = Attended(terminal, "run", "solo", "q", "--job-id", "job")
    process = command.process
    assert process.stdout is not None
    while '"step":2' not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    out, err = command.end()
    assert (process.returncode, err.count("press again to stop at once")) == (130, 1)
    assert '"type":"stopRunByInterrupt"' in out


def test_an_interrupt_is_nothing_wrong_where_no_person_looks(terminal: Terminal) -> None:
    terminal.project(SOLO, solo=[{**reply("late"), "delay_ms": 100_000}])
    process = start(terminal, "run", "solo", "q", "--job-id", "job")
    assert process.stdout is not None
    while '"startGeneration"' not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err) == (130, "")
    assert '"type":"stopRunByInterrupt"' in out


def test_a_job_whose_process_was_killed_is_seen_as_interrupted_and_goes_on(terminal: Terminal) -> None:
    slow = {**reply("late"), "delay_ms": 100_000}
    terminal.project(SOLO, solo=[reply("", ("todo", {"newTodos": ["kept"]})), slow])
    process = start(terminal, "run", "solo", "q", "--job-id", "job")
    assert process.stdout is not None
    while '"step":2' not in process.stdout.readline():
        pass
    assert json.loads(terminal.call("jobs", "--json").out.splitlines()[0])["status"] == "running"
    process.kill()
    process.communicate(timeout=SECONDS)
    seen = json.loads(terminal.call("jobs", "--json").out.splitlines()[0])
    assert (seen["status"], seen["totalSteps"]) == ("stoppedByInterrupt", 2)
    terminal.script(solo=[reply("", ("todo", {})), reply("end")])
    assert terminal.call("resume", "job", "--provider", "scripted").code == 0
    assert terminal.call("verify", "job").code == 0
    assert terminal.call("replay", "job").code == 0


def test_a_running_job_is_shown_with_what_it_has_done_so_far(terminal: Terminal) -> None:
    todo = reply("", ("todo", {"newTodos": ["kept"]}), usage=(10, 1))
    terminal.project(SOLO, solo=[todo, todo, {**reply("late"), "delay_ms": 100_000}])
    process = start(terminal, "run", "solo", "q", "--job-id", "job")
    assert process.stdout is not None
    while '"step":3' not in process.stdout.readline():
        pass
    (job,) = terminal.call("jobs", "--json").events
    assert (job["status"], job["totalSteps"], job["usage"]["totalTokens"]) == ("running", 3, 22)
    head = terminal.call("log", "--job", "job").out.partition("\n\n")[0]
    assert "20 + 2 tokens" in head
    path = terminal.jobs() / "job" / "job.json"

    def has_followed() -> bool:
        written = json.loads(path.read_text())
        return (written["totalSteps"], written["usage"]["totalTokens"]) >= (2, 22)

    wait_until(has_followed, "job.json to say what was done a step ago")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=SECONDS)
    (job,) = terminal.call("jobs", "--json").events
    assert (job["status"], job["totalSteps"]) == ("stoppedByInterrupt", 3)
    assert terminal.call("verify", "job").code == 0


def test_killed_at_many_moments_each_side_effect_happens_once_and_totals_stay_exact(terminal: Terminal) -> None:
    steps = 30
    (terminal.workspace / "lines.txt").touch()
    turns = [
        {**reply("", ("appendTextFile", {"path": "lines.txt", "text": f"{n}\n"}), usage=(10, 1)), "delay_ms": 2}
        for n in range(steps)
    ]
    terminal.project(SOLO, solo=[*turns, reply("end", usage=(10, 1))])
    log = terminal.workspace / "perstack/jobs/job/runs/job-1/events.jsonl"
    args = ["run", "solo", "q", "--job-id", "job"]
    for _ in range(20):
        size = log.stat().st_size if log.exists() else 0
        process = start(terminal, *args)
        wait_until(
            lambda p=process, s=size: p.poll() is not None or (log.exists() and log.stat().st_size > s + 2500), "it"
        )
        process.kill()
        process.communicate(timeout=SECONDS)
        if log.exists():
            args = ["resume", "job"]
        if '"finishRun"' in log.read_text():
            break
    else:
        assert terminal.run("resume", "job", "--provider", "scripted").code == 0
    job = json.loads(terminal.call("jobs", "--json").out.splitlines()[0])
    events = [json.loads(line) for line in log.read_text().splitlines()]
    generations = [event for event in events if event["type"] == "finishGeneration"]
    assert (job["status"], job["totalSteps"]) == ("completed", steps + 1)
    assert job["usage"]["totalTokens"] == 11 * len(generations)
    written = [int(line) for line in (terminal.workspace / "lines.txt").read_text().split()]
    interrupted = [event for event in events if event["type"] == "finishToolCall" and event.get("isError")]
    assert sorted(written) == written
    assert len(set(written)) == len(written)
    assert len(written) >= steps - len(interrupted)
    assert terminal.call("verify", "job").code == 0
    assert terminal.call("replay", "job").code == 0


@pytest.mark.parametrize("command", ["run", "iterate", "resume"])
def test_when_nobody_reads_its_events_any_more_a_job_is_interrupted_quietly(terminal: Terminal, command: str) -> None:
    # the Job must not end by itself before stdout is closed, however late this process gets to do that
    wait = "while [ ! -e closed ]; do sleep 0.01; done; echo"
    steps = [reply("", ("exec", {"command": "sh", "args": ["-c", f"{wait} {n}"]})) for n in range(50)]
    first = reply("", ("todo", {"newTodos": ["x"]}))
    terminal.project(f'{SOLO}[experts.solo.iterate]\nevaluator = "true"\n', solo=[first, *steps, reply("end")])
    args = [command, "solo", "q", "--job-id", "job"]
    if command == "iterate":
        args[-2:] = []
    if command == "resume":
        assert terminal.call(*["run", *args[1:]], "--max-steps", "1", "--provider", "scripted").code == 4
        args = ["resume", "job", "--max-steps", "300"]
    process = start(terminal, *args)
    assert process.stdout is not None
    assert process.stderr is not None
    while '"type":"startGeneration"' not in process.stdout.readline():
        pass
    process.stdout.close()
    (terminal.workspace / "closed").touch()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(SECONDS) == 130
    assert "Traceback" not in err
    assert "object at 0x" not in err
    assert "roken pipe" not in err
    jobs = terminal.call("jobs", "--json")
    assert (jobs.code, jobs.err, len(jobs.events)) == (0, "", 1)
    (seen,) = jobs.events
    assert seen["status"] == "stoppedByInterrupt"
    assert terminal.call("verify", seen["id"]).code == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")  # noqa: PTH110
def test_a_full_disk_under_stdout_interrupts_the_job_and_is_named(terminal: Terminal) -> None:
    terminal.project(SOLO, solo=[reply("", ("todo", {"newTodos": ["x"]})), reply("end")])
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        process = warm.perstack(
            *("run", "solo", "q", "--job-id", "job", "--provider", "scripted"),
            cwd=terminal.workspace, env=terminal.env, stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    with process:
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "stdout cannot be written (no space left on device)" in err
    assert "Traceback" not in err
    assert "object at 0x" not in err
    assert json.loads(terminal.call("jobs", "--json").out.splitlines()[0])["status"] == "stoppedByInterrupt"
