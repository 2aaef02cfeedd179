"""Cancelled calls, clients that leave, signals: nothing is lost, and nothing but the protocol is on stdout."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from editor import Pipe, connected, structure, texts
from hosts import wait_for
from terminal import SECONDS, Terminal, reply

SLEEP = ("exec", {"command": "sh", "args": ["-c", "echo $$ > pid; sleep 300"], "timeout": 200_000})


@contextmanager
def pipe(terminal: Terminal, *args: str) -> Iterator[Pipe]:
    client = Pipe(terminal, *args)
    try:
        yield client
    finally:
        if client.process.poll() is None:
            client.kill()


@pytest.fixture
def slow(terminal: Terminal) -> Terminal:
    """Write a script in which `solo` writes a todo, and then sleeps in a child process until it is stopped."""
    return terminal.script(
        **{
            "[[solo]]": [
                reply("", ("todo", {"newTodos": ["kept"]})),
                reply("", SLEEP),
                reply("", ("todo", {})),
                reply("on"),
            ]
        }
    )


def alive(file: Path) -> bool:
    try:
        return Path(f"/proc/{int(file.read_text())}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def interrupted(terminal: Terminal) -> dict[str, object]:
    """Return the only Job. It must be interrupted after two steps, intact and resumable."""
    (job,) = terminal.run("jobs", "--json").events
    assert (job["status"], job["totalSteps"]) == ("stoppedByInterrupt", 2)
    assert not alive(terminal.workspace / "pid")
    assert terminal.run("resume", job["id"], "--provider", "scripted").code == 0
    assert terminal.run("verify", job["id"]).code == 0
    return job


def in_the_call(client: Pipe, **arguments: object) -> None:
    """Call `solo`, and wait until its second step is at work."""
    client.write("tools/call", 1, name="solo", arguments={"query": "go", **arguments}, _meta={"progressToken": "p"})
    client.hear("step 2: exec sh", 1)


def until_it_sleeps(terminal: Terminal) -> None:
    file = terminal.workspace / "pid"
    wait_until(lambda: file.exists() and bool(file.read_text().strip()))


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)  # a poll of another process, bounded above


def test_cancelling_the_call_interrupts_the_job_and_ends_its_processes(slow: Terminal, era: str) -> None:
    async def work() -> None:
        async with connected(slow, era=era) as editor:
            is_asleep = asyncio.Event()

            async def hear(progress: float, total: float | None, message: str | None) -> None:
                if message and message.startswith("step 2: exec"):
                    is_asleep.set()

            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(lambda: editor.client.call_tool("solo", {"query": "go"}, progress_callback=hear))
                    await is_asleep.wait()
                    scope.cancel()
            (job,) = structure(await editor.call("list_jobs"))["jobs"]
            await editor.wait_for_status(job["id"], "stoppedByInterrupt")
            assert not alive(slow.workspace / "pid")
            resumed = await editor.call("resume_job", job=job["id"])
            assert texts(resumed)[0] == "on"

    wait_for(work(), 60)


def test_cancelling_the_call_of_a_delegating_expert_interrupts_the_delegate_too(terminal: Terminal) -> None:
    terminal.script(
        **{
            "[[lead]]": [reply("", ("researcher", {"query": "look"})), reply("end")],
            "[[researcher]]": [reply("", SLEEP), reply("found")],
        }
    )
    with pipe(terminal) as client:
        client.greet()
        client.write("tools/call", 1, name="team_lead", arguments={"query": "go"}, _meta={"progressToken": 7})
        client.hear("researcher: step 1: exec sh", 1)
        client.write("notifications/cancelled", requestId=1)
        client.call(2, "list_jobs")
        job_id = client.answer_to(2)["result"]["structuredContent"]["jobs"][0]["id"]
        runs: list[dict[str, str]] = []
        while [run["status"] for run in runs] != ["stoppedByInterrupt", "stoppedByInterrupt"]:
            client.call(3, "get_job", job=job_id)
            runs = client.answer_to(3)["result"]["structuredContent"]["runs"]
        assert client.close() == (0, "")
        assert not any(json.loads(line).get("id") == 1 for line in client.seen), "a cancelled call has no answer"


def test_the_end_of_stdin_ends_the_server_after_its_jobs_are_recorded_as_interrupted(slow: Terminal) -> None:
    with pipe(slow) as client:
        client.greet()
        in_the_call(client)
        until_it_sleeps(slow)
        code, err = client.close()
        assert (code, err) == (0, "")
    events = slow.log_of(f"{interrupted(slow)['id']}-1").read_text()
    assert '"stopRunByInterrupt"' in events


def test_a_job_that_nobody_waits_for_is_recorded_too(slow: Terminal) -> None:
    with pipe(slow) as client:
        client.greet()
        client.call(1, "solo", query="go", wait=False)
        assert client.answer_to(1)["result"]["structuredContent"]["status"] == "running"
        until_it_sleeps(slow)
        assert client.close() == (0, "")
    assert '"stopRunByInterrupt"' in slow.log_of(f"{interrupted(slow)['id']}-1").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_like_the_end_of_stdin(slow: Terminal, number: signal.Signals) -> None:
    with pipe(slow) as client:
        client.greet()
        in_the_call(client)
        until_it_sleeps(slow)
        client.process.send_signal(number)
        assert client.process.wait(SECONDS) == 0
        assert client.process.stderr is not None
        assert client.process.stderr.read() == b""
        client.kill()
    interrupted(slow)


def test_a_signal_soon_after_the_end_of_stdin_does_not_cut_the_recording_short(slow: Terminal) -> None:
    terminal = slow
    script = "trap 'touch asked' TERM; echo $$ > pid; while :; do sleep 0.1; done"
    stubborn = ("exec", {"command": "sh", "args": ["-c", script], "timeout": 200_000})
    terminal.script(
        **{
            "[[solo]]": [
                reply("", ("todo", {"newTodos": ["kept"]})),
                reply("", stubborn),
                reply("", ("todo", {})),
                reply("on"),
            ]
        }
    )
    place = ("--storage", "sqlite:state.db")
    with pipe(terminal, *place) as client:
        client.greet()
        in_the_call(client)
        until_it_sleeps(terminal)
        assert client.process.stdin is not None
        client.process.stdin.close()
        client.process.stdin = None
        wait_until((terminal.workspace / "asked").exists)
        client.process.send_signal(signal.SIGTERM)
        assert client.process.wait(SECONDS) == 0
        client.kill()
    (stop,) = terminal.run("log", "--type", "stopRunByInterrupt", "--json", *place).events
    assert stop["step"] == 2


def test_a_server_that_is_killed_in_the_middle_of_a_step_loses_nothing(slow: Terminal) -> None:
    with pipe(slow) as client:
        client.greet()
        in_the_call(client)
        until_it_sleeps(slow)
        client.kill()
    interrupted(slow)


def test_a_client_that_vanishes_without_a_word_leaves_an_interrupted_job(slow: Terminal) -> None:
    with pipe(slow) as client:
        client.greet()
        in_the_call(client)
        until_it_sleeps(slow)
        for stream in (client.process.stdout, client.process.stdin):
            assert stream is not None
            stream.close()
        assert client.process.wait(SECONDS) == 0
        client.process.stdin = client.process.stdout = None
        client.kill()
    interrupted(slow)


def test_stdout_carries_the_protocol_and_nothing_else(terminal: Terminal) -> None:
    (terminal.workspace / "chatty.py").write_text(
        "import os\n"
        "from perstack.ports.hooks import hookimpl\n"
        "print('a plugin prints')\n"
        "class Listener:\n"
        "    def on_event(self, event, line):\n"
        "        print('a listener prints')\n"
        "        os.system('echo a child prints; cat')\n"
        "@hookimpl\n"
        "def perstack_listeners():\n"
        "    return [Listener()]\n"
    )
    terminal.env |= {"PERSTACK_PLUGINS": "perstack.testing.plugin,chatty", "PYTHONPATH": str(terminal.workspace)}
    with pipe(terminal) as client:
        client.greet()
        client.call(1, "solo", query="go")
        assert client.answer_to(1)["result"]["content"][0]["text"] == "One note."
        code, err = client.close()
    assert code == 0
    assert all(word in err for word in ("a plugin prints", "a listener prints", "a child prints"))
    for line in client.seen:
        assert json.loads(line)["jsonrpc"] == "2.0"
        assert line.endswith(b"\n")


def test_lines_that_are_no_messages_are_ignored_and_named(terminal: Terminal) -> None:
    with pipe(terminal) as client:
        assert client.process.stdin is not None
        client.process.stdin.write(b"hello?\n\n")
        client.greet()
        client.process.stdin.write(b'{"jsonrpc": "2.0"}\n')
        client.write("ping", 5)
        assert client.answer_to(5)["result"] == {}
        code, err = client.close()
    assert code == 0
    assert "stdin: a line is not MCP, and is ignored: hello?" in err


def test_a_client_that_says_nothing_and_leaves_is_no_error(terminal: Terminal) -> None:
    with pipe(terminal) as client:
        assert client.close() == (0, "")


def test_big_messages_pass_both_ways(terminal: Terminal) -> None:
    big = "x" * 3_000_000
    terminal.script(**{"[[solo]]": [reply(big)]})
    with pipe(terminal) as client:
        client.greet()
        client.call(1, "solo", query=big)
        assert client.answer_to(1)["result"]["content"][0]["text"] == big
        assert client.close() == (0, "")
