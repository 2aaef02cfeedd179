"""Notifications that a client receives while a Job runs."""

from __future__ import annotations

import asyncio

import pytest
from editor import Pipe, attached
from hosts import wait_for
from mcp_types import LoggingMessageNotificationParams
from terminal import Terminal, reply

from perstack.core.messages.adaptations import Adaptation
from perstack.core.runs.display_events import InitializeRuntime, ToolProgress
from perstack.core.runs.events.generations import AdaptRequest, Retry, StartGeneration
from perstack.core.runs.facts import ErrorInfo
from perstack_server.mcp.driving import MAX_SILENCE_S, JobProgress, ProgressText, progress_reports


def test_each_step_and_each_call_is_told_in_words_delegates_by_name(terminal: Terminal, era: str) -> None:
    async def work() -> None:
        async with attached(terminal, era=era) as editor:
            await editor.call("solo", query="go")
            assert editor.said == ["step 1", "step 1: readTextFile notes.txt", "step 2"]
            editor.said.clear()
            await editor.call("team_lead", query="go")
            assert editor.said == [
                "step 1",
                "step 1: asks researcher",
                "researcher: step 1",
                "researcher: step 1: think hm",
                "researcher: step 2",
                "researcher: done after 2 steps",
                "step 2",
            ]

    wait_for(work(), 60)


def test_a_client_that_asks_for_no_progress_gets_none_and_one_that_does_gets_it_in_rising_numbers(
    terminal: Terminal,
) -> None:
    client = Pipe(terminal)
    client.greet()
    client.call(1, "solo", query="go")
    assert "result" in client.read()
    client.write("tools/call", 2, name="solo", arguments={"query": "go"}, _meta={"progressToken": "mine"})
    updates = [client.read()["params"] for _ in range(3)]
    assert [update["progress"] for update in updates] == [1, 2, 3]
    assert {update["progressToken"] for update in updates} == {"mine"}
    assert client.read()["id"] == 2
    assert client.close() == (0, "")


def test_a_client_that_sets_a_log_level_gets_each_step_as_a_message(terminal: Terminal) -> None:
    client = Pipe(terminal)
    assert client.greet()["result"]["capabilities"]["logging"] == {}
    seen = {}
    for level in ("warning", "info", "debug"):
        client.write("logging/setLevel", 1, level=level)
        assert client.answer_to(1)["result"] == {}
        client.write("tools/call", 2, name="solo", arguments={"query": "go"})
        seen[level] = []
        while (message := client.read()).get("id") != 2:
            assert message["method"] == "notifications/message"
            seen[level].append(message["params"])
    steps = ("step 1", "step 1: readTextFile notes.txt", "step 2")
    logged = [{"level": "info", "logger": "perstack", "data": text} for text in steps]
    assert seen == {"warning": [], "info": logged, "debug": logged}
    client.write("logging/setLevel", 3, level="loud")
    assert client.answer_to(3)["error"]["code"] == -32602
    assert client.close() == (0, "")


def test_in_the_stateless_era_each_call_sets_the_log_level(terminal: Terminal) -> None:
    heard: list[object] = []

    async def hear(params: LoggingMessageNotificationParams) -> None:
        heard.append(params.data)

    async def work() -> None:
        async with attached(terminal, era="stateless", logging_callback=hear) as editor:
            await editor.call("solo", query="go")
            assert heard == []
            assert editor.said
            level = {"io.modelcontextprotocol/logLevel": "info"}
            await editor.client.call_tool("solo", {"query": "go"}, meta=level)

    wait_for(work(), 60)
    assert heard == ["step 1", "step 1: readTextFile notes.txt", "step 2"]


def test_a_silence_is_broken_with_the_last_words() -> None:
    async def work() -> list[str]:
        texts: list[str] = []
        is_enough = asyncio.Event()

        async def tell(text: str) -> None:
            texts.append(text)
            if len(texts) == 3:
                is_enough.set()

        progress = JobProgress(tell, tell, max_silence_s=0.01)
        progress.report("step 7: exec make")
        running = asyncio.create_task(progress.run())
        await is_enough.wait()
        running.cancel()
        return texts

    texts = wait_for(work())
    assert texts[0] == "step 7: exec make"
    assert all(text.startswith("step 7: exec make (for ") for text in texts[1:])
    assert MAX_SILENCE_S <= 15


def test_a_client_that_does_not_read_holds_up_nobody_and_what_was_said_comes_before_the_result() -> None:
    async def work() -> list[str]:
        texts: list[str] = []
        may_read = asyncio.Event()

        async def tell(text: str) -> None:
            await may_read.wait()
            texts.append(text)

        async with progress_reports(tell) as progress:
            assert progress is not None
            for number in range(5):
                progress.report(f"step {number}")
            may_read.set()
        return texts

    assert wait_for(work()) == [f"step {number}" for number in range(5)]


def test_what_is_cancelled_while_a_client_does_not_read_ends_at_once() -> None:
    async def work() -> None:
        async def tell(text: str) -> None:
            await asyncio.Event().wait()

        async with progress_reports(tell) as progress:
            assert progress is not None
            progress.report("never read")
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        wait_for(work())


def test_what_tools_and_providers_say_is_told_in_one_short_line() -> None:
    place = {"id": "e", "timestamp": 0, "job_id": "j", "expert_key": "solo", "step_number": 2}
    words = ProgressText()
    start = InitializeRuntime(
        id="i", timestamp=0, job_id="j", run_id="j-1", runtime_version="", expert_key="solo", model="m", provider="p"
    )
    assert words.of(start) == ()
    error = ErrorInfo(name="RateLimit", message="slow\ndown " + "x" * 500)
    (retry,) = words.of(Retry(**place, run_id="j-1", error=error, attempt=1, delay_ms=1500))
    assert retry.startswith("step 2: tries again in 1.5 s: slow down xxx")
    assert len(retry) < 200
    field = Adaptation(part="field", form="omitted", name="top_p")
    (adapted,) = words.of(AdaptRequest(**place, run_id="j-1", model="p/m", adaptations=(field,), error=error))
    assert adapted == "step 2: requests are sent without the field top_p (p/m refused it)"
    progress = ToolProgress(**place, run_id="j-2", tool_call_id="c", tool_name="build", message="build: 3/10")
    assert words.of(progress) == ("solo: step 2: build: 3/10",)


def test_a_job_that_another_process_drives_is_told_without_the_name_of_its_own_expert() -> None:
    place = {"id": "e", "timestamp": 0, "job_id": "j", "step_number": 2}
    words = ProgressText()
    assert words.of(StartGeneration(**place, run_id="j-1", expert_key="lead")) == ("step 2",)
    assert words.of(StartGeneration(**place, run_id="j-2", expert_key="helper")) == ("helper: step 2",)


def test_a_long_argument_is_cut(terminal: Terminal) -> None:
    terminal.script(**{"[[solo]]": [reply("", ("think", {"thought": "many words " * 200})), reply("end")]})

    async def work() -> None:
        async with attached(terminal) as editor:
            await editor.call("solo", query="go")
            assert editor.said[1].startswith("step 1: think many words")
            assert max(map(len, editor.said)) < 200

    wait_for(work(), 60)
