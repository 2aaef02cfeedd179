"""What is imported is declared in pyproject.toml, and what is declared is imported."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import entry_points, packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
FOLDERS = [ROOT / "host" / "perstack", *sorted(path for path in (ROOT / "plugins").iterdir() if path.is_dir())]
OURS = {path.name for path in FOLDERS}

EXTRAS = {
    "host/perstack/doors/acp": "acp",
    "host/perstack/doors/tui": "start",
    "host/perstack/doors/http": "workers",
    "host/perstack/testing": "testing",
    "plugins/perstack_bedrock": "bedrock",
    "plugins/perstack_bubblewrap": "sandbox",
    "plugins/perstack_postgres": "postgres",
    "plugins/perstack_procrastinate": "workers",
    "plugins/perstack_s3": "s3",
    "plugins/perstack_temporal": "temporal",
    "plugins/perstack_vertex": "vertex",
    "plugins/perstack_local": "local",
}
"""Where something may be imported that only an extra installs."""

BY_NAME = {"xllamacpp", "google-re2", "tree-sitter", "tree-sitter-bash"}
"""Imported by a name that is not in an import statement."""


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(lines: list[str]) -> set[str]:
    return {_plain(re.split(r"[\[<>=!~; ]", line, maxsplit=1)[0]) for line in lines}


BASE = declared(PROJECT["dependencies"])
OF_EXTRA = {name: declared(lines) for name, lines in PROJECT["optional-dependencies"].items()}
PROVIDED = {module: {_plain(one) for one in names} for module, names in packages_distributions().items()}


def imported(path: Path) -> Iterator[str]:
    """Top-level names of what others wrote."""
    for node in ast.walk(ast.parse(path.read_text())):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules = [node.module or ""]
        for module in modules:
            top = module.partition(".")[0]
            if top not in sys.stdlib_module_names and top not in OURS:
                yield top


def allowed(path: Path) -> set[str]:
    where = path.relative_to(ROOT).as_posix()
    return BASE.union(*(OF_EXTRA[extra] for folder, extra in EXTRAS.items() if where.startswith(folder + "/")))


def test_every_third_party_import_is_of_a_distribution_that_is_declared() -> None:
    missing = {
        (path.relative_to(ROOT).as_posix(), module)
        for folder in FOLDERS
        for path in folder.rglob("*.py")
        for module in imported(path)
        if not PROVIDED.get(module, set()) & allowed(path)
    }
    assert missing == set()


def test_every_distribution_that_is_declared_is_imported() -> None:
    used = {
        name
        for folder in FOLDERS
        for path in folder.rglob("*.py")
        for module in imported(path)
        for name in PROVIDED.get(module, set())
    }
    assert BASE.union(*OF_EXTRA.values()) - used == BY_NAME


def test_every_package_is_in_the_wheel_and_under_the_checks() -> None:
    tools = PYPROJECT["tool"]
    assert {ROOT / name for name in tools["hatch"]["build"]["targets"]["wheel"]["packages"]} == set(FOLDERS)
    assert set(tools["mypy"]["packages"]) == set(tools["importlinter"]["root_packages"]) == OURS
    rules = {rule["name"]: rule for rule in tools["importlinter"]["contracts"]}
    below = rules["Plugins know the ports, the core and the errors, and nothing above"]["source_modules"]
    unnamed = rules["The host names no plugin: they come through entry points"]["forbidden_modules"]
    assert set(below) == set(unnamed) == OURS - {"perstack"}


def test_the_plugins_that_are_declared_are_those_that_are_installed() -> None:
    installed = {point.name: point.value for point in entry_points(group="perstack") if point.dist is not None}
    plugins = PROJECT["entry-points"]["perstack"]
    assert {name: installed.get(name) for name in plugins} == plugins, "pyproject.toml has changed: `make install`"


@pytest.mark.parametrize("name", ["mcp", "prices"])
def test_the_names_of_extras_that_became_part_of_perstack_stay_and_ask_for_nothing(name: str) -> None:
    assert PROJECT["optional-dependencies"][name] == []
