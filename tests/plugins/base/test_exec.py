"""Processes: their output, their environment, their end."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import sys
import time
from pathlib import Path
from typing import Any

import pytest


def python(program: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-c", program]}


def shell(program: str) -> dict[str, Any]:
    return {"command": "sh", "args": ["-c", program]}


def is_running(pid: int) -> bool:
    """A dead process that nobody has reaped is not running."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def wait_until(condition: Any, seconds: float = 10) -> bool:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        os.sched_yield()
    return True


def number_in(path: Path) -> int:
    assert wait_until(lambda: path.exists() and path.read_text().endswith("\n")), f"{path} was not written"
    return int(path.read_text())


def running_with(variable: bytes) -> list[str]:
    """Processes that have a variable in their environment."""
    found: list[str] = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if variable in entry.read_bytes():
                found.append(entry.parent.name)
        except OSError:
            continue
    return found


def children() -> set[str]:
    """Processes that this one has started and not reaped."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_output_and_exit_code_are_answered(tools: Any) -> None:
    assert tools("exec", **shell("echo one; echo two >&2; echo three")).json == {
        "output": "one\ntwo\nthree\n",
        "exitCode": 0,
    }
    failed = tools("exec", **shell("exit 3"))
    assert failed.json == {"output": "", "exitCode": 3}
    assert not failed.is_error


def test_the_original_arguments_are_taken(tools: Any, workspace: Path) -> None:
    (workspace / "d").mkdir()
    ran = tools("exec", command="pwd", args=["-P"], env={}, cwd="d", stdout=True, stderr=True, timeout=2000)
    assert ran.json["output"] == f"{(workspace / 'd').resolve()}\n"


def test_either_stream_can_be_left_out(tools: Any) -> None:
    both = shell("echo out; echo err >&2")
    assert tools("exec", **both, stderr=False).json["output"] == "out\n"
    assert tools("exec", **both, stdout=False).json["output"] == "err\n"
    silent = tools("exec", **both, stdout=False, stderr=False).json
    assert silent["output"] == "Command executed successfully, but produced no output."


def test_a_program_reads_an_empty_stdin(tools: Any) -> None:
    assert tools("exec", command="wc", args=["-c"]).json["output"].strip() == "0"


def test_a_relative_command_is_found_from_the_working_directory(tools: Any, workspace: Path) -> None:
    script = workspace / "d/run.sh"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\necho ran\n")
    assert "may not be executed" in tools("exec", command="./run.sh", cwd="d").error
    script.chmod(0o755)
    assert tools("exec", command="./run.sh", cwd="d").json["output"] == "ran\n"


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ({"command": "no-such-program"}, "no-such-program was not found"),
        ({"command": ""}, "name a program"),
        ({"command": "echo", "args": ["a\0b"]}, "could not be started"),
        ({"command": "echo", "args": ["a\ud800"]}, "could not be started"),
        ({"command": "echo", "cwd": "nowhere"}, "nowhere does not exist"),
        ({"command": "echo", "cwd": ".."}, "outside the workspace"),
    ],
)
def test_what_cannot_be_started_says_why(tools: Any, args: dict[str, Any], complaint: str) -> None:
    assert complaint in tools("exec", **args).error


def test_the_hosts_secrets_stay_with_the_host(tools: Any) -> None:
    tools.env = {**os.environ, "ANTHROPIC_API_KEY": "sk-canary", "MY_TOKEN": "canary", "LC_TIME": "C", "LANG": "C"}
    seen = tools("exec", command="env", env={"MINE": "yes"}).json["output"].splitlines()
    assert not [line for line in seen if "canary" in line]
    assert {"MINE=yes", "LC_TIME=C", "LANG=C", f"PATH={os.environ['PATH']}"} <= set(seen)


def test_a_process_knows_the_call_that_it_serves(tools: Any) -> None:
    told = tools("exec", command="printenv", args=["PERSTACK_CALL_ID"], env={"PERSTACK_CALL_ID": "forged"})
    assert told.json["output"] == "job-1-1-call\n"


def test_a_process_gets_none_of_the_hosts_files(tools: Any, workspace: Path) -> None:
    with (workspace / "held").open("w") as held:
        os.set_inheritable(held.fileno(), True)
        listed = tools("exec", command="ls", args=["-l", "/proc/self/fd"]).json["output"]
    assert "held" not in listed
    assert str(workspace) not in listed


def test_long_output_is_shortened_and_the_rest_can_be_read(tools: Any) -> None:
    ran = tools("exec", command="seq", args=["1", "50000"]).json
    assert ran["exitCode"] == 0
    assert len(ran["output"]) < 31_000
    assert ran["output"].startswith("1\n2\n")
    assert ran["output"].endswith("\n49999\n50000\n")
    head, gap, tail = ran["output"].split("…")
    name = ran["outputFile"]
    span = re.search(r"from (\d+), to (\d+)", gap)
    assert span
    first, last = int(span[1]), int(span[2])
    rest = tools("readTextFile", name, **{"from": first, "to": last}).json
    assert head.split()[-1] == str(first)
    assert rest["content"].startswith(f"{first + 1}\n")
    assert tail.lstrip().startswith(f"{last + 1}\n")
    assert tools.blobs.kept[name.removeprefix("blob:")] == "".join(f"{n}\n" for n in range(1, 50_001)).encode()


def test_fifty_megabytes_cost_little_memory(tools: Any) -> None:
    program = "import sys\nfor _ in range(800): sys.stdout.write('x' * 65535 + '\\n')"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ran = tools("exec", **python(program)).json
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert len(ran["output"]) < 31_000
    assert len(tools.blobs.kept[ran["outputFile"].removeprefix("blob:")]) == 800 * 65536
    assert grown_kb < 150_000


def test_output_beyond_the_limit_is_kept_up_to_it_and_that_is_said(tools: Any) -> None:
    ran = tools(
        "exec", **python("import sys\nfor _ in range(1100): sys.stdout.write('y' * 65536)\nprint('the end')")
    ).json
    assert len(tools.blobs.kept[ran["outputFile"].removeprefix("blob:")]) == 64 * 1024 * 1024
    assert "only the first 67108864 bytes were kept" in ran["output"]
    assert ran["output"].endswith("the end\n")


def test_output_that_is_no_text_does_no_harm(tools: Any) -> None:
    assert tools("exec", command="printf", args=["a\\377b"]).json["output"] == "a\ufffdb"


def test_the_timeout_asked_for_is_kept_and_what_was_said_before_is_shown(tools: Any) -> None:
    began = time.monotonic()
    ran = tools("exec", **shell("echo begun; sleep 600"), timeout=300)
    assert 0.3 <= time.monotonic() - began < 10
    assert ran.is_error
    assert ran.json["output"] == "begun\n"
    assert "timeout of 300 ms" in ran.json["error"]


def test_a_timeout_ends_grandchildren_too(tools: Any, workspace: Path) -> None:
    before = children()
    tools("exec", **shell("sh -c 'sleep 600 & echo $! > pid; wait' & wait"), timeout=500)
    assert wait_until(lambda: not is_running(number_in(workspace / "pid")))
    assert children() == before


def test_a_process_that_ignores_being_asked_is_made_to_end(tools: Any, workspace: Path) -> None:
    ran = tools("exec", **shell("trap '' TERM; echo $$ > pid; while :; do sleep 0.05; done"), timeout=300)
    assert ran.is_error
    assert not is_running(number_in(workspace / "pid"))


def test_a_process_that_tidies_up_when_asked_has_time_for_it(tools: Any, workspace: Path) -> None:
    program = "trap 'echo tidy > tidied; exit' TERM; echo ready; while :; do sleep 0.05; done"
    ran = tools("exec", **shell(program), timeout=500)
    assert (workspace / "tidied").read_text() == "tidy\n"
    assert ran.json["output"].startswith("ready\n")


def test_what_runs_in_the_background_ends_with_the_command(tools: Any, workspace: Path) -> None:
    began = time.monotonic()
    ran = tools("exec", **shell("sleep 600 & echo $! > pid; echo done"))
    assert ran.json == {"output": "done\n", "exitCode": 0}
    assert wait_until(lambda: not is_running(number_in(workspace / "pid")))
    assert time.monotonic() - began < 10


def test_one_that_left_the_group_on_purpose_does_not_hold_the_result_up(tools: Any, workspace: Path) -> None:
    program = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    open('pid', 'w').write(f'{os.getpid()}\\n')\n"
        "    time.sleep(600)\n"
        "while not os.path.exists('pid'): pass\n"
        "print('left')"
    )
    ran = tools("exec", **python(program), timeout=20_000)
    try:
        assert ran.json == {"output": "left\n", "exitCode": 0}
    finally:
        os.kill(number_in(workspace / "pid"), 9)


def test_the_last_words_of_a_helper_are_waited_for(tools: Any) -> None:
    ran = tools("exec", **shell("(sleep 0.03; echo last) & echo first"))
    assert ran.json["output"] == "first\nlast\n"


def test_dying_by_a_signal_is_told(tools: Any) -> None:
    ran = tools("exec", **shell("kill -SEGV $$"))
    assert ran.is_error
    assert ran.json == {"output": "", "signal": "SIGSEGV"}


def test_cancelling_a_call_ends_its_processes(tools: Any, workspace: Path) -> None:
    before = children()

    async def play() -> None:
        async with tools.session() as session:
            program = shell("sleep 600 & echo $! > pid; wait")
            call = asyncio.create_task(tools.ask(session, "exec", program))
            pid = await asyncio.to_thread(number_in, workspace / "pid")
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert not is_running(pid)

    asyncio.run(play())
    assert children() == before


def test_cancelling_twice_kills_at_once(tools: Any, workspace: Path) -> None:
    async def play() -> float:
        async with tools.session() as session:
            program = shell("trap 'echo asked > asked' TERM; echo $$ > pid; while :; do sleep 0.02; done")
            call = asyncio.create_task(tools.ask(session, "exec", program))
            pid = await asyncio.to_thread(number_in, workspace / "pid")
            call.cancel()
            await asyncio.to_thread(wait_until, (workspace / "asked").exists)
            call.cancel()
            began = time.monotonic()
            with pytest.raises(asyncio.CancelledError):
                await call
            took = time.monotonic() - began
            assert await asyncio.to_thread(wait_until, lambda: not is_running(pid))
        return took

    assert asyncio.run(play()) < 0.9


def test_a_call_can_be_cancelled_at_any_moment_of_its_start(tools: Any, workspace: Path) -> None:
    def processes_left() -> list[str]:
        return [pid for pid in running_with(f"PWD={workspace}\0".encode()) if is_running(int(pid))]

    async def play() -> None:
        async with tools.session() as session:
            for turns in range(25):
                call = asyncio.create_task(tools.ask(session, "exec", shell("sleep 600 & sleep 600 & wait")))
                for _ in range(turns):
                    await asyncio.sleep(0)
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call

    asyncio.run(play())
    assert wait_until(lambda: not processes_left()), processes_left()


def test_closing_the_skill_ends_what_is_still_up(tools: Any, workspace: Path) -> None:
    async def play() -> int:
        async with tools.session() as session:
            call = asyncio.create_task(tools.ask(session, "exec", shell("echo $$ > pid; sleep 600")))
            pid = await asyncio.to_thread(number_in, workspace / "pid")
        assert (await call).json["signal"] == "SIGTERM"
        return pid

    assert not is_running(asyncio.run(play()))


def test_many_commands_run_beside_each_other(tools: Any) -> None:
    async def play() -> list[str]:
        async with tools.session() as session:
            calls = [tools.ask(session, "exec", shell(f"sleep 0.2; echo {n}")) for n in range(20)]
            return [answer.json["output"] for answer in await asyncio.gather(*calls)]

    began = time.monotonic()
    assert asyncio.run(play()) == [f"{n}\n" for n in range(20)]
    assert time.monotonic() - began < 4, "they ran one after the other"


@pytest.mark.linux
def test_nothing_stays_open_after_a_job(tools: Any) -> None:
    tools("exec", command="true")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for program in ("true", "no-such-program"):
        tools("exec", command=program)
    tools("exec", command="sleep", args=["600"], timeout=50)
    tools("readTextFile", "nothing/there")
    tools("writeTextFile", "a/b/c", text="x")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
