"""Whether a Job is what a test expects: facts in, reasons out."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perstack.core.definitions.skills import Subject
from perstack.core.permissions.policy_calls import PolicyCall
from perstack.expert_tests.models import Expected
from perstack.testing.experts.results import JobFacts, UnreadableFile, interval, judge, matches_call, shown_call

WRITE = PolicyCall(
    tool="writeTextFile", skill="@perstack/base", args={"path": "out.md", "text": "x"}, subject=Subject(paths=("path",))
)
EXEC = PolicyCall(
    tool="exec",
    skill="@perstack/base",
    args={"command": "sh", "args": ["-c", "cd src && git push origin"]},
    subject=Subject(program="command", arguments="args"),
)
ASK = PolicyCall(tool="askUser", skill="user", args={"question": "Tea?"}, kind="interactive")
THINK = PolicyCall(tool="think", args={"thought": "hm"}, kind="tool", subject=Subject(is_nothing=True))
HELP = PolicyCall(tool="helper", args={"query": "go"}, kind="delegate")
DONE = JobFacts(status="completed", result="Two lines:\nDone.", steps=2, cost=0.02, calls=(WRITE, EXEC, ASK, HELP))


@pytest.mark.parametrize(
    ("rule", "call", "is_it"),
    [
        ("writeTextFile", WRITE, True),
        ("writeTextFile(path=*.md)", WRITE, True),
        ("@perstack/base/writeTextFile(*.md)", WRITE, True),
        ("writeTextFile(path=*.txt)", WRITE, False),
        ("readTextFile", WRITE, False),
        ("*", WRITE, True),
        ("exec(git push *)", EXEC, True),
        ("exec(git pull *)", EXEC, False),
        ("askUser", ASK, True),
        ("askUser(question=Tea*)", ASK, True),
        ("think", THINK, True),
        ("delegate/helper", HELP, True),
        ("delegate/*", WRITE, False),
        ("helper", HELP, True),
        ("delegate/other", HELP, False),
    ],
)
def test_a_rule_is_about_a_call_as_it_would_be_if_it_denied(rule: str, call: PolicyCall, is_it: bool) -> None:
    assert matches_call(rule, call) is is_it


@pytest.mark.parametrize(
    ("expected", "reasons"),
    [
        (Expected(), ()),
        (Expected(status="failed"), ("status is `completed`, not `failed`",)),
        (Expected(called=("writeTextFile(path=*.md)", "askUser")), ()),
        (
            Expected(called=("readTextFile",)),
            (
                "no call is `readTextFile`; calls: writeTextFile(path=out.md, text=x),"
                ' exec(command=sh, args=["-c", "cd src && git push origin"]), askUser(question=Tea?),'
                " delegate/helper(query=go)",
            ),
        ),
        (Expected(not_called=("exec(git pull *)",)), ()),
        (
            Expected(not_called=("writeTextFile",)),
            ("a call is `writeTextFile`: writeTextFile(path=out.md, text=x)",),
        ),
        (Expected(result_contains=("Done", "lines")), ()),
        (
            Expected(result_contains=("Done", "three")),
            ('the result has no "three"; it is: Two lines: Done.',),
        ),
        (Expected(result_matches="Don[a-f]"), ()),
        (Expected(result_matches="^Done"), ("the result does not match ^Done; it is: Two lines: Done.",)),
        (Expected(max_steps=2, max_cost=0.02), ()),
        (Expected(max_steps=1), ("it took 2 steps, more than 1",)),
        (Expected(max_cost=0.01), ("it cost $0.0200, more than $0.0100",)),
    ],
)
def test_each_expectation_is_kept_or_says_why_it_is_not(expected: Expected, reasons: tuple[str, ...]) -> None:
    assert judge(expected, DONE) == reasons


def test_all_that_is_wrong_is_said_at_once() -> None:
    facts = JobFacts(status="stoppedByError", because="no key\nfor it", command_failed="`check` ended with status 1")
    assert judge(Expected(called=("exec",), result_contains=("x",)), facts) == (
        "status is `failed`, not `completed`: no key for it",
        "no call is `exec`; there was none",
        'the result has no "x"; there is none',
        "`check` ended with status 1",
    )


def test_files_are_there_with_a_text_in_them() -> None:
    files = {"a": "one two", "b": "", "c": UnreadableFile("is missing"), "d": ""}
    facts = JobFacts(status="completed", files=files)
    assert judge(Expected(files={"a": "two", "b": ""}), facts) == ()
    assert judge(Expected(files={"a": "three", "c": "", "d": "x", "e": ""}), facts) == (
        'a has no "three"; it begins: one two',
        "c is missing",
        'd has no "x"; it is empty',
        "e is missing",
    )


def test_an_unknown_cost_is_too_much_and_none_is_not() -> None:
    assert judge(Expected(max_cost=0), JobFacts(status="completed")) == ()
    (reason,) = judge(Expected(max_cost=9), JobFacts(status="completed", cost="unknown"))
    assert reason == "its cost is unknown, so that it may be more than $9.0000: give the model's price in [prices]"


def test_a_pattern_made_to_be_slow_and_a_result_made_to_be_large_take_no_time() -> None:
    began = time.monotonic()
    facts = JobFacts(status="completed", result="a" * 2_000_000 + "\x1b[2J")
    (reason,) = judge(Expected(result_matches="(a+)+$"), facts)
    assert time.monotonic() - began < 5
    assert "\x1b" not in reason
    assert len(reason) < 300


def test_a_call_is_shown_in_a_line_of_few_characters() -> None:
    call = PolicyCall(tool="w", args={"path": "a\n" * 500, "n": 1})
    assert len(shown_call(call)) <= 80
    assert "\n" not in shown_call(call)


@pytest.mark.parametrize(
    ("passed", "total", "low", "high"),
    [(0, 0, 0, 1), (1, 1, 0.2065, 1), (0, 3, 0, 0.5615), (9, 10, 0.5958, 0.9821), (50, 100, 0.4038, 0.5962)],
)
def test_the_interval_is_wilsons(passed: int, total: int, low: float, high: float) -> None:
    assert interval(passed, total) == pytest.approx((low, high), abs=1e-4)


@given(st.integers(1, 10_000).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))))
def test_the_rate_is_within_its_interval_which_is_within_all_that_is_possible(counted: tuple[int, int]) -> None:
    passed, total = counted
    low, high = interval(passed, total)
    assert 0 <= low <= passed / total <= high <= 1
