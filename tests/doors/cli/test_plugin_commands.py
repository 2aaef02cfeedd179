"""Commands of plugins: listed and called as built-in ones are, and at fault without harm to others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from terminal import Terminal

HEAD = "from perstack.ports.commands import PluginCommand\n"
HELLO = f"""
{HEAD}
import click

def perstack_commands():
    return [PluginCommand("hello", "Inspect", "Greet somebody.", "hello_door:hello", ("perstack hello Ada",), "log")]

@click.command()
@click.argument("name")
@click.option("--to", help="Where to.")
def hello(name, to):
    '''Greet somebody.'''
    click.echo(f"Hello, {{name}}!")
"""


def command(fields: str) -> str:
    """Return a module whose hook returns one PluginCommand of these fields."""
    return f"{HEAD}\ndef perstack_commands():\n    return [PluginCommand({fields})]\n"


@pytest.fixture
def site(terminal: Terminal, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory of installed packages."""
    folder = tmp_path_factory.mktemp("site")
    terminal.env["PYTHONPATH"] = str(folder)
    return folder


def install(site: Path, name: str, source: str) -> None:
    """Install a package that has one module, `NAME_door`, with the hook."""
    (site / f"{name}_door.py").write_text(source)
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: a-{name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[perstack.commands]\n{name} = {name}_door\n")


def listed(terminal: Terminal, group: str) -> list[str]:
    """Return the names of a group in `perstack --help`."""
    result = terminal.run("--help")
    assert result.code == 0
    lines = result.lines[result.lines.index(f"{group}:") + 1 :]
    return [line.split()[0] for line in lines[: lines.index("")]]


def test_a_command_of_an_installed_package_is_listed_completed_and_called(terminal: Terminal, site: Path) -> None:
    install(site, "hello", HELLO)
    assert listed(terminal, "Inspect")[:3] == ["jobs", "hello", "log"]
    done = terminal.run("hello", "Ada")
    assert (done.code, done.out, done.err) == (0, "Hello, Ada!\n", "")
    helped = terminal.run("hello", "--help")
    assert helped.out.endswith("Examples:\n    perstack hello Ada\n")
    completing = {"_PERSTACK_COMPLETE": "bash_complete", "_PERSTACK_LINE": "perstack hel", "_PERSTACK_WORD": "hel"}
    assert terminal.run(env=completing).lines == ["plain,hello"]


def test_usage_errors_are_those_of_built_in_commands(terminal: Terminal, site: Path) -> None:
    install(site, "hello", HELLO)
    misspelt = terminal.run("helo", "Ada")
    assert (misspelt.code, misspelt.err) == (2, "error: perstack: there is no command helo; did you mean hello?\n")
    missing = terminal.run("hello")
    assert (missing.code, missing.err) == (
        2,
        "error: perstack hello: NAME is missing; write it as: perstack hello [OPTIONS] NAME\n",
    )
    empty = terminal.run("hello", "Ada", "--to", "")
    assert (empty.code, "--to: it is empty" in empty.err) == (2, True)


def test_a_module_named_in_the_environment_may_have_commands_in_the_current_folder_too(terminal: Terminal) -> None:
    (terminal.workspace / "hello_door.py").write_text(HELLO)
    terminal.env |= {"PYTHONPATH": ".", "PERSTACK_PLUGINS": "hello_door"}
    done = terminal.run("hello", "Ada")
    assert (done.code, done.out) == (0, "Hello, Ada!\n")
    assert terminal.run("plugins").code == 0, "it is a plugin without other hooks"
    terminal.env["PERSTACK_PLUGINS"] = "hello_door,hello_door"
    assert terminal.run("hello", "Ada").err == "", "naming it twice is no conflict"


def test_a_command_of_a_package_imports_no_module_that_is_named_in_the_environment(
    terminal: Terminal, site: Path
) -> None:
    install(site, "hello", HELLO)
    (site / "chatty.py").write_text("print('a protocol is not served by this line')")
    terminal.env["PERSTACK_PLUGINS"] = "chatty"
    assert terminal.run("hello", "Ada").out == "Hello, Ada!\n"


def test_a_command_may_have_a_group_of_its_own_and_an_unknown_neighbour(terminal: Terminal, site: Path) -> None:
    install(site, "b", command("'last', 'Serve', 'Serve.', 'b:c', before='nothing'"))
    install(site, "c", command("'own', 'Mine', 'Do it.', 'b:c'"))
    assert listed(terminal, "Serve")[-2:] == ["workers", "last"]
    assert listed(terminal, "Mine") == ["own"]


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("x = 1", "it has no function perstack_commands"),
        ("def perstack_commands():\n    raise KeyError('x')", "KeyError: 'x'"),
        ("def perstack_commands():\n    return 7", "TypeError"),
        ("def perstack_commands():\n    return ['hello']", "perstack_commands returns str, not PluginCommand"),
        (command("'jobs', 'Inspect', 'List.', 'a:b'"), "perstack has its own command jobs"),
        (command("'mcp', 'Serve', 'Serve.', 'a:b'"), "already has a command mcp"),
        (command("'Say Hello', 'Inspect', 'Say.', 'a:b'"), "'Say Hello' is not a command name"),
        (command("'say', 'Inspect', 'Say.', 'a.b'"), "'a.b' of say is not `package.module:attribute`"),
        (command("'say', None, 'Say.', 'a:b'"), "empty or of a wrong type"),
        (command("'say', 'Inspect', 'Say.', 'a:b', 'perstack say'"), "empty or of a wrong type"),
        (f"PLUGIN_API = 99\n{HELLO}", "it is written for plugin API 99, but the host has 1"),
    ],
)
def test_a_plugin_at_fault_is_named_once_and_all_else_works(
    terminal: Terminal, site: Path, source: str, cause: str
) -> None:
    install(site, "zfault", source)
    install(site, "hello", HELLO)
    for words in (("--help",), ("hello", "Ada")):
        result = terminal.run(*words)
        assert result.code == 0, words
        assert "ello" in result.out
        (notice,) = result.err.splitlines()
        assert notice.startswith("perstack: a command of plugin zfault of a-zfault was skipped: ")
        assert cause in notice
        assert notice.endswith("; install another version of a-zfault, or uninstall it")
    quiet = terminal.run("jobs")
    assert (quiet.code, quiet.err) == (0, "")


@pytest.mark.parametrize(
    ("path", "cause"),
    [
        ("no_such_door:hello", "cannot be imported (ModuleNotFoundError: No module named 'no_such_door')"),
        ("json:hello", "cannot be imported (AttributeError: "),
        ("json:dumps", "is not a click command"),
        ("leaving_door:hello", "cannot be imported (SystemExit: 5)"),
    ],
)
def test_a_command_that_cannot_be_imported_is_an_error_in_one_line(
    terminal: Terminal, site: Path, path: str, cause: str
) -> None:
    install(site, "say", command(f"'say', 'Inspect', 'Say.', {path!r}"))
    (site / "leaving_door.py").write_text("raise SystemExit(5)")
    result = terminal.run("say")
    assert (result.code, result.out) == (2, "")
    (line,) = result.err.splitlines()
    assert line.startswith(f"error: say of plugin say of a-say: {path} ")
    assert cause in line
    assert line.endswith("; install another version of a-say, or uninstall it")


def test_modules_named_in_the_environment_that_do_not_exist_harm_no_list(terminal: Terminal) -> None:
    terminal.env["PERSTACK_PLUGINS"] = "no_such_module"
    result = terminal.run("--help")
    assert (result.code, len(result.err.splitlines())) == (0, 1)
    assert "module no_such_module of PERSTACK_PLUGINS" in result.err
    assert result.err.endswith("; correct the module, or remove its name from PERSTACK_PLUGINS\n")


IMPORTED = """
import sys
from perstack.doors.cli.entry import entry
sys.argv = ["perstack", *sys.argv[1:]]
try:
    entry()
finally:
    print(*(name for name in sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize("words", [("jobs", "--help"), ("run", "--help"), ("jobs",)])
def test_a_built_in_command_reads_no_commands_of_plugins(
    terminal: Terminal, site: Path, words: tuple[str, ...]
) -> None:
    install(site, "hello", HELLO)
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, *words],
        cwd=terminal.workspace,
        env=terminal.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    imported = done.stderr.split()
    assert "perstack.doors.cli.jobs" in imported or "perstack.doors.cli.run" in imported
    doors = {"perstack_tui", "perstack_server", "perstack_acp", "hello_door", "perstack.doors.cli.plugin_commands"}
    assert doors.isdisjoint(imported)


def test_a_list_imports_no_command_of_a_plugin(terminal: Terminal) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, "--help"],
        cwd=terminal.workspace,
        env={**terminal.env, "PERSTACK_PLUGINS": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    imported = done.stderr.split()
    assert "perstack_server.plugin" in imported
    assert {"perstack_server.command", "perstack_tui.command", "pydantic", "pluggy", "textual"}.isdisjoint(imported)
