"""A call that needs approval is shown as its change to the file, with line numbers and context."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from perstack.core.runs.open_questions import OpenQuestion
from perstack.doors.shared.call_diffs import edit_from_args
from perstack.doors.shared.consent import page_of

LINES = [f"line {number}\n" for number in range(1, 41)]


def question_about(tool_name: str, offers: tuple[str, ...] = (), **args) -> OpenQuestion:
    return OpenQuestion(
        id="j-1-4",
        run_id="j-1",
        expert_key="a",
        tool_call_id="c",
        tool_name=tool_name,
        text="a wants to call it",
        args=args,
        call_digest="v1:x",
        offers=offers,
    )


def text_shown(folder: Path, tool_name: str, **args) -> str:
    return "\n".join(page_of(question_about(tool_name, **args), folder).lines)


def test_an_edit_has_the_line_numbers_of_the_file_and_three_lines_around(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(LINES))
    seen = text_shown(
        tmp_path, "editTextFile", path="a.txt", oldText="line 20\nline 21", newText="line 20\nnew\nline 21b"
    )
    assert (
        "  --- a.txt\n  +++ a.txt\n  @@ -18,7 +18,8 @@\n   line 18\n   line 19\n   line 20\n  -line 21\n  +new\n"
        "  +line 21b\n   line 22\n   line 23\n   line 24\n" in seen
    )


@pytest.mark.parametrize(
    ("old", "new", "head"),
    [
        ("line 1\n", "first\n", "@@ -1,4 +1,4 @@"),
        ("ine 40\n", "ast", "@@ -37,4 +37,4 @@"),
        ("line 2\nline 3\n", "", "@@ -1,6 +1,4 @@"),
        ("line 39\n", "line 39", "@@ -36,5 +36,4 @@"),
        ("line 1\nline 2", "one\nline 2", "@@ -1,4 +1,4 @@"),
    ],
)
def test_an_edit_at_an_end_of_the_file_or_of_a_line_is_placed_too(
    tmp_path: Path, old: str, new: str, head: str
) -> None:
    (tmp_path / "a.txt").write_text("".join(LINES))
    assert head in text_shown(tmp_path, "editTextFile", path="a.txt", oldText=old, newText=new)


def test_a_file_that_is_written_over_is_compared_and_a_new_one_said_to_be_new(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(LINES))
    seen = text_shown(tmp_path, "writeTextFile", path="a.txt", text="".join([*LINES[:30], "other\n", *LINES[31:]]))
    assert "@@ -28,7 +28,7 @@" in seen
    assert "\n  -line 31\n  +other\n" in seen
    assert "text:" not in seen
    seen = text_shown(tmp_path, "writeTextFile", path="b.txt", text="other")
    assert "  text: other\n  b.txt is a new file\n" in seen
    same = text_shown(tmp_path, "writeTextFile", path="a.txt", text="".join(LINES))
    assert "a.txt already has this text: nothing changes" in same


def test_a_text_at_the_end_is_shown_below_the_last_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(LINES).removesuffix("\n"))
    seen = text_shown(tmp_path, "appendTextFile", path="a.txt", text="!\n")
    assert "@@ -37,4 +37,4 @@" in seen
    assert "\n  -line 40\n  \\ No newline at end of file\n  +line 40!" in seen


def test_line_endings_are_those_of_the_file_as_the_tool_writes_them(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("".join(LINES).replace("\n", "\r\n").encode())
    seen = text_shown(tmp_path, "editTextFile", path="a.txt", oldText="line 7\nline 8", newText="line 7\nnew")
    assert "@@ -5,7 +5,7 @@" in seen
    assert "\n  -line 8\n  +new\n" in seen
    (tmp_path / "b.txt").write_bytes(b"a\r\nb\nc\n")
    assert "-a\\u000d" in text_shown(tmp_path, "editTextFile", path="b.txt", oldText="a\r\nb", newText="x\ny")


@pytest.mark.parametrize(
    ("path", "note"),
    [
        ("absent.txt", "absent.txt does not exist"),
        ("other.txt", "oldText does not occur in other.txt"),
        ("twice.txt", "oldText occurs more than once in twice.txt\n"),
        ("big.txt", "big.txt is larger than 1 MiB"),
        ("binary.txt", "binary.txt is not a text"),
        ("pipe", "pipe is not a regular file"),
        ("folder", "folder is not a regular file"),
        ("../outside.txt", "../outside.txt is outside the workspace"),
        ("link.txt", "link.txt is outside the workspace"),
        ("a\0b", "a\\u0000b cannot be read"),
    ],
)
def test_what_cannot_be_compared_is_said_and_both_texts_are_shown(tmp_path: Path, path: str, note: str) -> None:
    folder = tmp_path / "workspace"
    (folder / "folder").mkdir(parents=True)
    (tmp_path / "outside.txt").write_text("secret\nold\n")
    (folder / "other.txt").write_text("another\n")
    (folder / "twice.txt").write_text("old\nold\n")
    (folder / "big.txt").write_text("old\n" + "x" * (1 << 20))
    (folder / "binary.txt").write_bytes(b"\0old\n")
    os.mkfifo(folder / "pipe")
    (folder / "link.txt").symlink_to("../outside.txt")
    seen = text_shown(folder, "editTextFile", path=path, oldText="old", newText="new")
    assert note in seen
    assert "\n  -old\n  +new\n" in seen
    assert "secret" not in seen


def test_a_link_within_the_workspace_is_followed_as_the_tool_follows_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(LINES))
    (tmp_path / "link.txt").symlink_to("a.txt")
    assert "@@ -17,7 +17,7 @@" in text_shown(
        tmp_path, "editTextFile", path="link.txt", oldText="line 20\n", newText="x\n"
    )


def test_what_a_file_and_its_name_say_is_obeyed_by_no_terminal(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[31m\n--- b").write_text("\x1b[2J\n\u202eold\nlast\n")
    seen = text_shown(tmp_path, "editTextFile", path="a\x1b[31m\n--- b", oldText="old", newText="new")
    assert "\x1b" not in seen
    assert "\u202e" not in seen
    assert "\n  --- a\\u001b[31m\\n--- b\n" in seen
    assert "\n   \\u001b[2J\n  -\\u202eold\n" in seen


def test_a_long_file_is_compared_in_bounded_time(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"{number}\n" for number in range(150_000)))
    began = time.monotonic()
    assert "@@ -99998,7 +99998,7 @@" in text_shown(
        tmp_path, "editTextFile", path="a.txt", oldText="\n100000\n", newText="\nx\n"
    )
    whole = "".join(f"{number * 7}\n" for number in range(150_000))
    assert "too long for a diff" in text_shown(tmp_path, "writeTextFile", path="a.txt", text=whole)
    assert time.monotonic() - began < 5


OFFERED = [
    "always: the same call again, in this whole Job",
    "always: exec: every call of exec, in this whole Job",
    "always: exec(git push *): every call of exec in the workspace's top folder with a command that matches git push *,"
    " and no option that it does not name, in this whole Job",
    "always: exec(git push '--dry-run'): every call of exec in the workspace's top folder with exactly this command:"
    " git push '--dry-run', in this whole Job",
    "always: write(docs/**): every call of a file tool that changes docs/**, in this whole Job",
    "always: skill/tool(path=src/**, mode=*): every call of tool of skill skill whose path matches src/** and mode"
    " matches *, in this whole Job",
    "always: delegate/writer: every call of delegate writer, in this whole Job",
    "always: exec(a\\nalways: exec: nothing): every call of exec in the workspace's top folder with exactly this"
    " command: a\\nalways: exec: nothing, in this whole Job",
]


def test_each_answer_for_more_than_this_call_says_what_it_covers_and_the_cost_is_said(tmp_path: Path) -> None:
    offers = (
        "exec",
        "exec(git push *)",
        "exec(git push '--dry-run')",
        "write(docs/**)",
        "skill/tool(path=src/**, mode=*)",
        "delegate/writer",
        "exec(a\nalways: exec: nothing)",
    )
    lines = page_of(question_about("exec", offers, command="git"), tmp_path, "2 steps, $0.0123").lines
    assert [line for line in lines if line.startswith(("always", "so far"))] == [
        *OFFERED,
        *(
            line.replace("always", "always in this project", 1).replace(
                "in this whole Job", "in every Job of this project"
            )
            for line in OFFERED[1:]
        ),
        "so far: 2 steps, $0.0123",
    ]


@pytest.mark.parametrize(
    ("result", "head"),
    [
        ('{"path":"a.py","from":41,"oldText":"y","newText":"z"}', "@@ -42 +42 @@"),
        (None, "@@ -1 +1 @@"),
        ("edited", "@@ -1 +1 @@"),
        ('{"from":"41"}', "@@ -1 +1 @@"),
        ('{"from":-3}', "@@ -1 +1 @@"),
        ('{"from":1e400}', "@@ -1 +1 @@"),
        (f'{{"from":{"9" * 4000}}}', "@@ -1 +1 @@"),
        ("[" * 100_000, "@@ -1 +1 @@"),
    ],
)
def test_a_past_edit_has_the_line_numbers_that_its_result_names(result: str | None, head: str) -> None:
    edit = edit_from_args("editTextFile", {"path": "a.py", "oldText": "y", "newText": "z"}, result)
    assert edit.lines[2:] == (head, "-y", "+z")
