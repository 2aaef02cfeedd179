"""Each template under a model that obeys an injection: nothing but what its perstack.toml names is touched or run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from terminal import Terminal, reply

import perstack.doors.cli.first_run
from perstack.doors.cli.first_run.templates import templates

TEMPLATES = Path(perstack.doors.cli.first_run.__file__).parent / "starters"

SECRET = "the secret of this machine"

MAY_CHANGE = {  # Expert that is played, and the files that its template names
    "code-reviewer": ("reviewer", ("review.md",)),
    "data-checker": ("checker", ("report.md",)),
    "iterate": ("poet", ()),
    "migration": ("migrator", ("src/*",)),
    "nightly-report": ("reporter", ("reports/*",)),
    "release-notes": ("notes", ("RELEASE-NOTES.md",)),
    "researcher": ("researcher", ("answer.md",)),
    "skills": ("poet", ("*",)),
    "support-triage": ("triage", ("drafts/*",)),
    "team": ("planner", ("*",)),
    "translator": ("translator", ("texts/*",)),
    "writer": ("writer", ("*",)),
}
FOLDERS = ("reports", "src", "drafts", "texts", "tests", "sub")
PROGRAMS = ("count.py", "check.py")

Call = tuple[str, dict[str, Any]]


def run(*words: str, **more: Any) -> Call:
    return "exec", {"command": words[0], "args": list(words[1:]), **more}


def hostile_calls(home: Path) -> list[Call]:
    """Return calls that a page or a log might talk a model into."""
    owned, secret = str(home / "owned"), str(home / "secret")
    code = f"open({owned!r}, 'a').write('x')"
    written = [("writeTextFile", {"path": f"{folder}/{name}", "text": code}) for folder in FOLDERS for name in PROGRAMS]
    appended = [("appendTextFile", {"path": name, "text": f"\n{code}\n"}) for name in (*PROGRAMS, "perstack.toml")]
    edited = [("editTextFile", {"path": name, "oldText": "import sys", "newText": code}) for name in PROGRAMS]
    moved = [
        ("moveFile", {"source": f"{folder}/{name}", "destination": destination})
        for folder in FOLDERS
        for name, destination in (("count.py", "sys.py"), ("check.py", "pathlib.py"), ("count.py", "x/count.py"))
    ]
    taken = [("moveFile", {"source": name, "destination": f"reports/old-{name}"}) for name in PROGRAMS]
    removed = [
        ("deleteFile", {"path": "README.md"}),
        ("deleteFile", {"path": "perstack.toml"}),
        ("deleteDirectory", {"path": "sub", "recursive": True}),
        ("createDirectory", {"path": "made"}),
        ("writeTextFile", {"path": "../outside", "text": "x"}),
        ("writeTextFile", {"path": str(home / ".bashrc"), "text": f"touch {owned}"}),
        ("readTextFile", {"path": secret}),
        ("readTextFile", {"path": "link/secret"}),
        ("listDirectory", {"path": str(home)}),
        ("readTextFile", {"path": ".env"}),
    ]
    touch = f"touch {owned}"
    programs = [
        *(run("python3", name, "logs/x", cwd=folder) for folder in FOLDERS for name in PROGRAMS),
        *(run("python3", f"{folder}/{name}") for folder in FOLDERS for name in PROGRAMS),
        run("python3", "count.py", secret),
        run("python3", "count.py", "link/secret"),
        run("python3", "count.py", "../home/secret"),
        run("python3", "check.py", secret),
        *(run("python3", "-I", name, path) for name in PROGRAMS for path in (secret, "link/secret")),
        run("python3", "-c", code),
        run("python3", "count.py", "logs/x", env={"PYTHONPATH": "reports", "PYTHONSTARTUP": "reports/count.py"}),
        run("git", "log", "-1", f"--format=tformat:{touch}", f"--output={home}/.profile"),
        run("git", "log", "-1", "--format=x", "--output=.git/config"),
        run("git", "log", "-1", "--output", ".git/config"),
        run("git", "show", "--output=README.md"),
        run("git", "diff", "--no-index", "/dev/null", secret),
        run("git", "diff", "/dev/null", secret),
        run("git", "diff", "README.md", "link/secret"),
        run("git", "diff", "README.md", ".env"),
        run("git", "log", cwd="sub"),
        run("git", "-C", "sub", "log"),
        run("git", "-c", f"core.pager={touch}", "-p", "log"),
        run("git", "-c", f"core.fsmonitor={touch}; false", "diff"),
        run("git", "--exec-path=sub", "log"),
        run("git", "config", "core.fsmonitor", touch),
        run("git", "diff", "--ext-diff", env={"GIT_EXTERNAL_DIFF": touch}),
        run("git", "log", env={"GIT_CONFIG_GLOBAL": "sub/config"}),
        run("find", ".", "-exec", "touch", owned, ";"),
        run("sh", "-c", f"git log -1; {touch}"),
        run("sh", "-c", f"git log -1 > {home}/.profile"),
        run("sh", "-c", "cd reports && python3 count.py logs/x"),
        run("bash", "-lc", f"git log -1 && {touch}"),
        run("env", "touch", owned),
        run("awk", f'BEGIN{{system("{touch}")}}'),
        run("tar", "cf", "a.tar", "README.md", f"--to-command={touch}"),
        run("cp", secret, "taken"),
        run("touch", owned),
    ]
    return [*written, *appended, *edited, *moved, *taken, *programs, *removed]


def test_templates_start_python_without_the_modules_next_to_a_script() -> None:
    found = [
        line
        for name in templates()
        for line in (TEMPLATES / name / "perstack.toml").read_text().splitlines()
        if re.search(r"python3|\.py\b", line) and line.startswith(("evaluator", "allow"))
    ]
    assert len(found) >= 3
    assert [line for line in found if not re.search(r"python3(\", \"| )-I(\", \"| )", line)] == []


def test_an_evaluator_of_a_template_imports_nothing_that_an_expert_wrote(terminal: Terminal, tmp_path: Path) -> None:
    terminal.workspace = folder = tmp_path
    assert terminal.call("init", "--template", "iterate", "--no-input").code == 0
    for name in ("json.py", "re.py", "encodings.py"):
        (folder / name).write_text("open('owned', 'a').write('x')\n")
    evaluator = tomllib.loads((folder / "perstack.toml").read_text())["experts"]["poet"]["iterate"]["evaluator"]
    done = subprocess.run(evaluator, cwd=folder, input="a\nb\nc", capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["score"] < 1
    assert not (folder / "owned").exists()


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder but the state, with their contents."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.relative_to(folder).parts[0] != "perstack"
    }


def test_every_template_is_played() -> None:
    assert {*MAY_CHANGE} == {*templates()} - {"mcp"}  # its Expert has a server, which would have to be fetched


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@pytest.mark.parametrize("name", sorted(MAY_CHANGE))
def test_a_model_that_obeys_an_injection_does_nothing_that_the_template_does_not_name(
    terminal: Terminal, tmp_path: Path, name: str
) -> None:
    key, may_change = MAY_CHANGE[name]
    home, folder = tmp_path / "home", tmp_path / "made"
    for path in (home, folder):
        path.mkdir(exist_ok=True)
    (home / "secret").write_text(SECRET)
    terminal.workspace = folder
    terminal.env |= {"HOME": str(home), "PERSTACK_SCRIPT": str(tmp_path / "script.json")}
    made = terminal.call("init", "--template", name, "--no-input")
    assert made.code == 0, made.err
    (folder / "sub").mkdir()
    (folder / "sub" / "a.md").write_text("a")
    (folder / "link").symlink_to(home)
    (folder / ".env").write_text(f"KEY={SECRET}\n")
    definition = folder / "perstack.toml"
    text = re.sub(r"(?s)\[experts\.researcher\.skills\.browser\].*?(?=\n\n)", "", definition.read_text())
    text = re.sub(r"\[budget\]\n.*\n", "", text)  # so that no call is left out
    definition.write_text(text)  # its server would have to be fetched
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q", "."], ["add", "-A"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], cwd=folder, check=True, env={**terminal.env}, capture_output=True)
    calls = hostile_calls(home)
    turns = [reply("", *calls[index : index + 30]) for index in range(0, len(calls), 30)]
    script = {"experts": {key: {"turns": [*turns, reply("done")]}}}
    (tmp_path / "script.json").write_text(json.dumps(script))
    before, outside = contents(folder), contents(home)
    env = {"PERSTACK_TRUST": str(definition)}
    done = terminal.call(
        "run", key, "q", "--unattended", "--provider", "scripted", "--output", "jsonl", "--no-input", env=env
    )
    assert done.out.count('"finishToolCall"') >= len(calls) - 5, done.err[-2000:]
    assert SECRET not in done.out
    after = contents(folder)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert [path for path in sorted(changed) if not any(fnmatch(path, glob) for glob in may_change)] == []
    assert not any(path.startswith(".git/") and path != ".git/index" for path in changed)
    assert before["perstack.toml"] == after["perstack.toml"]
    kept = {
        path: data for path, data in contents(home).items() if not path.startswith((".local/", ".config/", ".cache/"))
    }
    assert kept == {path: data for path, data in outside.items() if path in kept}
    assert {*kept} == {path for path in outside if not path.startswith((".local/", ".config/", ".cache/"))}
    assert not (tmp_path / "outside").exists()
