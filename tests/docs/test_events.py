"""docs/events.md: every event with its fields as the models have them, and examples that run."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from pages import fenced, first_cells, keep_part, page, rows, run_line, section
from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from perstack.core.base.ids import By
from perstack.core.base.usage import Charge, Usage
from perstack.core.definitions.expert_changes import ExpertChange
from perstack.core.definitions.instruction import AgentsMdFile
from perstack.core.definitions.permissions import RuleSet, Widening
from perstack.core.definitions.project import SnapshotPolicy
from perstack.core.definitions.sandbox import SandboxPolicy
from perstack.core.definitions.settings import Budget, ContextPolicy, Limits, options
from perstack.core.definitions.skills import DecidedCall, Effect, ToolKind
from perstack.core.messages.adaptations import Adaptation
from perstack.core.messages.messages import (
    BlobPart,
    FinishReason,
    ProviderToolPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from perstack.core.runs.display_events import DisplayEvent
from perstack.core.runs.events import StoredEvent, TransientEvent
from perstack.core.runs.events.files import NotRecorded
from perstack.core.runs.events.lifecycle import ResumeReason
from perstack.core.runs.facts import (
    Answer,
    ContinuedFrom,
    Definition,
    DelegatedBy,
    DelegateHead,
    DelegateReport,
    Delegation,
    ErrorInfo,
    Question,
    RunEvent,
    Settlement,
    ShrunkResult,
    Todo,
)

PAGE = page("docs/events.md")
STORED = {event.model_fields["type"].default: event for event in get_args(StoredEvent)}
SHOWN = {event.model_fields["type"].default: event for event in get_args(TransientEvent)}
OBJECTS = {
    "usage": Usage,
    "error": ErrorInfo,
    "adaptation": Adaptation,
    "limits": Limits,
    "contextPolicy": ContextPolicy,
    "shrunkResult": ShrunkResult,
    "snapshotPolicy": SnapshotPolicy,
    "notRecorded": NotRecorded,
    "sandbox": SandboxPolicy,
    "budget": Budget,
    "charge": Charge,
    "definition": Definition,
    "agentsMdFile": AgentsMdFile,
    "delegatedBy": DelegatedBy,
    "continuedFrom": ContinuedFrom,
    "delegation": Delegation,
    "delegateHead": DelegateHead,
    "delegateReport": DelegateReport,
    "expertChange": ExpertChange,
    "decidedCall": DecidedCall,
    "ruleSet": RuleSet,
    "widening": Widening,
    "todo": Todo,
    "question": Question,
    "answer": Answer,
    "by": By,
}
PARTS = {
    part.model_fields["type"].default: part
    for part in (TextPart, ThinkingPart, ToolCallPart, ProviderToolPart, BlobPart)
}


def _fields(model: type[BaseModel], besides: type[BaseModel] = BaseModel) -> list[str]:
    """A model's JSON fields, with `?` after one that can be left out."""
    common = {*besides.model_fields, "type"}
    return [
        f"{field.serialization_alias or field.alias or name}{'?' if _may_be_left_out(field) else ''}"
        for name, field in model.model_fields.items()
        if name not in common and field.exclude is not True
    ]


def _may_be_left_out(field) -> bool:
    return field.exclude_if is not None or (not field.is_required() and field.default is None)


def _headings(name: str) -> list[str]:
    return re.findall(r"^### (\w+)$", section(PAGE, name), re.M)


def _written(name: str) -> str:
    """The part of the page about an event; of an event that it lacks, the texts of the class."""
    event, printed = STORED[name], section(PAGE, "## Stored events")
    if f"### {name}\n" in printed:
        return f"### {name}\n{section(printed, f'### {name}')}"
    source = inspect.getsource(event)
    meanings = {to_camel(field): words for field, words in re.findall(r"^    (\w+): .*?  # (.+)$", source, re.M)}
    cells = [f"| `{field}` | {meanings.get(field.rstrip('?'), '')} |\n" for field in _fields(event, RunEvent)]
    table = "".join(["| field | meaning |\n| --- | --- |\n", *cells, "\n"]) if cells else ""
    return f"### {name}\n\n{(event.__doc__ or '').splitlines()[0]}\n\n{table}"


def test_every_stored_event_has_its_part_of_the_page_in_the_order_of_the_union() -> None:
    """`PERSTACK_KEEP_SCREENS=1` writes the part of a new event, from the comments of its class."""
    printed = section(PAGE, "## Stored events")
    wanted = "\n" + "".join(_written(name) for name in STORED)
    assert keep_part("docs/events.md", printed, wanted) == wanted


@pytest.mark.parametrize("name", STORED)
def test_an_events_fields_are_those_of_its_model(name: str) -> None:
    assert first_cells(section(PAGE, f"### {name}")) == _fields(STORED[name], RunEvent)


def test_the_common_fields_are_those_of_a_run_event() -> None:
    assert first_cells(section(PAGE, "## What every event has")) == ["type", *_fields(RunEvent), "step"]


def test_the_settings_that_a_start_names_are_those_that_resuming_repeats() -> None:
    (row,) = [line for line in PAGE.splitlines() if line.startswith("| `overrides?` |")]
    names = ", ".join(f"`{to_camel(name)}`" for name, option in options().items() if option.is_repeated)
    wanted = f"{row.partition(': ')[0]}: {names} |"
    assert keep_part("docs/events.md", row, wanted) == wanted


def test_the_events_that_are_only_shown_have_these_fields() -> None:
    table = {
        row[0].strip("`"): row[1].replace("`", "").split(", ")
        for row in rows(section(PAGE, "## Events that are only shown"))
    }
    assert table == {name: _fields(event, DisplayEvent) for name, event in SHOWN.items()}


def test_the_objects_within_events_have_the_fields_of_their_models() -> None:
    assert _headings("## Objects within events") == [*OBJECTS, "parts"]
    for name, model in OBJECTS.items():
        assert first_cells(section(PAGE, f"### {name}")) == _fields(model)
    table = {row[0].strip("`"): row[1].replace("`", "").split(", ") for row in rows(section(PAGE, "### parts"))}
    assert table == {name: _fields(part) for name, part in PARTS.items()}


def test_the_words_that_a_field_may_hold_are_all_named() -> None:
    for heading, field, words in (
        ("### resumeRun", "reason", get_args(ResumeReason)),
        ("### resumeRun", "settled?", get_args(Settlement)),
        ("### finishGeneration", "finishReason", get_args(FinishReason)),
        ("### decidedCall", "kind?", get_args(ToolKind)),
        ("### decidedCall", "effect?", get_args(Effect)),
    ):
        (row,) = [row for row in rows(section(PAGE, heading)) if row[0] == f"`{field}`"]
        assert {f"`{word}`" for word in words} <= set(re.findall(r"`[a-zA-Z]+`", row[1]))


def test_every_link_within_the_page_has_its_heading() -> None:
    headings = {heading.lower().replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", PAGE, re.M)}
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= headings


SCRIPTED = {"PERSTACK_PLUGINS": "perstack.testing.plugin", "PERSTACK_SCRIPT": "script.json"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one Job in it: a call, a result, and an end."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "perstack.toml").write_text('[experts.keeper]\ninstruction = "Keep a list."\n')
    turns = [
        {"tools": [{"name": "todo", "input": {"newTodos": ["a"]}}], "usage": {"inputTokens": 10, "outputTokens": 2}},
        {"text": "Kept.", "usage": {"inputTokens": 20, "outputTokens": 3}},
    ]
    (folder / "script.json").write_text(json.dumps({"experts": {"*": {"turns": turns}}}))
    done = run_line("perstack run keeper go --provider scripted --job-id one", folder, SCRIPTED)
    assert done.returncode == 0, done.stderr
    return folder


def _checked(program: str, log: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, str(log)], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_program_for_the_chain_takes_a_true_log_and_no_other(folder: Path, tmp_path: Path) -> None:
    (program,) = fenced(section(PAGE, "## The chain"), "python")
    lines = (folder / "perstack/jobs/one/runs/one-1/events.jsonl").read_bytes().splitlines(keepends=True)
    copy = tmp_path / "events.jsonl"
    copy.write_bytes(b"".join(lines))
    done = _checked(program, copy)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(lines[-1])["hash"] in done.stdout
    for wrong in (
        [lines[0], lines[1].replace(b'"step":1', b'"step":2'), *lines[2:]],
        [lines[0], *lines[2:]],
        [lines[1], lines[0], *lines[2:]],
        [*lines[:-1], lines[-1][:-40]],
    ):
        copy.write_bytes(b"".join(wrong))
        assert _checked(program, copy).returncode == 1


def test_the_program_for_requests_takes_a_true_log_and_no_other(tmp_path: Path) -> None:
    def use(name: str, **args: object) -> dict[str, object]:
        return {"name": name, "input": args}

    turns = [
        {
            "text": "Ä\u2028",
            "thinking": "hm",
            "tools": [use("todo", newTodos=["a"]), use("nosuch", x=[1e-7, 1e16, None])],
        },
        {"tools": [use("attemptCompletion")]},
        {"tools": [use("todo", completedTodos=[0]), use("readTextFile", path="perstack.toml")]},
        {"tools": [use("helper", query="q")]},
        {"tools": [use("think", thought="x"), use("attemptCompletion")]},
        {"text": "Kept."},
        {"text": '{"kept": true}'},
    ]
    (tmp_path / "perstack.toml").write_text(
        '[experts.keeper]\ninstruction = "Keep a list."\noutput = \'{"required": ["kept"]}\'\ndelegates = ["helper"]\n'
        '[experts.helper]\ninstruction = "Help."\n'
    )
    experts = {"helper": {"turns": [{"text": "Helped."}]}, "keeper": {"turns": turns}}
    (tmp_path / "script.json").write_text(json.dumps({"experts": experts}))
    line = "perstack run keeper go --provider scripted --job-id one --reasoning-budget high"
    done = run_line(line, tmp_path, SCRIPTED)
    assert done.returncode == 0, done.stderr
    (program,) = fenced(section(PAGE, "## What a model was sent"), "python")
    log = tmp_path / "perstack/jobs/one/runs/one-1/events.jsonl"
    done = _checked(program, log)
    assert (done.stdout, done.stderr) == ("7 requests are as the log tells\n", "")
    (blob,) = (one for one in (tmp_path / "perstack/jobs/one/blobs").iterdir() if one.name in log.read_text())
    assert f'"toolsDigest":"v1:{blob.name}"' in log.read_text()
    assert "readTextFile" in [tool["name"] for tool in json.loads(blob.read_bytes())]
    whole = log.read_bytes()
    for old, new in ((b"Keep a list", b"Keep a cat"), (b'"query":"go"', b'"query":"no"'), (b'"hm"', b'"ho"')):
        assert old in whole
        log.write_bytes(whole.replace(old, new))
        assert "the model was sent something else" in _checked(program, log).stderr


@pytest.mark.skipif(shutil.which("jq") is None, reason="the one-liners need jq, which is not installed")
def test_the_one_liners_find_what_they_say(folder: Path) -> None:
    (block,) = fenced(section(PAGE, "## One-liners"), "sh")
    found = []
    for line in block.splitlines():
        done = run_line(line, folder)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        found.append(done.stdout.strip())
    result, cost, calls, failed, total = found
    assert result == "Kept."
    assert [json.loads(one)["usage"]["totalTokens"] for one in cost.splitlines()] == [12, 23]
    assert json.loads(calls) == ["todo", {"newTodos": ["a"]}]
    assert failed == ""
    assert total == "35"
