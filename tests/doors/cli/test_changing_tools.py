"""An Expert changes its own skills and delegates: only what is declared and agreed to, and the same on resume."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import warm
from engine_workers import served
from terminal import SECONDS, Result, Terminal, reply

SERVER = Path(__file__).parents[2] / "plugins" / "mcp" / "servers" / "named_tools.py"
ALL = ("addSkill", "removeSkill", "addDelegate", "removeDelegate", "addDelegateFromConfig")
LEAD = f"""
[experts.lead]
instruction = "You lead."
[experts.lead.skills."@perstack/base"]
type = "mcpStdioSkill"
pick = {json.dumps([*ALL, "attemptCompletion"])}
"""
RUN = ("--provider", "scripted", "--job-id", "job")


def skill(terminal: Terminal, owner: str, name: str, *tools: str) -> str:
    """Return a skill of the test's server, as a definition declares it."""
    args = json.dumps([str(SERVER), str(terminal.workspace), *tools])
    return f'[experts.{owner}.skills.{name}]\ntype = "mcpStdioSkill"\ncommand = "{sys.executable}"\nargs = {args}\n'


def toolbox(terminal: Terminal, *skills: tuple[str, ...]) -> str:
    """Return an Expert that nobody runs, with these skills."""
    return '[experts.box]\ninstruction = "Not run."\n' + "".join(skill(terminal, "box", *each) for each in skills)


def results(done: Result) -> dict[str, Any]:
    """Return the result of each call, by its tool, as JSON if it is that."""
    found: dict[str, Any] = {}
    for event in done.events:
        if event["type"] == "finishToolCall":
            text = event["contents"][0]["text"]
            found[event["toolName"]] = text if event.get("isError") else _value(text)
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def offered(terminal: Terminal) -> list[list[str]]:
    """Return the names of the tools that each request of the model had."""
    lines = (terminal.workspace / "requests").read_text().splitlines()
    return [json.loads(line)["tools"] for line in lines]


def life(terminal: Terminal) -> list[str]:
    """Return the starts and ends of the servers."""
    return (terminal.workspace / "life").read_text().splitlines()


@pytest.fixture
def changing(terminal: Terminal) -> Terminal:
    terminal.env["PERSTACK_SCRIPT_REQUEST_LOG"] = str(terminal.workspace / "requests")
    return terminal


def replays(terminal: Terminal) -> None:
    for command in ("replay", "verify"):
        done = terminal.call(command, "job")
        assert done.code == 0, done.out + done.err


def test_a_declared_skill_is_added_used_and_removed(changing: Terminal) -> None:
    changing.project(
        LEAD + toolbox(changing, ("search", "find")),
        lead=[
            reply("", ("addSkill", {"name": "search"})),
            reply("", ("find", {})),
            reply("", ("removeSkill", {"name": "search"}), ("find", {})),
            reply("ok"),
        ],
    )
    done = changing.call("run", "lead", "q", *RUN)
    assert done.code == 0, done.err
    assert results(done)["addSkill"] == {"added": "search", "tools": ["find"]}
    assert results(done)["find"] == "find of ['find']"
    assert results(done)["removeSkill"] == {"removed": "search"}
    before, during = ["attemptCompletion", *ALL], ["attemptCompletion", "find", *ALL]
    assert offered(changing) == [before, during, during, before]
    assert life(changing) == ["start find", "end find"]
    replays(changing)


def test_a_server_is_closed_after_the_calls_of_the_reply_and_before_the_next_step(changing: Terminal) -> None:
    changing.project(
        LEAD + toolbox(changing, ("search", "find")),
        lead=[
            reply("", ("addSkill", {"name": "search"})),
            reply("", ("removeSkill", {"name": "search"}), ("find", {})),
            reply("", ("find", {})),
            reply("ok"),
        ],
    )
    events = changing.call("run", "lead", "q", *RUN).events
    kinds = [(event["type"], event.get("toolName") or event.get("skillName", "")) for event in events]
    generations = [index for index, (kind, _) in enumerate(kinds) if kind == "startGeneration"]
    assert generations[1] < kinds.index(("skillDisconnected", "search")) < generations[2]
    texts = [event["contents"][0]["text"] for event in events if event["type"] == "finishToolCall"]
    assert "find of ['find']" in texts[1:3]
    assert "There is no tool 'find'" in texts[3]


def test_two_adds_in_one_reply_hold_both_and_the_second_of_one_name_is_refused(changing: Terminal) -> None:
    changing.project(
        LEAD + toolbox(changing, ("search", "find"), ("notes", "find", "note")),
        lead=[
            reply("", *(("addSkill", {"name": name}) for name in ("notes", "search", "notes"))),
            reply("", ("search_find", {}), ("notes_find", {})),
            reply("ok"),
        ],
    )
    done = changing.call("run", "lead", "q", *RUN)
    added = [event for event in done.events if event["type"] == "finishToolCall" and event["toolName"] == "addSkill"]
    texts = [event["contents"][0]["text"] for event in added]
    assert texts[:2] == [
        '{"added": "notes", "tools": ["find", "note"]}',
        '{"added": "search", "tools": ["search_find"]}',
    ]
    assert texts[2] == "you have skill 'notes' already"
    assert results(done)["search_find"] == "find of ['find']"
    assert results(done)["notes_find"] == "find of ['find', 'note']"
    assert offered(changing)[1] == ["attemptCompletion", "notes_find", "note", "search_find", *ALL]
    replays(changing)


def test_a_skill_that_one_reply_adds_and_removes_is_closed_before_the_next_step(changing: Terminal) -> None:
    calls = [("addSkill", {"name": "search"}), ("removeSkill", {"name": "search"})] * 2
    changing.project(LEAD + toolbox(changing, ("search", "find")), lead=[reply("", *calls), reply("ok")])
    done = changing.call("run", "lead", "q", *RUN)
    assert offered(changing)[1] == ["attemptCompletion", *ALL]
    kinds = [event["type"] for event in done.events]
    second_step = len(kinds) - kinds[::-1].index("startGeneration")
    assert kinds.index("skillDisconnected") < second_step
    assert life(changing) == ["start find", "end find"]
    replays(changing)


def test_a_killed_job_goes_on_with_the_same_tools_in_the_same_order(changing: Terminal) -> None:
    changing.project(
        LEAD + toolbox(changing, ("search", "wait", "find"), ("notes", "note")) + '[experts.aide]\ninstruction = "x"\n',
        lead=[
            reply("", ("addSkill", {"name": "search"}), ("addDelegate", {"name": "aide"})),
            reply("", ("addSkill", {"name": "notes"}), ("removeSkill", {"name": "search"})),
            reply("", ("addSkill", {"name": "search"})),
            reply("", ("wait", {})),
            reply("", ("find", {}), ("aide", {"query": "help"})),
            reply("ok"),
        ],
        aide=[reply("helped")],
    )
    _kill_at(changing, "wait")
    done = changing.call("resume", "job")
    assert done.code == 0, done.err
    assert results(done)["find"] == "find of ['wait', 'find']"
    assert results(done)["aide"] == "helped"
    tools = ["attemptCompletion", "note", "wait", "find", *ALL, "aide"]
    assert [each for each in offered(changing) if "addSkill" in each][3:] == [tools] * 3
    replays(changing)


def test_a_call_that_was_killed_while_its_server_started_is_made_again(changing: Terminal) -> None:
    hold = changing.workspace / "hold"
    hold.touch()
    changing.project(
        LEAD + toolbox(changing, ("search", "find")),
        lead=[reply("", ("addSkill", {"name": "search"})), reply("", ("find", {})), reply("ok")],
    )
    _kill_at(changing, "addSkill")
    hold.unlink()
    done = changing.call("resume", "job")
    assert results(done)["addSkill"] == {"added": "search", "tools": ["find"]}
    assert results(done)["find"] == "find of ['find']"
    replays(changing)


def _kill_at(terminal: Terminal, tool: str) -> None:
    """Run the Expert and kill it as soon as the call of a tool is decided."""
    with warm.perstack(
        "run", "lead", "q", *RUN, cwd=terminal.workspace, env=terminal.env, stdout=subprocess.PIPE
    ) as job:
        assert job.stdout is not None
        try:
            for line in job.stdout:
                event = json.loads(line)
                if event["type"] == "callTools" and any(call["toolName"] == tool for call in event["calls"]):
                    break
            else:
                raise AssertionError(f"{tool} was not called")
        finally:
            job.kill()
            job.wait(SECONDS)


def test_a_server_that_does_not_start_is_an_error_result_and_can_be_tried_again(changing: Terminal) -> None:
    broken = changing.workspace / "broken"
    broken.touch()
    changing.project(
        LEAD.replace('"addSkill"', '"addSkill", "deleteFile"') + toolbox(changing, ("search", "find")),
        lead=[
            reply("", ("addSkill", {"name": "search"})),
            reply("", ("deleteFile", {"path": "broken"})),
            reply("", ("addSkill", {"name": "search"})),
            reply("ok"),
        ],
    )
    done = changing.call("run", "lead", "q", *RUN)
    first, _, second = [event for event in done.events if event["type"] == "finishToolCall"]
    assert first["isError"]
    assert "skill 'search' is not added" in first["contents"][0]["text"]
    assert "change" not in first
    assert second["change"] == {"tool": "addSkill", "name": "search", "skill": second["change"]["skill"]}
    assert [len(tools) for tools in offered(changing)] == [7, 7, 7, 8]
    replays(changing)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (("removeSkill", {"name": "@perstack/base"}), "@perstack/base cannot be removed"),
        (("removeSkill", {"name": "search"}), "you have no skill 'search'"),
        (("addDelegate", {"name": "lead"}), "Wrong arguments at name"),
        (("removeDelegate", {"name": "box"}), "you do not delegate to 'box'"),
        (("addSkill", {"name": "search", "command": "touch", "args": ["evil"]}), "Wrong arguments"),
        (("addSkill", {"name": "evil"}), "Wrong arguments at name"),
        (("addSkill", {"name": "search", "expert": "guarded"}), "guarded declares no skill 'search' that can be added"),
        (("createExpert", {"name": "evil"}), "Only a person makes an Expert"),
    ],
)
def test_what_cannot_be_changed_is_told_and_changes_nothing(changing: Terminal, call: Any, problem: str) -> None:
    guarded = '[experts.guarded]\ninstruction = "x"\npermissions = { deny = ["db/drop"] }\n'
    guarded += skill(changing, "guarded", "db", "drop") + skill(changing, "guarded", "search", "find")
    changing.project(LEAD + toolbox(changing, ("search", "find")) + guarded, lead=[reply("", call), reply("ok")])
    done = changing.call("run", "lead", "q", *RUN)
    assert done.code == 0, done.err
    (event,) = [event for event in done.events if event["type"] == "finishToolCall"]
    assert event["isError"]
    assert problem in event["contents"][0]["text"]
    assert not (changing.workspace / "life").exists()
    assert offered(changing)[0] == offered(changing)[1]


def test_a_skill_is_lent_only_by_an_expert_with_the_same_restrictions(changing: Terminal) -> None:
    guarded = '[experts.guarded]\ninstruction = "x"\npermissions = { deny = ["db/drop"] }\n'
    changing.project(
        LEAD + guarded + skill(changing, "guarded", "db", "drop"),
        lead=[reply("", ("addSkill", {"name": "db"})), reply("ok")],
    )
    done = changing.call("run", "lead", "q", *RUN)
    assert "the project declares no skill 'db' that can be added" in results(done)["addSkill"]


def test_a_skill_that_two_experts_declare_differently_is_chosen_by_the_expert(changing: Terminal) -> None:
    other = '[experts.other]\ninstruction = "x"\n' + skill(changing, "other", "search", "seek")
    changing.project(
        LEAD + toolbox(changing, ("search", "find")) + other,
        lead=[
            reply("", ("addSkill", {"name": "search"})),
            reply("", ("addSkill", {"name": "search", "expert": "other"})),
            reply("ok"),
        ],
    )
    texts = [
        event["contents"][0]["text"]
        for event in changing.call("run", "lead", "q", *RUN).events
        if event["type"] == "finishToolCall"
    ]
    assert texts[0] == "skill 'search' is declared in different ways by box, other: say whose with `expert`"
    assert json.loads(texts[1])["tools"] == ["seek"]


def test_nothing_is_added_before_the_person_has_agreed_to_the_definition(changing: Terminal) -> None:
    changing.as_stranger().project(
        LEAD + toolbox(changing, ("search", "find")),
        lead=[reply("", ("addSkill", {"name": "search"})), reply("ok")],
    )
    done = changing.call("run", "lead", "q", *RUN)
    assert done.code == 2
    assert "declares what you have not agreed to: experts.box.skills.search" in done.err
    assert not (changing.workspace / "life").exists()
    changing.call("trust", "--yes")
    assert results(changing.call("run", "lead", "q", *RUN))["addSkill"]["tools"] == ["find"]


def test_permission_rules_decide_about_these_calls_and_nobody_is_asked_unattended(changing: Terminal) -> None:
    changing.project(
        '[permissions]\nask = ["addSkill"]\ndeny = ["removeSkill"]\n' + LEAD + toolbox(changing, ("search", "find")),
        lead=[
            reply("", ("removeSkill", {"name": "search"}), ("addSkill", {"name": "search"})),
            reply("ok"),
        ],
    )
    found = results(changing.call("run", "lead", "q", *RUN, "--unattended"))
    assert "denies this call" in found["removeSkill"]
    assert "addSkill" in found
    assert "tools" not in found["addSkill"]
    assert not (changing.workspace / "life").exists()
    replays(changing)
    waits = changing.call("run", "lead", "q", "--provider", "scripted", "--job-id", "waits")
    assert waits.code == 3
    (asked,) = [event for event in waits.events if event["type"] == "requestApproval"]
    done = changing.call("answer", asked["id"], "yes")
    assert results(done)["addSkill"]["tools"] == ["find"]


# Delegates.


def test_an_expert_of_the_project_is_added_called_and_removed(changing: Terminal) -> None:
    aides = '[experts.aide]\ninstruction = "x"\n[experts."@lead/own"]\ninstruction = "x"\n'
    scoped = '[experts.other]\ninstruction = "x"\n[experts."@other/own"]\ninstruction = "x"\n'
    changing.project(
        LEAD + aides + scoped,
        lead=[
            reply("", *(("addDelegate", {"name": name}) for name in ("aide", "@lead/own", "@other/own"))),
            reply("", ("aide", {"query": "help"}), ("removeDelegate", {"name": "aide"})),
            reply("ok"),
        ],
        aide=[reply("helped")],
    )
    done = changing.call("run", "lead", "q", *RUN)
    assert results(done)["aide"] == "helped"
    assert results(done)["removeDelegate"] == {"removed": "aide"}
    requests = [tools for tools in offered(changing) if "addDelegate" in tools]
    assert [tools[6:] for tools in requests] == [[], ["aide", "lead_own"], ["lead_own"]]
    replays(changing)


def test_the_limit_of_depth_holds_for_added_delegates(changing: Terminal) -> None:
    pick = LEAD.replace("lead", "aide")
    changing.project(
        "maxDepth = 1\n" + LEAD + pick + '[experts.leaf]\ninstruction = "x"\n',
        lead=[reply("", ("addDelegate", {"name": "aide"})), reply("", ("aide", {"query": "help"})), reply("ok")],
        aide=[reply("", ("addDelegate", {"name": "leaf"})), reply("", ("leaf", {"query": "help"})), reply("done")],
    )
    done = changing.call("run", "lead", "q", *RUN)
    assert "`maxDepth` allows no more" in results(done)["leaf"]


# Experts of other files.


def other_file(terminal: Terminal, text: str) -> None:
    (terminal.workspace / "made").mkdir()
    (terminal.workspace / "made" / "perstack.toml").write_text(text)


def from_file(name: str = "made") -> tuple[str, dict[str, Any]]:
    return ("addDelegateFromConfig", {"path": "made/perstack.toml", "name": name})


def test_an_expert_of_another_file_is_a_delegate_also_after_the_file_is_gone(changing: Terminal) -> None:
    other_file(changing, '[experts.made]\ninstruction = "You help."\n' + skill(changing, "made", "search", "find"))
    changing.project(
        LEAD + toolbox(changing, ("search", "find"), ("stop", "wait")),
        lead=[
            reply("", from_file(), ("addSkill", {"name": "stop"})),
            reply("", ("wait", {})),
            reply("", ("made", {"query": "help"})),
            reply("ok"),
        ],
        made=[reply("", ("find", {})), reply("helped")],
    )
    _kill_at(changing, "wait")
    (changing.workspace / "made" / "perstack.toml").unlink()
    done = changing.call("resume", "job")
    assert results(done)["find"] == "find of ['find']"
    assert results(done)["made"] == "helped"
    replays(changing)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[experts.made]\ninstruction = "x"\n[experts.made.skills.s]\ntype = "mcpStdioSkill"\ncommand = "touch"\n'
         'args = ["evil"]\n', "experts.made.skills.s (executes)"),
        ('[experts.made]\ninstruction = "x"\n[experts.made.skills.s]\ntype = "mcpSseSkill"\n'
         'endpoint = "https://evil.example"\n', "experts.made.skills.s (reaches)"),
        ('[experts.made]\ninstruction = "x"\npermissions = { allow = ["exec"] }\n',
         "experts.made.permissions (executes)"),
        ('[experts.made]\ninstruction = "x"\n[experts.made.skills."@perstack/base"]\ntype = "mcpStdioSkill"\n'
         'pick = ["exec"]\n', 'experts.made.skills."@perstack/base" (executes)'),
        ('[experts.made]\ninstruction = "x"\nprovider = { providerName = "elsewhere" }\n', "provider"),
        ('[permissions]\ndeny = ["exec"]\n[experts.made]\ninstruction = "x"\n', "has permissions"),
        ('[experts.made]\ninstruction = "x"\ndelegates = ["two"]\n[experts.two]\ninstruction = "x"\n', "delegates"),
        ('[experts.box]\ninstruction = "x"\n', "has no Expert 'made'"),
        ("[experts.made]\n", "instruction"),
    ],
)  # fmt: skip
def test_an_expert_of_another_file_does_nothing_that_the_project_does_not_declare(
    changing: Terminal, text: str, problem: str
) -> None:
    other_file(changing, text)
    changing.project(LEAD + toolbox(changing), lead=[reply("", from_file()), reply("ok")])
    done = changing.call("run", "lead", "q", *RUN)
    assert done.code == 0, done.err
    assert problem in str(results(done)["addDelegateFromConfig"])
    assert [len(tools) for tools in offered(changing)] == [6, 6]


@pytest.mark.parametrize("path", ["../other.toml", "made/link.toml", "made/perstack.json", "/etc/other.toml"])
def test_only_definition_files_in_the_workspace_are_read(changing: Terminal, tmp_path: Path, path: str) -> None:
    made, outside = changing.workspace / "made", changing.workspace.parent / "other.toml"
    made.mkdir()
    outside.write_text('[experts.made]\ninstruction = "x"\n')
    (made / "link.toml").symlink_to(outside)
    (made / "perstack.json").write_text("{}")
    changing.project(LEAD, lead=[reply("", ("addDelegateFromConfig", {"path": path, "name": "made"})), reply("ok")])
    done = changing.call("run", "lead", "q", *RUN)
    assert "is no definition file, `*.toml`, in the workspace" in results(done)["addDelegateFromConfig"]


def test_rules_about_paths_hold_for_the_file(changing: Terminal) -> None:
    other_file(changing, '[experts.made]\ninstruction = "x"\n')
    changing.project('[permissions]\ndeny = ["read(made/**)"]\n' + LEAD, lead=[reply("", from_file()), reply("ok")])
    done = changing.call("run", "lead", "q", *RUN)
    assert "read(made/**)" in results(done)["addDelegateFromConfig"]
    replays(changing)


# Other processes.


def test_a_worker_adds_what_was_declared_when_the_job_was_queued(
    changing: Terminal, request: pytest.FixtureRequest
) -> None:
    changing.env["PERSTACK_PLUGINS"] += ",memory_workers"
    changing.env["ENGINE"] = request.node.name
    head = 'provider = { providerName = "scripted" }\n'
    workers = '[workers]\ndispatcher = "memory:${ENGINE}"\n'
    changing.project(
        head + LEAD + toolbox(changing, ("search", "find")) + '[experts.aide]\ninstruction = "x"\n' + workers,
        lead=[
            reply("", ("addSkill", {"name": "search"}), ("addDelegate", {"name": "aide"})),
            reply("", ("find", {}), ("aide", {"query": "help"})),
            reply("ok"),
        ],
        aide=[reply("helped")],
    )
    assert changing.call("submit", "lead", "go", "--job-id", "job").code == 0
    (changing.workspace / "perstack.toml").write_text(head + LEAD + workers)
    assert served(changing, "job").text == "ok"
    found = results(changing.call("log", "job", "--json"))
    assert found["find"] == "find of ['find']"
    assert found["aide"] == "helped"
    replays(changing)


def test_a_new_query_begins_with_the_definition(changing: Terminal) -> None:
    changing.project(
        LEAD + toolbox(changing, ("search", "find")), lead=[reply("", ("addSkill", {"name": "search"})), reply("ok")]
    )
    changing.call("run", "lead", "q", *RUN)
    changing.script(lead=[reply(), reply(), reply("again")])
    done = changing.call("run", "lead", "q", "--provider", "scripted", "--continue-job", "job")
    assert done.code == 0, done.err
    assert offered(changing)[-1] == ["attemptCompletion", *ALL]
    assert life(changing) == ["start find", "end find"]


def test_a_skill_that_a_delegate_uses_too_stays_open_when_it_is_removed(changing: Terminal) -> None:
    changing.project(
        LEAD.replace('"You lead."', '"You lead."\ndelegates = ["box"]') + toolbox(changing, ("search", "find")),
        lead=[
            reply("", ("box", {"query": "find"}), ("addSkill", {"name": "search"})),
            reply("", ("removeSkill", {"name": "search"})),
            reply("", ("box", {"query": "find again"})),
            reply("ok"),
        ],
        box=[reply("", ("find", {})), reply("found")],
    )
    done = changing.call("run", "lead", "q", *RUN)
    assert results(done)["box"] == "found"
    assert life(changing) == ["start find", "end find"]


# Who has these tools.


def test_an_expert_that_does_not_pick_them_has_none_of_them_in_its_requests(changing: Terminal) -> None:
    changing.project('[experts.lead]\ninstruction = "x"\n', lead=[reply("", ("addSkill", {"name": "x"})), reply("ok")])
    done = changing.call("run", "lead", "q", *RUN)
    assert not set(offered(changing)[0]) & set(ALL)
    assert len(offered(changing)[0]) == 18
    assert "An Expert has it if the `pick` of its base skill in perstack.toml names it" in results(done)["addSkill"]


def test_a_pattern_does_not_offer_them(changing: Terminal) -> None:
    changing.project(LEAD.replace('"addSkill"', '"add*"'))
    document = json.loads(changing.call("tools", "lead", "--json").out)
    assert [tool["name"] for tool in document["tools"]] == ["attemptCompletion", *ALL[1:]]
    assert changing.call("validate").code == 0


def test_a_recording_plays_what_was_added_without_a_server(changing: Terminal) -> None:
    changing.project(
        LEAD + toolbox(changing, ("search", "find")),
        lead=[reply("", ("addSkill", {"name": "search"})), reply("", ("find", {})), reply("ok")],
    )
    changing.call("run", "lead", "q", *RUN)
    assert changing.call("record", "job", "--to", "made.json").code == 0
    (changing.workspace / "life").unlink()
    done = changing.call("run", "lead", "q", "--recording", "made.json")
    assert done.code == 0, done.err
    assert results(done)["find"] == "find of ['find']"
    assert not (changing.workspace / "life").exists()
