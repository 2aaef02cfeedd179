"""Nothing that a model, a server, a file, a path or an argument says is obeyed by a terminal, and no output is outside
the one writer.
"""

from __future__ import annotations

import ast
import json
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from terminal import Terminal, reply

from perstack.core.base.text import one_line, plain_json, plain_text

ROOT = Path(__file__).parents[3]
EVIL = "\x1b[2J\x1b]0;owned\x07\x9b8m\x9d0;owned\x9c\x1b[8m\x7f\u202egnp\u2066\rback\u2028"
"""Clears the screen, sets the title, hides text, deletes, reverses the direction, returns to the line's start."""

SKILL = """
[experts.a.skills.evil]
type = "mcpStdioSkill"
command = "sh"
args = ["-c", 'printf "\\033]0;owned\\007\\033[2J" >&2; exit 3']
"""
PROJECT = f'[experts.a]\ndescription = "d"\ninstruction = "i"\n{SKILL}'
QUESTION = {"type": "object", "properties": {"question": {"type": "string"}}, "required": ["question"]}


def obeyed(seen: str, *, painted: bool = True) -> list[str]:
    """Return the characters that a terminal would interpret, except for perstack's own colours."""
    if painted:
        seen = re.sub(r"\x1b\[(?:0|1|2|3[0-7]|9[0-7])(?:;(?:1|2|3[0-7]|9[0-7]))*m", "", seen)
    return [char for char in seen if char != "\n" and (plain_text(char) != char or char == "\x1b")]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    """Return a project with a Job whose query, text, arguments and result are hostile, as are its skill's errors."""
    terminal = Terminal(tmp_path_factory.mktemp("hostile"))
    call = reply(f"I will {EVIL}", ("readTextFile", {"path": f"x{EVIL}"}), thinking=EVIL)
    terminal.project(PROJECT, a=[call, reply(f"done {EVIL}")])
    result = terminal.run("run", "a", f"query {EVIL}", "--provider", "scripted", "--job-id", "evil")
    assert result.code == 0, result.err
    assert not obeyed(result.err, painted=False)
    return terminal


@pytest.mark.parametrize(
    "command",
    [
        ("log",), ("log", "-v"), ("log", "--messages"), ("log", "--checkpoint", "evil-1-1"), ("jobs",),
        ("jobs", "--json"),
        ("export", "evil", "--format", "json"), ("export", "evil", "--format", "jsonl"), ("verify",), ("replay",),
        ("validate", "--tools"), ("install",), ("run", f"no{EVIL}", "q"), ("resume", f"no{EVIL}"), (f"no{EVIL}",),
        ("run", "a", f"again {EVIL}", "--stream", "--provider", "scripted"), ("jobs", f"--no{EVIL}"),
        ("jobs", "--take", f"1{EVIL}"), ("jobs", "--label", EVIL), ("jobs", "--config", f"no{EVIL}"),
        ("jobs", "--workspace", f"no{EVIL}"), ("jobs", "--storage", f"no{EVIL}:x"), ("mcp", "--experts", EVIL),
        ("export", "evil", "--format", "perstack", "--to", f"out{EVIL}"), ("login", EVIL), ("answer", EVIL, EVIL),
        ("task", "create", EVIL), ("task", "list"), ("report", EVIL),
    ],
)  # fmt: skip
def test_no_command_shows_a_terminal_what_it_would_obey(hostile: Terminal, command: tuple[str, ...]) -> None:
    seen = hostile.look(*command)
    if command[0] in ("install", "run"):  # rows that are drawn anew
        seen = re.sub(r"\x1b\[(?:\?25[lh]|2K|\d+A|J)|\r(?=\x1b)", "", seen)
    assert not obeyed(seen)


def test_a_definition_cannot_write_to_the_terminal_of_who_checks_it(terminal: Terminal) -> None:
    evil = json.dumps(EVIL)
    terminal.project(f"model = {evil}\nnonsense{json.dumps('x' + EVIL)[0:0]} = 1\n[experts.{evil}]\ninstruction = 1\n")
    assert not obeyed(terminal.look("validate"))
    terminal.project(f"[experts.{evil}]\ndescription = {evil}\nversion = {evil}\ninstruction = 'i'\n{evil} = 1\n")
    assert not obeyed(terminal.look("validate"))
    assert not obeyed(terminal.look("run", "a", "q"))


def test_a_library_a_warning_and_a_traceback_are_cleaned_as_well(terminal: Terminal) -> None:
    (terminal.workspace / "evil.py").write_text(
        "import logging, sys, warnings\n"
        f"EVIL = {EVIL!r}\n"
        "logging.getLogger('lib').error('logged ' + EVIL)\n"
        "warnings.warn('warned ' + EVIL)\n"
        "print('printed ' + EVIL)\n"
        "sys.stderr.writelines(['written ' + EVIL + '\\n'])\n"
        "class Fatal(BaseException): pass\n"
        "raise (Fatal if '--json' in sys.argv else ValueError)('raised ' + EVIL)\n"
    )
    terminal.env |= {"PERSTACK_PLUGINS": "evil", "PYTHONPATH": str(terminal.workspace)}
    for command in (("jobs",), ("jobs", "--json")):
        seen = terminal.look(*command)
        assert all(word in seen for word in ("logged", "warned", "printed", "written", "raised")), seen
        assert ("Traceback" in seen) is ("--json" in command)
        assert not obeyed(seen)


def test_json_keeps_its_bytes_in_a_pipe_and_means_the_same_at_a_terminal(hostile: Terminal) -> None:
    log = hostile.log_of("evil-1").read_bytes()
    assert hostile.run("log", "--job", "evil", "--json", "--take", "0").out.encode() == log
    assert "\u202e" in log.decode(), "what is compared has something to escape"
    screen = hostile.look("log", "--job", "evil", "--json", "--take", "0")
    assert [json.loads(line) for line in screen.splitlines()] == [json.loads(line) for line in log.splitlines()]


@given(st.text())
def test_escaped_json_is_the_same_json(text: str) -> None:
    for line in (json.dumps(text), json.dumps(text, ensure_ascii=False)):
        assert json.loads(plain_json(line.encode())) == text


def test_every_control_and_every_change_of_direction_is_dropped() -> None:
    turning = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}
    for char in map(chr, range(0x110000)):
        is_unsafe = unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(char) in turning
        if is_unsafe and char not in "\n\t":
            assert plain_text(char) == ""
            assert one_line(f"a{char}b") == "a b"
    assert plain_text("日本\u3000語 👩\u200d🚀\n\tمی\u200cخواهم") == "日本\u3000語 👩\u200d🚀\n\tمی\u200cخواهم"


def test_an_open_question_of_a_tool_names_the_skill_that_asks(terminal: Terminal) -> None:
    terminal.env |= {
        "PERSTACK_PLUGINS": "perstack.testing.plugin,travel",
        "PYTHONPATH": str(ROOT / "tests" / "support"),
    }
    terminal.project(
        '[experts.a]\ninstruction = "i"\n[experts.a.skills.agency]\ntype = "pluginSkill"\nplugin = "travel"\n',
        a=[reply("", ("book", {}))],
    )
    result = terminal.call("run", "a", "q", "--provider", "scripted", attended=True)
    asked = "skill agency: Where to, and for how long?"
    assert (result.code, asked in result.err) == (3, True)
    for command in ("inbox", "jobs", "log"):
        assert asked in terminal.call(command).out, command


WRITERS = {
    "host/perstack/doors/cli/terminal.py": "the writer",
    "host/perstack/system/user.py": "one clean line on stderr, for what has no command",
    "host/perstack/iterations/evaluator_process.py": "a program of its own, which answers through a pipe",
    "plugins/perstack-local/perstack_local/__main__.py": "a program of its own, which downloads weights",
    "plugins/perstack_bubblewrap/bridge.py": "a program of its own, inside the sandbox, whose output is the program's",
    "plugins/perstack_bubblewrap/proxy_main.py": "a program of its own, which answers its parent through a pipe",
    "plugins/perstack_tui/plain/run.py": "the lines of the linear mode, each cleaned",
    "host/perstack/doors/shared/markdown.py": "a console that draws into memory",
    "host/perstack/doors/shared/screen.py": "it only measures the streams",
    "host/perstack/doors/shared/stdio.py": "the protocol, cleaned if a terminal shows it",
}
_STREAMS = {"stdout", "stderr", "__stdout__", "__stderr__"}
_SPEAKING = {"echo", "secho", "prompt", "confirm", "progressbar", "echo_via_pager"}
_ASKED = {"isatty", "fileno", "encoding"}
"""Attributes of a stream that code outside the writers may use."""


def ways_out(path: Path) -> Iterator[str]:
    """Yield each expression of a module that could write to stdout or stderr."""
    tree = ast.parse(path.read_text())
    harmless = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in _ASKED}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="print" | "Console" as name)):
                yield f"{path.name}:{node.lineno} {name}"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="click"), attr=name)) if name in _SPEAKING:
                yield f"{path.name}:{node.lineno} click.{name}"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="os"), attr="write"), args=[ast.Constant(), *_]):
                yield f"{path.name}:{node.lineno} os.write"
            case ast.Attribute(value=ast.Name(id="sys"), attr=name) if name in _STREAMS and id(node) not in harmless:
                yield f"{path.name}:{node.lineno} sys.{name}"
            case ast.ImportFrom(module="sys" | "click", names=names):
                known = {alias.name for alias in names} & (_STREAMS | _SPEAKING)
                yield from (f"{path.name}:{node.lineno} {name}" for name in known)
            case _:
                pass


def test_nothing_writes_to_the_terminal_but_the_writers() -> None:
    found = {
        str(path.relative_to(ROOT)): ways
        for folder in ("host", "plugins")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "starters" not in path.parts  # programs of the projects that `perstack init` writes
        if (ways := list(ways_out(path)))
    }
    assert {name: ways for name, ways in found.items() if name not in WRITERS} == {}
    assert set(found) == set(WRITERS), "a writer that writes no more is struck off the list"


@pytest.mark.parametrize(
    "line",
    [
        "print(x)", "click.echo(x)", "sys.stderr.write(x)", "sys.stdout.buffer.write(x)", "print(x, file=sys.stderr)",
        "from sys import stderr", "from click import echo", "os.write(1, x)", "Console().print(x)", "f = sys.stdout",
    ],
)  # fmt: skip
def test_a_way_around_the_writers_is_seen(line: str, tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(f"import os, sys, click\n{line}\n")
    assert list(ways_out(module))
