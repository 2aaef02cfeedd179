"""`include`: Experts from further files."""

from __future__ import annotations

import pytest

from perstack.errors import DefinitionError
from perstack.trust.definition_files import load_project


def expert(name, more=""):
    return f'[experts.{name}]\ninstruction = "x"\n{more}\n'


def test_experts_of_included_files_follow_those_of_the_file_itself_in_the_order_of_names(write):
    root = write('include = ["experts/*/perstack.toml"]\n' + expert("root"))
    write(expert("b"), "experts/2/perstack.toml")
    write(expert("a"), "experts/1/perstack.toml")
    loaded = load_project(root)
    assert list(loaded.project.experts) == ["root", "a", "b"]
    assert loaded.warnings == ()


def test_an_expert_may_delegate_into_an_included_file_and_back(write):
    root = write('include = ["more.toml"]\n' + expert("a", 'delegates = ["b"]'))
    write(expert("b", 'delegates = ["a"]'), "more.toml")
    assert load_project(root).project.experts["a"].delegates == ("b",)


def test_an_included_file_includes_further_ones_from_where_it_lies(write):
    root = write('include = ["sub/one.toml"]')
    write('include = ["two.toml", "../three.toml"]\n', "sub/one.toml")
    write(expert("two"), "sub/two.toml")
    write(expert("three"), "three.toml")
    assert list(load_project(root).project.experts) == ["two", "three"]


def test_a_file_that_two_others_include_is_taken_in_once(write):
    root = write('include = ["one.toml", "two.toml"]')
    write('include = ["both.toml"]', "one.toml")
    write('include = ["both.toml"]', "two.toml")
    write(expert("both"), "both.toml")
    assert list(load_project(root).project.experts) == ["both"]


def test_a_pattern_that_finds_the_file_itself_means_the_others(write):
    root = write('include = ["**/perstack.toml"]\n' + expert("root"))
    write(expert("deep"), "a/b/perstack.toml")
    assert list(load_project(root).project.experts) == ["root", "deep"]


def test_a_pattern_means_files_only_and_none_that_are_hidden(write):
    root = write('include = ["experts/**"]')
    write(expert("a"), "experts/deep/a.toml")
    write(expert("hidden"), "experts/.trash/b.toml")
    assert list(load_project(root).project.experts) == ["a"]


def problems_of(path):
    with pytest.raises(DefinitionError) as caught:
        load_project(path)
    return caught.value.problems


def test_files_that_include_each_other_are_an_error_that_shows_the_way(write, tmp_path):
    root = write('include = ["one.toml"]')
    write(expert("one") + "\n", "one.toml").write_text('include = [\n  "perstack.toml",\n]\n')
    [problem] = problems_of(root)
    assert (problem.file, problem.line, problem.key) == (str(tmp_path / "one.toml"), 2, "include[0]")
    assert " → ".join(str(tmp_path / name) for name in ("perstack.toml", "one.toml", "perstack.toml")) in str(problem)


@pytest.mark.parametrize("name", ["9" * 400, "x/" * 3000, "a\\u0000b"], ids=["long", "deep", "with a NUL"])
def test_a_name_that_no_file_can_have_is_an_error_with_its_line(write, name):
    root = write(f'# words\ninclude = ["{name}"]')
    with pytest.raises(DefinitionError, match=r":2: include\[0\]: (there is no file|must not contain a NUL)"):
        load_project(root)


def test_a_file_that_includes_itself_by_name_is_an_error(write):
    [problem] = problems_of(write('include = ["perstack.toml"]'))
    assert (problem.line, problem.key) == (1, "include[0]")
    assert "cannot include itself" in problem.message


def test_a_file_that_is_not_there_is_an_error(write, tmp_path):
    [problem] = problems_of(write('include = [\n  "gone.toml",\n]'))
    assert (problem.line, problem.key) == (2, "include[0]")
    assert problem.message == f"there is no file `gone.toml` in {tmp_path}"


def test_a_pattern_that_finds_nothing_is_a_warning(write):
    [problem] = load_project(write('include = ["experts/*/perstack.toml"]')).warnings
    assert (problem.severity, problem.line, problem.key) == ("warning", 1, "include[0]")


def test_one_key_in_two_files_is_an_error_that_names_both(write, tmp_path):
    root = write('include = ["more.toml"]\n\n' + expert("a"))
    write("# first line\n" + expert("a"), "more.toml")
    [problem] = problems_of(root)
    assert (problem.file, problem.line, problem.key) == (str(tmp_path / "more.toml"), 2, "experts.a")
    assert f"{root}:3" in problem.message


def test_settings_of_an_included_file_are_ignored_with_a_warning(write, tmp_path):
    root = write('model = "root"\ninclude = ["more.toml"]')
    write('model = "more"\nruntime = "bogus"\n[provider]\nproviderName = "openai"\n' + expert("a"), "more.toml")
    loaded = load_project(root)
    assert loaded.project.model == "root"
    assert loaded.project.provider is None
    assert [(problem.line, problem.key) for problem in loaded.warnings] == [
        (1, "model"),
        (2, "runtime"),
        (3, "provider"),
    ]
    assert str(root) in loaded.warnings[0].message


def test_problems_of_included_files_bear_their_names_and_follow_file_by_file(write, tmp_path):
    root = write('include = ["b.toml", "a.toml"]\n' + expert("root", 'delegates = ["x"]'))
    write("[experts.b]\n", "b.toml")
    write("[experts\n", "a.toml")
    assert [(problem.file, problem.line) for problem in problems_of(root)] == [
        (str(root), 4),
        (str(tmp_path / "b.toml"), 1),
        (str(tmp_path / "a.toml"), 1),
    ]
