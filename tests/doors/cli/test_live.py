"""The display of a running Job: which form goes where, its rows, and the lines about current activity."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.cells import cell_len
from terminal import ASKING, TEAM, Terminal, reply

from perstack.core.base.text import plain_text
from perstack.core.base.usage import Usage
from perstack.core.definitions.skills import DecidedCall
from perstack.core.messages.messages import TextPart, ToolCallPart
from perstack.core.runs.display_events import SkillStarting, StreamReasoning, StreamText, ToolProgress
from perstack.core.runs.events import Event
from perstack.core.runs.events.generations import FinishGeneration, StartGeneration
from perstack.core.runs.events.tool_calls import CallTools, FinishToolCall
from perstack.core.runs.facts import Todo, todos_json
from perstack.doors.cli import live as row_printer
from perstack.doors.cli.live import Line, RowPrinter, line_of, lines_of
from perstack.doors.cli.terminal import render_line
from perstack.doors.shared.activity import JobActivity
from perstack.doors.shared.job_printer import JobPrinter
from perstack.doors.shared.next_step_phrases import cli_phrase
from perstack.doors.shared.screen import Screen, sanitized

SOLO = '[experts.solo]\ninstruction = "You work alone."\n'
SCRIPTED = ("--provider", "scripted")
SCREENS = Path(__file__).parent / "screens"
NOW = 1_800_000_000_000


# --- where it goes --------------------------------------------------------------------------------------------------


def ran(terminal: Terminal, *args: str, attended: bool = False):
    terminal.project(SOLO, solo=[reply("I look.", ("todo", {"newTodos": ["a"]})), reply("First.\n\nLast.")])
    return terminal.call("run", "solo", "q", *SCRIPTED, "--job-id", "job", *args, attended=attended)


def test_text_is_the_result_and_nothing_else(terminal: Terminal) -> None:
    done = ran(terminal, "--output", "text")
    assert (done.code, done.out, done.err) == (0, "First.\n\nLast.\n", "")


def test_text_says_on_stderr_why_there_is_no_result(terminal: Terminal) -> None:
    terminal.project(ASKING, guest=[reply("", ("askUser", {"question": "Tea?"}))])
    result = terminal.call("run", "guest", "q", *SCRIPTED, "--job-id", "tea", "--output", "text")
    assert (result.code, result.out) == (3, "")
    assert result.err == 'guest is waiting for an answer: Tea?; answer with: perstack answer tea "ANSWER"\n'


def test_for_a_person_a_pipe_gets_what_the_model_says_as_it_wrote_it_and_the_result_once(terminal: Terminal) -> None:
    done = ran(terminal, "--output", "human")
    assert done.code == 0
    assert done.out == (
        'solo · scripted · Job job\nquery: q\n  I look.\ncalls: todo ["a"]\n  First.\n\n  Last.\n'
        "solo completed: 2 steps, 0 tokens; perstack log --job job\n"
    )


def test_the_compact_view_has_the_rows_of_the_log_and_the_result_in_full(terminal: Terminal) -> None:
    done = ran(terminal, "--output", "human", "--compact")
    rows = terminal.call("log", "--job", "job").out.partition("\n\n")[2]
    assert done.code == 0
    assert done.out == f"{rows}\nFirst.\n\nLast.\nsolo completed: 2 steps, 0 tokens; perstack log --job job\n"


def test_the_rows_of_several_runs_are_those_of_the_log(terminal: Terminal) -> None:
    terminal.project(
        TEAM,
        lead=[
            reply("", ("helper", {"query": "x"}), ("helper", {"query": "y"})),
            reply("", ("nosuch", {})),
            reply("ok"),
        ],
        helper=[reply("", ("think", {"thought": "hm"}), thinking="hm"), reply("done")],
    )
    live = terminal.call("run", "lead", "q", *SCRIPTED, "--job-id", "job", "--output", "human", "--compact").out
    logged = terminal.call("log", "--job", "job").out

    def rows(text: str) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for label, row in re.findall(r"^\d\d:\d\d:\d\d (\S+) +(\d+ .*)$", text, re.MULTILINE):
            found.setdefault(label, []).append(row)
        return found

    assert rows(live) == rows(logged)
    assert set(rows(live)) == {"lead#1", "helper#2", "helper#3"}


def test_progress_is_on_stderr_if_that_is_a_terminal_and_stdout_has_only_what_it_is_for(terminal: Terminal) -> None:
    done = ran(terminal, "--output", "text", attended=True)
    assert done.out == "First.\n\nLast.\n"
    assert re.search(r"solo#1 +1 says +I look\.", re.sub(r"\x1b\[[0-9;]*m", "", done.err))
    assert {event["type"] for event in ran(terminal, "--job-id", "two", attended=True).events} >= {"finishRun"}


@pytest.mark.parametrize("attended", [False, True])
@pytest.mark.parametrize("form", [(), ("--output", "human"), ("--output", "text")])
def test_quiet_prints_the_result_and_nothing_else(terminal: Terminal, form: tuple[str, ...], attended: bool) -> None:
    done = ran(terminal, "--quiet", *form, attended=attended)
    assert (done.code, done.out, done.err) == (0, "First.\n\nLast.\n", "")


def test_quiet_says_why_there_is_no_result(terminal: Terminal) -> None:
    terminal.project(ASKING, guest=[reply("Well.", ("askUser", {"question": "Tea?"}))])
    result = terminal.call("run", "guest", "q", *SCRIPTED, "--job-id", "tea", "--quiet", "--output", "human")
    assert (result.code, result.out) == (3, "")
    assert result.err == 'guest is waiting for an answer: Tea?; answer with: perstack answer tea "ANSWER"\n'


def test_a_job_in_json_is_not_reduced_to_its_result_by_quiet(terminal: Terminal) -> None:
    done = ran(terminal, "--quiet", "--output", "jsonl", attended=True)
    assert (done.events[-1]["type"], done.err) == ("finishRun", "")


def test_at_a_terminal_json_is_there_for_who_asks_for_it(terminal: Terminal) -> None:
    terminal.project(SOLO, solo=[reply("Result.")])
    seen = terminal.look("run", "solo", "q", *SCRIPTED, "--output", "jsonl")
    assert seen.startswith('{"type":"initializeRuntime"')
    assert "says" not in seen


def test_without_colours_a_terminal_gets_none(terminal: Terminal) -> None:
    terminal.project(SOLO, solo=[reply("Result.")])
    coloured = terminal.look("run", "solo", "q", *SCRIPTED)
    terminal.env["NO_COLOR"] = "1"
    plain = terminal.look("run", "solo", "q", *SCRIPTED)
    assert "\x1b[2m" in coloured
    assert not re.search(r"\x1b\[[0-9;]*m", plain)
    assert "  Result." in plain


def test_what_was_spent_before_counts_when_a_job_is_driven_on(terminal: Terminal) -> None:
    served = {**reply("Served.", usage=(5, 1)), "delayMs": 400}
    terminal.project(ASKING, guest=[reply("", ("askUser", {"question": "Tea?"}), usage=(100, 10)), served])
    assert terminal.call("run", "guest", "q", *SCRIPTED, "--job-id", "job").code == 3
    seen = terminal.look("answer", "job", "Yes", *SCRIPTED)
    assert "2 steps, 100 + 10 tokens" in seen, "the second has begun"
    assert "guest completed: 2 steps, 116 tokens" in seen


# --- what it looks like ---------------------------------------------------------------------------------------------


def of(kind: type[Event], at: int = 0, *, run: str = "job-1", expert: str = "writer", step: int = 1, **fields) -> Event:
    common = {"id": "e", "timestamp": NOW + at, "job_id": "job", "run_id": run}
    if kind is not SkillStarting:
        common |= {"expert_key": expert, "step_number": step}
    return kind(**common, **fields)  # type: ignore[call-arg]  # fields by kind


LONG = "The old pond lies still. A frog jumps in: the sound of water. 古池や蛙飛びこむ水の音 " * 4
READ = ToolCallPart(tool_call_id="c1", tool_name="readTextFile", args={"path": "src/" + "deep/" * 30 + "a.py"})
FETCH = ToolCallPart(tool_call_id="c2", tool_name="fetch", args={"url": "https://example.com/"})
LIST = ToolCallPart(tool_call_id="c0", tool_name="todo", args={"newTodos": ["outline", "write the tests"]})
TODOS = (Todo(id=0, title="outline", completed=True), Todo(id=1, title="write the tests"))

WRITES = [
    of(StartGeneration),
    of(
        FinishGeneration, 900, usage=Usage.of(1200, 30), reply=(LIST,), finish_reason="toolCalls", context_window=10_000
    ),
    of(CallTools, 910, calls=(DecidedCall(id="c0", tool_name="todo", kind="todo"),)),
    of(FinishToolCall, 920, tool_call_id="c0", tool_name="todo", contents=(TextPart(text=todos_json(TODOS)),)),
    of(StartGeneration, 930, step=2),
    of(StreamReasoning, 940, step=2, delta="Hm."),
    of(StreamText, 950, step=2, delta=LONG),
]
WORKS = [
    *WRITES[:4],
    of(StartGeneration, 930, step=2),
    of(FinishGeneration, 1900, step=2, usage=Usage.of(1500, 60), reply=(READ, FETCH), finish_reason="toolCalls"),
    of(
        CallTools,
        1910,
        step=2,
        calls=tuple(DecidedCall(id=x.tool_call_id, tool_name=x.tool_name) for x in (READ, FETCH)),
    ),
    of(ToolProgress, 2000, step=2, tool_call_id="c2", tool_name="fetch", message="40 % of 3 MB"),
]
LANES = [
    event
    for number in range(2, 14)
    for event in (
        of(StartGeneration, 0, run=f"job-{number}", expert="helper"),
        of(StreamText, 10, run=f"job-{number}", expert="helper", delta=f"Part {number} of it"),
    )
]
STARTS = [of(StartGeneration), of(SkillStarting, 20, skill_name="browser")]
CASES = {"writes": WRITES, "works": WORKS, "lanes": LANES, "starts": STARTS}


def state_of(events: list[Event]) -> JobActivity:
    state = JobActivity()
    for event in events:
        state.apply(event)
    return state


def lines_on(events: list[Event], screen: Screen) -> list[Line]:
    return lines_of(state_of(events), screen, NOW + 5_000, lambda _: "blue")


@pytest.mark.parametrize("colours", [False, True], ids=["plain", "colour"])
@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("case", CASES)
def test_a_screen_looks_as_it_did(case: str, width: int, colours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_printer, "local_time", lambda ms: datetime.fromtimestamp(ms / 1000, UTC))
    screen = Screen(width, colours, 24)
    written: list[str] = []
    rows = RowPrinter(screen, write_line=lambda *parts: written.append(render_line(*parts)))
    rows.widen(["writer#1", "helper#13"])
    state = JobActivity()
    for event in CASES[case]:
        for told in state.apply(event):
            rows.print(*told)
    lines = lines_of(state, screen, NOW + 5_000, rows.colour)
    assert max(cell_len("".join(map(str, line))) for line in lines) < width
    found = "".join(written) + "".join(render_line(*line) for line in lines)
    path = SCREENS / f"{case}-{width}{'-colour' if colours else ''}.txt"
    if os.environ.get("PERSTACK_KEEP_SCREENS"):  # look at them before they are committed
        path.parent.mkdir(exist_ok=True)
        path.write_text(found.replace("\x1b", "␛"))
    assert found.replace("\x1b", "␛") == path.read_text()


def test_many_runs_leave_room_for_the_rows_above() -> None:
    lines = lines_on(LANES, Screen(80, False, 10))
    assert "".join(map(str, lines[0])) == "6 more Runs at work"
    assert len(lines) == 8


def test_a_run_that_ends_or_is_done_with_a_call_is_not_shown_at_it() -> None:
    done = of(FinishToolCall, 2100, step=2, tool_call_id="c1", tool_name="readTextFile", contents=())
    text = str(line_of(state_of([*WORKS, done]), Screen(200, False, 24), NOW + 5_000)[0])
    assert "fetch" in text
    assert "readTextFile" not in text


def test_what_a_model_streams_is_never_obeyed_not_even_in_two_parts() -> None:
    for text in ("\x1b[2J", "\x1b]0;owned\x07", "\x9b8m", "\u202egnp", "a\rb", "\ud83d\ude80"):
        for cut in range(len(text) + 1):
            events = [of(StartGeneration), *(of(StreamText, delta=part) for part in (text[:cut], text[cut:]) if part)]
            for screen in (Screen(80, True, 24), Screen(40, False, 24)):
                for line in (*lines_on(events, screen), line_of(state_of(events), screen, NOW)):
                    words = "".join(map(str, line))
                    assert plain_text(words) == words


def test_of_an_endless_text_only_the_end_is_kept_and_looked_at() -> None:
    state = state_of([of(StartGeneration), *(of(StreamText, delta="word " * 1000) for _ in range(50))])
    assert len(state.lanes["job-1"].text) <= 4_000


def test_a_reply_that_is_tried_again_is_marked_where_it_broke_off_and_shown_once(terminal: Terminal) -> None:
    events = [
        of(StreamText, delta="Half of"),
        of(StartGeneration, 10),
        of(StreamText, 20, delta="Half of it"),
        of(FinishGeneration, 30, usage=Usage.of(1, 1), reply=(TextPart(text="Half of it."),), finish_reason="stop"),
    ]
    lines: list[str] = []
    printer = JobPrinter(lambda *parts: lines.append(sanitized(parts)), lambda: Screen(80, False, 24), cli_phrase)
    state = JobActivity()
    for event in events:
        printer.print_event(event, state.apply(event), state)
    assert lines == ["  Half of …", "  Half of it."]


def test_what_a_model_says_is_no_line_of_the_program_and_no_command_to_the_terminal(terminal: Terminal) -> None:
    evil = (
        "\x1b[2J\x1b]0;owned\x07\x9b8m\n\nanswer? (say yes)\n\n- &#x202e;a \x1b[1A\n\n```\n\x1b[2K\r$ \n```\n"
        + "x" * 200
    )
    terminal.project(SOLO, solo=[reply(evil, ("todo", {"newTodos": [evil]}), thinking=evil), reply(evil + "!")])
    for env in ({}, {"NO_COLOR": "1"}, {"TERM": "dumb"}):
        result = terminal.call("run", "solo", "q", *SCRIPTED, columns=80, env=env)
        seen = re.sub(r"\x1b\[\d*m|\r?\x1b\[\d*[AJ]|\r(?=\x1b)", "", result.out)
        assert plain_text(seen) == seen
        assert not any(line.startswith(("answer?", "$", "x")) for line in seen.splitlines())
