"""No program outlives the host that started it, however the host ends."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from processes import Attended, alive, start, wait_until
from terminal import SECONDS, Terminal, reply

from perstack.system.process_groups import process_start_time

pytestmark = pytest.mark.linux  # what has outlived a host is known from /proc

SOLO = '[experts.solo]\ninstruction = "You work alone."\n'


def endless(script: str = "sleep 300 & echo $$ $! > pids; wait") -> dict:
    """Return a turn that runs a program which writes its process ids and does not end."""
    return reply("", ("exec", {"command": "sh", "args": ["-c", script], "timeout": 200_000}))


def pids_in(file: Path) -> list[int]:
    wait_until(lambda: file.exists() and len(file.read_text().split()) == 2, "the tool's process")
    return [int(word) for word in file.read_text().split()]


def guards_of(pid: int) -> list[int]:
    """Return the process ids of the guards among a process's children."""
    guards = list[int]()
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            if b"\0guard\0" in Path(f"/proc/{child}/cmdline").read_bytes():
                guards.append(int(child))
    return guards


@pytest.mark.parametrize(
    "script", ["sleep 300 & echo $$ $! > pids; wait", "trap '' TERM; echo $$ $$ > pids; sleep 300"]
)
def test_a_program_that_exec_started_ends_when_the_host_is_killed(terminal: Terminal, script: str) -> None:
    terminal.project(SOLO, solo=[endless(script), reply("end")])
    process = start(terminal, "run", "solo", "q", "--job-id", "job")
    pids = pids_in(terminal.workspace / "pids")
    process.kill()
    process.communicate(timeout=SECONDS)
    wait_until(lambda: not any(alive(pid) for pid in pids), "the tool's processes to end")


def test_a_guard_that_was_killed_is_replaced_and_the_new_one_knows_what_runs(terminal: Terminal) -> None:
    turns = (
        "echo $$ $$ > first; sleep 300",
        "while [ ! -e go ]; do sleep 0.01; done; echo $$ $$ > second; sleep 300",
    )
    calls = [("exec", {"command": "sh", "args": ["-c", turn], "timeout": 200_000}) for turn in turns]
    late = ("exec", {"command": "sh", "args": ["-c", "while [ ! -e gone ]; do sleep 0.01; done"]})
    terminal.project(SOLO, solo=[reply("", *calls, late), reply("end")])
    process = start(terminal, "run", "solo", "q", "--job-id", "job")
    pids = pids_in(terminal.workspace / "first")
    (guard,) = guards_of(process.pid)
    os.kill(guard, signal.SIGKILL)
    wait_until(lambda: not alive(guard), "the guard to end")
    (terminal.workspace / "gone").touch()  # the end of one program is what the new guard starts at
    wait_until(lambda: [pid for pid in guards_of(process.pid) if pid != guard], "a new guard")
    (terminal.workspace / "go").touch()
    pids += pids_in(terminal.workspace / "second")
    process.kill()
    process.communicate(timeout=SECONDS)
    wait_until(lambda: not any(alive(pid) for pid in pids), "the tool's processes to end")


def test_many_commands_share_one_guard_which_ends_with_the_job(terminal: Terminal) -> None:
    look = r"""import os
for one in open(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read().split():
    if b"\0guard\0" in open(f"/proc/{one}/cmdline", "rb").read():
        open("guards", "a").write(one + "\n")
"""
    call = ("exec", {"command": "python3", "args": ["-c", look]})
    terminal.project(SOLO, solo=[reply("", call), reply("", call, call), reply("end")])
    assert terminal.run("run", "solo", "q", "--provider", "scripted").code == 0
    seen = (terminal.workspace / "guards").read_text().split()
    assert (len(seen), len(set(seen))) == (3, 1)
    assert not alive(int(seen[0]))


def test_an_evaluator_ends_when_the_host_is_killed(terminal: Terminal) -> None:
    script = "sleep 300 & echo $$ $! > pids; wait"
    toml = f'[experts.solo]\ninstruction = "x"\n[experts.solo.iterate]\nevaluator = ["sh", "-c", "{script}"]\n'
    terminal.project(toml, solo=[reply("made")])
    process = start(terminal, "iterate", "solo", "q")
    pids = pids_in(terminal.workspace / "pids")
    process.kill()
    process.communicate(timeout=SECONDS)
    wait_until(lambda: not any(alive(pid) for pid in pids), "the evaluator's processes to end")


def test_a_hangup_is_an_interrupt_like_ctrl_c(terminal: Terminal) -> None:
    terminal.project(SOLO, solo=[endless(), reply("end")])
    command = Attended(terminal, "run", "solo", "q", "--job-id", "job")
    pids = pids_in(terminal.workspace / "pids")
    command.process.send_signal(signal.SIGHUP)
    out, _ = command.end()
    assert command.process.returncode == 130
    assert json.loads(out.splitlines()[-1])["type"] == "stopRunByInterrupt"
    assert not any(alive(pid) for pid in pids)


def test_nohup_keeps_its_promise(terminal: Terminal) -> None:
    terminal.project(SOLO, solo=[endless("echo $$ $$ > pids; while [ ! -e go ]; do sleep 0.01; done"), reply("end")])
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = start(terminal, "run", "solo", "q", "--job-id", "job")
    finally:
        signal.signal(signal.SIGHUP, before)
    pids_in(terminal.workspace / "pids")
    process.send_signal(signal.SIGHUP)
    (terminal.workspace / "go").touch()
    out, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    assert '"type":"finishRun"' in out


LIVES = "grep -q '^State:.[RSD]' /proc/$(cut -d' ' -f1 pids)/status"
STORES = ["file:perstack", "sqlite:perstack/state.db"]
STUBBORN = "exec > out 2>&1; trap 'echo asked > asked' TERM; echo $$ $$ > pids; while :; do sleep 0.05; done"


def kill_host_and_guard(terminal: Terminal, script: str, storage: str) -> int:
    """Kill a Job's host together with its guard, and return the process id of its program, which still runs."""
    terminal.project(f'storage = "{storage}"\n{SOLO}', solo=[endless(script), reply("end")])
    process = start(terminal, "run", "solo", "q", "--job-id", "job")
    pid = pids_in(terminal.workspace / "pids")[0]
    (record,) = terminal.workspace.glob("perstack/*programs/*")
    wait_until(lambda: len(record.read_text().splitlines()) == 2, "the program's number to be recorded")
    (guard,) = guards_of(process.pid)
    os.kill(guard, signal.SIGKILL)
    process.kill()
    process.communicate(timeout=SECONDS)
    return pid


@pytest.mark.parametrize("storage", STORES)
@pytest.mark.parametrize("settle", ["retry", "tell"])
def test_what_is_left_of_a_killed_call_has_ended_before_the_job_goes_on(
    terminal: Terminal, storage: str, settle: str
) -> None:
    again = f"if [ -e pids ]; then {LIVES} && touch beside; touch again; exit; fi"
    pid = kill_host_and_guard(terminal, f"{again}; {STUBBORN}", storage)
    assert alive(pid)
    (begun,) = terminal.run("log", "--job", "job", "--type", "callTools", "--json").events
    settled = f"{begun['calls'][0]['id']}={settle}"
    resumed = terminal.run("resume", "job", "--provider", "scripted", "--settle", settled)
    assert resumed.code == 0, resumed.err
    assert not alive(pid)
    assert (terminal.workspace / "asked").exists(), "it was asked to end before it was made to"
    assert (terminal.workspace / "again").exists() is (settle == "retry")
    assert not (terminal.workspace / "beside").exists()
    assert list(terminal.workspace.glob("perstack/*programs/*")) == []


def test_a_number_that_is_another_process_now_or_is_of_another_machine_is_left_alone(terminal: Terminal) -> None:
    pid = kill_host_and_guard(terminal, STUBBORN, "file:perstack")
    try:
        (record,) = (terminal.workspace / "perstack/.programs").iterdir()
        host, program = record.read_text().splitlines()
        others = {
            "later": f"{host}\n{program}0\n",
            "elsewhere": f"{host.replace(host[:8], 'ffffffff')}\n{program}\n",
            "living": f"{host.split()[0]} {os.getpid()} {process_start_time(os.getpid())}\n{program}\n",
            "garbage": "\0\ud800 1 2 3\n".encode("utf-8", "surrogatepass").decode("latin-1"),
            "short": host,
        }
        record.unlink()
        for name, text in others.items():
            (record.parent / name).write_text(text)
        assert terminal.run("resume", "job", "--provider", "scripted").code == 0
        assert alive(pid)
    finally:
        os.killpg(pid, signal.SIGKILL)


def test_a_program_whose_start_was_not_recorded_to_the_end_is_found_by_its_mark(terminal: Terminal) -> None:
    pid = kill_host_and_guard(terminal, STUBBORN, "file:perstack")
    (record,) = (terminal.workspace / "perstack/.programs").iterdir()
    record.write_text(record.read_text().splitlines()[0] + "\n")
    assert terminal.run("resume", "job", "--provider", "scripted").code == 0
    assert not alive(pid)


def test_an_evaluator_that_is_left_has_ended_before_the_iterations_go_on(terminal: Terminal) -> None:
    (terminal.workspace / "measure").write_text(
        f"[ -e pids ] && {LIVES} && touch beside\n"
        "echo $$ $$ > pids\n"
        """[ -e go ] && echo '{"score": 1}' || sleep 300\n"""
    )
    toml = f'{SOLO}[experts.solo.iterate]\nmaxIterations = 1\nevaluator = ["sh", "measure"]\n'
    terminal.project(toml, solo=[reply("made"), reply("made")])
    process = start(terminal, "iterate", "solo", "q", "--id", "it")
    pid = pids_in(terminal.workspace / "pids")[0]
    (guard,) = guards_of(process.pid)
    os.kill(guard, signal.SIGKILL)
    process.kill()
    process.communicate(timeout=SECONDS)
    assert alive(pid)
    (terminal.workspace / "go").touch()
    resumed = terminal.run("resume", "it", "--provider", "scripted")
    assert resumed.code == 0, resumed.err
    assert not alive(pid)
    assert not (terminal.workspace / "beside").exists()


@pytest.mark.parametrize("storage", STORES)
def test_what_is_left_of_a_command_that_a_task_asks_has_ended_before_it_is_asked_again(
    terminal: Terminal, storage: str
) -> None:
    (terminal.workspace / "look").write_text(
        f"[ -e pids ] && {LIVES} && touch beside\necho $$ $$ > pids\n[ -e go ] || sleep 300\n"
    )
    terminal.project(f'storage = "{storage}"\n{SOLO}')
    terminal.call("task", "create", "deploy", "--start")
    terminal.call("task", "pause", "deploy", "--reason", "external_dependency", "--command", "exec sh look")
    process = start(terminal, "task", "run-due")
    pid = pids_in(terminal.workspace / "pids")[0]
    (guard,) = guards_of(process.pid)
    os.kill(guard, signal.SIGKILL)
    process.kill()
    process.communicate(timeout=SECONDS)
    assert alive(pid)
    (terminal.workspace / "go").touch()
    assert terminal.run("task", "run-due", "--provider", "scripted").out == "deploy: resumed, now running\n"
    assert not alive(pid)
    assert not (terminal.workspace / "beside").exists()
    assert list(terminal.workspace.glob("perstack/*programs/*")) == []
