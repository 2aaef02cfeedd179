"""Reading, writing, appending and editing text."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

TEN_LINES = "".join(f"line {n}\n" for n in range(10))


def test_a_written_file_reads_back_and_its_directories_are_made(tools: Any, workspace: Path) -> None:
    written = tools("writeTextFile", "a/b/hello.txt", text="hello world\nline two\n")
    assert written.json == {"path": "a/b/hello.txt", "text": "hello world\nline two\n"}
    assert (workspace / "a/b/hello.txt").read_bytes() == b"hello world\nline two\n"
    # as the original answered
    read = tools("readTextFile", "a/b/hello.txt")
    assert read.json == {"path": "a/b/hello.txt", "content": "hello world\nline two\n", "from": 0, "to": 3}


@pytest.mark.parametrize(
    ("span", "content", "start", "end"),
    [
        ({"from": 2, "to": 4}, "line 2\nline 3", 2, 4),
        ({"from": 8}, "line 8\nline 9\n", 8, 11),
        ({"to": 1}, "line 0", 0, 1),
        ({"from": 8, "to": 99}, "line 8\nline 9\n", 8, 11),
        ({"from": 4, "to": 4}, "", 4, 4),
    ],
)
def test_lines_count_from_0_and_to_is_not_included(
    tools: Any, workspace: Path, span: dict[str, int], content: str, start: int, end: int
) -> None:
    (workspace / "ten.txt").write_text(TEN_LINES)
    assert tools("readTextFile", "ten.txt", **span).json == {
        "path": "ten.txt",
        "content": content,
        "from": start,
        "to": end,
    }


def test_reading_past_the_end_says_how_many_lines_there_are(tools: Any, workspace: Path) -> None:
    (workspace / "ten.txt").write_text(TEN_LINES)
    read = tools("readTextFile", "ten.txt", **{"from": 50})
    assert read.json["content"] == ""
    assert "11 lines" in read.json["notice"]


def test_a_long_file_is_read_in_pieces_that_join_without_a_gap(tools: Any, workspace: Path) -> None:
    whole = "".join(f"this is line number {n}\n" for n in range(30_000))
    (workspace / "long.txt").write_text(whole)
    pieces, start = [], 0
    while True:
        piece = tools("readTextFile", "long.txt", **{"from": start}).json
        pieces.append(piece["content"])
        start = piece["to"]
        if "notice" not in piece:
            break
        assert f"from={start}" in piece["notice"]
        assert len(piece["content"]) <= 100_000
    assert "".join(pieces) == whole
    assert len(pieces) > 5


def test_a_single_line_beyond_measure_is_cut_and_that_is_said(tools: Any, workspace: Path) -> None:
    (workspace / "one.json").write_text("é" * 400_000 + "\nend")
    read = tools("readTextFile", "one.json").json
    assert len(read["content"]) <= 100_000
    assert "too long" in read["notice"]
    assert tools("readTextFile", "one.json", **{"from": 1}).json["content"] == "end"


def test_a_binary_file_is_not_read_as_text(tools: Any, workspace: Path) -> None:
    (workspace / "a.bin").write_bytes(b"\x7fELF\0\1\2")
    assert "not a text file" in tools("readTextFile", "a.bin").error


def test_bytes_that_are_no_utf_8_are_shown_as_replaced_and_that_is_said(tools: Any, workspace: Path) -> None:
    (workspace / "latin.txt").write_bytes("café\n".encode("latin-1"))
    read = tools("readTextFile", "latin.txt").json
    assert read["content"] == "caf\ufffd\n"
    assert "UTF-8" in read["notice"]


def test_a_missing_file_a_directory_and_a_file_used_as_directory_are_told_apart(tools: Any, workspace: Path) -> None:
    (workspace / "d").mkdir()
    (workspace / "f").write_text("")
    assert "does not exist" in tools("readTextFile", "nothing.txt").error
    assert "is a directory" in tools("readTextFile", "d").error
    assert "is a directory" in tools("readTextFile", ".").error
    assert "not a directory" in tools("readTextFile", "f/x").error
    assert "is a directory" in tools("writeTextFile", "d", text="").error
    assert "is a directory" in tools("writeTextFile", ".", text="").error


def test_an_unknown_blob_is_an_error_that_says_what_to_do(tools: Any) -> None:
    assert "copy the name" in tools("readTextFile", "blob:" + "0" * 64).error


def test_overwriting_keeps_the_mode_and_leaves_nothing_behind(tools: Any, workspace: Path) -> None:
    script = workspace / "run.sh"
    script.write_text("old")
    script.chmod(0o750)
    tools("writeTextFile", "run.sh", text="new")
    assert script.read_text() == "new"
    assert stat.S_IMODE(script.stat().st_mode) == 0o750
    assert [entry.name for entry in workspace.iterdir()] == ["run.sh"]


def test_a_new_file_gets_the_mode_that_the_umask_gives(tools: Any, workspace: Path) -> None:
    before = os.umask(0o027)
    try:
        tools("writeTextFile", "a.txt", text="")
    finally:
        os.umask(before)
    assert stat.S_IMODE((workspace / "a.txt").stat().st_mode) == 0o640


def test_a_reader_never_sees_half_of_an_overwritten_file(tools: Any, workspace: Path) -> None:
    (workspace / "a.txt").write_text("old")
    with (workspace / "a.txt").open() as held:
        tools("writeTextFile", "a.txt", text="new")
        assert held.read() == "old"


def test_a_long_text_is_not_sent_back_whole(tools: Any) -> None:
    written = tools("writeTextFile", "a.txt", text="x" * 10_000)
    assert len(written.text) < 400
    assert "10000 characters" in written.json["text"]


def test_text_that_is_no_unicode_is_refused_with_its_place(tools: Any, workspace: Path) -> None:
    assert "character 2" in tools("writeTextFile", "a.txt", text="ab\ud800").error
    assert not (workspace / "a.txt").exists()


def test_paths_that_no_file_system_takes_are_errors(tools: Any) -> None:
    assert "NUL" in tools("readTextFile", "a\0b").error
    assert "Unicode" in tools("readTextFile", "a\ud800").error
    assert "too long" in tools("writeTextFile", "x" * 300, text="").error


def test_appending_adds_exactly_what_was_given(tools: Any, workspace: Path) -> None:
    (workspace / "log").write_text("one")
    tools("appendTextFile", "log", text="\ntwo\n")
    assert tools("appendTextFile", "log", text="three").json == {"path": "log", "text": "three"}
    assert (workspace / "log").read_text() == "one\ntwo\nthree"


def test_appending_to_nothing_says_how_to_make_it(tools: Any, workspace: Path) -> None:
    assert "writeTextFile" in tools("appendTextFile", "log", text="x").error
    assert not (workspace / "log").exists()


def test_an_edit_replaces_the_one_occurrence(tools: Any, workspace: Path) -> None:
    (workspace / "a.py").write_text("x = 1\ny = 2\n")
    edited = tools("editTextFile", "a.py", oldText="y = 2", newText="y = 3")
    assert edited.json == {"path": "a.py", "from": 1, "oldText": "y = 2", "newText": "y = 3"}
    assert (workspace / "a.py").read_text() == "x = 1\ny = 3\n"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("absent", "x", "does not occur"),
        ("same", "x", "more than once in a.txt (lines 0, 2)"),
        ("", "x", "empty"),
        ("other", "other", "nothing would change"),
    ],
)
def test_an_edit_that_is_not_clear_changes_nothing(
    tools: Any, workspace: Path, old: str, new: str, complaint: str
) -> None:
    (workspace / "a.txt").write_text("same\nother\nsame\n")
    assert complaint in tools("editTextFile", "a.txt", oldText=old, newText=new).error
    assert (workspace / "a.txt").read_text() == "same\nother\nsame\n"


def test_overlapping_occurrences_count_as_more_than_one(tools: Any, workspace: Path) -> None:
    (workspace / "a.txt").write_text("aaa")
    assert "more than once" in tools("editTextFile", "a.txt", oldText="aa", newText="b").error


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\r\nb\r\nc\r\n", "a\nb", "a\nx\nb", b"a\r\nx\r\nb\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", "b", "b1\nb2", b"a\r\nb1\r\nb2\r\nc\r\n"),
        (b"a\nb\nc\n", "a\r\nb", "a\r\nx", b"a\nx\nc\n"),
        (b"one\nx\r\ny\r\n", "x\ny", "x\nz\ny", b"one\nx\r\nz\r\ny\r\n"),
        (b"caf\xe9 = 1\nb = 2\n", "b = 2", "b = 3", b"caf\xe9 = 1\nb = 3\n"),
    ],
)
def test_an_edit_keeps_line_endings_and_bytes_that_it_does_not_replace(
    tools: Any, workspace: Path, before: bytes, old: str, new: str, after: bytes
) -> None:
    (workspace / "a.txt").write_bytes(before)
    assert not tools("editTextFile", "a.txt", oldText=old, newText=new).is_error
    assert (workspace / "a.txt").read_bytes() == after


def test_big_files_are_edited_and_appended_to_as_well(tools: Any, workspace: Path) -> None:
    (workspace / "big.txt").write_text("x" * 1_000_000 + "needle")
    assert not tools("editTextFile", "big.txt", oldText="needle", newText="thread").is_error
    assert not tools("appendTextFile", "big.txt", text="end").is_error
    assert (workspace / "big.txt").read_text().endswith("xthreadend")


@pytest.mark.parametrize("filling", [0, 1_000_000])
def test_edits_of_one_file_at_the_same_time_all_take_effect(tools: Any, workspace: Path, filling: int) -> None:
    (workspace / "a.txt").write_text("x" * filling + "".join(f"<{n}>" for n in range(20)))

    async def play() -> None:
        async with tools.session() as session:
            edits = [{"path": "a.txt", "oldText": f"<{n}>", "newText": f"[{n}]"} for n in range(20)]
            await asyncio.gather(*(tools.ask(session, "editTextFile", edit) for edit in edits))

    asyncio.run(play())
    assert (workspace / "a.txt").read_text() == "x" * filling + "".join(f"[{n}]" for n in range(20))


def test_closing_waits_for_a_change_that_has_begun(tools: Any, workspace: Path) -> None:
    (workspace / "d").mkdir()
    for n in range(300):
        (workspace / f"d/{n}").touch()

    async def play() -> None:
        async with tools.session() as session:
            call = asyncio.create_task(tools.ask(session, "deleteDirectory", {"path": "d", "recursive": True}))
            await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait({call})

    asyncio.run(play())
    assert not (workspace / "d").exists()


def test_a_file_of_gigabytes_is_answered_at_once_with_its_beginning_and_its_size(tools: Any, workspace: Path) -> None:
    lines = "".join(f"line {n}\n" for n in range(20_000))
    (workspace / "huge.log").write_text(lines)
    os.truncate(workspace / "huge.log", 6 << 30)
    began = time.monotonic()
    read = tools("readTextFile", "huge.log").json
    assert read["content"].startswith("line 0\nline 1\n")
    assert read["notice"].endswith("The file has 6442450944 bytes, and its lines were not all counted.")
    piece = tools("readTextFile", "huge.log", **{"from": 5, "to": 7}).json
    assert (piece["content"], piece["to"]) == ("line 5\nline 6", 7)
    assert "is beyond the first 64 MiB" in tools("readTextFile", "huge.log", **{"from": 30_000}).text
    assert "larger than" in tools("editTextFile", "huge.log", oldText="line 5\n", newText="x").text
    assert "more than the" in tools("readImageFile", "huge.log").text
    assert tools("getFileInfo", "huge.log").json["size"] == 6 << 30
    assert time.monotonic() - began < 20


def test_a_line_of_gigabytes_is_cut(tools: Any, workspace: Path) -> None:
    (workspace / "line.txt").write_text("x" * 200_000)
    os.truncate(workspace / "line.txt", 6 << 30)
    read = tools("readTextFile", "line.txt").json
    assert set(read["content"]) == {"x"}
    assert read["notice"].startswith("Line 0 is too long to show completely")
