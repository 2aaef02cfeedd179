"""The files of a project that its allow rules run, found in the rules themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perstack.trust.rule_programs import programs_named_by


@pytest.mark.parametrize(
    ("rule", "paths"),
    [
        ("exec(./check.sh)", ["check.sh"]),
        ("exec(./check.sh *)", ["check.sh"]),
        ("exec(scripts/build --fast *)", ["scripts/build"]),
        ("exec(python3 count.py *)", ["count.py"]),
        ("exec(python3 -I count.py *)", ["count.py"]),
        ("exec(python3 tools/count.py {-v,--out=*} *)", ["tools/count.py"]),
        ("exec(sh ./a.sh)", ["a.sh"]),
        ("exec(node x.js)", ["x.js"]),
        ("exec(uv run --quiet python tools/a.py *)", ["tools/a.py"]),
        ("exec(timeout 60 ./check.sh)", ["check.sh"]),
        ("exec(sh -c 'cd sub && ./a.sh; python3 b.py')", ["a.sh", "b.py"]),
        ("exec(pytest {--config-file=tools/pytest.ini,-c conf/x.ini} *)", ["conf/x.ini", "tools/pytest.ini"]),
        ("exec(command=python3, args=count.py, cwd=reports)", ["reports/count.py"]),
        (
            "exec(python3 -m tools.count *)",
            ["tools/__init__.py", "tools/count.py", "tools/count/__init__.py", "tools/count/__main__.py"],
        ),
        ("write(report.md)", []),
        ("writeTextFile(report.md)", []),
        ("@perstack/base/exec(./a/../b.sh)", ["b.sh"]),
        ("exec(git log {--oneline,-n *} *)", []),
        ("exec(git log main..work)", []),
        ("exec(/usr/bin/python3 /opt/x.py)", []),
        ("exec(python3 *)", []),
        ("exec(python3 tools/*.py)", []),
        ("exec(../x.sh)", []),
        ("exec(make)", []),
        ("exec", []),
        ("delegate/x.y", []),
        ("exec(open 'quote)", []),
        ("exec(", []),
    ],
)
def test_the_programs_that_an_allow_rule_names_are_found(rule: str, paths: list[str]) -> None:
    assert programs_named_by([rule]) == tuple(paths)


def test_the_programs_of_all_rules_are_named_once_in_order() -> None:
    rules = ("exec(python3 b.py)", "exec(./a.sh)", "exec(python3 b.py *)")
    assert programs_named_by(rules) == ("a.sh", "b.py")


@given(st.lists(st.text(max_size=60), max_size=3))
def test_any_text_names_only_relative_paths(texts: list[str]) -> None:
    for path in programs_named_by([*texts, *(f"exec({text})" for text in texts)]):
        assert path
        assert not path.startswith(("/", "../", "~"))
