"""Typed and pasted bytes of any kind: in a real terminal, and split wherever a read may end."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hosts import Bench, expert, wait_for
from hypothesis import given
from hypothesis import strategies as st
from terminal import Terminal, reply
from terminal_app import Screen, at_once, run_app
from textual import events
from textual._xterm_parser import XTermParser
from tmux import PERSTACK, tmux

from perstack.testing.scripted import text
from perstack_tui.terminal import PasteFilter
from perstack_tui.widgets.composer import Composer

WRITER = expert("writer", description="Writes haiku")
TOML = '[experts.writer]\ninstruction = "You write."\n'
BEGIN, END = b"\x1b[200~", b"\x1b[201~"
LOG = "\x1b[31mred\x1b[0m\x1b"
"""Coloured output of a program, cut within an escape sequence."""

PIECES = st.sampled_from(["a", "é", "\r", "\x1b", "\x1b[31m", "\x1b[A", "[201~", "\x1b[20", "\x1b[200~"])


def heard(chunks: list[bytes]) -> list[events.Key | events.Paste]:
    """Return the events that the library parses from these chunks."""
    parser, pastes = XTermParser(), PasteFilter()
    parsed = []
    for chunk in chunks:
        if data := pastes.feed(chunk):
            parsed += parser.feed(data)
    return parsed


def split(data: bytes, at: list[int]) -> list[bytes]:
    places = [0, *sorted({place % (len(data) + 1) for place in at}), len(data)]
    return [data[a:b] for a, b in pairwise(places)]


@given(
    st.lists(PIECES, max_size=12).map("".join).filter(lambda one: END.decode() not in one),
    st.lists(st.integers(0, 200), max_size=8),
)
def test_whatever_a_paste_holds_it_is_one_paste_and_no_key(content: str, at: list[int]) -> None:
    data = b"x" + BEGIN + content.encode() + END + b"y"
    first, *pasted, last = heard(split(data, at))
    assert [one.key for one in (first, last) if isinstance(one, events.Key)] == ["x", "y"]
    whole = content.replace("\x1b", "\N{SYMBOL FOR ESCAPE}")
    assert [one.text for one in pasted if isinstance(one, events.Paste)] == [whole]
    assert all(isinstance(one, events.Paste) for one in pasted)


@given(st.lists(st.sampled_from(["a", "é", "\r", "\x1b[A", "\x1b[200", "\x1b"])).map("".join), st.lists(st.integers()))
def test_what_is_typed_comes_at_once_and_unchanged(typed: str, at: list[int]) -> None:
    pastes, given_so_far = PasteFilter(), ""
    for chunk in split(typed.encode(), at):
        given_so_far += pastes.feed(chunk)
    assert given_so_far == typed


def test_bytes_that_are_no_text_are_shown_as_such() -> None:
    assert PasteFilter().feed(b"a\xff\xfeb") == "a\ufffd\ufffdb"


def test_a_paste_in_a_real_terminal_is_the_query_with_its_lines_and_sends_nothing(terminal: Terminal) -> None:
    terminal.project(TOML, writer=[reply("Well.")])
    with tmux(terminal, lines=24) as win:
        win.type(f"{PERSTACK} start writer --provider scripted")
        win.sees("what should writer do?")
        win.paste(f"first\n\tsecond {LOG}\nlast".encode() + b" \xff.")
        win.sees("first", "second", "last �.", " new")
        win.press("Enter")
        win.sees("Well.", "✓ completed")
        win.press("C-q")
        win.sees("$ ")
    started_with = json.loads(terminal.run("log", "--json").lines[0])
    assert "first\\n\\tsecond ␛[31mred␛[0m␛\\nlast \ufffd." in json.dumps(started_with, ensure_ascii=False)


def test_what_is_typed_before_the_first_frame_is_chosen_and_sent_as_if_it_were_typed_after_it(
    terminal: Terminal,
) -> None:
    terminal.project(TOML + '[experts.critic]\ninstruction = "You judge."\n', critic=[reply("It is well.")])
    with tmux(terminal, lines=24) as win:
        win.type(f"until test -e gate; do sleep 0.05; done; {PERSTACK} start --provider scripted")
        win.type("crit")
        win.type("Judge this")
        win.sees("\ncrit\nJudge this")  # as the terminal shows it that no program has taken yet
        (terminal.workspace / "gate").touch()
        win.sees("❯ Judge this", "It is well.", "✓ completed", "a follow-up")
        win.press("C-q")
        win.sees("$ ")


def test_enter_is_about_what_was_typed_before_it_and_takes_nothing_of_what_follows(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host([text("Well.")], WRITER, expert("critic", description="Says what is wrong"))
        async with run_app(host) as screen:
            await screen.sees("Choose an Expert")
            at_once(screen, "w", "r", "down", "up", "enter", *"Go", "enter", *"and")
            await screen.sees("1 writer ✓", "❯ Go", "Well.", "│ and ")

    wait_for(person())


@pytest.mark.parametrize(
    ("pasted", "kept"),
    [("one", "one"), ("a\r\nb\rc\nd", "a\nb\nc\nd"), ("a\tb", "a\tb"), ("a\x07\x9b31mb\u202e", "a31mb")],
    ids=["once", "lines", "tabs", "controls"],
)
def test_what_is_pasted_is_what_is_typed(bench: Bench, pasted: str, kept: str) -> None:
    async def person() -> None:
        async with run_app(bench.host([text("Well.")], WRITER), expert="writer") as screen:
            await screen.sees("what should writer do?")
            await screen.paste(pasted)
            await screen.wait_until(lambda _: _composer(screen).text == kept, f"{kept!r} in {_composer(screen).text!r}")

    wait_for(person())


def test_a_text_that_is_too_long_to_show_is_refused_with_what_to_do(bench: Bench) -> None:
    async def person() -> None:
        async with run_app(bench.host([text("Well.")], WRITER), expert="writer", notices=True, size=(99, 24)) as screen:
            await screen.sees("what should writer do?")
            await screen.paste("x" * 100_001)
            await screen.sees("100,001 characters", "name it with @")
            assert not _composer(screen).text
            await screen.paste("x" * 100_000)
            await screen.wait_until(lambda _: len(_composer(screen).text) == 100_000, "the text")

    wait_for(person())


def _composer(screen: Screen) -> Composer:
    return screen.app.pane.query_one(Composer)
