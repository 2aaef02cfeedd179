"""Steps that alternate, and todo lists that only grow, stop a Run at `maxRepeats` as equal steps do."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hosts import Bench, Seen, expert, wait_for

from perstack.testing.scripted import Turn, text, tool, turn

READ_A = turn(tool("readTextFile", {"path": "a.txt"}))
READ_B = turn(tool("readTextFile", {"path": "b.txt"}), tool("listDirectory", {"path": "."}))


def add(number: int) -> Turn:
    return turn(tool("todo", {"newTodos": [f"think about part {number}"]}))


def outcome(bench: Bench, script: Sequence[Turn], seen: Seen | None = None) -> tuple[str, int]:
    """Run the script with `maxRepeats = 4`; return the name of the error, or the status, and the number of steps."""
    for name in ("a.txt", "b.txt"):
        (bench.workspace / name).write_text(name)
    host = bench.host([*script, text("done")], expert("a", max_repeats=4))
    job = wait_for(host.run("a", "q", on_event=seen or Seen()))
    assert wait_for(host.audit.replay(job.id)).ok
    return ("RepeatedCall" if "times in a row" in (job.error or "") else job.status), job.total_steps


def test_two_steps_that_alternate_stop_after_as_many_rounds(bench: Bench) -> None:
    seen = Seen()
    assert outcome(bench, [READ_A, READ_B] * 9, seen) == ("RepeatedCall", 8)
    told = [event for event in seen.of("finishToolCall") if event.warning]
    assert len(told) <= 1, "it is warned of once, halfway, if a call of its own ends the step"


def test_it_is_said_which_calls_alternate(bench: Bench) -> None:
    host = bench.host([READ_A, READ_B] * 9, expert("a", max_repeats=4))
    job = wait_for(host.run("a", "q"))
    assert (job.error or "").startswith(
        "readTextFile, listDirectory had the same arguments and the same result 4 times"
    )


def test_a_todo_list_that_only_grows_stops(bench: Bench) -> None:
    assert outcome(bench, [add(number) for number in range(9)]) == ("RepeatedCall", 4)


def test_a_todo_list_that_grows_between_equal_steps_stops(bench: Bench) -> None:
    script = [step for number in range(9) for step in (add(number), READ_A)]
    assert outcome(bench, script) == ("RepeatedCall", 8)


@pytest.mark.parametrize(
    "script",
    [
        [READ_A, READ_B] * 3,
        [READ_A, READ_A, READ_B] * 6,
        [
            step
            for number in range(9)
            for step in (READ_A, turn(tool("appendTextFile", {"path": "a.txt", "text": "x"})))
        ],
        [add(0), *[turn(tool("todo", {"newTodos": [f"p{n}"], "completedTodos": [n]})) for n in range(9)]],
        [
            turn(tool("todo", {"newTodos": [f"part {number}"]}), tool("think", {"thought": f"{number}"}))
            for number in range(9)
        ],
    ],
)
def test_what_makes_progress_is_not_stopped(bench: Bench, script: list[Turn]) -> None:
    for number, step in enumerate(script):
        assert step is not None, number
    assert outcome(bench, script)[0] == "completed"
