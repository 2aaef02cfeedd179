"""What is imported is declared in a pyproject.toml, and what is declared is imported; all wheels work together."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points, packages_distributions
from pathlib import Path
from typing import Any

import pytest
from environments import link_dependencies
from sources import DISTRIBUTIONS, PACKAGES, ROOT

from perstack.version import VERSION

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
OURS = {path.name for path in PACKAGES}
OF_PLUGINS = {path: tomllib.loads((path / "pyproject.toml").read_text()) for path in DISTRIBUTIONS}
"""pyproject.toml of each plugin that is a distribution of its own, by its folder."""

EXTRAS = {
    "plugins/perstack_acp": "acp",
    "host/perstack/doors/cli/worker_metrics.py": "workers",
    "host/perstack/testing": "testing",
    "plugins/perstack_bubblewrap": "sandbox",
}
"""Where something may be imported that only an extra installs."""

BY_NAME = {"xllamacpp", "google-re2", "python-multipart"}
"""Imported by a name that is not in an import statement, or by another package: starlette's forms."""


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(lines: list[str]) -> set[str]:
    return {_plain(re.split(r"[\[<>=!~; ]", line, maxsplit=1)[0]) for line in lines}


def _extras(project: dict[str, Any]) -> dict[str, set[str]]:
    return {name: declared(lines) for name, lines in project.get("optional-dependencies", {}).items()}


BASE = declared(PROJECT["dependencies"])
OF_EXTRA = _extras(PROJECT)
OF_PLUGIN = {
    path: declared(one["project"]["dependencies"]).union(*_extras(one["project"]).values())
    for path, one in OF_PLUGINS.items()
}
PLUGINS = {path.name for path in DISTRIBUTIONS}


@cache
def provided() -> dict[str, set[str]]:
    """Return the distributions that install each module. Reads the list of files of each."""
    return {module: {_plain(one) for one in names} for module, names in packages_distributions().items()}


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
    extras = (OF_EXTRA[extra] for folder, extra in EXTRAS.items() if f"{where}/".startswith(f"{folder}/"))
    return BASE.union(*extras, *(OF_PLUGIN[plugin] for plugin in DISTRIBUTIONS if plugin in path.parents))


def test_every_third_party_import_is_of_a_distribution_that_is_declared() -> None:
    missing = {
        (path.relative_to(ROOT).as_posix(), module)
        for folder in PACKAGES
        for path in folder.rglob("*.py")
        if "starters" not in path.parts  # programs of the projects that `perstack init` writes
        for module in imported(path)
        if not provided().get(module, set()) & allowed(path)
    }
    assert missing == set()


def test_every_distribution_that_is_declared_is_imported() -> None:
    used = {
        name
        for folder in PACKAGES
        for path in folder.rglob("*.py")
        for module in imported(path)
        for name in provided().get(module, set())
    }
    assert BASE.union(*OF_EXTRA.values(), *OF_PLUGIN.values()) - used - PLUGINS - {"perstack"} == BY_NAME


def test_every_package_is_in_the_wheel_and_under_the_checks() -> None:
    tools = PYPROJECT["tool"]
    built = [
        folder / name
        for folder, one in {ROOT: PYPROJECT, **OF_PLUGINS}.items()
        for name in one["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    ]
    assert sorted(built) == sorted(PACKAGES)
    assert set(tools["mypy"]["packages"]) == set(tools["importlinter"]["root_packages"]) == OURS
    rules = {rule["name"]: rule for rule in tools["importlinter"]["contracts"]}
    below = rules["Plugins know the ports, the core and the errors, and nothing above"]["source_modules"]
    unnamed = rules["The host names no plugin: they come through entry points"]["forbidden_modules"]
    doors = "Doors that are plugins know the Host, the command line and what doors share, and no other door"
    assert {*below, *rules[doors]["modules"]} == set(unnamed) == OURS - {"perstack"}


@pytest.mark.parametrize("group", ["perstack", "perstack.commands"])
def test_the_plugins_that_are_declared_are_those_that_are_installed(group: str) -> None:
    installed = {point.name: point.value for point in entry_points(group=group) if point.dist is not None}
    projects = [PROJECT, *(one["project"] for one in OF_PLUGINS.values())]
    plugins = {name: value for project in projects for name, value in project["entry-points"].get(group, {}).items()}
    assert {name: installed.get(name) for name in plugins} == plugins, "pyproject.toml has changed: `make install`"


def test_every_distribution_has_one_version_and_an_extra_that_installs_it() -> None:
    assert PROJECT["version"] == VERSION
    assert {one["project"]["version"] for one in OF_PLUGINS.values()} == {VERSION}
    for one in OF_PLUGINS.values():
        assert f"perstack~={VERSION}" in one["project"]["dependencies"]
    asked = [line for lines in PROJECT["optional-dependencies"].values() for line in lines if "perstack-" in line]
    assert all(line.endswith(f"~={VERSION}") for line in asked)
    assert declared(asked) == PLUGINS


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the wheels that `make dist` builds."""
    folder = tmp_path_factory.mktemp("dist")
    for project in (ROOT, *DISTRIBUTIONS):
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
        subprocess.run(command, cwd=project, check=True, capture_output=True, timeout=60)
    return sorted(folder.glob("*.whl"))


def _environment(folder: Path, wheels: list[Path]) -> Path:
    """Create an environment with these wheels and the packages of this one that are not ours. Return its Python."""
    uv = Path(sys.executable).with_name("uv")
    python = folder / "bin" / "python"
    install = [uv, "pip", "install", "-q", "--offline", "--no-deps", "--python", python, *wheels]
    for command in ([uv, "venv", "-q", "--python", sys.executable, folder], install):
        subprocess.run(list(map(str, command)), check=True, capture_output=True, timeout=60)
    link_dependencies(next(folder.glob("lib/*/site-packages")))
    return python


def _run(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run perstack in an environment, in an empty folder."""
    command = [str(python), "-m", "perstack", *arguments]
    env = {"PATH": "/usr/bin:/bin", "HOME": str(python.parent)}
    return subprocess.run(
        command, cwd=python.parents[2], env=env, capture_output=True, text=True, timeout=60, check=False
    )


def test_all_wheels_work_together_in_an_empty_environment(tmp_path: Path, wheels: list[Path]) -> None:
    assert len(wheels) == 1 + len(DISTRIBUTIONS)
    python = _environment(tmp_path / "env", wheels)
    found = {one["name"]: one for one in json.loads(_run(python, "plugins", "--json").stdout)["plugins"]}
    for folder, one in {ROOT: PYPROJECT, **OF_PLUGINS}.items():
        for name in one["project"]["entry-points"]["perstack"]:
            package = "perstack" if folder == ROOT else folder.name
            assert (found[name]["package"], found[name]["version"]) == (package, VERSION), found[name]
    packages = [path.name for path in PACKAGES]
    code = f"import importlib; print(*(importlib.import_module(one).__file__ for one in {packages}), sep='\\n')"
    places = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True, timeout=60).stdout
    assert all(Path(place).is_relative_to(tmp_path) for place in places.split())


def test_the_wheel_of_perstack_alone_runs_and_names_the_extra_that_is_missing(
    tmp_path: Path, wheels: list[Path]
) -> None:
    alone = [wheel for wheel in wheels if wheel.name.startswith("perstack-")]
    python = _environment(tmp_path / "env", alone)
    (tmp_path / "perstack.toml").write_text('[experts.a]\ninstruction = "Answer."\n')
    assert _run(python, "validate").returncode == 0
    for address, extra in (("s3://bucket/place", "s3"), ("postgresql://localhost/db", "postgres")):
        done = _run(python, "jobs", "--storage", address)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"pip install 'perstack[{extra}]'" in done.stderr
    for name, extra in (("amazon-bedrock", "bedrock"), ("google-vertex", "vertex"), ("local", "local")):
        done = _run(python, "run", "a", "x", "--provider", name)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"pip install 'perstack[{extra}]'" in done.stderr
    for address, extra in (("postgresql://localhost/db", "workers"), ("temporal://localhost", "temporal")):
        done = _run(python, "submit", "a", "x", "--dispatcher", address)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"pip install 'perstack[{extra}]'" in done.stderr
