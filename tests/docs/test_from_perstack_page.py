"""docs/from-perstack.md: each status, event, option and call of the original beside the one here, which is there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import get_args

import click
import pytest
from pages import ROOT, keep_part, page, rows, section

import perstack
import perstack_original.export as original
from perstack.core.definitions.expert_changes import changing_specs
from perstack.core.definitions.job_status import JobStatus, RunStatus
from perstack.core.definitions.skills import BASE_SKILL, CHANGING_TOOLS, McpStdioSkill, ToolSpec
from perstack.core.runs.events import StoredEvent, TransientEvent
from perstack.doors.cli.main import perstack as program

PAGE = "docs/from-perstack.md"
EVENTS = {one.model_fields["type"].default: one for one in (*get_args(StoredEvent), *get_args(TransientEvent))}
ORIGINAL_EVENTS = (
    *("startRun", "startGeneration", "retry", "callTools", "callInteractiveTool", "callDelegate", "finishToolCall"),
    *("resolveToolResults", "finishAllToolCalls", "resumeToolCalls", "attemptCompletion", "continueToNextStep"),
    *("completeRun", "stopRunByInteractiveTool", "stopRunByDelegate", "stopRunByExceededMaxSteps", "stopRunByError"),
    *("startStreamingReasoning", "streamReasoning", "completeStreamingReasoning"),
    *("startStreamingRunResult", "streamRunResult", "completeStreamingRunResult"),
    *("initializeRuntime", "skillStarting", "skillConnected", "skillStderr", "skillDisconnected"),
    *("dockerBuildProgress", "dockerContainerStatus", "proxyAccess"),
)
ORIGINAL_STATUSES = (
    *("init", "proceeding", "completed", "stoppedByInteractiveTool", "stoppedByDelegate"),
    *("stoppedByExceededMaxSteps", "stoppedByError"),
)


def table(each: Mapping[str, Sequence[str]]) -> str:
    """The names of the original, each with ours: those that are the same, those that differ, those without one."""
    cells = [
        (", ".join(f"`{name}`" for name, here in each.items() if [*here] == [name]), "the same"),
        *(
            (f"`{name}`", ", ".join(f"`{one}`" for one in here))
            for name, here in each.items()
            if here and [*here] != [name]
        ),
        (", ".join(f"`{name}`" for name, here in each.items() if not here), "none"),
    ]
    return "| original | here |\n| --- | --- |\n" + "".join(f"| {name} | {here} |\n" for name, here in cells)


def table_below(heading: str) -> str:
    """The table below a heading."""
    found = re.search(r"^\| original .*\n(?:\|.*\n)+", section(page(PAGE), heading), re.M)
    assert found
    return found[0]


def test_the_statuses_are_those_that_an_export_writes() -> None:
    ours = dict.fromkeys((*get_args(RunStatus), *get_args(JobStatus)))
    each = {name: [one for one in ours if original.STATUSES.get(one, one) == name] for name in ORIGINAL_STATUSES}
    assert sorted(one for here in each.values() for one in here) == sorted(ours)
    wanted = table(each)
    assert keep_part(PAGE, table_below("## Statuses"), wanted) == wanted


def test_the_events_are_those_whose_names_the_filter_of_the_log_takes() -> None:
    each = {
        name: [own for own, kind in EVENTS.items() if name == own or name in kind.original_types]
        for name in ORIGINAL_EVENTS
    }
    assert {name for kind in EVENTS.values() for name in kind.original_types} <= {*ORIGINAL_EVENTS}
    wanted = table(each)
    assert keep_part(PAGE, table_below("## Events"), wanted) == wanted


def test_every_event_in_a_folder_of_the_original_is_in_the_table() -> None:
    files = [file.stem for file in (ROOT / "tests/golden").rglob("event-*-*-*.json")]
    assert len(files) > 10
    assert {name.rsplit("-", 1)[1] for name in files} <= {*ORIGINAL_EVENTS}


def options_of(name: str) -> set[str]:
    command = program.get_command(click.Context(program), name)
    assert command is not None
    return {flag for one in command.params for flag in one.opts}


@pytest.mark.parametrize("row", rows(section(page(PAGE), "## Commands and options")), ids=lambda row: row[0][:40])
def test_every_option_that_is_named_is_there(row: list[str]) -> None:
    given, here = row
    of_commands = ("log",) if given.startswith("`log") or "perstack log" in here else ("run", "start")
    wanted = given if here.startswith("the same") else re.sub(r"without [^:]*|The original.*", "", here)
    named = {
        flag for text in re.findall(r"`([^`]*)`", wanted) for flag in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text)
    }
    assert named <= {flag for name in of_commands for flag in options_of(name)}


def test_every_call_that_is_named_is_there() -> None:
    named = re.findall(r"`perstack\.([\w.]+)`", section(page(PAGE), "## From code"))
    assert len(named) >= 6
    for name in named:
        found: object = perstack
        for part in name.split("."):
            found = getattr(found, part)


def test_the_tools_with_which_an_expert_changes_itself_are_named_as_they_are_offered() -> None:
    part = section(page(PAGE), "## Your files")
    assert {f"`{name}`" for name in CHANGING_TOOLS} <= set(re.findall(r"`\w+`", part))
    described = rows(section(page("docs/base-skill.md"), "## Changing its own skills and delegates"))
    base = McpStdioSkill(name=BASE_SKILL, pick=CHANGING_TOOLS)
    assert [(spec.name, arguments(spec)) for spec in changing_specs(base)] == [
        (name.strip("`"), argument_names) for name, argument_names, _ in described
    ]


def arguments(spec: ToolSpec) -> str:
    """The arguments of a tool as the page lists them."""
    properties, required = spec.input_schema["properties"], spec.input_schema["required"]
    assert isinstance(properties, dict)
    assert isinstance(required, list)
    names = sorted(properties, key=lambda name: required.index(name) if name in required else len(required))
    return ", ".join(f"`{name}`" + ("" if name in required else "?") for name in names)
