"""Every command of the README runs, in a fresh folder, in its order, and its figures are those of the pages.

The model plays a script, so that no key is needed; the lines with `--provider` talk to an endpoint on this machine.
Lines that begin with `make` are not run: it is only checked that the Makefile has the target.
"""

from __future__ import annotations

import asyncio
import html
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pages import ROOT, commands, fenced, page, run_line, section

from perstack.config.resolved_settings import resolve_settings
from perstack.definition_files import load_project
from perstack.testing.fake_endpoint import FakeEndpoint, PreparedReply, events

PAGE = page("README.md")
BEGINNING = PAGE[: PAGE.index("\n## ")]
EXPERTS, *_ = fenced(PAGE, "toml")
HOW_TO, CONCEPTS = page("docs/how-to.md"), page("docs/concepts.md")
PLAN = {"path": "plan.md", "text": "By train."}

PLANNING = {
    "planner": [
        {"tools": [{"name": "writer", "input": {"query": "Write the plan to plan.md: by train."}}]},
        {"text": "The plan is in plan.md."},
    ],
    "writer": [{"tools": [{"name": "writeTextFile", "input": PLAN}]}, {"text": "Written."}],
}
GOING_ON = {
    "planner": [{"tools": [{"name": "todo", "input": {"newTodos": ["trains"]}}]}, *({"text": "Planned."} for _ in "ab")]
}

ANTHROPIC = PreparedReply(
    events(
        '{"type":"message_start","message":{"usage":{"input_tokens":7,"output_tokens":1}}}',
        '{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}',
        '{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Lines"}}',
        '{"type":"content_block_stop","index":0}',
        '{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":3}}',
        '{"type":"message_stop"}',
    )
)
OPENAI = PreparedReply(
    events(
        '{"choices":[{"index":0,"delta":{"content":"Lines"}}]}',
        '{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}',
        '{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}',
        "[DONE]",
    )
)


def _filled(folder: Path) -> Path:
    (folder / "perstack.toml").write_text(EXPERTS)
    (folder / ".venv").symlink_to(sys.prefix)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return _filled(tmp_path)


@pytest.fixture(scope="module")
def first_screen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder in which the first screen was followed, and what its commands said."""
    folder = _filled(tmp_path_factory.mktemp("begun"))
    return folder, _run(BEGINNING, folder, _scripted(folder, PLANNING))


def _scripted(folder: Path, experts: dict[str, list[dict[str, object]]]) -> dict[str, str]:
    script = {"experts": {name: {"turns": turns} for name, turns in experts.items()}}
    (folder / "script.json").write_text(json.dumps(script))
    return {"PERSTACK_PLUGINS": "perstack.testing.plugin", "PERSTACK_SCRIPT": "script.json"}


def _run(text: str, folder: Path, env: dict[str, str]) -> list[str]:
    """Run the commands of a part of the page; each ends with the status that its comment says, or 0."""
    outputs: list[str] = []
    for line in commands(text):
        if line.startswith("make "):
            continue
        told = re.search(r"exit status (\d+)", line)
        done = run_line(line, folder, env)
        assert done.returncode == (int(told[1]) if told else 0), f"{line}\n{done.stdout}\n{done.stderr}"
        outputs.append(done.stdout)
    return outputs


def test_the_first_screen_runs_and_writes_the_file(first_screen: tuple[Path, list[str]]) -> None:
    folder, (*_, verified) = first_screen
    assert (folder / "plan.md").read_text() == "By train."
    assert "Job trip: " in verified


def test_a_function_of_the_page_is_a_tool(folder: Path) -> None:
    part = section(PAGE, "## A tool of your own")
    (code,), (clerk,) = fenced(part, "python"), fenced(part, "toml")
    (folder / "orders.py").write_text(code)
    (folder / "perstack.toml").write_text(EXPERTS + clerk)
    turns = [{"tools": [{"name": "find_order", "input": {"number": "7"}}]}, {"text": "It is shipped."}]
    env = {**_scripted(folder, {"clerk": turns}), "XDG_STATE_HOME": str(folder / "state")}
    trust, tools, run = commands(part)
    assert run_line(f"{trust.partition(' #')[0]} --yes", folder, env).returncode == 0
    assert "find_order" in run_line(tools, folder, env).stdout
    assert run_line(run, folder, env).returncode == 0
    assert '"state":"shipped"' in run_line("perstack log --tools", folder, env).stdout


def test_the_id_that_is_branched_from_is_that_of_the_first_steps_end(folder: Path) -> None:
    env = _scripted(folder, GOING_ON)
    first, *_, branch = commands(section(HOW_TO, "## Continue, branch and look").partition("`perstack log` shows")[0])
    assert run_line(first, folder, env).returncode == 4
    (step, *_) = run_line("perstack log --run japan-1 --type finishStep --json", folder).stdout.splitlines()
    assert f"--resume-from {json.loads(step)['checkpointId']} " in branch


def test_the_lines_with_a_provider_reach_that_providers_endpoint(folder: Path) -> None:
    async def scenario() -> list[str]:
        async with FakeEndpoint(ANTHROPIC, OPENAI) as endpoint:
            env = {
                "ANTHROPIC_API_KEY": "sk-ant-0123456789",
                "ANTHROPIC_BASE_URL": endpoint.url,
                "OPENAI_API_KEY": "sk-0123456789",
                "OPENAI_BASE_URL": f"{endpoint.url}/v1",
            }
            await asyncio.to_thread(_run, section(HOW_TO, "## Choose provider and model"), folder, env)
            return [f"{asked.path} {json.loads(asked.body)['model']}" for asked in endpoint.asked]

    assert asyncio.run(asyncio.wait_for(scenario(), 60)) == [
        "/v1/messages claude-sonnet-5",
        "/v1/chat/completions gpt-5-mini",
    ]


def test_the_two_lines_choose_provider_and_model(folder: Path) -> None:
    (lines,) = fenced(section(HOW_TO, "## Choose provider and model"), "toml")
    assert len(lines.splitlines()) == 2
    (folder / "perstack.toml").write_text(lines + EXPERTS)
    loaded = load_project(folder / "perstack.toml")
    settings = resolve_settings(loaded.project, loaded.project.experts["planner"])
    assert loaded.warnings == ()
    assert settings.provider is not None
    named = [model.name for candidates in settings.models for model in candidates.models]
    assert (settings.provider.provider_name, named) == ("anthropic", ["claude-sonnet-5"])


def test_the_experts_take_ten_lines_and_load_without_a_warning(folder: Path) -> None:
    assert len(EXPERTS.splitlines()) <= 10
    assert load_project(folder / "perstack.toml").warnings == ()


def test_the_first_screen_is_one_screen() -> None:
    assert len(BEGINNING.splitlines()) <= 40


def test_every_make_target_that_is_named_is_there() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", page("Makefile"), re.M))
    named = {line.split()[1] for line in commands(PAGE) if line.startswith("make ")}
    assert named | set(re.findall(r"`make ([a-z-]+)", PAGE)) <= targets
    assert "VENV   := .venv" in page("Makefile")


def test_state_lives_where_the_page_says(first_screen: tuple[Path, list[str]]) -> None:
    folder, _ = first_screen
    (tree,) = fenced(section(CONCEPTS, "## Where state lives"), "text")
    for line in tree.splitlines():
        assert list(folder.glob(re.sub(r"\{\w+\}", "*", line.split()[0]))), line


def test_the_line_for_sqlite_keeps_jobs_in_that_file(folder: Path) -> None:
    line = re.search(r'`(storage = "[^"]+")`', CONCEPTS)
    assert line is not None
    (folder / "perstack.toml").write_text(f"{line[1]}\n{EXPERTS}")
    assert run_line("perstack run planner go", folder, _scripted(folder, PLANNING)).returncode == 0
    assert (folder / tomllib.loads(line[1])["storage"].partition(":")[2]).is_file()
    assert not (folder / "perstack" / "jobs").exists()


def test_the_demos_success_rate_has_its_place() -> None:
    assert "<!-- demo-figures -->" in BEGINNING


def test_every_figure_is_that_of_the_page_it_comes_from() -> None:
    reliability, speed, security = (page(f"docs/{name}.md") for name in ("reliability", "speed", "security"))
    kills = sum(
        _numbers(
            reliability, r"(\d+) kills on files, (\d+) on SQLite", r"(\d+) kills: clean", r"(\d+) kills in \d+ Jobs"
        )
    )
    errors = sum(
        _numbers(
            reliability, r"EIO at.*?(\d+) errors on files, (\d+) on", r"ENOSPC at.*?(\d+) errors on files, (\d+) on"
        )
    )
    why = section(PAGE, "## Why")
    assert f"{kills} kills" in why
    assert f"{errors} errors" in why
    (damages,) = re.findall(r"files damaged ([\d,]+) times and SQLite databases ([\d,]+) times", why)
    for figure in damages:
        assert figure in reliability
    for figure in re.findall(r"\d\.\d+", section(PAGE, "## Why").partition("Cheap")[2].partition("make bench")[0]):
        assert figure in speed
    for figure in re.findall(r"([\d,]+) KB", why):
        assert re.search(rf"/ {figure} \|", section(speed, "## Comparison"))
    (inside,) = re.findall(r"(\d+) of them from inside", why)
    assert re.search(rf"^\| from inside a sandbox.*\| {inside} \|", security, re.M)


def _numbers(text: str, *patterns: str) -> list[int]:
    found = [re.search(pattern, text) for pattern in patterns]
    return [int(number) for match in found if match for number in match.groups()]


def _said_by(picture: str) -> list[str]:
    """The lines of a picture, with what differs from run to run put alike."""
    lines: dict[str, str] = {}
    for y, text in re.findall(r'<text [^>]*y="([\d.]+)"[^>]*clip-path[^>]*>(.*?)</text>', picture, re.S):
        lines[y] = lines.get(y, "") + html.unescape(text).replace("\xa0", " ")
    # A call that takes less than a millisecond is shown without its time.
    timeless = (re.sub(r" \(\d[\d.]* m?s\)", "", line) for line in lines.values())
    alike = (re.sub(r"\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d|\d[\d.]* m?s\b", "T", line) for line in timeless)
    return [re.sub(r"(exec: .*?)…", r"\1", line)[:60].rstrip() for line in alike]


def test_the_picture_is_what_its_script_makes_and_loads_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "docs" / "pictures" / "make.py"), str(tmp_path / "run.svg")]
    subprocess.run(command, check=True, timeout=100)
    kept = page("docs/pictures/run.svg")
    assert _said_by((tmp_path / "run.svg").read_text()) == _said_by(kept)
    assert len(_said_by(kept)) > 20
    assert "approve?" in "".join(_said_by(kept))
    assert re.findall(r"url\((?!#)|href=|<image|<script", kept) == []
