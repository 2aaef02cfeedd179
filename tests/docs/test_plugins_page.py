"""docs/plugins.md: each hook as it is specified, and each example run as a plugin that is installed."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pages import fenced, page, run_line, section

from perstack.ports import hooks
from perstack.ports.commands import GROUP, PluginDocument

PAGE = page("docs/plugins.md")
SPECS = {name: spec for name, spec in vars(hooks).items() if name.startswith("perstack_")}
COMMANDS = "perstack_commands"  # the hook that is no plugin of pluggy, with an example of its own
(DOOR,) = re.findall(r"^`my_door\.py`:\n\n```python\n(.*?)^```$", PAGE, re.M | re.S)
MODULES = dict(re.findall(r"^`(perstack_\w+)\.py`:\n\n```python\n(.*?)^```$", PAGE, re.M | re.S))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder where each example is installed: a module, and the metadata that pip would put beside it."""
    for name, source in MODULES.items():
        (tmp_path / f"{name}.py").write_text(source)
        short = name.removeprefix("perstack_")
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: perstack-{short}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[perstack]\n{short} = {name}\n")
    (player,) = [block for block in fenced(PAGE, "toml") if "experts" in block]
    (tmp_path / "perstack.toml").write_text(player)
    return tmp_path


def _perstack(folder: Path, arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run_line(f"perstack {arguments}", folder, {"PYTHONPATH": str(folder), **env})


def test_every_hook_has_its_heading_signature_and_time() -> None:
    assert set(re.findall(r"^## (perstack_\w+)$", PAGE, re.M)) == set(SPECS)
    for name, spec in SPECS.items():
        part = section(PAGE, f"## {name}")
        (signature,) = fenced(part, "text")
        assert signature == f"def {name}() -> {inspect.signature(spec).return_annotation}\n"
        assert not inspect.signature(spec).parameters
        assert inspect.getdoc(spec) in part.splitlines()


def test_every_hook_has_an_example_that_implements_it_as_specified() -> None:
    assert len(MODULES) == len(SPECS) - 1
    for name, spec in SPECS.items():
        if name == COMMANDS:
            assert f"\ndef {name}() -> {inspect.signature(spec).return_annotation}:" in DOOR
            continue
        (source,) = [one for one in MODULES.values() if f"\ndef {name}(" in one]
        assert f"@hookimpl\ndef {name}() -> {inspect.signature(spec).return_annotation}:" in source


def test_the_examples_import_only_what_a_plugin_may_use() -> None:
    allowed = ("perstack.ports.", "perstack.core.", "perstack.errors", "perstack.testing.")
    for source in MODULES.values():
        imported = [node.module or "" for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
        assert [name for name in imported if name.startswith("perstack") and not name.startswith(allowed)] == []


def test_installed_examples_are_found_through_their_entry_points(folder: Path) -> None:
    done = _perstack(folder, "plugins --json")
    assert done.returncode == 0, done.stderr
    found = {one["name"]: one for one in json.loads(done.stdout)["plugins"]}
    assert found["dice"]["skills"] == ["dice"]
    assert found["echo"]["providers"] == ["echo"]
    assert found["scratch"]["storages"] == ["scratch"]
    assert found["transcript"]["formats"] == ["transcript"]
    assert found["costs"]["listeners"] == 1
    assert {found[name]["package"] for name in ("dice", "echo")} == {"perstack-dice", "perstack-echo"}


def test_the_entry_point_on_the_page_is_what_the_group_reads() -> None:
    (example,) = [block for block in fenced(PAGE, "toml") if "[project]" in block]
    assert tomllib.loads(example)["project"]["entry-points"] == {"perstack": {"dice": "perstack_dice"}}
    assert "perstack_dice" in MODULES


def test_the_provider_the_storage_and_the_listener_work_together(folder: Path) -> None:
    done = _perstack(folder, "run player 'two dice' --provider echo --storage scratch:one")
    assert done.returncode == 0, done.stderr
    (end,) = [event for event in map(json.loads, done.stdout.splitlines()) if event["type"] == "finishRun"]
    assert end["text"] == "TWO DICE"
    assert (folder / "costs.tsv").read_text().split("\t")[1:] == ["player", "16\n"]
    assert not (folder / "perstack").exists()


def test_the_format_writes_a_job_as_its_files(folder: Path) -> None:
    assert _perstack(folder, "run player 'two dice' --provider echo --job-id dice").returncode == 0
    done = _perstack(folder, "export dice --format transcript --to out")
    assert done.returncode == 0, done.stderr
    assert (folder / "out" / "dice" / "transcript.txt").read_text() == "player: TWO DICE"


def test_the_skill_rolls_with_the_settings_of_the_definition(folder: Path) -> None:
    turns = [{"tools": [{"name": "roll", "input": {"count": 50}}]}, {"text": "Rolled."}]
    (folder / "script.json").write_text(json.dumps({"experts": {"*": {"turns": turns}}}))
    env = {"PERSTACK_PLUGINS": "perstack.testing.plugin", "PERSTACK_SCRIPT": "script.json"}
    done = _perstack(folder, "run player 'fifty dice' --provider scripted", **env)
    assert done.returncode == 0, done.stderr
    (result,) = [event for event in map(json.loads, done.stdout.splitlines()) if event["type"] == "finishToolCall"]
    rolled = [int(one) for one in result["contents"][0]["text"].split()]
    assert len(rolled) == 50
    assert max(rolled) <= 20


def test_the_door_lists_jobs_and_is_listed_itself(folder: Path) -> None:
    (folder / "my_door.py").write_text(DOOR)
    assert _perstack(folder, "run player 'two dice' --provider echo --job-id dice").returncode == 0
    (line,) = fenced(section(PAGE, f"## {COMMANDS}"), "sh")
    done = run_line(line.strip(), folder)
    assert (done.returncode, done.stdout) == (0, "Hello, dice: player is completed.\n"), done.stderr
    env = {"PYTHONPATH": str(folder), "PERSTACK_PLUGINS": "my_door"}
    assert "\n  hello        Greet the latest Jobs.\n  log " in _perstack(folder, "--help", **env).stdout
    assert "    perstack hello --take 3\n" in _perstack(folder, "hello --help", **env).stdout
    assert _perstack(folder, "plugins", **env).returncode == 0


def test_the_document_is_a_format_of_export(folder: Path) -> None:
    (source,) = re.findall(r"^`my_documents\.py`:\n\n```python\n(.*?)^```$", PAGE, re.M | re.S)
    (folder / "my_documents.py").write_text(source)
    with (folder / "perstack_dice-1.0.dist-info" / "entry_points.txt").open("a") as file:
        file.write(f"[{GROUP}]\nresult = my_documents\n")
    assert _perstack(folder, "run player 'two dice' --provider echo --job-id dice").returncode == 0
    done = _perstack(folder, "export dice --format result")
    assert (done.returncode, done.stdout) == (0, "TWO DICE"), done.stderr
    assert f"`{PluginDocument.__name__}`" in section(PAGE, "### Documents")


def test_the_door_imports_only_what_is_stable() -> None:
    stable = set(re.findall(r"^\| `(perstack[\w.]*)", section(PAGE, "## The stable surface"), re.M))
    modules = re.findall(r"^from (perstack[\w.]*) import (.*)$", DOOR, re.M)
    assert {module for module, _ in modules} <= stable | {"perstack.ports.commands"}
    for module, names in modules:
        if module.startswith("perstack.doors."):
            (row,) = re.findall(rf"^\| `{module}` \|.*$", PAGE, re.M)
            assert all(f"`{name}`" in row for name in names.split(", "))


def test_the_entry_point_of_a_command_is_in_the_group_that_is_read() -> None:
    (block,) = fenced(section(PAGE, f"## {COMMANDS}").replace("\n  ", "\n"), "toml")
    assert tomllib.loads(block)["project"]["entry-points"] == {GROUP: {"hello": "my_door"}}


def test_a_module_named_in_the_environment_is_a_plugin_too(tmp_path: Path) -> None:
    (tmp_path / "perstack_echo.py").write_text(MODULES["perstack_echo"])
    done = _perstack(tmp_path, "plugins --json", PERSTACK_PLUGINS="perstack_echo")
    assert done.returncode == 0, done.stderr
    assert "echo" in [name for one in json.loads(done.stdout)["plugins"] for name in one["providers"]]


def test_the_tests_on_the_page_pass(folder: Path) -> None:
    tests = ("def test_", "StorageContract", "DispatcherContract")
    blocks = [block for block in fenced(PAGE, "python") if any(one in block for one in tests)]
    names = ["test_scratch.py", "test_near.py", "test_dice.py"]
    for name, block in zip(names, blocks, strict=True):
        (folder / name).write_text(block)
    # A basetemp of its own: otherwise it deletes what earlier whole runs left, which can take minutes.
    options = ("-q", "-p", "no:cacheprovider", f"--basetemp={folder / 'basetemp'}")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *names],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "failed" not in done.stdout
