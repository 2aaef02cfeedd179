"""Every place that starts a program, and why nothing that an Expert wrote is executed or imported there."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import ROOT
from terminal import Terminal, reply

from perstack.errors import UsageError
from perstack.system.processes import python_argv
from perstack_bubblewrap.machine import find_bwrap

STARTERS = {
    "subprocess": {"Popen", "run", "call", "check_call", "check_output", "getoutput", "getstatusoutput"},
    "pty": {"spawn", "fork"},
    "multiprocessing": {"Process", "Pool", "Manager", "get_context"},
    "multiprocessing.pool": {"Pool"},
    "concurrent.futures": {"ProcessPoolExecutor"},
    "concurrent.futures.process": {"ProcessPoolExecutor"},
    "asyncio": {"create_subprocess_exec", "create_subprocess_shell"},
    "asyncio.subprocess": {"create_subprocess_exec", "create_subprocess_shell"},
    "webbrowser": {"open", "open_new", "open_new_tab", "get"},
    "runpy": {"run_path", "run_module"},
    "sys": {"executable"},
    "perstack.system.processes": {"launch", "python_argv"},
    "perstack.ports.runtime": {"Program"},
    "perstack.iterations.programs": {"run_program"},
}
"""What of which module starts a program or executes a file: Python's own, and ours."""
OF_OS = ("exec", "spawn", "posix_spawn", "fork", "system", "popen", "startfile")
"""How the names of such functions of `os` begin."""
OF_LOOPS = {"subprocess_exec", "subprocess_shell"}
"""Such methods of an event loop."""

FEW = "with few variables"
DECLARED = f"a command that a definition or a person names, {FEW}"
ISOLATED = f"our interpreter, by `python_argv`, {FEW}"
GUARD = "a constant script for /bin/sh, which runs the system's programs in /"
PORT = "starts what it is given"

PLACES = {
    "host/perstack/audit/anchors.py run_program": (1, DECLARED),
    "host/perstack/iterations/commands.py run_program": (4, f"{DECLARED}; and {ISOLATED}"),
    "host/perstack/iterations/commands.py python_argv": (1, ISOLATED),
    "host/perstack/diagnostics/doctor.py Program": (1, DECLARED),
    "host/perstack/iterations/programs.py Program": (1, PORT),
    "host/perstack/doors/cli/first_run/model_setup.py executable": (
        1,
        "pip and the embedded model, with -I, after a yes",
    ),
    "host/perstack/doors/cli/first_run/model_setup.py run": (1, "the same"),
    "host/perstack/doors/cli/skills.py open": (1, "the browser of the person who logs in, with an https address"),
    "host/perstack/system/module_path.py executable": (1, "only its folder is looked at"),
    "plugins/perstack_server/mcp/client_config.py executable": (2, "the command that an editor starts, with -P"),
    "plugins/perstack_tui/terminal.py Popen": (1, GUARD),
    "plugins/perstack_tui/terminal.py run": (1, "stty, in /, from the system's folders first"),
    "host/perstack/system/process_guard.py Popen": (2, f"{GUARD}; and a type"),
    "host/perstack/system/processes.py create_subprocess_exec": (1, PORT),
    "host/perstack/system/processes.py executable": (1, "python_argv itself"),
    "host/perstack/ports/runtime.py launch": (1, PORT),
    "host/perstack/testing/storage_contract/_crashes.py Popen": (3, "our interpreter with -P, by who tests; and types"),
    "host/perstack/testing/storage_contract/_crashes.py executable": (1, "the same"),
    "plugins/perstack_base/exec.py Program": (1, f"the tool exec, after the rules and approvals, {FEW}"),
    "plugins/perstack_bubblewrap/bridge.py execvp": (1, "inside a sandbox, the program that was asked for"),
    "plugins/perstack_bubblewrap/bridge.py fork": (2, "inside a sandbox, this process goes on in it"),
    "plugins/perstack_bubblewrap/machine.py create_subprocess_exec": (1, "bwrap, from an absolute folder of PATH"),
    "plugins/perstack_bubblewrap/runtime.py Program": (4, "types"),
    "plugins/perstack_bubblewrap/runtime.py launch": (1, "bwrap, with the policy of the program"),
    "plugins/perstack_bubblewrap/proxy.py executable": (1, "the bridge inside a sandbox, with -I -S"),
    "plugins/perstack_bubblewrap/proxy.py launch": (1, f"the proxy: {ISOLATED}"),
    "plugins/perstack_bubblewrap/proxy.py python_argv": (1, f"the proxy: {ISOLATED}"),
    "plugins/perstack-local/perstack_local/weights.py executable": (
        1,
        f"pip, with ISOLATED, {FEW}, in a folder of its own",
    ),
    "plugins/perstack-local/perstack_local/weights.py run": (1, "the same"),
    "plugins/perstack_mcp/server_process.py Program": (1, f"a server that a definition names, {FEW}"),
}
"""How often each place has it, and why nothing that an Expert wrote is executed there unasked."""


def modules() -> Iterator[tuple[str, ast.Module]]:
    for folder in ("host", "plugins"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def starters_in(tree: ast.Module) -> Iterator[str]:
    """Each mention of what starts a program, under whatever name the module has it."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                top = one.name.partition(".")[0]
                names |= {one.asname: one.name} if one.asname else {top: top}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            module, _, name = (dotted(node, names) or "").rpartition(".")
            is_method = isinstance(node, ast.Attribute) and node.attr in OF_LOOPS
            if is_method or name in STARTERS.get(module, ()) or (module == "os" and name.startswith(OF_OS)):
                yield name or "a method of a loop"


def dotted(node: ast.expr, names: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    above = dotted(node.value, names) if isinstance(node, ast.Attribute) else None
    return f"{above}.{node.attr}" if above and isinstance(node, ast.Attribute) else None


def started_programs() -> Counter[str]:
    return Counter(f"{path} {name}" for path, tree in modules() for name in starters_in(tree))


def test_every_place_that_starts_a_program_is_known_with_why_it_is_safe() -> None:
    assert dict(started_programs()) == {place: count for place, (count, _) in PLACES.items()}


@pytest.mark.parametrize(
    "line",
    [
        "import subprocess as s\ns.run(['x'])",
        "from subprocess import Popen as P\nP(['x'])",
        "import asyncio\nstart = asyncio.create_subprocess_shell",
        "import asyncio.subprocess\nasyncio.subprocess.create_subprocess_exec('x')",
        "import os\nos.posix_spawnp('x', [], {})",
        "from os import execve as become\nbecome('x', [], {})",
        "import pty\npty.spawn('x')",
        "from multiprocessing import get_context\nget_context('spawn')",
        "def f(loop):\n    return loop.subprocess_exec(print, 'x')",
        "import sys\nargv = [sys.executable, '-m', 'x']",
    ],
)
def test_a_new_place_is_found_whatever_its_module_calls_it(line: str) -> None:
    assert list(starters_in(ast.parse(line)))


SHADOWS = ("json.py", "asyncio/__init__.py", "inspect.py", "httpx.py", "pydantic/__init__.py", "perstack_base.py")
"""Modules that the host, or what it starts, imports; none of them before the first line of the host."""
EARLY = ("perstack.py", "re.py", "runpy.py", "typing.py", "os.py", "importlib/__init__.py", "sitecustomize.py")
"""Modules that Python imports before that, where the module path begins with a folder that has them."""


@pytest.fixture
def mark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("elsewhere") / "mark"


def plant(folder: Path, mark: Path, *shadows: str) -> None:
    """Write modules that leave a mark when something imports them."""
    for shadow in shadows:
        (folder / shadow).parent.mkdir(parents=True, exist_ok=True)
        (folder / shadow).write_text(f"open({str(mark)!r}, 'a').write(__name__ + ' '); raise SystemExit(9)")


def measuring(terminal: Terminal, table: str = "entry = 'measuring_well:measure'") -> list[str]:
    """A project with a function that evaluates; the words of the command that uses it."""
    terminal.project(
        "[experts.solo]\ninstruction = 'You work alone.'\n"
        f"[experts.solo.iterate]\nevaluator = {{ {table} }}\nmaxIterations = 1\n",
        solo=[reply("made")],
    )
    return ["iterate", "solo", "do it", "--id", "it", "--provider", "scripted"]


def test_the_installed_command_and_its_evaluator_import_nothing_of_the_workspace(
    terminal: Terminal, tmp_path: Path, mark: Path
) -> None:
    """The function is in an installed package."""
    plant(terminal.workspace, mark, *SHADOWS, *EARLY)
    done = subprocess.run(
        [Path(sys.executable).with_name("perstack"), *measuring(terminal, "entry = 'textwrap:dedent'")],
        cwd=terminal.workspace,
        env=terminal.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "evaluator function `textwrap:dedent`: TypeError" in done.stderr, "it was called"
    assert not mark.exists(), mark.read_text()


@pytest.mark.parametrize("path", ["{workspace}", "", ".", ":/nowhere", "{workspace}/deeper", "deeper/.."])
def test_python_m_and_pythonpath_put_no_module_of_the_workspace_before_ours(
    terminal: Terminal, mark: Path, path: str
) -> None:
    """A function in the workspace is found all the same."""
    plant(terminal.workspace, mark, *SHADOWS)
    plant(terminal.workspace / "deeper", mark, *SHADOWS)
    (terminal.workspace / "measuring_well.py").write_text(
        "import json\ndef measure(made): return {'score': json.loads('1')}"
    )
    terminal.env["PYTHONPATH"] = path.format(workspace=terminal.workspace)
    done = terminal.run(*measuring(terminal), new=True)
    assert done.code == 0, done.err
    assert not mark.exists(), mark.read_text()


OPTIONAL = ("brotli.py", "brotlicffi.py", "zstandard.py", "h2.py", "socksio.py", "uvloop.py", "orjson.py")
"""Names of modules that libraries import if they are there."""


@pytest.mark.parametrize(
    ("path", "plugins"),
    [(".", ""), (":/nowhere", ""), ("/nowhere:./deeper/", ""), (".", "perstack.testing.plugin")],
)
def test_a_folder_names_no_plugin_and_no_optional_module_by_being_the_current_one(
    terminal: Terminal, mark: Path, path: str, plugins: str
) -> None:
    """`PYTHONPATH=$PYTHONPATH:/mine` has an empty entry where the variable was not set, which is the current folder."""
    for folder in (terminal.workspace, terminal.workspace / "deeper"):
        plant(folder, mark, "evil_plugin.py", *(() if plugins else OPTIONAL))
        metadata = folder / "evil-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
        groups = ("perstack", "perstack.commands", "perstack.extras", "pydantic", "pytest11", "keyring.backends")
        (metadata / "entry_points.txt").write_text("".join(f"[{group}]\nevil = evil_plugin\n" for group in groups))
    terminal.project("[experts.solo]\ninstruction = 'You work alone.'\n", solo=[reply("done")])
    terminal.env |= {"PYTHONPATH": path.format(workspace=terminal.workspace), "PERSTACK_PLUGINS": plugins}
    listing = (["plugins"], ["--help"], ["mcp", "--help"], ["unknown"])
    for words in (*listing, ["run", "solo", "go", "--provider", "scripted"]):
        seen = terminal.run(*words, new=True)
        assert "evil" not in seen.out + seen.err, words
        assert not mark.exists(), (words, mark.read_text())


def test_an_editable_installation_is_found_in_its_own_folder() -> None:
    """Its entries of the module path are in the current folder, and were named by whoever installed it."""
    for words in ([sys.executable, "-m", "perstack"], [str(Path(sys.executable).with_name("perstack"))]):
        done = subprocess.run(
            [*words, "plugins", "--json"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
        )
        found = {one["name"]: one for one in json.loads(done.stdout)["plugins"]}
        assert found["anthropic"]["providers"] == ["anthropic"]


def test_the_process_of_a_function_starts_with_none_of_the_modules_of_pythonpath(
    terminal: Terminal, tmp_path_factory: pytest.TempPathFactory, mark: Path
) -> None:
    """The folder is not the current one, and so the host cannot know it for somebody's workspace."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "measuring_well.py").write_text("import json\ndef measure(made): return {'score': json.loads('1')}")
    words = measuring(terminal)
    terminal.env["PYTHONPATH"] = str(folder)
    shadows = ("json.py", "re.py", "sitecustomize.py", "usercustomize.py", "inspect.py")
    leaving = f"open({str(mark)!r}, 'a')"
    planted = [str(folder / shadow) for shadow in shadows]
    late = f"import pathlib\nfor path in {planted}:\n    pathlib.Path(path).write_text({leaving!r})"
    (folder / "late_plugin.py").write_text(late)
    terminal.env["PERSTACK_PLUGINS"] += ",late_plugin"
    done = terminal.run(*words)
    assert done.code == 0, done.err
    assert (folder / "sitecustomize.py").exists()
    assert not mark.exists()


def test_a_function_gets_few_variables_and_those_that_its_definition_names(terminal: Terminal) -> None:
    (terminal.workspace / "measuring_well.py").write_text(
        "import os, pathlib\n"
        "def measure(made):\n"
        "    pathlib.Path('seen.txt').write_text(' '.join(os.environ))\n"
        "    return {'score': len(os.environ['JUDGE_KEY'])}\n"
    )
    words = measuring(terminal, "entry = 'measuring_well:measure', requiredEnv = ['JUDGE_KEY']")
    terminal.env |= {"PYTHONPATH": ".", "OPENAI_API_KEY": "sk-other"}
    missing = terminal.run(*words, new=True)
    assert missing.code == 1
    assert "evaluator function `measuring_well:measure` needs JUDGE_KEY: set it in the environment" in missing.err
    (terminal.workspace / ".env").write_text("JUDGE_KEY=12345\n")
    done = terminal.run("resume", "it", "--provider", "scripted", new=True)
    assert done.code == 0, done.err
    assert json.loads(terminal.run("report", "it", "--json").out)["iteration"]["score"] == 5
    seen = (terminal.workspace / "seen.txt").read_text().split()
    assert set(seen) - {"PATH", "TZ", "JUDGE_KEY", "PERSTACK_PROGRAM", "LC_CTYPE"} == set()


def test_python_argv_finds_all_modules_that_we_find_and_those_of_python_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: Path
) -> None:
    plant(tmp_path, mark, "json.py", "runpy.py", "re.py")
    (tmp_path / "own_module.py").write_text("import json, sys\nprint(json.dumps(sys.argv[1:]), __name__)")
    monkeypatch.syspath_prepend(tmp_path)
    done = subprocess.run(
        python_argv("own_module", "a b", "-c"),
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PYTHONSTARTUP": str(tmp_path / "json.py")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, '["a b", "-c"] __main__\n'), done.stderr
    assert not mark.exists()
    assert not list(tmp_path.rglob("__pycache__"))


@pytest.mark.linux
def test_bwrap_is_not_taken_from_a_relative_folder_of_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = tmp_path / "bin" / "bwrap"
    planted.parent.mkdir()
    for place in (planted, tmp_path / "bwrap"):
        place.write_text("#!/bin/sh\n")
        place.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    for path in ("bin", ".", "", ":", "./bin:bin/../bin"):
        with pytest.raises(UsageError, match="needs the program bwrap"):
            find_bwrap({"PATH": path}, path="")
    assert find_bwrap({"PATH": f".:{planted.parent}"}, path="") == str(planted)


def test_the_command_of_a_task_gets_few_variables_and_those_that_it_names(terminal: Terminal) -> None:
    terminal.project("[experts.solo]\ninstruction = 'You work alone.'\n")
    terminal.env |= {"OPENAI_API_KEY": "sk-other", "CI_TOKEN": "abc"}
    command = 'env > seen.txt; test "${CI_TOKEN}" = abc'
    for words in (
        ("create", "t", "--start"),
        ("pause", "t", "--reason", "external_dependency", "--command", command),
        ("run-due", "--provider", "scripted"),
    ):
        done = terminal.run("task", *words)
        assert done.code == 0, done.err
    seen = (terminal.workspace / "seen.txt").read_text()
    assert ("CI_TOKEN" in seen, "OPENAI_API_KEY" in seen) == (True, False)
    assert "running" in terminal.run("task", "list").out
