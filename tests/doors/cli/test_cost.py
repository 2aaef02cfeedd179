"""Costs of Jobs, in every command that shows them."""

from __future__ import annotations

import json

import pytest
from terminal import TEAM, Terminal, reply

PRICES = """
[prices."scripted/m"]
input = 2
output = 10
cacheRead = 0.5
"""
MODEL = 'model = "m"\n[provider]\nproviderName = "scripted"\n'


@pytest.fixture
def priced(terminal: Terminal) -> Terminal:
    """Return a project with a Job `known`, with generations of 100 × 2 + 10 × 10 dollars per million tokens."""
    terminal.project(
        MODEL + PRICES + TEAM,
        lead=[reply("", ("helper", {"query": "go"}), usage=(100, 10)), reply("Done.", usage=(100, 10))],
        helper=[reply("A part.", usage=(100, 10))],
    )
    assert terminal.call("run", "lead", "q", "--job-id", "known", "--label", "team=a").code == 0
    return terminal


def costs(terminal: Terminal, *args: str) -> dict[str, object]:
    shown = json.loads(terminal.call("cost", "--json", *args).out)
    return {row["key"]: row["costUsd"] for row in (*shown["rows"], shown["total"])}


def unpriced(terminal: Terminal, job_id: str) -> None:
    """Run a Job on a model without a price."""
    result = terminal.call("run", "helper", "q", "--model", "other", "--job-id", job_id)
    assert result.code == 0, result.err


def test_a_price_of_the_definition_is_in_every_generation_and_in_the_summary(priced: Terminal) -> None:
    logs = priced.call("log", "--job", "known", "--json").events
    replied = [event["usage"]["costUsd"] for event in logs if event["type"] == "finishGeneration"]
    assert replied == [0.0003] * 3
    (job,) = priced.call("jobs", "--json").events
    assert (job["costUsd"], job["usage"]["costUsd"], "unpricedTokens" in job) == (0.0009, 0.0009, False)


def test_what_was_spent_is_added_up_by_expert_model_day_and_label(priced: Terminal) -> None:
    assert costs(priced) == {"lead": 0.0006, "helper": 0.0003, "total": 0.0009}
    assert costs(priced, "--by", "model") == {"scripted/m": 0.0009, "total": 0.0009}
    assert costs(priced, "--by", "label") == {"team=a": 0.0009, "total": 0.0009}
    assert list(costs(priced, "--by", "day").values()) == [0.0009, 0.0009]
    assert costs(priced, "--since", "1h") == costs(priced)
    assert costs(priced, "--since", "90m") == costs(priced)
    assert costs(priced, "--since", "3600s") == costs(priced)
    assert costs(priced, "--since", "2999-01-01") == {"total": 0}
    output = priced.call("cost").out
    assert "$0.0009" in output
    assert "helper" in output


def test_a_cost_that_is_not_known_is_said_to_be_unknown_and_is_never_nothing(terminal: Terminal) -> None:
    terminal.project(MODEL + TEAM, helper=[reply("A part.", usage=(100, 10))])
    unpriced(terminal, "free")
    (job,) = terminal.call("jobs", "--json").events
    assert (job["costUsd"], job["unpricedTokens"]) == ("unknown", 110)
    assert costs(terminal) == {"helper": "unknown", "total": "unknown"}
    for command in (("jobs",), ("log", "--job", "free"), ("cost",)):
        output = terminal.call(*command).out
        assert "unknown" in output, command
        assert "$0" not in output, command


def test_what_is_known_in_part_was_spent_at_least(priced: Terminal) -> None:
    unpriced(priced, "free")
    assert costs(priced, "--by", "model") == {"scripted/m": 0.0009, "scripted/other": "unknown", "total": 0.0009}
    assert "at least $0.0009" in priced.call("cost").out


def test_a_moment_that_is_none_is_wrong_usage(priced: Terminal) -> None:
    result = priced.call("cost", "--since", "yesterday")
    assert (result.code, result.err) == (
        2,
        "error: --since yesterday: write a date such as 2026-11-30, or a time ago such as 7d\n",
    )


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("input = 2", "output: is missing: generated tokens"),
        ("input = -1\noutput = 1", "input: must be US dollars for a million tokens"),
        ('input = "2"\noutput = 1', "input: must be a number, not text"),
    ],
)
def test_a_price_that_is_wrong_is_named(terminal: Terminal, table: str, words: str) -> None:
    terminal.project(MODEL + f'[prices."scripted/m"]\n{table}\n' + TEAM)
    result = terminal.call("validate")
    assert result.code == 2
    assert words in result.out + result.err
