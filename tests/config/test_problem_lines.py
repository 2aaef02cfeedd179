"""Problems as lines and as JSON."""

from __future__ import annotations

import json

from perstack.doors.cli.validate import problems_to_json
from perstack.doors.shared.text import describe_problems
from perstack.errors import Problem

ERROR = Problem("is missing", "/p/perstack.toml", 3, "experts.a.instruction")
WARNING = Problem("unknown key", "/p/perstack.toml", 1, "modell", "warning")
UNREADABLE = Problem("cannot be read", "/p/gone.toml")


def test_each_problem_is_a_line_with_its_place_and_the_last_line_counts_them():
    assert describe_problems([WARNING, ERROR, UNREADABLE]) == [
        "/p/perstack.toml:1: warning: modell: unknown key",
        "/p/perstack.toml:3: error: experts.a.instruction: is missing",
        "/p/gone.toml: error: cannot be read",
        "2 errors, 1 warning",
    ]


def test_no_problems_are_counted_too():
    assert describe_problems([]) == ["0 errors, 0 warnings"]


def test_the_json_form_says_null_where_there_is_no_place():
    assert json.loads(json.dumps(problems_to_json([ERROR, UNREADABLE]))) == [
        {
            "severity": "error",
            "file": "/p/perstack.toml",
            "line": 3,
            "key": "experts.a.instruction",
            "message": "is missing",
        },
        {"severity": "error", "file": "/p/gone.toml", "line": None, "key": None, "message": "cannot be read"},
    ]
