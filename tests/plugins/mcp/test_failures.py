"""Whatever a server does wrong, the model is told, and nothing else is harmed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from hosts import wait_for
from mcp_bed import Bed, words

from perstack.core.definitions.skills import McpStdioSkill
from perstack.errors import SkillError
from perstack_mcp.server_interface import MAX_LINES, RateLimitedOutput

CONNECT = 20_000
"""Milliseconds: enough on a busy machine for a server that does connect."""


async def _refusal(bed: Bed, skill: McpStdioSkill) -> str:
    async with bed.session(skill) as session:
        with pytest.raises(SkillError) as caught:
            await session.tools()
    return str(caught.value)


async def _error(bed: Bed, session, name: str) -> str:
    with pytest.raises(SkillError) as caught:
        await bed.call(session, name)
    return str(caught.value)


def test_a_server_that_dies_at_once_is_shown_with_its_status_and_the_end_of_stderr(bed: Bed) -> None:
    message = wait_for(_refusal(bed, bed.misbehaving("dies-at-start")))
    assert "skill 'bad' could not be connected to" in message
    assert "exit code 7" in message
    assert "stderr: cannot find my configuration" in message
    assert "cannot find my configuration" in bed.shown


def test_a_server_that_does_not_answer_is_ended_at_the_skills_own_deadline(bed: Bed) -> None:
    began = time.monotonic()
    message = wait_for(_refusal(bed, bed.misbehaving("hangs-at-start", timeout=1500)))
    assert "no answer within 1.5 s" in message
    assert time.monotonic() - began < 8


def test_a_command_that_is_not_there_is_named(bed: Bed) -> None:
    skill = McpStdioSkill(name="gone", command="no-such-command-at-all")
    message = wait_for(_refusal(bed, skill))
    assert message == (
        "skill 'gone' could not be connected to: no-such-command-at-all was not found: install it, or correct `command`"
    )


def test_a_command_that_cannot_be_started_is_named_with_the_reason(bed: Bed) -> None:
    message = wait_for(_refusal(bed, McpStdioSkill(name="folder", command="/tmp")))
    assert message == (
        "skill 'folder' could not be connected to: /tmp cannot be started (Permission denied): correct `command`"
    )


@pytest.mark.parametrize(
    ("fault", "said"),
    [("floods", "floods stdout"), ("one-endless-line", "a message of more than 64 MB")],
)
def test_a_server_that_floods_stdout_is_given_up_without_filling_memory(bed: Bed, fault: str, said: str) -> None:
    assert said in wait_for(_refusal(bed, bed.misbehaving(fault, timeout=CONNECT)))


def test_a_flood_of_short_lines_leaves_the_other_servers_their_time(bed: Bed) -> None:
    began = time.process_time()
    assert "floods stdout" in wait_for(_refusal(bed, McpStdioSkill(name="yes", command="yes", timeout=CONNECT)))
    assert time.process_time() - began < 4, "8,388,608 lines, each tried, took 12 s"


def test_garbage_on_stdout_is_shown_and_passed_over(bed: Bed) -> None:
    async def run() -> str:
        async with bed.session(bed.misbehaving("garbage-at-start", timeout=CONNECT)) as session:
            await session.tools()
            return words(await bed.call(session, "echo"))

    assert wait_for(run()) == "here"
    assert "(stdout, not a message) Welcome to this server!" in bed.shown


def test_a_server_that_ignores_what_it_does_not_know_is_connected_to_without_the_ten_seconds_of_a_probe(
    bed: Bed,
) -> None:
    async def run() -> None:
        async with bed.session(bed.misbehaving("ignores-the-unknown", timeout=9_000)) as session:
            await session.tools()

    began = time.monotonic()
    wait_for(run())
    assert time.monotonic() - began < 9


def test_tools_with_a_broken_schema_are_left_out_with_a_warning_and_the_others_stay(bed: Bed) -> None:
    async def run() -> list[str]:
        async with bed.session(bed.misbehaving("broken-schemas", timeout=CONNECT)) as session:
            return [spec.name for spec in (await session.tools()).specs]

    names = wait_for(run())
    assert "echo" in names
    assert "structured" in names
    assert not {"no_object", "bad_keyword", "dangling", "no_schema"}.intersection(names)
    dropped = [line for line in bed.shown if "is left out" in line]
    assert len(dropped) == 6, dropped
    assert any("dangling is left out: its schema refers to #/$defs/none" in line for line in dropped)


def test_a_server_that_dies_in_a_call_is_started_again_for_the_next_and_the_call_is_not_repeated(bed: Bed) -> None:
    async def run() -> tuple[str, str]:
        async with bed.session(bed.misbehaving(timeout=CONNECT)) as session:
            await session.tools()
            told = await _error(bed, session, "die")
            return told, words(await bed.call(session, "echo"))

    told, after = wait_for(run())
    assert "may have had its effect and was not repeated" in told
    assert "exit code 3" in told
    assert "about to die" in told
    assert after == "here"
    assert bed.shown.count("about to die") == 1
    assert any("it is restarted" in line for line in bed.shown)


@pytest.mark.parametrize(
    ("name", "said"), [("flood", "it floods stdout"), ("pour", "it sent a message of more than 64 MB")]
)
def test_a_server_that_floods_stdout_in_a_call_is_given_up_and_the_next_call_works(
    bed: Bed, name: str, said: str
) -> None:
    async def run() -> tuple[str, str]:
        async with bed.session(bed.misbehaving(timeout=CONNECT)) as session:
            await session.tools()
            told = await _error(bed, session, name)
            return told, words(await bed.call(session, "echo"))

    told, after = wait_for(run())
    assert said in told
    assert "stderr: here it comes" in told
    assert after == "here"


def test_what_is_no_answer_to_anything_is_passed_over(bed: Bed) -> None:
    async def run() -> tuple[str, str, str]:
        async with bed.session(bed.misbehaving(timeout=CONNECT)) as session:
            await session.tools()
            here = words(await bed.call(session, "babble"))
            garbled = await bed.call(session, "garbled")
            assert garbled.is_error, "a word that is no plain no says that it failed"
            return here, words(garbled), words(await bed.call(session, "echo"))

    here, told, after = wait_for(run())
    assert (here, after) == ("here", "here")
    assert told == '{"type": "hologram"}'
    assert "(stdout, not a message) not a message" in bed.shown


def test_a_server_that_talks_without_end_is_cut_short_and_its_answer_comes(bed: Bed) -> None:
    async def run() -> str:
        async with bed.session(bed.misbehaving(timeout=CONNECT)) as session:
            await session.tools()
            return words(await bed.call(session, "chatter"))

    assert wait_for(run()) == "here"
    assert MAX_LINES <= len(bed.shown) <= MAX_LINES + 10
    assert "(more than 1000 lines at once: further lines are not shown)" in bed.shown
    assert MAX_LINES <= len(bed.progress) <= MAX_LINES + 10


def test_after_a_flood_lines_are_shown_again_with_the_number_of_those_that_were_not() -> None:
    seen: list[str] = []
    now = 0.0
    show = RateLimitedOutput(seen.append, lambda: now)
    for number in range(MAX_LINES + 5):
        show(str(number))
    now = 11.0
    show("x" * 5000)
    assert seen[MAX_LINES - 1 :] == [
        str(MAX_LINES - 1),
        "(more than 1000 lines at once: further lines are not shown)",
        "(5 lines were not shown)",
        "x" * 1000,
    ]


def test_a_silent_call_ends_at_the_timeout_is_cancelled_at_the_server_and_the_server_still_answers(bed: Bed) -> None:
    async def run() -> tuple[str, str]:
        async with bed.session(bed.misbehaving(timeout=2500)) as session:
            await session.tools()
            told = await _error(bed, session, "hang")
            return told, words(await bed.call(session, "echo"))

    told, after = wait_for(run())
    assert "no answer and no progress for 2.5 s" in told
    assert after == "here"
    assert any(line.startswith("cancelled") for line in bed.shown)


def test_progress_is_told_and_extends_the_time_a_call_may_take(bed: Bed) -> None:
    async def run() -> str:
        async with bed.session(bed.misbehaving(timeout=2500)) as session:
            await session.tools()
            return words(await bed.call(session, "slow"))

    assert wait_for(run()) == "done"
    assert bed.progress[0] == "slow: 0/4"


def test_one_task_connects_others_call_and_yet_another_closes(bed: Bed) -> None:
    async def run() -> list[str]:
        session = await asyncio.create_task(bed.open(bed.misbehaving(timeout=CONNECT)))
        try:
            await asyncio.create_task(session.tools())
            calling = [asyncio.create_task(bed.call(session, "echo")) for _ in range(3)]
            return [words(result) for result in await asyncio.gather(*calling)]
        finally:
            await asyncio.create_task(session.close())

    assert wait_for(run()) == ["here"] * 3


def test_cancelling_a_call_reaches_the_server(bed: Bed) -> None:
    async def run() -> str:
        async with bed.session(bed.misbehaving(timeout=CONNECT)) as session:
            await session.tools()
            calling = asyncio.create_task(bed.call(session, "hang"))
            await bed.call(session, "echo")
            calling.cancel()
            await asyncio.wait({calling})
            return words(await bed.call(session, "echo"))

    assert wait_for(run()) == "here"
    assert any(line.startswith("cancelled") for line in bed.shown)


def test_a_result_that_breaks_the_tools_own_output_schema_counts_and_is_shown(bed: Bed) -> None:
    async def run() -> str:
        async with bed.session(bed.misbehaving(timeout=CONNECT)) as session:
            await session.tools()
            return words(await bed.call(session, "structured"))

    assert wait_for(run()) == '{}{"n": "not a number"}'
    assert (
        "(structured: the structured output violates the tool's output schema at n: 'not a number' is not of type"
        " 'integer')"
    ) in bed.shown


@pytest.mark.parametrize("fault", ["deaf", "has-children"])
def test_a_server_that_does_not_want_to_end_ends_with_all_that_it_started(bed: Bed, fault: str) -> None:
    async def run() -> int:
        async with bed.session(bed.misbehaving(fault, timeout=CONNECT)) as session:
            await session.tools()
            return len(bed.processes())

    assert wait_for(run()) >= 2, "the server, what it started, and its guard"


def test_closing_while_it_connects_leaves_nothing(bed: Bed) -> None:
    async def run() -> None:
        session = await bed.open(bed.misbehaving("hangs-at-start"))
        connecting = asyncio.create_task(session.tools())
        async with asyncio.timeout(10):
            while not bed.processes():
                await asyncio.sleep(0.01)
        await session.close()
        with pytest.raises(SkillError):
            await connecting

    wait_for(run())


def test_a_missing_variable_is_named_before_anything_starts(bed: Bed) -> None:
    async def run() -> None:
        await bed.open(bed.misbehaving(required_env=("API_TOKEN", "LC_PERSTACK_TEST", "OTHER")))

    with pytest.raises(SkillError, match=r"skill 'bad' needs API_TOKEN, OTHER: set it in the environment"):
        wait_for(run())


def test_only_what_is_required_and_a_short_list_of_variables_reaches_the_server(bed: Bed) -> None:
    bed.env.update(WANTED="yes", SECRET="no", LANG="C.UTF-8")

    async def run() -> dict[str, str]:
        async with bed.session(bed.misbehaving(required_env=("WANTED",), timeout=CONNECT)) as session:
            return json.loads(words(await bed.call(session, "env")))

    got = wait_for(run())
    assert set(got) - {"LC_CTYPE"} == {"PATH", "HOME", "LANG", "WANTED", "LC_PERSTACK_TEST", "PERSTACK_PROGRAM"}


HOST = """
import asyncio, sys
from mcp_bed import Bed
from pathlib import Path
bed = Bed(Path({workspace!r}), {env!r}, {mark!r})
async def main():
    session = await bed.open(bed.misbehaving({fault!r}))
    await session.tools()
    print("up", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.parametrize("fault", ["none", "deaf", "has-children"])
def test_servers_end_when_the_host_is_killed_by_sigkill(bed: Bed, fault: str) -> None:
    code = textwrap.dedent(HOST.format(workspace=str(bed.workspace), env=bed.env, mark=bed.mark, fault=fault))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == b"up\n"
        assert bed.processes()
        host.send_signal(signal.SIGKILL)
        host.wait()
    until = time.monotonic() + 10
    while bed.processes() and time.monotonic() < until:
        time.sleep(0.02)
    assert bed.processes() == []
    assert Path(f"/proc/{host.pid}").exists() is False


def test_wherever_connecting_is_cancelled_and_closing_too_nothing_is_left(bed: Bed) -> None:
    async def run() -> None:
        for number in range(24):
            session = await bed.open(bed.misbehaving())
            connecting = asyncio.create_task(session.tools())
            # a different place each time, from before the process starts to after it has answered
            await asyncio.sleep(number * 0.005)
            connecting.cancel()
            closing = asyncio.create_task(session.close())
            await asyncio.sleep(0)
            if number % 2:
                closing.cancel()
            await asyncio.wait({connecting, closing})
        async with asyncio.timeout(10):
            while bed.processes():
                await asyncio.sleep(0.01)

    wait_for(run())
