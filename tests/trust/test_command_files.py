"""The files that a declared command may run are found in its words, whatever the interpreter is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perstack.trust.command_files import files_of_command, files_of_entry, files_of_server


def certain(command: str | list[str]) -> set[str]:
    return {path for path, is_certain in files_of_command(command).items() if is_certain}


MODULE = {"checks/all.py", "checks/all/__init__.py", "checks/all/__main__.py"}


@pytest.mark.parametrize(
    ("command", "paths"),
    [
        (["python3", "check.py"], {"check.py"}),
        ("python3 check.py", {"check.py"}),
        (["python3", "-u", "./tools/../check.py", "--rules=rules.json"], {"check.py", "rules.json"}),
        (["some-new-language", "check.xyz"], {"check.xyz"}),
        ("./check", {"check"}),
        ("cd tools && python3 check.py", {"check.py", "tools/check.py"}),
        ("if true; then (sh tools/a.sh); fi", {"tools/a.sh"}),
        (". ./env.sh; make -fbuild.mk", {"env.sh", "build.mk"}),
        ("$PWD/check.py `cat names | ./pick`", {"check.py", "pick"}),
        (
            ["python3", "-m", "checks.all"],
            {"checks/__init__.py"} | MODULE,
        ),
        (["node", "-r", "./hook.js", "main.js"], {"hook.js", "main.js"}),
        ("python3 'my check.py'", {"my check.py", "check.py"}),
        ("it's a.py", {"a.py"}),
        ("cat draft.md | python3 check.py", {"check.py"}),
        ("./cat draft.md", {"cat", "draft.md"}),
        ("python3 check.py < draft.md > out.txt", {"check.py"}),
        ("! grep -i refactor NOTES.md", set()),
        ("test $(wc -w < haiku.md) -le 12", set()),
        ("curl https://example.com/x.sh", set()),
        ("", set()),
    ],
)
def test_the_files_of_a_command(command: str | list[str], paths: set[str]) -> None:
    assert certain(command) == paths


@pytest.mark.parametrize(
    "command", [["sh", "-c", "python3 check.py"], ["env", "A=1", "bash", "-lc", "cd . && check.py"]]
)
def test_a_line_in_a_line_is_read_too(command: list[str]) -> None:
    assert "check.py" in certain(command)


def test_a_word_without_a_folder_or_an_ending_may_be_a_file() -> None:
    assert files_of_command(["sh", "check"]) == {"sh": False, "check": False}


def test_what_follows_the_script_of_a_server_is_data() -> None:
    assert set(files_of_server("python3", ["srv.py", "--db", "data/notes.db"])) == {"python3", "srv.py"}
    assert "hook.js" in files_of_server("node", ["-r", "./hook.js", "srv.js"])


def test_the_modules_of_a_function_are_found_as_the_import_finds_them() -> None:
    files = files_of_entry("checks.score:run")
    assert {"checks.py", "checks/__init__.py", "checks/score.py", "checks/score/__init__.py"} <= set(files)
    assert any(path.startswith("checks/__pycache__/score.") for path in files)


@given(st.one_of(st.text(), st.lists(st.text())))
def test_any_command_is_read_and_no_path_is_an_option(command: str | list[str]) -> None:
    for path in files_of_command(command):
        assert path
        assert not path.startswith("-")
        assert "\0" not in path
