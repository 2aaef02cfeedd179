"""The view of a Job as lines, without a terminal library."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest
from hosts import Bench, expert, wait_for
from hypothesis import given, settings
from hypothesis import strategies as st

from perstack.core.definitions.permissions import Permissions
from perstack.core.jobs.resuming import UnsettledCall
from perstack.core.runs.display_events import StreamText
from perstack.core.runs.events import Event
from perstack.core.runs.open_questions import OpenQuestion
from perstack.doors.shared.activity import CallActivity, JobActivity
from perstack.doors.shared.job_printer import JobPrinter
from perstack.doors.shared.next_step_phrases import plain_phrase
from perstack.doors.shared.screen import Screen
from perstack.doors.shared.text import cells
from perstack.testing.scripted import text, tool, turn
from perstack_tui.view.input import FileCompletion, InputHistory, partial_file_name
from perstack_tui.view.items import CallItem, MessageItem, NoteItem, RunBranch, Stream, summary_line
from perstack_tui.view.lines import Tab, filter_experts, tabs_line
from perstack_tui.view.questions import question_lines, unsettled_lines
from perstack_tui.view.styled_text import Line, cells_of, text_of, wrap
from perstack_tui.view.transcript import Transcript
from perstack_tui.view.tree import RenderContext, TreeItem

LOOKS = RenderContext(60, 0)
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\u2066 [red]not markup[/red] \r\x08"


def shown_lines(transcript: Transcript, looks: RenderContext = LOOKS) -> list[str]:
    return [text_of(placed.line).rstrip() for placed in transcript.root.slice(0, transcript.root.height(looks), looks)]


def run(bench: Bench, script: object, *experts: object) -> list[Event]:
    """Run a Job of the first Expert and return its events."""
    events: list[Event] = []
    host = bench.host(script, *experts)  # type: ignore[arg-type]
    wait_for(host.run(experts[0].key, "Go", on_event=lambda event, _: events.append(event)))  # type: ignore[attr-defined]
    return events


def folded(events: list[Event]) -> Transcript:
    transcript = Transcript()
    for event in events:
        transcript.apply(event)
    return transcript


def test_delegates_are_lanes_below_the_call_and_fold(bench: Bench) -> None:
    script = {
        "lead": [turn(tool("helper", {"query": "one"}), tool("helper", {"query": "two"})), text("All done.")],
        "helper": [turn(tool("think", {"thought": "hm"})), text("A part.")],
    }
    transcript = folded(run(bench, script, expert("lead", delegates=("helper",)), expert("helper")))
    seen = shown_lines(transcript)
    assert [line.split("  ")[0] for line in seen if "helper" in line] == ["▸ ✓ helper#2 one", "▸ ✓ helper#3 two"]
    assert not any("A part." in line for line in seen)
    first = next(node for node in transcript.root.foldable() if isinstance(node, RunBranch))
    first.fold()
    seen = shown_lines(transcript)
    lane = [re.sub(r" +\d+ ms$", "", line) for line in seen if line.startswith("│")]  # a call may take that long
    assert lane == ["│ ● think hm", "│", "│   A part.", "│"]
    assert seen[-2:] == ["  All done.", ""]


def _printer(lines: list[str]) -> JobPrinter:
    return JobPrinter(lambda *parts: lines.append("".join(map(str, parts))), lambda: Screen(80, False), plain_phrase)


def test_while_other_delegates_are_at_work_a_call_says_when_its_approval_is_asked_for(bench: Bench) -> None:
    script = {
        "lead": [turn(tool("helper", {"query": "one"}), tool("releaser", {"query": "two"}))],
        "helper": [text("A part.")],
        "releaser": [tool("writeTextFile", {"path": "a.txt", "text": "b"})],
    }
    releaser = expert("releaser", permissions=Permissions(ask=("writeTextFile",)))
    events = run(bench, script, expert("lead", delegates=("helper", "releaser")), expert("helper"), releaser)
    at_work = [event for event in events if event.expert_key == "helper"]
    others = [event for event in events if event not in at_work]
    asks = next(at for at, event in enumerate(others) if event.type == "requestApproval")
    transcript, wide = folded([*others[:asks], at_work[0], others[asks]]), RenderContext(80, 0)
    assert "│   └ needs your approval when the other delegates have stopped (writeTextFile)" in shown_lines(
        transcript, wide
    )
    lines: list[str] = []
    printer, live = _printer(lines), JobActivity()
    for event in [*others[:asks], at_work[0], others[asks]]:
        live.apply(event)
        printer.print_event(event, (), live)
    assert lines[1:] == [
        "releaser#3 waits: for your approval of writeTextFile (writeTextFile) when the other delegates have stopped"
    ]
    for event in [*at_work[1:], *others[asks + 1 :]]:
        transcript.apply(event)
    assert "│   └ needs your approval (writeTextFile)" in shown_lines(transcript, wide)


def test_what_a_delegate_asks_waits_for_no_others_where_they_only_wait_for_it(bench: Bench) -> None:
    script = {
        "lead": [tool("helper", {"query": "one"})],
        "helper": [tool("releaser", {"query": "two"})],
        "releaser": [tool("writeTextFile", {"path": "a.txt", "text": "b"})],
    }
    releaser = expert("releaser", permissions=Permissions(ask=("writeTextFile",)))
    lead, helper = expert("lead", delegates=("helper",)), expert("helper", delegates=("releaser",))
    events = run(bench, script, lead, helper, releaser)
    assert "requestApproval" in [event.type for event in events]
    transcript, lines = Transcript(), list[str]()
    printer = _printer(lines)
    for event in events:
        printer.print_event(event, transcript.apply(event), transcript.live)
        assert "when the other delegates" not in "\n".join(shown_lines(transcript, RenderContext(100, 0)))
    assert "│ │   └ needs your approval (writeTextFile)" in shown_lines(transcript, RenderContext(100, 0))
    assert "waits" not in "\n".join(lines)


def test_a_run_whose_process_was_killed_is_not_at_work_beside_the_one_that_continues_it(bench: Bench) -> None:
    host = bench.host([text("A word."), text("Another.")], expert("solo"))
    events: list[Event] = []
    job = wait_for(host.run("solo", "Go", on_event=lambda event, _: events.append(event)))
    killed = [event for event in events if event.type not in ("finishStep", "finishRun")]
    events.clear()
    wait_for(host.continue_job("solo", "More", job_id=job.id, on_event=lambda event, _: events.append(event)))
    transcript = folded([*killed, *events])
    assert not transcript.stop_all()


def test_what_is_stored_replaces_what_was_streamed_and_is_shown_once(bench: Bench) -> None:
    events = run(bench, [text("A word, and another.")], expert("solo"))
    transcript = Transcript()
    for event in events:
        transcript.apply(event)
        if event.type == "streamText":
            assert any(isinstance(item, Stream) for item in transcript.root.items)
    assert sum("A word" in line for line in shown_lines(transcript)) == 1
    assert not any(isinstance(item, Stream) for item in transcript.root.items)


def test_what_had_come_when_a_person_stopped_it_stays_to_be_read(bench: Bench) -> None:
    found: list[Event] = []

    async def work() -> None:
        begun = asyncio.Event()

        def hear(event: Event, _: bytes) -> None:
            found.append(event)
            if isinstance(event, StreamText):
                begun.set()

        host = bench.host([text("Once upon a time", delay_ms=60_000)], expert("writer"))
        job = asyncio.create_task(host.run("writer", "Go", on_event=hear))
        await begun.wait()
        job.cancel()
        await asyncio.wait({job})

    wait_for(work())
    seen = shown_lines(folded(found))
    begun, stopped = (line.strip() for line in seen if "Once" in line or "stopped" in line)
    assert begun == "Once …"
    assert stopped.startswith("! stopped by interrupt")


def test_the_same_log_comes_to_the_same_lines_without_what_was_only_streamed(bench: Bench) -> None:
    script = [turn(tool("todo", {"newTodos": ["a"]}), text="I look.", thinking="Hm."), text("Done.")]
    events = run(bench, script, expert("solo"))
    stored = [event for event in events if hasattr(event, "step_number") and not event.type.startswith("stream")]
    assert shown_lines(folded(stored)) == shown_lines(folded(events))


def test_any_part_of_the_lines_is_that_part_of_the_whole(bench: Bench) -> None:
    script = {
        "lead": [turn(tool("helper", {"query": "one"})), turn(tool("nosuch", {})), text("All done.\n\nReally.")],
        "helper": [text("A part.")],
    }
    transcript = folded(run(bench, script, expert("lead", delegates=("helper",)), expert("helper")))
    for node in transcript.root.foldable():
        node.fold()
    whole = shown_lines(transcript)
    for first in range(len(whole)):
        for last in range(first, len(whole) + 1):
            part = [text_of(one.line).rstrip() for one in transcript.root.slice(first, last, LOOKS)]
            assert part == whole[first:last]


@settings(deadline=None)
@given(st.text(max_size=300), st.integers(8, 80))
def test_no_line_is_wider_than_it_may_be_and_none_has_a_control_character(said: str, width: int) -> None:
    call = CallItem(CallActivity("tool"))
    call.activity.result, call.is_open = said, True
    nodes: list[TreeItem] = [MessageItem(said), MessageItem(said, is_thought=True), NoteItem("word", said), call]
    stream = Stream(is_thought=False)
    stream.append(said)
    for node in (*nodes, stream):
        for line in node.lines(RenderContext(max(20, width))):
            assert cells_of(line) <= max(20, width)
            assert text_of(line).isprintable() or not any(ord(char) < 32 for char in text_of(line))


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=200), st.integers(4, 40))
def test_a_text_that_is_broken_into_lines_loses_no_character_but_spaces(said: str, width: int) -> None:
    kept = "".join("".join(wrap(said, width)).split())
    assert all(cells(line) <= width or cells(line) <= 2 for line in wrap(said, width))
    assert kept == "".join("".join(wrap(said, 10_000)).split())


def test_escapes_and_markup_are_text_in_every_item(bench: Bench) -> None:
    script = [turn(tool("nosuch", {"a": EVIL}), text=EVIL, thinking=EVIL), text(EVIL)]
    transcript = folded(run(bench, script, expert("solo", description=EVIL)))
    for node in transcript.root.foldable():
        node.is_open = True
        node.mark_changed()
    seen = "\n".join(shown_lines(transcript))
    assert "[red]not markup[/red]" in seen
    assert not any(bad in seen for bad in ("\x1b", "\x07", "\x9b", "\u202e", "\u2066", "\r", "\x08"))


def test_an_approval_shows_every_argument_and_all_of_the_difference(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old\n")
    long = "x" * 150
    asking = OpenQuestion(
        id="job-1-5", run_id="job-1", expert_key="e", tool_call_id="c", tool_name="writeTextFile",
        text="e wants to call writeTextFile", call_digest="d",
        args={"path": "a.txt", "text": f"new {long}\n", "why": EVIL},
    )  # fmt: skip
    lines: list[Line] = question_lines(asking, tmp_path, 50)
    seen = [text_of(line) for line in lines]
    assert "  -old" in seen
    assert (
        "".join(line.strip().removeprefix("+").strip() for line in seen if "x" in line and "why" not in line).count("x")
        >= 150
    )
    assert any(line.startswith("  why: ") for line in seen)
    assert "\x1b" not in "".join(seen)
    assert all(cells_of(line) <= 50 for line in lines)


def test_calls_that_a_crash_left_open_are_shown_with_what_was_said_of_them() -> None:
    call = UnsettledCall("k", "c", "job-1", "writer", "exec", '{"command": "ls"}')
    before = [text_of(line) for line in unsettled_lines([call], {}, 0, 70)]
    assert "❯ exec of writer" in before
    assert "    the model sees that it was interrupted" in before
    assert "    it was done" in [text_of(line) for line in unsettled_lines([call], {"k": "done"}, 0, 70)]


def test_a_call_is_settled_by_all_of_its_arguments_with_nothing_invisible() -> None:
    call = UnsettledCall("k", "c", "job-1", "writer", "exec", f'{{"command": "echo {"x" * 900}\u200b; rm all"}}')
    shown = "".join(text_of(line).strip() for line in unsettled_lines([call], {}, 0, 70))
    assert shown.count("x") >= 900
    assert '\\u200b; rm all"}' in shown


def test_a_result_is_shown_by_what_it_says() -> None:
    assert summary_line('{"output": "\\nfirst line\\nsecond", "status": 0}') == "first line"
    assert summary_line('{"path": "a.txt", "size": 3}') == "a.txt 3"
    assert summary_line("plain\nwords") == "plain"
    assert summary_line("{" * 100_000) == "{" * 100_000
    assert summary_line("") == ""


def test_experts_are_found_by_their_keys_and_descriptions() -> None:
    every = {key: expert(key, description=words) for key, words in (("lead", "lets the writer write"), ("writer", "x"))}
    assert [match.key for match in filter_experts(every, "wri")] == ["writer", "lead"]
    assert [match.key for match in filter_experts(every, "lets wri")] == ["lead"]
    assert filter_experts(every, "nobody") == []


def test_what_was_typed_before_comes_back_and_the_draft_is_kept() -> None:
    typed = InputHistory(["one"])
    typed.add("two")
    assert [typed.previous("draft"), typed.previous("two"), typed.previous("one")] == ["two", "one", None]
    assert [typed.next_text(), typed.next_text(), typed.next_text()] == ["two", "draft", None]


def test_files_are_completed_within_the_workspace_only(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "pond.md").write_text("")
    (tmp_path / "novel.md").write_text("")
    (tmp_path / ".secret").write_text("")
    files = FileCompletion(tmp_path)
    assert files.complete("no") == ["notes/", "novel.md"]
    assert files.complete("notes/") == ["notes/pond.md"]
    assert files.complete("pond") == ["notes/pond.md"]
    assert files.complete("../") == []
    assert files.complete("/etc/") == []
    assert files.complete("nosuch/") == []
    assert partial_file_name("look at @no") == "no"
    assert partial_file_name("ann@example") is None


def test_names_that_a_terminal_would_obey_or_that_are_no_text_are_not_completed(tmp_path: Path) -> None:
    for name in (b"plain one.txt", b"line\nend.txt", b"esc\x1b[2J.txt", "rtl\u202etxt.exe".encode(), b"no\xffutf8.txt"):
        (tmp_path / os.fsdecode(name)).write_text("")
    files = FileCompletion(tmp_path)
    assert files.complete("") == ["plain one.txt"]
    assert files.complete("txt") == ["plain one.txt"]


def test_a_part_of_a_name_is_looked_for_in_all_folders_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "pond.md").write_text("")
    walked: list[object] = []
    walk = os.walk

    def walking(top: Path) -> object:
        walked.append(top)
        return walk(top)

    monkeypatch.setattr(os, "walk", walking)
    files = FileCompletion(tmp_path)
    assert [files.complete("ond"[:end]) for end in (1, 2, 3)] == [["notes/pond.md"]] * 3
    assert [files.complete(f"ond{'x' * more}") for more in range(1, 50)] == [[]] * 49
    assert len(walked) == 1
    (tmp_path / "notes" / "beyond.md").write_text("")
    files.forget()
    assert files.complete("ond") == ["notes/beyond.md", "notes/pond.md"]


def test_the_tab_that_is_shown_is_seen_however_many_there_are() -> None:
    tabs = [Tab(f"expert{number}", "completed") for number in range(1, 31)]
    few = text_of(tabs_line(tabs[:2], 0, "place", 78))
    assert few.split() == ["perstack", "1", "expert1", "✓", "2", "expert2", "✓", "place"]
    for chosen in range(30):
        line = tabs_line(tabs, chosen, "place", 78)
        assert f" {chosen + 1} exper" in text_of(line)
        assert cells_of(line) <= 78
        assert {span.text.strip() for span in line if span.action == f"app.tab({chosen + 1})"} >= {f"{chosen + 1}", "✓"}
    assert text_of(tabs_line(tabs, 0, "place", 78)).rstrip().endswith("…")
    assert text_of(tabs_line(tabs, 29, "place", 78)).startswith("perstack …")


def test_the_markdown_of_a_reply_is_rendered_and_of_a_query_is_not() -> None:
    looks = RenderContext(60, 0)
    text = "## Found\n\n- **two** files\n- one `link`\n\n| a | b |\n| - | - |\n| 1 | 2 |\n\n```\nx = 1\n```"
    shown = [text_of(line) for line in MessageItem(text, is_markdown=True).render(looks)]
    assert [line.rstrip() for line in shown] == [
        "  Found",
        "",
        "   • two files",
        "   • one link",
        "",
        "   a  b",
        "   ────",
        "   1  2",
        "",
        "    x = 1",
        "",
    ]
    assert "## Found" in text_of(MessageItem(text, mark="❯").render(looks)[0])


def test_what_markdown_can_name_moves_no_cursor() -> None:
    text = "*a* &#x1b;[2J &#x202e; [x](http://e.vil/\x1b[31m)"
    shown = "".join(text_of(line) for line in MessageItem(text, is_markdown=True).render(RenderContext(60, 0)))
    assert not {"\x1b", "\u202e"} & set(shown)
