"""Pages that a reader follows are followed here, command by command, on a model that plays a script."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest
from page_walk import Walk
from pages import ROOT, page

from perstack.trust.definition_files import load_project

HOW_TO = page("docs/how-to.md")
TASKS = re.findall(r"^## (.+)$", HOW_TO, re.M)
ELSEWHERE = ("Choose provider and model",)
"""What has to reach an endpoint: tests/docs/test_readme.py."""

PARTS = dict(zip(TASKS, re.split(r"^## .+\n", HOW_TO, flags=re.M)[1:], strict=True))
HAIKU = "snow falls\non the log\nand stays"
SCRIPT = {
    "census": [{"text": '{"city": "Lyon", "people": 520000}'}],
    "reviewer": [{"tools": [{"name": "readTextFile", "input": {"path": "notes.txt"}}]}, {"text": "No mistakes."}],
    "lead": [
        {"tools": [{"name": "writer", "input": {"query": one}} for one in ("the pond", "the frog")]},
        {"text": "A pond. A frog."},
    ],
    "writer": [{"text": "Still water."}],
    "clerk": [{"tools": [{"name": "in_stock", "input": {"article": "A-7"}}]}, {"text": "Twelve."}],
    "clock": [
        {"tools": [{"name": "get_current_time", "input": {"timezone": "Europe/Lisbon"}}]},
        {"text": "A quarter past nine."},
    ],
    "planner": [
        {"tools": [{"name": "todo", "input": {"newTodos": ["trains"]}}]},
        *({"text": "Planned."} for _ in "ab"),
    ],
    "guide": [
        {"tools": [{"name": "askUser", "input": {"question": "Which sea?"}}]},
        {"text": "Two days in Camogli.", "usage": {"inputTokens": 100, "outputTokens": 10}},
    ],
    "poet": [{"text": HAIKU}],
    "filer": [{"text": "Once more."}],
    "release-notes": [
        {"tools": [{"name": "exec", "input": {"command": "git", "args": ["log"]}}]},
        {"text": "Written."},
    ],
}


def reader(folder: Path) -> Walk:
    """Somebody in an empty folder, with a model that plays `SCRIPT`."""
    (folder / "empty").mkdir()
    script = folder / "script.json"
    script.write_text(json.dumps({"experts": {key: {"turns": turns, "repeat": True} for key, turns in SCRIPT.items()}}))
    return Walk(
        folder / "empty",
        {"HOME": str(folder / "home"), "PERSTACK_PLUGINS": "perstack.testing.plugin", "PERSTACK_SCRIPT": str(script)},
    )


@pytest.mark.timeout(400)  # fifteen commands, each of which may take as long as `run_line` lets it
def test_the_first_steps_lead_from_an_empty_folder_to_a_proof(tmp_path: Path) -> None:
    newcomer = Walk(tmp_path / "empty", {"HOME": str(tmp_path / "home")}, new=True)
    newcomer.folder.mkdir()
    newcomer.follow(page("docs/first-steps.md"))
    assert "2026-02-30" in (newcomer.folder / "demo" / "report.md").read_text()
    assert len(newcomer.lines) >= 15


@pytest.mark.parametrize("task", [task for task in TASKS if task not in ELSEWHERE])
def test_a_how_to_works_from_an_empty_folder(task: str, tmp_path: Path) -> None:
    walk = reader(tmp_path)
    (walk.folder / "notes.txt").write_text("All is well.\n")
    walk.follow(PARTS[task])
    assert any(line.startswith(("perstack run ", "perstack iterate ", "python ")) for line in walk.lines)


@pytest.mark.skipif(not (shutil.which("jq") and shutil.which("sqlite3")), reason="needs jq and sqlite3")
def test_the_commands_of_operations_run_beside_jobs_of_every_kind(tmp_path: Path) -> None:
    walk = reader(tmp_path)
    (walk.folder / "perstack.toml").write_text('[experts.writer]\ninstruction = "Write."\n')
    walk.run('perstack run writer "A line" --quiet')
    walk.run('perstack run writer "A line" --quiet --max-steps 1')
    walk.follow(page("docs/operations.md"))
    assert len(walk.lines) >= 15


def test_files_and_jobs_of_the_original_are_used_as_the_page_says(tmp_path: Path) -> None:
    walk = reader(tmp_path)
    shutil.copytree(ROOT / "tests" / "golden" / "b_files" / "perstack", walk.folder / "perstack")
    walk.env = {**walk.env, "ANTHROPIC_API_KEY": ""}
    text = page("docs/from-perstack.md").replace("--quiet", "--quiet --provider scripted")
    walk.follow(text)
    assert walk.lines[-1].startswith("perstack run filer")


def test_what_an_agent_of_the_terminal_does_is_an_expert(tmp_path: Path) -> None:
    walk = reader(tmp_path)
    walk.follow(page("docs/from-agent-cli.md"))
    assert "exec" in walk.said


@pytest.mark.parametrize(
    "name", ["how-to", "operations", "concepts", "from-perstack", "from-langgraph", "from-agent-cli"]
)
def test_every_definition_that_is_shown_loads(name: str, tmp_path: Path) -> None:
    for shown in re.findall(r"^```toml[^\n]*\n(.*?)^```$", page(f"docs/{name}.md"), re.M | re.S):
        rest = "" if "experts" in tomllib.loads(shown) else '[experts.any]\ninstruction = "x"\n'
        (tmp_path / "perstack.toml").write_text(shown + rest)
        assert load_project(tmp_path / "perstack.toml").warnings == ()
