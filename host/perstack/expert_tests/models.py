"""Models of `[[experts.NAME.tests]]` in perstack.toml: a query to an Expert and the expected outcome of the Job.

Tests are not part of an Expert's definition: Runs do not read them and logs do not contain them.
"""

import unicodedata
from collections.abc import Mapping
from math import isfinite
from posixpath import normpath
from typing import Annotated, Literal

from pydantic import Field

from perstack.core.base.records import Record
from perstack.core.definitions.keys import NOT_EMPTY, Key, Rule, at_least
from perstack.core.definitions.permissions import rule_problem
from perstack.core.schemas.patterns import compile_pattern

ExpectedStatus = Literal["completed", "waiting", "step-limit", "budget", "failed"]
"""Possible final statuses of an uninterrupted Job, in the words of `perstack jobs --status`."""

MAX_REPEATS = 10_000
_MAX_NAME_CHARS = 100

_Text = Annotated[str, NOT_EMPTY]


def name_problem(name: str) -> str | None:
    """Return the problem of a test's name, as a phrase that follows its key; None if it is valid."""
    if len(name) > _MAX_NAME_CHARS:
        return f"has {len(name):,} characters: shorten it to {_MAX_NAME_CHARS}"
    if any(unicodedata.category(char)[0] == "C" for char in name):
        return "must be one line, without control characters"
    return None if name == name.strip() else "must not begin or end with a blank"


def _pattern_problem(pattern: str) -> str | None:
    pattern_or_error = compile_pattern(pattern)
    return (
        f"is not a pattern that can be matched in linear time: {pattern_or_error}"
        if isinstance(pattern_or_error, str)
        else None
    )


def _path_problem(path: str) -> str | None:
    normal_path = normpath(path) if path else ""
    if not normal_path or "\0" in path or normal_path in (".", "..") or normal_path.startswith(("/", "../")):
        return "must be a file in the workspace: write its path from there, such as `notes/out.md`"
    return None


def _rate_problem(rate: float) -> str | None:
    return None if isfinite(rate) and 0 < rate <= 1 else "must be more than 0, and at most 1"


def _cost_problem(dollars: float) -> str | None:
    return None if isfinite(dollars) and dollars >= 0 else "must be US dollars"


def _count_problem(number: int) -> str | None:
    return f"must be at most {MAX_REPEATS:,}, not {number:,}" if number > MAX_REPEATS else None


_Rules = tuple[Annotated[str, Rule(rule_problem)], ...]


class Expected(Record):
    """Expected outcome of a Job. Only given fields are checked; the status is always checked."""

    status: Annotated[ExpectedStatus, Key("status of the Job at its end; default `completed`", effect="text")] = (
        "completed"
    )
    called: Annotated[_Rules, Key("calls that must occur in a Run of the Job (permission rules)", effect="text")] = ()
    not_called: Annotated[_Rules, Key("calls that must not occur (permission rules)", effect="text")] = ()
    result_contains: Annotated[tuple[_Text, ...], Key("texts that the result must contain", effect="text")] = ()
    result_matches: Annotated[
        str | None,
        NOT_EMPTY,
        Rule(_pattern_problem),
        Key("a pattern, as in a JSON schema, that the result must contain", effect="text"),
    ] = None
    files: Annotated[
        dict[Annotated[str, Rule(_path_problem)], str],
        Key(
            'files of the workspace by path, each with a text that it must contain; `""`: it must exist', effect="text"
        ),
    ] = Field(default_factory=dict)
    max_steps: Annotated[int | None, at_least(0), Key("maximum steps over all Runs", effect="text")] = None
    max_cost: Annotated[
        float | None, Rule(_cost_problem), Key("maximum cost in US dollars; an unknown cost exceeds it", effect="text")
    ] = None
    command: Annotated[
        _Text | Annotated[tuple[_Text, ...], NOT_EMPTY] | None,
        Key(
            "a shell command or a program, run in the workspace with the result on stdin; exit status 0 is success",
            effect="executes",
        ),
    ] = None


class ExpertTest(Record):
    """Test case: a query, the model, the number of repetitions and the expected outcome."""

    name: Annotated[_Text, Rule(name_problem), Key("its name, unique for the Expert", effect="text")]
    query: Annotated[_Text, Key("the query to the Expert", effect="text")]
    model: Annotated[
        str | None,
        NOT_EMPTY,
        Key("a script or a recording, relative to this file; default: the real model", effect="executes"),
    ] = None
    live: Annotated[
        tuple[_Text, ...],
        Key(
            "with a recording: tools to call instead of playing their results; default: those that write files",
            effect="executes",
        ),
    ] = ()
    answers: Annotated[tuple[str, ...], Key("answers to its questions, in order", effect="executes")] = ()
    workspace: Annotated[
        str | None,
        NOT_EMPTY,
        Key(
            "a folder, relative to this file, whose copy it works in; default: an empty one",
            effect="reads",
            is_path=True,
        ),
    ] = None
    repeats: Annotated[int, at_least(1), Rule(_count_problem), Key("number of runs; default 1", effect="text")] = 1
    pass_rate: Annotated[
        float, Rule(_rate_problem), Key("share of the runs that must pass; default 1, which is all", effect="text")
    ] = 1.0
    timeout: Annotated[
        int, at_least(1), Key("milliseconds for the Job, and for the command after it; default 600000", effect="text")
    ] = 600_000
    expect: Annotated[Expected, Key("the expected outcome, see below", effect="table")] = Field(
        default_factory=Expected
    )


PLACE_BY_MODEL: Mapping[type[Record], str] = {
    ExpertTest: "in [[experts.NAME.tests]]",
    Expected: "in `expect` of [[experts.NAME.tests]]",
}
"""Places of the tables, for messages about their keys in the wrong place."""
