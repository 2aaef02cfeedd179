"""`[[experts.NAME.tests]]`: read for those who ask, with every problem and its line, and by no Run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perstack.definition_files import load_project, read_definition
from perstack.errors import UsageError
from perstack.expert_tests.models import Expected
from perstack.expert_tests.written_tests import NoTests, WrittenTest, read_tests, select_tests

Write = Callable[..., Path]

GOOD = """
[experts.writer]
instruction = "write"

[[experts.writer.tests]]
name = "a haiku"
query = "A haiku"
answers = ["yes"]
repeats = 3
passRate = 0.6
expect = { status = "waiting", called = ["exec(git *)"], files = { "a/b.md" = "x" }, maxCost = 0 }

[[experts.writer.tests]]
name = "another"
query = "q"
[experts.writer.tests.expect]
command = ["python3", "check.py"]
resultMatches = "^a"
"""


def read(path: Path) -> tuple[tuple[WrittenTest, ...], list[str]]:
    definition = read_definition(path)
    tests = read_tests(definition)
    return tests, [f"{one.line}: {one.severity}: {one.key}: {one.message}" for one in definition.in_order()]


def test_tests_are_read_with_their_places_and_what_is_expected(write: Write) -> None:
    path = write(GOOD)
    tests, problems = read(path)
    assert problems == []
    assert [(one.title, one.place) for one in tests] == [
        ("writer: a haiku", f"{path}:4"),
        ("writer: another", f"{path}:12"),
    ]
    assert (tests[0].test.repeats, tests[0].test.pass_rate, tests[0].test.answers) == (3, 0.6, ("yes",))
    assert tests[0].test.expect == Expected(
        status="waiting", called=("exec(git *)",), files={"a/b.md": "x"}, max_cost=0
    )
    assert tests[1].test.expect.command == ("python3", "check.py")


def test_tests_are_no_part_of_what_is_recorded_of_an_expert(write: Write) -> None:
    with_tests = load_project(write(GOOD)).project.experts["writer"]
    without = load_project(write(GOOD[: GOOD.index("[[")])).project.experts["writer"]
    assert with_tests == without
    assert with_tests.to_json() == without.to_json()


def test_a_wrong_test_keeps_no_expert_from_running(write: Write) -> None:
    path = write(f"{GOOD}[[experts.writer.tests]]\nqueri = 1\n")
    assert load_project(path).warnings == ()
    assert read(path)[1] != []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('query = "q"', "4: error: experts.a.tests[0].name: is missing: its name, unique for the Expert"),
        ('name = " "\nquery = "q"', "5: error: experts.a.tests[0].name: must not be empty"),
        ('name = "a\\nb"\nquery = "q"', "5: error: experts.a.tests[0].name: must be one line"),
        ('name = "n"', "4: error: experts.a.tests[0].query: is missing"),
        ('name = "n"\nquery = "q"\nmodle = "x"', "7: warning: experts.a.tests[0].modle: unknown key, ignored; did you"),
        ('name = "n"\nquery = "q"\nmodel = "x"', "7: error: experts.a.tests[0].model: there is no file `x` in "),
        (
            'name = "n"\nquery = "q"\nworkspace = "x"',
            "7: error: experts.a.tests[0].workspace: there is no folder `x`",
        ),
        ('name = "n"\nquery = "q"\nrepeats = 0', "7: error: experts.a.tests[0].repeats: must be at least 1, not 0"),
        ('name = "n"\nquery = "q"\nrepeats = 99999', "7: error: experts.a.tests[0].repeats: must be at most 10,000"),
        ('name = "n"\nquery = "q"\npassRate = 1.5', "7: error: experts.a.tests[0].passRate: must be more than 0, and"),
        ('name = "n"\nquery = "q"\npassRate = nan', "7: error: experts.a.tests[0].passRate: must be more than 0, and"),
        (
            'name = "n"\nquery = "q"\ncalled = ["x"]',
            "7: warning: experts.a.tests[0].called: unknown key here, ignored; ",
        ),
        ('name = "n"\nquery = "q"\nexpect = 1', "7: error: experts.a.tests[0].expect: must be a table, not a number"),
        ('name = "n"\nquery = "q"\nexpect.called = "x"', "7: error: experts.a.tests[0].expect.called: must be a list"),
        (
            'name = "n"\nquery = "q"\nexpect.called = ["exec(a"]',
            "7: error: experts.a.tests[0].expect.called[0]: `exec(a` has no `)` at its end",
        ),
        (
            'name = "n"\nquery = "q"\nexpect.resultMatches = "(?=a)"',
            "7: error: experts.a.tests[0].expect.resultMatches: is not a pattern that can be matched in linear time",
        ),
        (
            'name = "n"\nquery = "q"\nexpect.files = { "../x" = "" }',
            '7: error: experts.a.tests[0].expect.files."../x": must be a file in the workspace',
        ),
        (
            'name = "n"\nquery = "q"\nexpect.files = { "/etc/passwd" = "root" }',
            '7: error: experts.a.tests[0].expect.files."/etc/passwd": must be a file in the workspace',
        ),
        (
            'name = "n"\nquery = "q"\nexpect.status = "complete"',
            "7: error: experts.a.tests[0].expect.status: must be one of completed, waiting",
        ),
        ('name = "n"\nquery = "q"\nexpect.command = []', "7: error: experts.a.tests[0].expect.command: must not be"),
        (
            'name = "n"\nquery = "q"\n[[experts.a.tests]]\nname = "n"\nquery = "q"',
            "8: error: experts.a.tests[1].name: `n` is a test already, at ",
        ),
    ],
)
def test_each_mistake_is_named_with_its_line_and_key(write: Write, text: str, problem: str) -> None:
    path = write(f'[experts.a]\ninstruction = "x"\n\n[[experts.a.tests]]\n{text}\n')
    found = read(path)[1]
    assert any(one.startswith(problem) for one in found), found
    assert len(found) == 1


def test_a_table_in_place_of_tables_and_a_misspelt_tests_are_named(write: Write) -> None:
    _, problems = read(write('[experts.a]\ninstruction = "x"\n[experts.a.tests]\nname = "n"\n'))
    assert problems == [
        "3: error: experts.a.tests: must be tables, not a table: write [[experts.a.tests]] for each test"
    ]
    _, problems = read(write('[experts.a]\ninstruction = "x"\n[[experts.a.test]]\nname = "n"\n'))
    assert problems == ["3: warning: experts.a.test: unknown key, ignored; did you mean `tests`?"]


def test_what_a_test_names_is_seen_from_its_own_file(write: Write, tmp_path: Path) -> None:
    write('{"experts": {}}', "more/haiku.json")
    text = 'include = ["more/perstack.toml"]\n'
    write(
        '[experts.a]\ninstruction = "x"\n[[experts.a.tests]]\nname = "n"\nquery = "q"\nmodel = "haiku.json"',
        "more/perstack.toml",
    )
    (test,), problems = read(write(text))
    assert problems == []
    assert test.model == tmp_path / "more" / "haiku.json"


def test_tests_are_chosen_by_their_expert_and_a_part_of_their_name(write: Write) -> None:
    tests, _ = read(write(GOOD))
    assert len(select_tests(tests, ("writer",))) == 2
    assert [one.test.name for one in select_tests(tests, ("writer",), "writer", "HAI")] == ["a haiku"]
    with pytest.raises(NoTests, match="no test has `zz` in its name; the tests are: writer: a haiku, writer: another"):
        select_tests(tests, ("writer",), None, "zz")
    with pytest.raises(NoTests, match=r"Expert `b` has no test: write \[\[experts\.b\.tests\]\]"):
        select_tests(tests, ("writer", "b"), "b")
    with pytest.raises(UsageError, match="there is no Expert `writr`; did you mean `writer`"):
        select_tests(tests, ("writer",), "writr")
