"""`perstack diff` and `perstack rewind`, at a terminal and from a script."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from folder_trees import tree
from terminal import Terminal, reply

PROJECT = """
workspace = { path = ".", snapshots = true }
[experts.solo]
instruction = "You work alone."
"""
ODD = "printf 'e\\033[31m\\n' > \"$(printf 'n\\033J')\""
SECOND = f"printf '\\0\\1' > pic; chmod +x a.txt; ln -s /etc/passwd l; mkdir d; {ODD}"


def command(text: str) -> tuple[str, dict[str, object]]:
    return "exec", {"command": "sh", "args": ["-c", text]}


@pytest.fixture
def worked(terminal: Terminal) -> Terminal:
    """Return a project whose Job `j` changed files in its first two steps, by a tool and by a command."""
    (terminal.workspace / "a.txt").write_text("one\ntwo\nthree\n")
    terminal.project(
        PROJECT,
        solo=[
            reply("", ("writeTextFile", {"path": "a.txt", "text": "one\n2\nthree\nfour\n"})),
            reply("", command(SECOND)),
            reply("done"),
            reply("again"),
        ],
    )
    assert terminal.call("run", "solo", "go", "--job-id", "j").code == 0
    return terminal


def checkpoints(terminal: Terminal) -> list[str]:
    return [step["checkpointId"] for step in terminal.run("log", "j", "--type", "finishStep", "--json").events]


def test_a_diff_is_a_patch_that_git_applies(worked: Terminal) -> None:
    first = checkpoints(worked)[0]
    result = worked.call("diff", "j", "1")
    assert result.out == (
        "diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,4 @@\n one\n-two\n+2\n three\n+four\n"
    )
    assert worked.call("diff", "j", first).out == result.out
    assert worked.call("diff", first).out == result.out
    patch = worked.call("diff", "j", "2").out.replace("Binary files /dev/null and b/pic differ\n", "")
    assert worked.call("rewind", "j", first, "--yes").code == 0
    fits = subprocess.run(["git", "apply", "-"], cwd=worked.workspace, input=patch.encode(), capture_output=True)
    assert fits.returncode == 0, fits.stderr
    files = tree(worked.workspace)
    assert files[b"l"] == ("link", b"/etc/passwd")
    assert files[b"a.txt"][0] == "program"
    assert files[b"n\x1bJ"] == ("file", b"e\x1b[31m\n")


def test_a_terminal_is_shown_what_it_would_obey_as_text(worked: Terminal) -> None:
    seen = worked.look("diff", "j", "2")
    assert "\\u001b[31m" in seen
    assert "n\\033J" in seen
    assert "\x1b[31m\n" not in seen
    assert "\x1bJ" not in seen


def test_programs_are_told_of_each_file(worked: Terminal) -> None:
    found = json.loads(worked.call("diff", "j", "2", "--json").out)
    assert (found["job"], found["of"]) == ("j", "step 2 of j-1")
    kinds = {file["path"]: file for file in found["files"]}
    assert kinds["a.txt"]["kind"] == "mode"
    assert kinds["pic"]["binary"] is True
    assert kinds["l"]["new"] == {"kind": "link", "size": 0, "target": "/etc/passwd"}
    assert kinds["d"]["new"]["kind"] == "folder"
    assert "hunks" not in json.loads(worked.call("diff", "j", "1", "--stat", "--json").out)["files"][0]


def test_what_a_person_changed_between_two_runs_is_no_runs(worked: Terminal) -> None:
    (worked.workspace / "mine.txt").write_text("mine\n")
    assert worked.call("run", "solo", "more", "--continue-job", "j").code == 0
    assert "mine.txt" not in worked.call("diff", "j", "--stat").out
    assert worked.call("diff", "j", "--run", "j-2").out == ""
    last = checkpoints(worked)[1]
    (worked.workspace / "now.txt").write_text("now\n")
    assert {line.split()[1] for line in worked.call("diff", "j", f"{last}..", "--stat").lines[1:-1]} == {
        "mine.txt",
        "now.txt",
    }


def test_a_rewind_shows_what_it_does_and_the_way_back_works_as_it_is_printed(worked: Terminal) -> None:
    first, after = checkpoints(worked)[0], tree(worked.workspace)
    tried = worked.call("rewind", "j", first, "--dry-run")
    assert tried.code == 0
    assert tree(worked.workspace) == after
    refused = worked.call("rewind", "j", first)
    assert (refused.code, refused.err) == (
        2,
        "error: files would be changed (−1 in 4 files): add --yes to change them\n",
    )
    result = worked.call("rewind", "j", first, "--yes")
    assert set(tree(worked.workspace)) == {b"a.txt", b"script.json"}
    back = result.lines[-1].split()
    assert back[:2] == ["perstack", "rewind"]
    assert worked.call(*back[1:], "--yes").code == 0
    assert tree(worked.workspace) == after
    assert "rewinds   the files to" in worked.call("log", "j").out
    assert worked.call("verify", "j").code == 0
    assert worked.call("replay", "j").code == 0


def test_a_person_is_asked_and_only_a_yes_changes_files(worked: Terminal) -> None:
    first, after = checkpoints(worked)[0], tree(worked.workspace)
    seen = worked.look("rewind", "j", first, types="n\n")
    assert "nothing is changed" in seen
    assert tree(worked.workspace) == after
    assert "to undo it:" in worked.look("rewind", "j", first, types="yes\n")
    assert tree(worked.workspace)[b"a.txt"] == ("file", b"one\n2\nthree\nfour\n")


def test_a_rewind_to_where_the_files_are_does_and_records_nothing(worked: Terminal) -> None:
    before = worked.call("log", "j", "--json").out
    result = worked.call("rewind", "j", checkpoints(worked)[1], "--yes")
    assert result.code == 0
    assert "there is nothing to rewind" in result.err
    assert worked.call("log", "j", "--json").out == before


def test_a_job_without_snapshots_says_how_to_have_them(terminal: Terminal) -> None:
    terminal.project('[experts.solo]\ninstruction = "You work."\n', solo=[reply("done")])
    assert terminal.call("run", "solo", "go", "--job-id", "j").code == 0
    for found in (terminal.call("diff", "j"), terminal.call("rewind", "j", "j-1-4", "--yes")):
        assert found.code == 2
        assert "snapshots = true" in found.err


def test_a_branch_begins_with_the_files_of_then_in_place_or_in_a_new_folder(worked: Terminal) -> None:
    first, after = checkpoints(worked)[0], tree(worked.workspace)
    branch = ("run", "solo", "another way", "--continue-job", "j", "--resume-from", first, "--with-files")
    new = worked.workspace.parent / "new folder"
    done = worked.call(*branch, "--workspace", str(new))
    assert done.code == 0, done.err
    assert tree(new)[b"a.txt"][1] == b"one\n2\nthree\nfour\n"
    assert tree(worked.workspace) == after
    result = worked.call(*branch, "--workspace", str(new))
    assert (result.code, "is not empty" in result.err) == (2, True)
    unsure = worked.call(*branch)
    assert (unsure.code, tree(worked.workspace) == after) == (2, True)
    (worked.workspace / "later.txt").write_text("later\n")
    done = worked.call(*branch, "--yes")
    assert done.code == 0, done.err
    assert b"later.txt" not in tree(worked.workspace)
    assert "perstack rewind j j-" in done.err
    assert worked.call("run", "solo", "q", "--continue", "--with-files").code == 2


SCREENS = Path(__file__).parent / "screens" / "files"
COMMANDS = {
    "diff": ("diff", "j"),
    "diff-stat": ("diff", "j", "--stat"),
    "rewind-dry-run": ("rewind", "j", "CHECKPOINT", "--dry-run"),
    "rewind-question": ("rewind", "j", "CHECKPOINT"),
}


def test_each_screen_looks_as_it_did(worked: Terminal) -> None:
    long = worked.workspace / "src" / "a" / "path" / "that" / "is" / "rather" / "long"
    long.mkdir(parents=True)
    (long / "the_name_of_the_file_that_counts.py").write_text("x\n" * 1200)
    assert worked.call("rewind", "j", "j-1-2", "--only", "l", "--yes").code == 0
    first = checkpoints(worked)[0]
    for name, given in COMMANDS.items():
        args = [first if word == "CHECKPOINT" else word for word in given]
        screens = [f"{columns} columns\n{_screen(worked, args, columns)}" for columns in (80, 200)]
        found = "\n".join(screens).replace(str(worked.workspace), "WORKSPACE").replace("\x1b", "␛")
        path = SCREENS / f"{name}.txt"
        if os.environ.get("PERSTACK_KEEP_SCREENS"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(found)
        assert found == path.read_text()


def _screen(terminal: Terminal, args: list[str], columns: int) -> str:
    return terminal.look(*args, columns=columns, types="no\n" if args[0] == "rewind" else "")
