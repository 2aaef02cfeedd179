"""`perstack plugins`."""

from __future__ import annotations

from pathlib import Path

import pytest
from terminal import Terminal


@pytest.fixture
def broken_package(tmp_path: Path) -> Path:
    """Return a directory for PYTHONPATH with an installed package whose plugin cannot be imported."""
    info = tmp_path / "site" / "broken_one-2.5.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-one\nVersion: 2.5\n")
    (info / "entry_points.txt").write_text("[perstack]\nbroken = broken_one_module\n")
    return tmp_path / "site"


def test_each_plugin_is_listed_with_its_package_and_what_it_brings(terminal: Terminal) -> None:
    result = terminal.run("plugins")
    assert result.code == 0
    rows = {line.split()[0]: line for line in result.lines[1:]}
    assert rows["filesystem"].split() == ["filesystem", "perstack", "0.1.0", "storage", "file"]
    assert rows["base"].split()[3:] == ["skills", "@perstack/base,", "file;", "runtime", "local"]
    assert rows["original"].split()[3:] == ["format", "perstack"]
    assert "provider scripted" in rows["perstack.testing.plugin"]


def test_json_has_the_same(terminal: Terminal) -> None:
    plugins = {plugin["name"]: plugin for plugin in terminal.call("plugins", "--json").events[0]["plugins"]}
    assert plugins["sqlite"]["storages"] == ["sqlite"]
    assert plugins["sqlite"]["package"] == "perstack"
    assert plugins["sqlite"]["error"] is None


def test_a_plugin_that_cannot_be_loaded_is_named_once_with_its_error(terminal: Terminal, broken_package: Path) -> None:
    env = {"PYTHONPATH": str(broken_package)}
    result = terminal.run("plugins", env=env)
    assert result.code == 0
    row = next(line for line in result.lines if line.startswith("broken "))
    assert row.split()[1:3] == ["broken-one", "2.5"]
    assert result.err.count("broken_one_module") == 1
    assert "ModuleNotFoundError" in result.err
    found = {plugin["name"]: plugin for plugin in terminal.run("plugins", "--json", env=env).events[0]["plugins"]}
    assert "broken_one_module" in found["broken"]["error"]


def test_modules_named_in_the_environment_that_do_not_exist_are_wrong_usage(terminal: Terminal) -> None:
    result = terminal.run("plugins", env={"PERSTACK_PLUGINS": "no_such_module"})
    assert result.code == 2
    assert "PERSTACK_PLUGINS" in result.err
