"""A test added to a definition file, whose text stays as it is."""

from __future__ import annotations

import fcntl
import os
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from perstack.config.key_path import KeyPath, spell
from perstack.config.source import TomlTable, TomlValue
from perstack.config.toml import NotRead, parse_toml, read_bounded
from perstack.errors import UsageError
from perstack.ports.durable import sync

_Value = str | int | Sequence[str] | Mapping[str, str]


def add_test(path: Path, expert: str, test: Mapping[str, _Value], expect: Mapping[str, _Value]) -> None:
    """Append `[[experts.EXPERT.tests]]` to a definition file: all of it or nothing, also while others do.

    Raises UsageError if a test of that name is there meanwhile, or nothing can follow what is there, and OSError.
    """
    real = path.resolve()
    folder = os.open(real.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        old = read_bounded(real)
        _replace(real, _with_test(path, old, expert, test, expect))
    except NotRead as error:
        raise UsageError(f"{path} {error}") from None
    finally:
        os.close(folder)


def _with_test(path: Path, old: bytes, expert: str, test: Mapping[str, _Value], expect: Mapping[str, _Value]) -> bytes:
    text = old.decode("utf-8-sig")
    at: KeyPath = ("experts", expert, "tests")
    lines = ["", f"[[{spell(at)}]]", *_lines(test), "", f"[{spell((*at, 'expect'))}]", *_lines(expect), ""]
    ending = "\r\n" if "\r\n" in text else "\n"
    added = "\n".join(lines).replace("\n", ending)
    gap = "" if not text or text.endswith("\n") else ending
    before = _tests(parse_toml(text), expert)
    if any(isinstance(one, dict) and one.get("name") == test["name"] for one in before):
        raise UsageError(f"{path}: Expert `{expert}` has a test `{test['name']}` already: choose another name")
    try:
        after = _tests(parse_toml(text + gap + added), expert)
    except tomllib.TOMLDecodeError:
        after = []
    if len(after) != len(before) + 1:
        raise UsageError(
            f"{path}: no test can follow what is there for Expert `{expert}`: write the Expert as [experts.{expert}],"
            f" and its tests as [[experts.{expert}.tests]]"
        )
    return old + (gap + added).encode()


def _tests(table: TomlTable, expert: str) -> list[TomlValue]:
    experts = table.get("experts")
    one = experts.get(expert) if isinstance(experts, dict) else None
    tests = one.get("tests") if isinstance(one, dict) else None
    return tests if isinstance(tests, list) else []


def _lines(values: Mapping[str, _Value]) -> list[str]:
    found: list[str] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            found += [f"{spell((name, key))} = {_toml(one)}" for key, one in value.items()]
        else:
            found.append(f"{name} = {_toml(value)}")
    return found


def _toml(value: str | int | Sequence[str]) -> str:
    import tomli_w

    plain = value if isinstance(value, str | int) else [*value]
    return tomli_w.dumps({"x": plain}).removeprefix("x = ").rstrip("\n")


def _replace(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, path.stat().st_mode & 0o777)
            file.write(content)
            file.flush()
            sync(handle)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
