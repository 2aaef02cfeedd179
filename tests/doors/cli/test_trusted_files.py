"""An agreement covers the content of the files that a declaration runs: if one changes, its user is asked again."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from terminal import Terminal, reply

from perstack.core.base.records import Record
from perstack.core.definitions.keys import Key
from perstack.trust.named_files import FINDERS

ALONE = '[experts.solo]\ninstruction = "You work alone."\n'
SERVER = f'{ALONE}[experts.solo.skills.s]\ntype = "mcpStdioSkill"\nlazyInit = true\n'
RUN = ("run", "solo", "hi", "--provider", "scripted")

# a definition, and the file of it that is changed
NAMED = {
    "a script": (f'{SERVER}command = "python3"\nargs = ["-u", "srv.py"]\n', "srv.py"),
    "a program": (f'{SERVER}command = "./run"\n', "run"),
    "a program without a folder": (f'{SERVER}command = "sh"\nargs = ["run"]\n', "run"),
    "a module": (f'{SERVER}command = "python3"\nargs = ["-m", "tools.srv"]\n', "tools/srv.py"),
    "the package of a module": (f'{SERVER}command = "python3"\nargs = ["-m", "tools.srv"]\n', "tools/__init__.py"),
    "the main file of a folder": (f'{SERVER}command = "python3"\nargs = ["tools"]\n', "tools/__main__.py"),
    "an ending that is added": (f'{SERVER}command = "node"\nargs = ["srv"]\n', "srv.js"),
    "a line for a shell": (f'{SERVER}command = "sh"\nargs = ["-c", "cd tools && exec ./run"]\n', "tools/run"),
    "a package of the folder": (f'{SERVER}command = "npx"\npackageName = "./tools"\n', "tools/package.json"),
    "an option": (f'{SERVER}command = "node"\nargs = ["--require=./hook.js", "srv.js"]\n', "hook.js"),
    "an option after the script": (
        f'{SERVER}command = "python3"\nargs = ["srv.py", "--config", "conf.json"]\n',
        "conf.json",
    ),
    "a variable": (f'{SERVER}command = "node"\nenv.NODE_OPTIONS = "--require ./hook.js"\n', "hook.js"),
    "the current folder": (f'{SERVER}command = "python3"\nargs = ["${{PWD}}/srv.py"]\n', "srv.py"),
    "a way around": (f'{SERVER}command = "python3"\nargs = ["tools/../srv.py"]\n', "srv.py"),
    "an evaluator": (f'{ALONE}[experts.solo.iterate]\nevaluator = "python3 check.py < draft.md"\n', "check.py"),
    "an evaluator's program": (f'{ALONE}[experts.solo.iterate]\nevaluator = ["./check", "a"]\n', "check"),
    "an evaluator's function": (f'{ALONE}[experts.solo.iterate]\nevaluator.entry = "judge:score"\n', "judge.py"),
    "an allow rule": (f'permissions.allow = ["exec(./check.sh *)"]\n{ALONE}', "check.sh"),
    "an allow rule of an Expert": (f'{ALONE}permissions.allow = ["exec(python3 check.py)"]\n', "check.py"),
    "an anchor": (f'audit.anchor = ["sh", "notary.sh"]\n{ALONE}', "notary.sh"),
    "a recording": (f'{ALONE}provider.providerName = "recorded"\nprovider.setting.recording = "r.json"\n', "r.json"),
    "a server's plugin": (f'{ALONE}[experts.solo.skills.p]\ntype = "pluginSkill"\nplugin = "x"\n'
                          'settings.list = ["a", { file = "rules.txt" }]\n', "rules.txt"),
    "a file of functions": (f'{ALONE}[experts.solo.skills.p]\ntype = "pluginSkill"\nfile = "tools/p.py"\n',
                            "tools/p.py"),
}  # fmt: skip


@pytest.fixture
def terminal(terminal: Terminal, tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    terminal.as_stranger().env["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    return terminal


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def is_agreed(terminal: Terminal) -> bool:
    return not any(line.startswith("+") for line in terminal.call("trust", "--show").lines)


@pytest.mark.parametrize("name", NAMED)
def test_a_changed_file_is_named_and_asked_about(terminal: Terminal, name: str) -> None:
    toml, file = NAMED[name]
    terminal.env["PWD"] = str(terminal.workspace)
    terminal.project(toml, solo=[reply("ok")] * 3)
    path = write(terminal.workspace, file, "first")
    assert terminal.call("trust", "--yes").code == 0
    assert is_agreed(terminal)
    path.write_text("second")
    refused = terminal.call(*RUN)
    assert (refused.code, f"since you agreed, {file} has changed" in refused.err) == (2, True), refused.err
    assert not (terminal.workspace / "perstack").exists()
    assert f"since you agreed, {file} has changed" in terminal.call("trust", "--show").out
    path.write_text("first")
    assert is_agreed(terminal)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.unlink(),
        lambda path: (path.unlink(), os.mkfifo(path)),
        lambda path: (path.unlink(), path.symlink_to("other.py")),
        lambda path: (path.unlink(), path.symlink_to("/etc/hostname")),
        lambda path: (path.unlink(), path.mkdir(), (path / "__main__.py").write_text("second")),
        lambda path: (path.unlink(), os.link(path.with_name("other.py"), path)),
        lambda path: path.write_bytes(b"x" * (17 << 20)),
        lambda path: path.with_name("srv.py.js").write_text("second"),
    ],
    ids=["removed", "a pipe", "a link", "a link outside", "a folder", "a hard link", "very large", "one before it"],
)
def test_a_file_that_becomes_something_else_has_changed(terminal: Terminal, change: Callable[[Path], object]) -> None:
    terminal.project(f'{SERVER}command = "python3"\nargs = ["srv.py"]\n', solo=[reply("ok")])
    path = write(terminal.workspace, "srv.py", "first")
    write(terminal.workspace, "other.py", "second")
    assert terminal.call("trust", "--yes").code == 0
    change(path)
    assert terminal.call(*RUN).code == 2


def test_a_large_file_that_is_changed_and_gets_its_times_back_has_changed(terminal: Terminal) -> None:
    terminal.project(f'{SERVER}command = "./srv"\n', solo=[reply("ok")] * 2)
    path = write(terminal.workspace, "srv", "x" * (17 << 20))
    assert terminal.call("trust", "--yes").code == 0
    assert terminal.call(*RUN).code == 0
    before = path.stat()
    with path.open("r+b") as file:
        file.write(b"y")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert terminal.call(*RUN).code == 2


def test_a_link_out_of_the_folder_is_not_read(terminal: Terminal, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = write(tmp_path_factory.mktemp("outside"), "id", "canary")
    os.utime(outside, ns=(0, outside.stat().st_mtime_ns))
    terminal.project(f'{SERVER}command = "sh"\nargs = ["id", "--key", "{outside}"]\n', solo=[reply("ok")])
    (terminal.workspace / "id").symlink_to(outside)
    assert terminal.call("trust", "--show").code == 0
    assert terminal.call(*RUN).code == 2
    assert outside.stat().st_atime_ns == 0


def test_a_script_is_looked_for_where_its_program_starts(terminal: Terminal) -> None:
    terminal.project(f'{SERVER}command = "python3"\nargs = ["srv.py"]\n', solo=[reply("ok")] * 2)
    write(terminal.workspace, "srv.py", "first")
    assert terminal.call("trust", "--yes").code == 0
    write(terminal.workspace, "sub/srv.py", "second")
    assert terminal.call(*RUN).code == 0
    inner = Terminal(terminal.workspace / "sub")
    inner.env = terminal.env
    refused = inner.run(*RUN)
    assert (refused.code, "sub/srv.py is new" in refused.err) == (2, True), refused.err


TEST = f'{ALONE}[[experts.solo.tests]]\nname = "a"\nquery = "q"\nmodel = "model.json"\nworkspace = "case"\n'


@pytest.mark.parametrize("file", ["check.py", "case/check.py", "model.json"])
def test_the_files_of_a_test_count(terminal: Terminal, file: str) -> None:
    terminal.project(f'{TEST}expect.command = "python3 check.py"\n')
    write(terminal.workspace, "model.json", '{"experts": {"solo": {"turns": [{"text": "ok"}]}}}')
    write(terminal.workspace, "case/draft.md", "x")
    path = write(terminal.workspace, file, '{"experts": {"solo": {"turns": [{"text": "ok"}]}}}')
    assert terminal.call("trust", "--yes").code == 0
    assert terminal.call("test").code != 2
    path.write_text('{"experts": {"solo": {"turns": [{"text": "no"}]}}}')
    refused = terminal.call("test")
    assert (refused.code, f"{file} has changed" in refused.err) == (2, True), refused.err


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)


def test_a_pull_that_changes_a_server_asks(terminal: Terminal, tmp_path_factory: pytest.TempPathFactory) -> None:
    origin = tmp_path_factory.mktemp("origin") / "repo"
    git(origin.parent, "init", "-q", "repo")
    write(origin, "perstack.toml", f'{SERVER}command = "python3"\nargs = ["srv.py", "--config", "conf.json"]\n')
    write(origin, "srv.py", "first")
    write(origin, "conf.json", "first")
    git(origin, "add", ".")
    git(origin, "commit", "-qm", "a")
    ours = Terminal(tmp_path_factory.mktemp("ours") / "clone")
    git(origin, "clone", "-q", ".", str(ours.workspace))
    ours.env = terminal.env | {"PERSTACK_SCRIPT": str(ours.workspace / "script.json")}
    ours.script(solo=[reply("done")])
    assert ours.call("trust", "--yes").code == 0
    assert ours.call(*RUN).code == 0
    for name in ("srv.py", "conf.json"):
        write(origin, name, "second")
        git(origin, "commit", "-qam", "b")
        git(ours.workspace, "pull", "-q")
        refused = ours.call(*RUN)
        assert (refused.code, f"{name} has changed" in refused.err) == (2, True), refused.err
        assert ours.call("trust", "--yes").code == 0


def test_what_a_program_writes_itself_is_data(terminal: Terminal) -> None:
    args = '"srv.py", "--db", "data.db", "--log", "log.txt"'
    terminal.project(f'{SERVER}command = "python3"\nargs = [{args}]\nenv.MEMORY = "memory.jsonl"\n')
    git(terminal.workspace, "init", "-q", ".")
    sqlite3.connect(terminal.workspace / "data.db").execute("create table a (b)")
    for name in ("srv.py", "memory.jsonl"):
        write(terminal.workspace, name, "first")
    git(terminal.workspace, "add", "data.db", "srv.py")
    assert terminal.call("trust", "--yes").code == 0
    with sqlite3.connect(terminal.workspace / "data.db") as database:
        database.execute("insert into a values (1)")
    for name in ("log.txt", "memory.jsonl"):
        write(terminal.workspace, name, "second")
    assert is_agreed(terminal)


def test_a_database_does_not_become_a_script(terminal: Terminal) -> None:
    terminal.project(f'{SERVER}command = "sh"\nargs = ["data.db"]\n')
    sqlite3.connect(terminal.workspace / "data.db").execute("create table a (b)")
    assert terminal.call("trust", "--yes").code == 0
    with (terminal.workspace / "data.db").open("ab") as file:
        file.write(b"\ntouch evil\n")
    assert not is_agreed(terminal)


def test_texts_that_experts_write_do_not_count(terminal: Terminal) -> None:
    schedule = 'schedules.nightly = { cron = "0 2 * * *", expert = "solo", query = "Read report.md." }'
    terminal.project(f'permissions.allow = ["write(report.md)", "read(notes/*.md)"]\n{schedule}\n{ALONE}')
    path = write(terminal.workspace, "report.md", "first")
    assert terminal.call("trust", "--yes").code == 0
    path.write_text("second")
    assert is_agreed(terminal)


@pytest.mark.parametrize(
    "evaluator", ['"python3 check.py draft.md"', '["python3", "-I", "check.py", "draft.md"]', '"./check.py draft.md"']
)
def test_what_an_evaluator_measures_may_change(terminal: Terminal, evaluator: str) -> None:
    terminal.project(f"{ALONE}[experts.solo.iterate]\nevaluator = {evaluator}\n")
    write(terminal.workspace, "check.py", "first")
    path = write(terminal.workspace, "draft.md", "first")
    assert terminal.call("trust", "--yes").code == 0
    path.write_text("second")
    assert is_agreed(terminal)


def test_an_evaluator_that_changes_during_a_series_ends_it(terminal: Terminal) -> None:
    """A program without a sandbox writes it under a name that no rule sees: only the agreement tells."""
    spoil = ("exec", {"command": "sh", "args": ["-c", "f=$(echo ck.sh); echo touch evil > che$f"]})
    iterate = '[experts.solo.iterate]\nevaluator = "sh check.sh"\nmaxIterations = 3\n'
    toml = f'permissions.allow = ["exec"]\n{ALONE}{iterate}'
    terminal.project(toml, solo=[reply("", spoil), reply("done"), reply("done"), reply("done")])
    write(terminal.workspace, "check.sh", "echo '{\"score\": 0.5}'")
    assert terminal.call("trust", "--yes").code == 0
    ended = terminal.call("iterate", "solo", "go", "--provider", "scripted")
    assert ended.code != 0
    assert "check.sh has changed" in ended.err
    assert not (terminal.workspace / "evil").exists()


def test_every_table_with_a_key_that_executes_says_how_its_files_are_found() -> None:
    import perstack.expert_tests.models  # noqa: F401 - so that its models are there

    def models(base: type[Record]) -> set[type[Record]]:
        return {model for child in base.__subclasses__() for model in (child, *models(child))}

    executing = {
        model.__name__
        for model in models(Record)
        for field in model.model_fields.values()
        for key in field.metadata
        if isinstance(key, Key) and key.effect == "executes"
    }
    inner = {"Expected", "FunctionEvaluator"}  # parts of `ExpertTest` and `Iterate`
    assert executing - inner <= FINDERS.keys()


def test_agreements_to_one_declaration_do_not_grow_without_end(terminal: Terminal, monkeypatch) -> None:
    monkeypatch.setattr("perstack.trust.agreements._MAX_VERSIONS", 3)
    terminal.project(f'{SERVER}command = "sh"\nargs = ["run.sh"]\n{ALONE.replace("solo", "other")}')
    for number in range(6):
        write(terminal.workspace, "run.sh", f"{number}")
        assert terminal.call("trust", "--yes").code == 0
    agreed = []
    for number in range(6):
        write(terminal.workspace, "run.sh", f"{number}")
        agreed.append(is_agreed(terminal))
    assert agreed == [False, False, False, True, True, True]
