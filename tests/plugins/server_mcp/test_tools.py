"""Experts and Jobs as tools, through a real process and the SDK's client, in both eras."""

from __future__ import annotations

import asyncio
from pathlib import Path

import memory_workers
import pytest
from editor import Pipe, attached, connected, decides, structure, texts
from hosts import wait_for
from jsonschema import ValidationError, validate
from mcp.shared.exceptions import MCPError
from terminal import Terminal, reply

JOB_TOOLS = [
    "list_jobs",
    "get_job",
    "inbox",
    "continue_job",
    "answer",
    "resume_job",
    "tell_job",
    "cancel_job",
    "get_checkpoint",
]
JOB_TOOLS += ["diff", "rewind"]


def test_each_expert_is_a_tool_with_its_description_beside_those_for_jobs(terminal: Terminal, era: str) -> None:
    async def look() -> None:
        async with connected(terminal, era=era) as editor:
            assert editor.client.protocol_version == {"handshake": "2025-11-25", "stateless": "2026-07-28"}[era]
            tools = {tool.name: tool for tool in (await editor.client.list_tools()).tools}
            assert list(tools) == ["solo", "team_lead", "researcher", *JOB_TOOLS]
            assert tools["team_lead"].description == "leads"
            assert tools["team_lead"].title == "@team/lead"
            assert list(tools["solo"].input_schema["properties"]) == ["query", "continueJob", "attachments", "wait"]
            assert tools["solo"].input_schema["required"] == ["query"]
            for tool in tools.values():
                assert tool.output_schema is not None
                assert tool.annotations is not None
                assert tool.annotations.open_world_hint is not None
                looks = tool.name in ("list_jobs", "get_job", "inbox", "get_checkpoint", "diff")
                assert tool.annotations.read_only_hint is looks

    wait_for(look(), 60)


def test_a_call_of_an_expert_is_a_job_whose_text_comes_first(terminal: Terminal, era: str) -> None:
    async def work() -> None:
        async with connected(terminal, era=era) as editor:
            result = await editor.call("solo", query="count the notes")
            job = structure(result)
            assert not result.is_error
            assert texts(result)[0] == "One note."
            assert job["id"] in texts(result)[1]
            assert (job["status"], job["text"], job["totalSteps"], job["totalTokens"]) == (
                "completed",
                "One note.",
                2,
                11,
            )
            listed = structure(await editor.call("list_jobs"))
            assert [each["id"] for each in listed["jobs"]] == [job["id"]]

    wait_for(work(), 60)


def test_a_stateless_client_that_asks_nothing_first_is_served(terminal: Terminal) -> None:
    async def work() -> None:
        async with connected(terminal, era="unasked") as editor:
            assert texts(await editor.call("solo", query="go"))[0] == "One note."

    wait_for(work(), 60)


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18"])
def test_older_revisions_are_served_in_their_own_shape(terminal: Terminal, version: str) -> None:
    client = Pipe(terminal)
    assert client.greet(version)["result"]["protocolVersion"] == version
    client.write("tools/list", 1)
    tools = client.answer_to(1)["result"]["tools"]
    assert tools[0]["name"] == "solo"
    client.call(2, "solo", query="go")
    result = client.answer_to(2)["result"]
    assert result["content"][0] == {"type": "text", "text": "One note."}
    assert client.close() == (0, "")


def test_structured_results_are_as_their_schemas_say(terminal: Terminal) -> None:
    async def work() -> None:
        async with attached(terminal) as editor:
            tools = {tool.name: tool for tool in (await editor.client.list_tools()).tools}
            job = structure(await editor.call("team_lead", query="go"))
            details = structure(await editor.call("get_job", job=job["id"]))
            checkpoint = structure(await editor.call("get_checkpoint", checkpoint=details["checkpoint"]))
            page = structure(await editor.call("list_jobs", limit=1))
            for name, value in (
                ("team_lead", job),
                ("get_job", details),
                ("get_checkpoint", checkpoint),
                ("list_jobs", page),
            ):
                validate(value, tools[name].output_schema)
            runs = [(run["expertKey"], run["status"], run["steps"]) for run in details["runs"]]
            assert runs == [("@team/lead", "completed", 2), ("researcher", "completed", 2)]
            assert checkpoint["messages"][-1]["contents"][0]["text"] == "It is known."

    wait_for(work(), 60)


def test_a_job_that_does_not_read_is_one_entry_of_the_list_and_of_the_inbox(terminal: Terminal, era: str) -> None:
    async def work() -> None:
        async with attached(terminal, era=era) as editor:
            for query in ("good", "bad"):
                await editor.call("solo", query=query)
            bad, good = (job["id"] for job in structure(await editor.call("list_jobs"))["jobs"])
            folder = terminal.workspace / "perstack" / "jobs" / bad
            (folder / "job.json").unlink()
            for number, text in enumerate((b"no JSON\n", b"[" * 50_000 + b"\n", b"\xff\xfe\n")):
                (folder / "runs" / f"{bad}-1" / "events.jsonl").write_bytes(text)
                listed = {job["id"]: job for job in structure(await editor.call("list_jobs"))["jobs"]}
                assert set(listed) == {bad, good}, number
                assert (listed[good]["status"], listed[bad]["status"]) == ("completed", "stoppedByError")
                (item,) = structure(await editor.call("inbox"))["questions"]
                assert bad in str(item)
                result = await editor.call("get_job", job=bad)
                assert "Traceback" not in str(result)

    wait_for(work(), 60)


def test_a_job_is_continued_by_its_experts_tool_or_by_its_id(terminal: Terminal, era: str) -> None:
    async def work() -> None:
        async with attached(terminal, era=era) as editor:
            await editor.call("solo", query="one")
            terminal.script(**{"[[solo]]": [reply("unused"), reply("unused"), reply("second"), reply("third")]})

    async def go_on() -> None:
        async with attached(terminal, era=era) as editor:
            (job,) = structure(await editor.call("list_jobs"))["jobs"]
            second = await editor.call("solo", query="two", continueJob=job["id"])
            assert (structure(second)["id"], texts(second)[0]) == (job["id"], "second")
            third = await editor.call("continue_job", job=job["id"], query="three")
            assert texts(third)[0] == "third"
            assert len((await editor.job(job["id"]))["runs"]) == 3
            other = await editor.call("researcher", query="x", continueJob=job["id"])
            assert other.is_error
            assert "Experts never share a context" in texts(other)[0]

    wait_for(work(), 60)
    wait_for(go_on(), 60)


def test_a_job_at_its_limit_is_resumed_with_a_higher_one(terminal: Terminal, era: str) -> None:
    async def work() -> None:
        async with attached(terminal, "--max-steps", "1", era=era, fill=decides()) as editor:
            stopped = structure(await editor.call("solo", query="go"))
            assert stopped["status"] == "stoppedByMaxSteps"
            assert "resume_job" in stopped["next"]
            resumed = await editor.call("resume_job", job=stopped["id"], maxSteps=5)
            assert texts(resumed)[0] == "One note."
            (asked,) = editor.shown
            assert asked.message.endswith(f"Raise a limit of Job {stopped['id']} of solo: max_steps from 1 to 5")

    wait_for(work(), 60)


def test_a_call_that_does_not_wait_returns_the_id_and_the_job_goes_on(terminal: Terminal, era: str) -> None:
    async def work() -> None:
        async with attached(terminal, era=era) as editor:
            begun = structure(await editor.call("solo", query="go", wait=False))
            assert begun["status"] in ("running", "completed")
            done = await editor.wait_for_status(begun["id"], "completed")
            assert done["text"] == "One note."

    wait_for(work(), 60)


def test_where_workers_drive_a_call_that_does_not_wait_is_queued(terminal: Terminal, era: str) -> None:
    with (terminal.workspace / "perstack.toml").open("a") as file:
        file.write('\n[workers]\ndispatcher = "memory:mcp"\n')
    terminal.env["PERSTACK_PLUGINS"] += ",memory_workers"
    terminal.env["PYTHONPATH"] = str(Path(memory_workers.__file__).parent)

    async def work() -> None:
        async with attached(terminal, era=era) as editor:
            begun = structure(await editor.call("solo", query="go", wait=False))
            assert (begun["status"], begun["lifecycle"], begun["pauseReason"]) == ("queued", "paused", "scheduled_wait")
            assert (await editor.job(begun["id"]))["status"] == "queued"
            waited = structure(await editor.call("solo", query="go"))
            assert waited["status"] == "completed"

    wait_for(work(), 60)


def test_a_job_is_closed_for_good_and_nothing_continues_it(terminal: Terminal, era: str) -> None:
    terminal.script(
        **{"[[solo]]": [reply("", ("todo", {"newTodos": ["kept"]})), {**reply("late"), "delay_ms": 100_000}]}
    )

    async def work() -> None:
        async with attached(terminal, era=era, fill=decides()) as editor:
            begun = structure(await editor.call("solo", query="go", wait=False))
            while (await editor.job(begun["id"]))["totalSteps"] < 2:
                pass
            closed = await editor.call("cancel_job", job=begun["id"], final=True)
            assert structure(closed)["lifecycle"] == "failed"
            assert "closed permanently" in structure(closed)["next"]
            result = await editor.call("resume_job", job=begun["id"])
            assert result.is_error
            assert "was closed for good by" in texts(result)[0]

    wait_for(work(), 60)


def test_a_job_is_told_something_after_a_yes_of_the_person_and_a_removal_too(terminal: Terminal, era: str) -> None:
    question = reply("", ("askUser", {"question": "Tea?"}))
    terminal.project('[experts.guest]\ninstruction = "You ask."\nask = true\n', guest=[question, reply("done")])
    assert terminal.run("run", "guest", "go", "--job-id", "tea").code == 3

    async def work() -> None:
        async with attached(terminal, era=era, fill=decides()) as editor:
            told = await editor.call("tell_job", job="tea", text="only once")
            assert (structure(told)["runId"], structure(told)["isDriven"]) == ("tea-1", False)
            assert texts(told)[0] == "Kept; it takes effect when the Job continues."
            await editor.call("tell_job", job="tea", drop="tea-1-1")
            assert (await editor.call("tell_job", job="tea")).is_error
            assert (await editor.call("tell_job", job="tea", text=" ")).is_error

    wait_for(work(), 60)
    (kept,) = terminal.run("log", "tea", "--standing", "--json").events
    assert (kept["text"], kept["by"]["door"], kept["isWaiting"]) == ("only once", "mcp", True)


def test_a_job_that_runs_is_stopped_and_goes_on_later(terminal: Terminal, era: str) -> None:
    slow = {**reply("late"), "delay_ms": 100_000}
    terminal.script(**{"[[solo]]": [reply("", ("todo", {"newTodos": ["kept"]})), slow]})

    async def work() -> str:
        async with attached(terminal, era=era) as editor:
            begun = structure(await editor.call("solo", query="go", wait=False))
            while (await editor.job(begun["id"]))["totalSteps"] < 2:
                pass
            twice = await editor.call("resume_job", job=begun["id"])
            assert twice.is_error, "two drivers of one Job"
            stopped = structure(await editor.call("cancel_job", job=begun["id"]))
            assert stopped["status"] == "stoppedByInterrupt"
            result = await editor.call("cancel_job", job=begun["id"])
            assert result.is_error
            assert "no process drives it" in texts(result)[0]
            return begun["id"]

    job_id = wait_for(work(), 60)
    terminal.script(**{"[[solo]]": [reply(""), reply("", ("todo", {})), reply("went on")]})
    assert terminal.call("resume", job_id, "--provider", "scripted").code == 0


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("solo", {"quary": "x", "query": "x"}, "there is no argument `quary`; did you mean `query`?"),
        ("solo", {}, "`query` is missing"),
        ("solo", {"query": 7}, "`query` must be text"),
        ("solo", {"query": "x", "continueJob": "nosuch"}, "nosuch"),
        ("get_job", {"job": "../etc"}, "not a valid job id"),
        ("get_checkpoint", {"checkpoint": "x"}, "there is no checkpoint x"),
        ("resume_job", {"job": "x", "settle": {"call": "maybe"}}, "`settle.call`"),
        ("resume_job", {"job": "x", "maxCost": 1e300}, "`maxCost`"),
        ("list_jobs", {"limit": 0}, "`limit`"),
    ],
)
def test_wrong_arguments_are_told_in_a_line(
    terminal: Terminal, tool: str, arguments: dict[str, object], words: str
) -> None:
    async def work() -> None:
        async with attached(terminal) as editor:
            result = await editor.client.call_tool(tool, arguments)
            (text,) = texts(result)
            assert result.is_error
            assert words in text
            assert "\n" not in text

    wait_for(work(), 60)


def test_a_tool_that_is_not_there_is_an_error_that_names_what_is(terminal: Terminal, era: str) -> None:
    async def work() -> None:
        async with attached(terminal, era=era) as editor:
            with pytest.raises(MCPError, match="did you mean 'solo'"):
                await editor.call("sole", query="x")
            with pytest.raises(MCPError, match="available: solo, team_lead, researcher, list_jobs"):
                await editor.call("zzz")

    wait_for(work(), 60)


def test_the_experts_named_are_the_only_ones_that_are_offered_and_driven(terminal: Terminal) -> None:
    assert terminal.run("run", "solo", "go", "--provider", "scripted", "--job-id", "other").code == 0

    async def work() -> None:
        async with attached(terminal, "--experts", "@team/lead") as editor:
            names = [tool.name for tool in (await editor.client.list_tools()).tools]
            assert names == ["team_lead", *JOB_TOOLS]
            assert texts(await editor.call("team_lead", query="go"))[0] == "It is known.", "its delegates are there"
            refused = await editor.call("continue_job", job="other", query="more")
            assert refused.is_error
            assert "limited to: @team/lead" in texts(refused)[0]

    wait_for(work(), 60)


def test_a_job_that_failed_is_an_error_that_says_why_and_how_it_goes_on(terminal: Terminal) -> None:
    terminal.script(**{"[[solo]]": [{"error": {"message": "no such model", "status": 404}}]})

    async def work() -> None:
        async with attached(terminal) as editor:
            failed = await editor.call("solo", query="go")
            assert failed.is_error
            assert structure(failed)["status"] == "stoppedByError"
            assert "no such model" in texts(failed)[0]
            assert "resume_job" in texts(failed)[0]

    wait_for(work(), 60)


def test_a_server_without_a_key_says_so_when_it_is_called(terminal: Terminal) -> None:
    async def work() -> None:
        async with attached(terminal, "--provider", "anthropic") as editor:
            failed = await editor.call("solo", query="go")
            assert failed.is_error
            assert "ANTHROPIC_API_KEY" in texts(failed)[0]
            assert failed.meta is not None
            assert failed.meta["perstack/error"]["name"] == "MissingCredential"

    wait_for(work(), 60)


def test_two_calls_at_once_do_not_mix(terminal: Terminal, era: str) -> None:
    async def work() -> None:
        async with attached(terminal, era=era) as editor, asyncio.TaskGroup() as group:
            names = ("solo", "team_lead") * 3
            calls = [group.create_task(editor.call(name, query="go")) for name in names]
            results = [await call for call in calls]
            assert [texts(result)[0] for result in results] == ["One note.", "It is known."] * 3
            assert len({structure(result)["id"] for result in results}) == 6

    wait_for(work(), 60)


def test_two_servers_of_one_folder_see_each_others_jobs_and_keep_out_of_them(terminal: Terminal, era: str) -> None:
    waiting = {"command": "sh", "args": ["-c", "while [ ! -e go ]; do sleep 0.05; done"], "timeout": 60_000}
    terminal.script(**{"[[solo]]": [reply("", ("exec", waiting)), reply("on")]})

    async def work() -> None:
        async with attached(terminal, era=era) as one, attached(terminal, era=era) as other:
            mine = structure(await one.call("solo", query="go", wait=False))["id"]
            theirs = structure(await other.call("solo", query="go", wait=False))["id"]
            for editor, job_id in ((other, mine), (one, theirs)):
                await editor.wait_for_status(job_id, "running")
                refused = await editor.call("resume_job", job=job_id)
                assert refused.is_error, texts(refused)
            (terminal.workspace / "go").touch()
            for editor, job_id in ((other, mine), (one, theirs)):
                assert (await editor.wait_for_status(job_id, "completed"))["text"] == "on"

    wait_for(work(), 60)


def test_a_result_that_fits_a_schema_is_structured_and_the_experts_tool_says_its_schema(
    terminal: Terminal, era: str
) -> None:
    schema = '{"properties": {"cities": {"type": "array", "items": {"$ref": "#/$defs/city"}}}, "required": ["cities"],'
    schema += ' "$defs": {"city": {"type": "string"}}}'
    terminal.project(
        f"[experts.census]\ninstruction = \"Count.\"\noutput = '{schema}'\n",
        census=[reply("Ulm"), reply('```json\n{"cities": ["Ulm"]}\n```')],
    )

    async def work() -> None:
        async with attached(terminal, era=era) as editor:
            tools = {tool.name: tool for tool in (await editor.client.list_tools()).tools}
            job = structure(await editor.call("census", query="go"))
            assert (job["status"], job["result"], job["totalSteps"]) == ("completed", {"cities": ["Ulm"]}, 2)
            validate(job, tools["census"].output_schema)
            with pytest.raises(ValidationError):
                validate({**job, "result": {"cities": [1]}}, tools["census"].output_schema)
            looked = structure(await editor.call("get_job", job=job["id"]))
            assert looked["result"] == {"cities": ["Ulm"]}
            validate(looked, tools["get_job"].output_schema)

    wait_for(work(), 60)
