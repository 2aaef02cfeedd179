"""Plugins, found and checked."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from perstack.engine.plugins.registry import load_plugins
from perstack.errors import PluginError, UsageError
from perstack.ports.hooks import hookimpl


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

    with pytest.raises(PluginError, match="two plugins bring the provider 'anthropic'"):
        load_plugins([Rival()])


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
