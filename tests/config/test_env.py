"""`.env` files."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from perstack.errors import UsageError
from perstack.trust.env_files import read_env
from perstack.trust.user_keys import KeyStore


def test_env_and_env_local_are_read_and_the_local_one_wins(write, tmp_path):
    write("A=1\nB=1\n", ".env")
    write("B=2\n", ".env.local")
    assert read_env(tmp_path, environ={}, is_named=True) == {"A": "1", "B": "2"}


def test_what_is_really_set_is_never_overridden(write, tmp_path):
    write("A=file\nB=file\n", ".env")
    assert read_env(tmp_path, environ={"A": "real", "C": "real"}, is_named=True) == {
        "A": "real",
        "B": "file",
        "C": "real",
    }


def test_an_empty_variable_counts_as_not_set(write, tmp_path):
    write("A=file\n", ".env")
    assert read_env(tmp_path, environ={"A": "", "B": ""}, is_named=True) == {"A": "file", "B": ""}


def test_named_files_take_the_place_of_the_usual_ones(write, tmp_path):
    write("A=usual\n", ".env")
    write("B=1\nC=1\n", "one.env")
    write("C=2\n", "deep/two.env")
    names = ("one.env", str(tmp_path / "deep" / "two.env"), "gone.env")
    assert read_env(tmp_path, names, environ={}, is_named=True) == {"B": "1", "C": "2"}


def test_quotes_comments_and_export_are_understood_and_dollars_are_left_alone(write, tmp_path):
    write("export A='a b'  # why\nB=\"x\\ny\"\n# no\nC=${A}\nD\n", ".env")
    assert read_env(tmp_path, environ={}, is_named=True) == {"A": "a b", "B": "x\ny", "C": "${A}"}


def test_the_process_keeps_its_environment(write, tmp_path):
    write("PERSTACK_TEST_ONLY=1\n", ".env")
    before = dict(os.environ)
    assert read_env(tmp_path, is_named=True)["PERSTACK_TEST_ONLY"] == "1"
    assert dict(os.environ) == before


def test_a_file_that_is_not_utf_8_is_a_users_mistake(tmp_path):
    (tmp_path / ".env").write_bytes(b"A=\xff")
    with pytest.raises(UsageError, match=r"\.env: is not UTF-8 at byte 2"):
        read_env(tmp_path, environ={}, is_named=True)


@pytest.mark.parametrize("name", ["9" * 400, "x/" * 3000], ids=["long", "deep"])
def test_a_name_that_no_file_can_have_is_a_users_mistake(tmp_path, name):
    with pytest.raises(UsageError, match="cannot be read: File name too long"):
        read_env(tmp_path, (name,))


def test_a_file_that_nobody_agreed_to_is_not_read_and_named(write, tmp_path):
    write("A=1\n", ".env")
    env = read_env(tmp_path, environ={"B": "2"})
    assert env == {"B": "2"}
    assert env.unread == (tmp_path / ".env",)
    assert str(env.warnings[0]).startswith(f"{tmp_path / '.env'} is not read: nobody has agreed to it")


def test_a_stored_key_precedes_a_file_that_was_found_and_not_one_that_was_named(write, tmp_path):
    write("ANTHROPIC_API_KEY=theirs\n", ".env")
    stored = KeyStore(tmp_path / "mine")
    stored.put("ANTHROPIC_API_KEY", "mine")
    found = read_env(tmp_path, environ={}, stored=stored, is_agreed=lambda file: True)
    assert (found["ANTHROPIC_API_KEY"], found.stored) == ("mine", {"ANTHROPIC_API_KEY"})
    named = read_env(tmp_path, environ={}, stored=stored, is_named=True)
    assert (named["ANTHROPIC_API_KEY"], named.stored) == ("theirs", frozenset())


def test_without_such_a_file_the_library_is_not_imported(tmp_path):
    code = (
        "import sys, pathlib, perstack.trust.env_files as e; e.read_env(pathlib.Path()); print('dotenv' in sys.modules)"
    )
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"
