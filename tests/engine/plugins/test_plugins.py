"""Discovery and checks of plugins."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace

import pytest

from perstack.engine.plugins.registry import load_plugins
from perstack.errors import PluginError, UsageError
from perstack.ports.hooks import PLUGIN_API, hookimpl
from perstack.system.plugin_modules import installed_modules

PLUGINS = Path(__file__).parents[3] / "plugins"


def test_the_built_ins_come_through_entry_points() -> None:
    plugins = load_plugins()
    assert {"file", "sqlite"} <= set(plugins.storages)
    assert {"anthropic", "openai", "local"} <= set(plugins.providers)
    assert "@perstack/base" in {factory.name for factory in plugins.skills}


def test_a_plugin_that_is_installed_and_named_besides_counts_once() -> None:
    plugins = load_plugins(env={"PERSTACK_PLUGINS": "perstack_sqlite.plugin"})
    assert [info.name for info in plugins.infos].count("sqlite") == 1


def test_two_plugins_that_bring_the_same_name_are_refused() -> None:
    class Rival:
        @hookimpl
        def perstack_providers(self):
            return [SimpleNamespace(name="anthropic", priority=1)]

    with pytest.raises(PluginError, match="two plugins provide the provider 'anthropic'"):
        load_plugins([Rival()])


def test_every_plugin_of_this_package_declares_the_plugin_api_of_this_host() -> None:
    for name in (path.parent.name for path in PLUGINS.glob("perstack_*/plugin.py")):
        assert import_module(f"{name}.plugin").PLUGIN_API == PLUGIN_API == 1


def test_a_plugin_of_another_plugin_api_is_refused_in_one_line_that_says_what_to_change(tmp_path, monkeypatch) -> None:
    line = r"^plugin later of later is written for plugin API 2, but the host has 1: install .*$"
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "later.py").write_text("PLUGIN_API = 2\n")
    with pytest.raises(PluginError, match=line):
        load_plugins(env={"PERSTACK_PLUGINS": "later"})
    with pytest.raises(PluginError, match="plugin SimpleNamespace of given in Python is written for plugin API 0"):
        load_plugins([SimpleNamespace(PLUGIN_API=0)])


def test_an_installed_plugin_of_another_plugin_api_is_left_out_with_a_notice(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "later.py").write_text("PLUGIN_API = 2\n")
    info = tmp_path / "later-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: later\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[perstack]\nlater = later\n")
    (left_out,) = [info for info in load_plugins().infos if info.name == "later"]
    assert left_out.error is not None
    assert "written for plugin API 2" in left_out.error
    assert "plugin later of later was skipped" in capsys.readouterr().err


def test_of_packages_with_one_name_the_first_on_the_path_counts_whatever_it_declares(tmp_path, monkeypatch) -> None:
    def install(folder: str, name: str, version: str, declared: str) -> None:
        info = tmp_path / folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nName: none\n")
        (info / "entry_points.txt").write_text(declared)

    install("first", "hidden-one", "2", "[console_scripts]\nother = other\n")
    install("second", "hidden_one", "1", "[perstack]\nhidden = hidden\n")
    install("second", "twice", "1", "[perstack]\nnear = near\n")
    install("third", "Twice", "3", "[perstack]\nfar = far\n")
    for folder in ("third", "second", "second", "first"):
        monkeypatch.syspath_prepend(tmp_path / folder)
    found = {point.name: (package, version) for point, package, version in installed_modules("perstack")}
    assert {"near": ("twice", "1")}.items() <= found.items()
    assert not {"hidden", "far"} & found.keys()
    points = sorted((point.name, point.value) for point, _, _ in installed_modules("perstack"))
    assert points == sorted((point.name, point.value) for point in entry_points(group="perstack"))


def test_a_misspelt_hook_is_refused() -> None:
    class Misspelt:
        @hookimpl
        def perstack_storage(self):
            return []

    with pytest.raises(PluginError, match="hook that does not exist"):
        load_plugins([Misspelt()])


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match=r"PERSTACK_PLUGINS: .*nowhere"):
        load_plugins(env={"PERSTACK_PLUGINS": "nowhere.at.all"})


@pytest.mark.parametrize("body", ["1 / 0", "import sys; sys.exit(3)", "not Python", "import nowhere"])
def test_a_named_module_that_cannot_be_imported_is_one_line_that_names_it(tmp_path, monkeypatch, body) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_plugin.py").write_text(body)
    with pytest.raises(UsageError, match=r"^PERSTACK_PLUGINS: broken_plugin cannot be imported \(.*\); .*$"):
        load_plugins(env={"PERSTACK_PLUGINS": "broken_plugin"})


@pytest.mark.parametrize("name", [".relative", "..", "a..b"])
def test_a_name_that_is_no_module_is_named(name) -> None:
    with pytest.raises(UsageError, match="PERSTACK_PLUGINS: "):
        load_plugins(env={"PERSTACK_PLUGINS": name})


def test_a_hook_that_raises_is_named_with_its_plugin() -> None:
    class Raising:
        @hookimpl
        def perstack_listeners(self):
            raise KeyError("x")

    with pytest.raises(PluginError, match=r"plugin Raising .*: its hook perstack_listeners raised KeyError"):
        load_plugins([Raising()])
