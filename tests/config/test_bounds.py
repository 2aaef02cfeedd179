"""Definitions, locks and .env files that are too large or too deep: one line of ours, in little time and memory."""

from __future__ import annotations

import glob
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fuzzing import scaled
from hypothesis import given, settings
from hypothesis import strategies as st
from terminal import Terminal

from perstack.config.file_patterns import TooManyNames, matches
from perstack.definition_files import load_project
from perstack.errors import DefinitionError, UsageError
from perstack.lockfile.lock import read_lock
from perstack.trust.env_files import read_env

DEEP = [
    "x = " + "[" * 5000 + "]" * 5000,
    "x = " + "{a=" * 5000 + "1" + "}" * 5000,
    "x = " + "[" * 100 + "]" * 100,
    ".".join(["a"] * 200_000) + " = 1",
    "[" + " . ".join(['"a"'] * 200_000) + "]",
    "[[" + ".".join(["a"] * 100) + "]]",
]


@pytest.mark.parametrize("text", DEEP, ids=range(len(DEEP)))
def test_a_definition_that_is_nested_too_deep_is_a_problem_and_ends_at_once(tmp_path: Path, text: str) -> None:
    path = tmp_path / "perstack.toml"
    path.write_text(text)
    began = time.monotonic()
    with pytest.raises(DefinitionError) as caught:
        load_project(path)
    assert str(caught.value) == f"{path}: is nested more than 64 levels deep: make it flatter"
    (tmp_path / "perstack.lock").write_text(text)
    with pytest.raises(UsageError, match="is nested more than 64 levels deep"):
        read_lock(tmp_path / "perstack.lock")
    assert time.monotonic() - began < 10


def test_many_mistakes_are_told_in_little_time(tmp_path: Path) -> None:
    path = tmp_path / "perstack.toml"
    skill = '[experts.a]\ninstruction = "x"\n[experts.a.skills.s]\ntype = "mcpStdioSkill"\ncommand = "x"\n'
    variables = "\n".join(f"V{number} = 1" for number in range(20_000))
    path.write_text(f"{skill}args = [{'1, ' * 20_000}]\n[experts.a.skills.s.env]\n{variables}\n")
    began = time.monotonic()
    with pytest.raises(DefinitionError) as caught:
        load_project(path)
    assert len(caught.value.problems) == 40_000
    assert time.monotonic() - began < 10


def test_a_schema_in_a_text_that_is_nested_too_deep_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "perstack.toml"
    skill = '[experts.a]\ninstruction = "x"\n[experts.a.skills.s]\ntype = "interactiveSkill"\n'
    path.write_text(f"{skill}tools.ask.inputJsonSchema = '{'[' * 200_000}'\n")
    with pytest.raises(DefinitionError, match="inputJsonSchema: is nested too deeply: make it flatter"):
        load_project(path)


def test_texts_with_many_dots_are_no_keys(tmp_path: Path) -> None:
    path = tmp_path / "perstack.toml"
    dots = f"{'.' * 200} and {'Oh yes. ' * 200}"
    numbers = ", ".join(["1.5"] * 300)
    path.write_text(f'[experts.a]\ninstruction = """\n{dots}\n"""\ndescription = "{dots}"\nn = [{numbers}]\n')
    assert list(load_project(path).project.experts) == ["a"]


def test_files_of_tens_of_megabytes_are_refused_within_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "perstack.toml"
    path.write_bytes(b"x = [\n" + b"[1],\n" * 10_000_000 + b"]\n")
    (tmp_path / ".env").write_bytes(b"A=1\n" * 1_000_000)
    with pytest.raises(UsageError, match=r"\.env: is larger than 1 MiB: make it smaller"):
        read_env(tmp_path, environ={}, is_named=True)
    found = subprocess.run(
        [sys.executable, "-m", "perstack", "validate", "--config", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)),
    )
    assert found.returncode == 2
    assert f"{path}: error: is larger than 8 MiB: make it smaller" in found.stdout
    assert "Traceback" not in found.stderr


def test_an_include_that_goes_on_for_ever_is_a_problem(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"{number}.toml").write_text(f'include = ["{number + 1}.toml"]\n')
    (tmp_path / "60.toml").write_text("")
    with pytest.raises(DefinitionError, match="more than 1000 files, or 50 one inside the other, are included"):
        load_project(tmp_path / "0.toml")


def test_an_include_of_everything_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perstack.config.file_patterns.MAX_EXAMINED_NAMES", 100)
    for number in range(200):
        (tmp_path / f"{number}.txt").touch()
    path = tmp_path / "perstack.toml"
    path.write_text('include = ["**/*"]\n')
    with pytest.raises(DefinitionError, match=r"`\*\*/\*` looks at more than 100 files and folders"):
        load_project(path)


def test_folders_that_are_linked_into_themselves_are_not_followed_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perstack.config.file_patterns.MAX_EXAMINED_NAMES", 20_000)
    for name in "abc":
        (tmp_path / name).symlink_to(".")
    with pytest.raises(TooManyNames):
        matches("**/nothing", tmp_path)


parts = st.sampled_from(["**", "*", "a*", "a", ".h", ".*", "b.toml", "*.toml", "[ab]", "?"])


@settings(max_examples=scaled(200), deadline=None)
@given(st.lists(parts, min_size=1, max_size=4))
def test_patterns_mean_what_the_glob_module_says(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    folder = tmp_path_factory.getbasetemp() / "globbed"
    if not folder.exists():
        for name in ("a/b.toml", "a/a/b.toml", "b/.h/b.toml", ".h/a.toml", "b.toml", "ab/a/a/a.toml", "a/.h"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
    pattern = "/".join(parts)
    names = glob.glob(pattern, root_dir=folder, recursive=True)  # noqa: PTH207 - it is what is compared with
    said = {name for name in names if (folder / name).is_file() and not name.endswith("/")}
    assert matches(pattern, folder) == sorted(said)
    assert {str(folder / name) for name in said} == set(matches(f"{folder}/{pattern}", Path("/nowhere")))


@pytest.mark.parametrize("text", ["maxSteps = {}", "x = [{}]", "[experts.a.budget]\nmaxTokens = -{}", "a = 0x{}"])
def test_a_number_of_thousands_of_digits_is_a_problem_of_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "perstack.toml"
    path.write_text(text.format("9" * 5000))
    terminal = Terminal(tmp_path)
    for command in ("validate", "jobs", "run a q"):
        done = terminal.call(*command.split())
        assert "Traceback" not in done.err
        assert "set_int_max_str_digits" not in done.err + done.out
