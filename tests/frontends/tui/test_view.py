"""What is shown of a Job, as lines, without anything that draws them."""

from __future__ import annotations

from pathlib import Path

from hosting import Bench, expert, wait_for
from hypothesis import given, settings
from hypothesis import strategies as st

from perstack.core.events import Event
from perstack.core.runs.asking import OpenQuestion
from perstack.core.runs.resuming import UnsettledCall
from perstack.frontends.shared.words import cells
from perstack.frontends.tui.view.asking import asking_lines, unsettled_lines
from perstack.frontends.tui.view.experts import filtered
from perstack.frontends.tui.view.items import Call, Remark, RunLane, Said, Stream, gist
from perstack.frontends.tui.view.nodes import Looks, Node
from perstack.frontends.tui.view.spans import Line, cells_of, text_of, wrap
from perstack.frontends.tui.view.transcript import Transcript
from perstack.frontends.tui.view.typed import Typed, completions, named_at
from perstack.testing.scripted import text, tool, turn

LOOKS = Looks(60, 0)
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\u2066 [red]not markup[/red] \r\x08"


def shown(transcript: Transcript, looks: Looks = LOOKS) -> list[str]:
    return [text_of(placed.line).rstrip() for placed in transcript.lines(0, transcript.height(looks), looks)]


def run(bench: Bench, script: object, *experts: object) -> list[Event]:
    """The events of a Job of the first Expert."""
    found: list[Event] = []
    host = bench.host(script, *experts)  # type: ignore[arg-type]
    wait_for(host.run(experts[0].key, "Go", on_event=lambda event, _: found.append(event)))  # type: ignore[attr-defined]
    return found


def folded(events: list[Event]) -> Transcript:
    transcript = Transcript()
    for event in events:
        transcript.take(event)
    return transcript


def test_delegates_are_lanes_below_the_call_and_fold(bench: Bench) -> None:
    script = {
        "lead": [turn(tool("helper", {"query": "one"}), tool("helper", {"query": "two"})), text("All done.")],
        "helper": [turn(tool("think", {"thought": "hm"})), text("A part.")],
    }
    transcript = folded(run(bench, script, expert("lead", delegates=("helper",)), expert("helper")))
    seen = shown(transcript)
    assert [line.split("  ")[0] for line in seen if "helper" in line] == ["▸ ✓ helper#2 one", "▸ ✓ helper#3 two"]
    assert not any("A part." in line for line in seen)
    first = next(node for node in transcript.foldable() if isinstance(node, RunLane))
    first.fold()
    seen = shown(transcript)
    assert [line for line in seen if line.startswith("│")] == ["│ ● think hm", "│", "│   A part.", "│"]
    assert seen[-2:] == ["  All done.", ""]


def test_what_is_stored_replaces_what_was_streamed_and_is_shown_once(bench: Bench) -> None:
    events = run(bench, [text("A word, and another.")], expert("solo"))
    transcript = Transcript()
    for event in events:
        transcript.take(event)
        if event.type == "streamText":
            assert any(isinstance(item, Stream) for item in transcript.root.items)
    assert sum("A word" in line for line in shown(transcript)) == 1
    assert not any(isinstance(item, Stream) for item in transcript.root.items)


def test_the_same_log_comes_to_the_same_lines_without_what_was_only_streamed(bench: Bench) -> None:
    script = [turn(tool("todo", {"newTodos": ["a"]}), text="I look.", thinking="Hm."), text("Done.")]
    events = run(bench, script, expert("solo"))
    stored = [event for event in events if hasattr(event, "step_number") and not event.type.startswith("stream")]
    assert shown(folded(stored)) == shown(folded(events))


def test_any_part_of_the_lines_is_that_part_of_the_whole(bench: Bench) -> None:
    script = {
        "lead": [turn(tool("helper", {"query": "one"})), turn(tool("nosuch", {})), text("All done.\n\nReally.")],
        "helper": [text("A part.")],
    }
    transcript = folded(run(bench, script, expert("lead", delegates=("helper",)), expert("helper")))
    for node in transcript.foldable():
        node.fold()
    whole = shown(transcript)
    for first in range(len(whole)):
        for last in range(first, len(whole) + 1):
            part = [text_of(one.line).rstrip() for one in transcript.lines(first, last, LOOKS)]
            assert part == whole[first:last]


@settings(deadline=None)
@given(st.text(max_size=300), st.integers(8, 80))
def test_no_line_is_wider_than_it_may_be_and_none_has_a_control_character(said: str, width: int) -> None:
    call = Call("tool", None, None)
    call.result, call.is_open = said, True
    nodes: list[Node] = [Said(said), Said(said, is_thought=True), Remark("word", said), call]
    stream = Stream(is_thought=False)
    stream.hears(said)
    for node in (*nodes, stream):
        for line in node.lines(Looks(max(20, width))):
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
    for node in transcript.foldable():
        node.is_open = True
        node.changed()
    seen = "\n".join(shown(transcript))
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
    lines: list[Line] = asking_lines(asking, tmp_path, 50)
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


def test_a_result_is_shown_by_what_it_says() -> None:
    assert gist('{"output": "\\nfirst line\\nsecond", "status": 0}') == "first line"
    assert gist('{"path": "a.txt", "size": 3}') == "a.txt 3"
    assert gist("plain\nwords") == "plain"
    assert gist("{" * 100_000) == "{" * 100_000
    assert gist("") == ""


def test_experts_are_found_by_their_keys_and_descriptions() -> None:
    every = {key: expert(key, description=words) for key, words in (("lead", "lets the writer write"), ("writer", "x"))}
    assert [one.key for one in filtered(every, "wri")] == ["writer", "lead"]
    assert [one.key for one in filtered(every, "lets wri")] == ["lead"]
    assert filtered(every, "nobody") == []


def test_what_was_typed_before_comes_back_and_the_draft_is_kept() -> None:
    typed = Typed(["one"])
    typed.keep("two")
    assert [typed.back("draft"), typed.back("two"), typed.back("one")] == ["two", "one", None]
    assert [typed.forth(), typed.forth(), typed.forth()] == ["two", "draft", None]


def test_files_are_completed_within_the_workspace_only(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "pond.md").write_text("")
    (tmp_path / "novel.md").write_text("")
    (tmp_path / ".secret").write_text("")
    assert completions(tmp_path, "no") == ["notes/", "novel.md"]
    assert completions(tmp_path, "notes/") == ["notes/pond.md"]
    assert completions(tmp_path, "pond") == ["notes/pond.md"]
    assert completions(tmp_path, "../") == []
    assert completions(tmp_path, "/etc/") == []
    assert completions(tmp_path, "nosuch/") == []
    assert named_at("look at @no") == "no"
    assert named_at("ann@example") is None
