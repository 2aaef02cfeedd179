"""Trees of files: what is written is read again, what nobody writes is refused, and what differs is found."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perstack.core.files.file_names import is_name, is_never_recorded, parse_spelling, spell
from perstack.snapshots.tree_diff import Pair, compare, counts_of
from perstack.snapshots.trees import (
    Entry,
    File,
    Link,
    NotATree,
    SkippedEntry,
    Subfolder,
    TreeFolder,
    digest_of,
    folder_blob,
    folder_of,
    read_folder,
)

_NAMES = st.binary(min_size=1, max_size=12).filter(is_name)
_DIGESTS = st.sampled_from([digest_of(bytes([n])) for n in range(6)])


def _entries(name: bytes) -> st.SearchStrategy[Entry]:
    return st.one_of(
        st.builds(File, st.just(name), st.integers(0, 1 << 62), _DIGESTS, st.booleans()),
        st.builds(Link, st.just(name), st.binary(min_size=1, max_size=9).filter(lambda target: b"\0" not in target)),
        st.builds(Subfolder, st.just(name), _DIGESTS),
        st.builds(SkippedEntry, st.just(name), st.sampled_from(["tooLarge", "special"])),
    )


_FOLDERS = st.sets(_NAMES, max_size=6).flatmap(lambda names: st.tuples(*map(_entries, sorted(names)))).map(folder_of)


@given(st.binary(max_size=40))
def test_every_name_has_one_spelling_that_means_it_alone(name: bytes) -> None:
    assert parse_spelling(spell(name)) == name


@given(st.text(max_size=20))
def test_a_text_that_spells_no_name_is_refused(text: str) -> None:
    try:
        name = parse_spelling(text)
    except ValueError:
        return
    assert spell(name) == text


def test_names_are_spelled_as_people_read_them() -> None:
    assert spell("größe 名.txt".encode()) == "größe 名.txt"
    assert spell(b"a\\b\xff\x80.txt") == r"a\\b\xff\x80.txt"
    for wrong in (r"a\b", r"\x41", r"\xFF", r"\xc3\xb6", "\\", "\ud800"):
        with pytest.raises(ValueError):
            parse_spelling(wrong)


@given(_FOLDERS)
def test_a_folder_is_read_as_it_was_written(folder: TreeFolder) -> None:
    assert read_folder(folder_blob(folder)) == folder


def _blob(*rows: object) -> bytes:
    return json.dumps({"tree": 1, "entries": rows}, ensure_ascii=False, separators=(",", ":")).encode()


_D = digest_of(b"")


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"[]",
        b'{"tree":2,"entries":[]}',
        b'{"tree":1}',
        b'{"tree":1, "entries":[]}',
        b'{"entries":[],"tree":1}',
        b'{"tree":true,"entries":[]}',
        b'{"tree":1.0,"entries":[]}',
        _blob(["..", "folder", _D]),
        _blob([".", "folder", _D]),
        _blob(["", "folder", _D]),
        _blob(["a/b", "file", 1, _D]),
        _blob(["/etc", "file", 1, _D]),
        _blob(["a\0", "file", 1, _D]),
        _blob(["n" * 256, "file", 1, _D]),
        _blob(["a", "file", 1, _D], ["a", "file", 1, _D]),
        _blob(["b", "file", 1, _D], ["a", "file", 1, _D]),
        _blob(["a", "file", -1, _D]),
        _blob(["a", "file", True, _D]),
        _blob(["a", "file", 1.0, _D]),
        _blob(["a", "file", 1 << 70, _D]),
        _blob(["a", "file", 1, _D.upper().replace("0", "A")]),
        _blob(["a", "file", 1, "../../x"]),
        _blob(["a", "device", 1, _D]),
        _blob(["a", "link", ""]),
        _blob(["a", "link", "x\0y"]),
        _blob(["a", "link", "x" * 5000]),
        _blob(["a", "leftOut", "because"]),
        _blob(["\\x41", "folder", _D]),
        _blob("a"),
        _blob([["a"], "folder", _D]),
        b"[" * 9000,
    ],
)
def test_a_tree_that_nobody_writes_is_refused(blob: bytes) -> None:
    with pytest.raises(NotATree):
        read_folder(blob)


@given(_FOLDERS, _FOLDERS)
def test_what_differs_makes_one_folder_of_the_other(old: TreeFolder, new: TreeFolder) -> None:
    compared = compare(Pair(b"", None, None), old, new)
    made = {entry.name: entry for entry in old.entries}
    for change in compared.changes:
        assert made.pop(change.path, None) == change.old
        if change.new is not None:
            made[change.path] = change.new
    for pair in compared.below:
        entry = made.get(pair.path)
        if isinstance(entry, Subfolder) and pair.new is not None:
            made[pair.path] = Subfolder(pair.path, pair.new)
    assert folder_of(made.values()) == new


def test_a_file_that_became_a_folder_is_changed_and_what_is_in_the_folder_is_compared_with_nothing() -> None:
    old = folder_of([File(b"a", 1, _D), File(b"b", 1, _D), File(b"run", 1, _D)])
    new = folder_of([Subfolder(b"a", _D), File(b"b", 1, _D, is_program=True), SkippedEntry(b"run", "tooLarge")])
    compared = compare(Pair(b"src", "x", "y"), old, new)
    assert [(change.path, change.kind) for change in compared.changes] == [
        (b"src/a", "changed"),
        (b"src/b", "mode"),
        (b"src/run", "changed"),
    ]
    assert compared.below == (Pair(b"src/a", None, _D, 1),)
    counts = counts_of(compared.changes)
    assert (counts.added, counts.removed, counts.changed) == (0, 1, 1)


def test_private_names_are_never_recorded_however_they_are_written() -> None:
    for name in (b".env", b".ENV", b".env.local", b".envrc", b".git", b".Git", b".perstack-rewind-1"):
        assert is_never_recorded(name)
    assert is_never_recorded("．env".encode())
    assert is_never_recorded(".g\u200cit".encode())
    for name in (b"env", b"README.md", b".gitignore", b".github", b"\xff\xfe", b"perstack.toml"):
        assert not is_never_recorded(name)
