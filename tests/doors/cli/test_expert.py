"""`perstack expert show`: the exact text that a model is sent."""

from __future__ import annotations

import json

from terminal import Terminal, reply

TEAM = """
contextWindow = 100000

[experts.lead]
instruction = "Lead the team."
delegates = ["helper"]
output = '{"required": ["done"]}'

[experts.lead.skills."@perstack/base"]
type = "mcpStdioSkill"
command = "perstack-base"
pick = ["readTextFile", "attemptCompletion"]
rule = "Read first."

[experts.lead.skills.user]
type = "interactiveSkill"
[experts.lead.skills.user.tools.askUser]
inputJsonSchema = '{"type": "object"}'

[experts.helper]
description = "helps"
instruction = "Help."
returns = '{"required": ["helped"]}'
"""
SCRIPTED = ("--provider", "scripted")


def test_the_instruction_and_the_tools_are_those_that_a_run_records(terminal: Terminal) -> None:
    terminal.project(TEAM, lead=[reply("", ("helper", {"query": "x"})), reply('{"done": 1}')], helper=[reply("{}")])
    shown = json.loads(terminal.call("expert", "show", "lead", "--json", *SCRIPTED).out)
    delegate = json.loads(terminal.call("expert", "show", "helper", "--as-delegate", "--json", *SCRIPTED).out)
    result = terminal.call("run", "lead", "q", *SCRIPTED, "--job-id", "job")
    started = {event["expertKey"]: event for event in result.events if event["type"] == "startRun"}
    for found, key in ((shown, "lead"), (delegate, "helper")):
        recorded = started[key]["instruction"]
        assert _without_time(found["instruction"]) == _without_time(recorded)
        digest = next(one["toolsDigest"] for one in result.events if one.get("toolsDigest") and one["expertKey"] == key)
        blob = terminal.workspace / "perstack/jobs/job/blobs" / digest.removeprefix("v1:")
        tools = [{name: tool[name] for name in ("name", "description", "inputSchema")} for tool in found["tools"]]
        assert tools == json.loads(blob.read_text())
    assert [part["name"] for part in shown["parts"]] == ["loop", "instruction", "rules", "delegates", "result", "tools"]
    assert shown["tokens"] == sum(part["tokens"] for part in shown["parts"])
    assert (shown["contextWindow"], shown["model"]) == (100000, "scripted")
    assert delegate["resultSchema"] == {"type": "object", "required": ["helped"]}


def test_a_delegate_is_not_shown_what_only_a_coordinator_may_ask(terminal: Terminal) -> None:
    terminal.project(TEAM)
    names = [
        {tool["name"] for tool in json.loads(terminal.call("expert", "show", "lead", "--json", *how).out)["tools"]}
        for how in (SCRIPTED, ("--as-delegate", *SCRIPTED))
    ]
    assert names[0] - names[1] == {"askUser"}


def test_people_see_what_each_part_costs_and_the_share_of_the_window(terminal: Terminal) -> None:
    terminal.project(TEAM)
    result = terminal.call("expert", "show", "lead", *SCRIPTED)
    assert result.code == 0
    assert "of a window of 100,000" in result.out
    assert "Lead the team." in result.out
    assert "Rules for the tools of @perstack/base:\nRead first." in result.out
    assert terminal.call("expert", "show", "nobody").code == 2


def test_an_expert_is_shown_without_a_provider_too(terminal: Terminal) -> None:
    terminal.project(TEAM)
    shown = json.loads(terminal.call("expert", "show", "lead", "--json", "--provider", "none-such").out)
    assert "Lead the team." in shown["instruction"]
    assert (shown["model"], shown["contextWindow"]) == (None, 100000)


def _without_time(instruction: str) -> str:
    return "\n".join(line for line in instruction.splitlines() if not line.startswith("Started at "))
