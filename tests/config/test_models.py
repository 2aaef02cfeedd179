"""`model` as a list, and `[models]`, as perstack.toml says them."""

from __future__ import annotations

import pytest

from perstack.definition_files import load_project
from perstack.errors import DefinitionError

EXPERT = '\n[experts.a]\ninstruction = "x"\n'


def test_one_model_is_a_text_and_several_are_a_list(write):
    named = '[models]\nfast = "m"\ndeep = ["b", "other/c"]\n'
    text = f'model = ["a", "other/b"]\n{named}{EXPERT}model = "models.deep"\n'
    project = load_project(write(text)).project
    assert project.model == ("a", "other/b")
    assert project.models == {"fast": "m", "deep": ("b", "other/c")}
    assert project.experts["a"].model == "models.deep"
    assert load_project(write(f'model = "a/b"{EXPERT}')).project.model == "a/b"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('model = ["a", ""]', "model: must not contain an empty name"),
        ("model = []", "model: must not be empty"),
        ('model = ["a", 3]', 'model[1]: must be text in "quotes", not a number'),
        ('model = "models.x"\n[models]\nfast = "m"', "model: there is no `models.x` in [models]; available: mo"),
        ('model = ["m", "models.x"]', "model[1]: there is no `models.x` in [models]; available: none"),
        ('[models]\nfast = "models.deep"\ndeep = "m"', "models.fast: must be a model, or several, not another name"),
        ("[models]\nfast = 3", 'models.fast: must be text in "quotes" or a list of texts, not a number'),
    ],
)  # fmt: skip
def test_what_is_wrong_with_models_is_named_with_its_line_and_what_there_is(write, text, words):
    with pytest.raises(DefinitionError) as caught:
        load_project(write(f"{text}{EXPERT}"))
    (problem,) = caught.value.problems
    assert f"{problem.key}: {problem.message}".startswith(words)
    assert problem.line is not None


def test_an_unknown_name_breaks_only_its_own_expert(write):
    with pytest.raises(DefinitionError) as caught:
        load_project(write(f'{EXPERT}model = "models.x"\n'))
    (problem,) = caught.value.problems
    assert (problem.expert, problem.key) == ("a", "experts.a.model")
