"""`[experts.NAME.iterate]`: what it may say, and what is told of a mistake in it."""

from __future__ import annotations

import pytest

from perstack.core.definitions.experts import ExpertEvaluator, FunctionEvaluator, Iterate
from perstack.trust.definition_files import load_project

HEAD = """
[experts.a]
instruction = "x"
[experts.b]
instruction = "y"
[experts.a.iterate]
"""


@pytest.mark.parametrize(
    ("written", "evaluator"),
    [
        ('"make test"', "make test"),
        ('["make", "test"]', ("make", "test")),
        ('{ expert = "b" }', ExpertEvaluator(expert="b")),
        ('{ expert = "b@1.0.0" }', ExpertEvaluator(expert="b@1.0.0")),
        ('{ entry = "some.module:function" }', FunctionEvaluator(entry="some.module:function")),
        (
            '{ entry = "some.module:function", requiredEnv = ["KEY"] }',
            FunctionEvaluator(entry="some.module:function", required_env=("KEY",)),
        ),
    ],
)
def test_an_evaluator_is_a_command_an_expert_or_a_function(write, written, evaluator):
    loaded = load_project(write(f"{HEAD}evaluator = {written}\n"))
    assert loaded.warnings == ()
    assert loaded.project.experts["a"].iterate == Iterate(evaluator=evaluator)


def test_every_key_reaches_the_definition(write):
    lines = (
        'evaluator = "make"\ntarget = 3\nmaxIterations = 9\nmetric = ["x", "y"]\ndirection = "lower"\n'
        "accumulate = true\ntimeout = 5\n"
    )
    assert load_project(write(HEAD + lines)).project.experts["a"].iterate == Iterate(
        evaluator="make",
        target=3,
        max_iterations=9,
        metric=("x", "y"),
        direction="lower",
        accumulate=True,
        timeout=5,
    )


@pytest.mark.parametrize(
    ("line", "key", "message"),
    [
        ("", "", "is missing: the evaluator: a command, `{ expert = … }` or `{ entry = … }`"),
        ("evaluator = 5", "", "must be a command, or a table with `expert`, or with `entry`"),
        ('evaluator = ""', "", "must not be empty: the evaluator: a command, `{ expert = … }` or `{ entry = … }`"),
        ("evaluator = []", "", "must not be empty: the evaluator: a command, `{ expert = … }` or `{ entry = … }`"),
        ('evaluator = ["make", 5]', "[1]", 'must be text in "quotes", not a number'),
        ('evaluator = { name = "b" }', "", "must be a command, or a table with `expert`, or with `entry`"),
        ("evaluator = { expert = 5 }", ".expert", 'must be text in "quotes", not a number'),
        (
            'evaluator = { entry = "m:f", requiredEnv = "KEY" }',
            ".requiredEnv",
            "must be a list of texts, not text: write it in [brackets]",
        ),
        (
            'evaluator = { entry = "m:f", requiredEnv = [5] }',
            ".requiredEnv[0]",
            'must be text in "quotes", not a number',
        ),
        ('evaluator = { expert = "bb" }', ".expert", "there is no Expert `bb`; did you mean `b`?"),
        ('evaluator = { entry = "some.module" }', ".entry", 'must be "package.module:function", not "some.module"'),
    ],
)
def test_a_wrong_evaluator_is_told(problems, line, key, message):
    (found,) = problems(HEAD + line + "\n")
    assert (found[0], found[2], found[3]) == ("error", f"experts.a.iterate.evaluator{key}", message)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('target = "high"', "must be a number, not text"),
        ("target = true", "must be a number, not true or false"),
        ("target = inf", "must be a finite number"),
        ("target = nan", "must be a finite number"),
        ("metric = []", "must not be empty: metrics to compare; default `score`; of several, the worst counts"),
        ("metric = 5", 'must be text in "quotes" or a list of texts, not a number'),
        ('direction = "up"', "must be one of higher, lower"),
        ("maxIterations = 0", "must be at least 1, not 0"),
        ('best = "x"', None),
    ],
)
def test_a_wrong_value_is_told(problems, line, message):
    (found,) = problems(f'{HEAD}evaluator = "make"\n{line}\n')
    assert found[2] == f"experts.a.iterate.{line.split()[0]}"
    assert message in (None, found[3])
