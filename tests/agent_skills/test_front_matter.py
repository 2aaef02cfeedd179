"""The format of Agent Skills: its published examples, the rules of its validator, and what strangers may write."""

from __future__ import annotations

import time
from hashlib import sha256

import pytest

from perstack.agent_skills.front_matter import (
    NotASkill,
    NotPlain,
    SkillFile,
    digest_of_files,
    legal_skill_name,
    read_head,
    read_table,
    split_front_matter,
)
from perstack.core.definitions.skills import skill_name_problem

MINIMAL = """\
---
name: skill-name
description: A description of what this skill does and when to use it.
---
"""
OPTIONAL = """\
---
name: pdf-processing
description: Extract PDF text, fill forms, merge files. Use when handling PDFs.
license: Apache-2.0
metadata:
  author: example-org
  version: "1.0"
---
"""


def head_of(text: str, folder: str = "my-skill"):
    return read_head(split_front_matter(text)[0], folder)


def skill(*lines: str, name: str = "my-skill") -> str:
    return "\n".join(("---", f"name: {name}", "description: A test skill", *lines, "---", "# Body", ""))


def test_the_published_examples_are_read() -> None:
    minimal, problems = head_of(MINIMAL, "skill-name")
    assert problems == ()
    assert minimal.name == "skill-name"
    assert minimal.description == "A description of what this skill does and when to use it."
    whole, problems = head_of(OPTIONAL, "pdf-processing")
    assert problems == ()
    assert (whole.license, whole.metadata) == ("Apache-2.0", {"author": "example-org", "version": "1.0"})


@pytest.mark.parametrize("name", ["pdf-processing", "data-analysis", "code-review", "a", "技能", "мой-навык", "x" * 64])
def test_names_that_the_format_allows_are_taken(name: str) -> None:
    assert head_of(skill(name=name), name)[1] == ()


@pytest.mark.parametrize(
    ("name", "words", "legal"),
    [
        ("PDF-Processing", "lower-case", "pdf-processing"),
        ("НАВЫК", "lower-case", "навык"),
        ("-pdf", "single hyphens", "pdf"),
        ("pdf-", "single hyphens", "pdf"),
        ("pdf--processing", "single hyphens", "pdf-processing"),
        ("my_skill", "letters, digits and hyphens", "my-skill"),
        ("a/b", "letters, digits and hyphens", "a-b"),
        ("..", "letters, digits and hyphens", ""),
        ("a" * 70, "64", "a" * 64),
    ],
)
def test_names_that_it_does_not_are_refused_and_have_a_legal_one_near(name: str, words: str, legal: str) -> None:
    assert words in (skill_name_problem(name) or "")
    assert legal_skill_name(name) == legal
    assert skill_name_problem(legal) is None or not legal


def test_a_name_is_that_of_its_folder_however_either_composes_its_letters() -> None:
    found, problems = head_of(skill(name="cafe\u0301"), "caf\u00e9")
    assert (found.repairs, problems) == ((), ())
    found, problems = head_of(skill(name="Correct Name"), "other-name")
    assert (found.name, problems) == ("other-name", ())
    assert found.repairs == ("`name` is `Correct Name`: the folder's is used, `other-name`",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# no head", "must begin with a line `---`"),
        ("", "must begin with a line `---`"),
        ("---\nname: my-skill\n", "second line `---`"),
        ("---\nname: my-skill\n---\n", "`description` is missing"),
        ("---\nname: my-skill\ndescription: ''\n---\n", "`description` must not be empty"),
        ("---\nname: my-skill\ndescription: []\n---\n", "`description` must not be empty"),
        ("---\n- a\n---\n", "no table"),
        ("---\n---\n", "no table"),
        ("---\n" + "x: y\n" * 4_000 + "---\n", "16 KiB"),
    ],
    ids=lambda text: repr(text[-24:]),
)
def test_what_leaves_nothing_to_use_is_said(text: str, words: str) -> None:
    try:
        problems = head_of(text)[1]
    except NotASkill as error:
        problems = (str(error),)
    assert any(words in problem for problem in problems), problems


D = "---\nname: my-skill\ndescription: "


@pytest.mark.parametrize(
    ("text", "description", "words"),
    [
        (D + "Use when: always. Triggers on: 'a', 'b'\n---\n", "Use when: always. Triggers on: 'a', 'b'", "line 3"),
        (D + "Run it\n  and more. Pairs with x: first\n---\n", "Run it and more. Pairs with x: first", "line 3"),
        (D + "`x` does a thing\n---\n", "`x` does a thing", "quote it"),
        (D + "@scope/pkg helper\n---\n", "@scope/pkg helper", "quote it"),
        (D + "%done tracker\n---\n", "%done tracker", "quote it"),
        (D + "*.py files: lint\n---\n", "*.py files: lint", "quote it"),
        (D + "&both of them\n---\n", "&both of them", "quote it"),
        (D + "!important thing\n---\n", "!important thing", "quote it"),
        (D + '"Say "hi" and use it"\n---\n', 'Say "hi" and use it', "quote it"),
        (D + "[WIP] Does a thing\n---\n", "[WIP] Does a thing", "quote it"),
        (D + "{x} template filler: yes\n---\n", "{x} template filler: yes", "quote it"),
        (D + "|\n\tDoes a\n\tthing\n---\n", "Does a thing", "quote it"),
        (D + "x\n# a comment: here\nmetadata:\n\tversion: 1\n---\n", "x", "`metadata` at line 5"),
        (D + "x\nhooks:\n  a:\n    - b:\n        - c: {d: e}\n---\n", "x", "`hooks`"),
        (D + "x\nbomb: &a [1, 1]\nmore: [*a, *a]\n---\n", "x", "`bomb`"),
        (D + "first\ndescription: second\n---\n", "second", "`description` twice"),
        (D + "[a, b]\n---\n", "a, b", "is not a string"),
        ("---\ndescription: x\n---\n", "x", "`name` is missing"),
        (D + "x" * 1100 + "\n---\n", "x" * 1023 + "…", "1,100 characters: the first 1,024"),
        (skill("compatibility: " + "x" * 550), "A test skill", "550 characters: the first 500"),
        (skill("metadata: [a]"), "A test skill", "`metadata` is not a table"),
        (skill("metadata:", "  a: {b: c}", "  d: [e, f]"), "A test skill", "`metadata` has values"),
        (skill("allowed-tools: {a: b}"), "A test skill", "`allowed-tools`"),
        (skill("allowed-tools: [a, [b]]"), "A test skill", "`allowed-tools`"),
    ],
    ids=lambda text: repr(text[-24:]),
)
def test_a_head_that_is_not_quite_right_is_read_and_reported(text: str, description: str, words: str) -> None:
    found, problems = head_of(text)
    assert (found.name, problems) == ("my-skill", ())
    assert found.description == description
    assert any(words in repair for repair in found.repairs), found.repairs


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("start", ["", "\ufeff", "\n\n"])
def test_any_line_ends_and_a_byte_order_mark_are_taken(newline: str, start: str) -> None:
    found, problems = head_of(start + (D + "|\n  Does a\n  thing\n---\n\nbody\n").replace("\n", newline))
    assert (found.description, found.repairs, problems) == ("Does a\nthing", (), ())


def test_values_in_metadata_become_texts() -> None:
    found, _ = head_of(skill("metadata:", "  version: 1.0", "  tags: [a, b]", "  by: {name: x}"))
    assert found.metadata == {"version": "1.0", "tags": "a, b", "by": "name: x"}


@pytest.mark.parametrize(
    ("line", "tools"),
    [
        ("allowed-tools: Bash(git:*) Bash(jq:*) Read", ("Bash(git:*)", "Bash(jq:*)", "Read")),
        ("allowed-tools: [Read, Write, Edit, Bash]", ("Read", "Write", "Edit", "Bash")),
        ("allowed-tools:\n  - Read\n  - Bash(git log)", ("Read", "Bash(git log)")),
        ("allowed-tools: Bash(git log) Read", ("Bash(git log)", "Read")),
        ("license: MIT", ()),
    ],
)
def test_allowed_tools_are_a_text_or_a_list(line: str, tools: tuple[str, ...]) -> None:
    found, problems = head_of(skill(line))
    assert (found.allowed_tools, problems) == (tools, ())


def test_a_key_that_the_format_does_not_have_is_named_and_ignored() -> None:
    found, problems = head_of(skill("version: 1", "hooks: {x: y}"))
    assert (found.ignored, problems) == (("version", "hooks"), ())


def test_no_value_is_taken_for_anything_but_text() -> None:
    found = read_table("a: 1\nb: true\nc: 2026-01-01\nd: null\ne: 0x1F\nf: ~")
    assert found == {"a": "1", "b": "true", "c": "2026-01-01", "d": "null", "e": "0x1F", "f": "~"}


@pytest.mark.parametrize(
    "text",
    [
        "a: &x hi\nb: *x",
        "a: &x [1]",
        "a: !!python/object/apply:os.system [ls]",
        "!!map {a: b}",
        "? [a]\n: b",
        "a: b\n--- \nc: d",
        "[" * 16_000,
        "a: " + "{a: " * 4_000,
        "- " * 8_000,
        "a: b" + "\n" * 15_000 + "\x00",
        "a: [" + "b, " * 5_000 + "]",
        "a: '" + "\n" * 16_000,
        "%YAML 9.9\n---\na: b",
        "a: \ud800",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_yaml_that_is_more_than_plain_is_refused_in_a_moment(text: str) -> None:
    began = time.monotonic()
    with pytest.raises(NotPlain):
        read_table(text)
    assert time.monotonic() - began < 10


def test_the_body_is_what_follows_the_second_line_of_dashes() -> None:
    assert split_front_matter("---\r\nname: x\r\n---\r\n\r\nText\n---\nmore\n")[1] == "Text\n---\nmore"


def test_the_digest_of_a_skill_is_that_of_what_sha256sum_prints() -> None:
    files = (SkillFile("b/c.txt", "00", 1), SkillFile("SKILL.md", "11", 2))
    printed = b"11  SKILL.md\n00  b/c.txt\n"
    assert digest_of_files(files) == f"sha256:{sha256(printed).hexdigest()}"
    assert digest_of_files(files) == digest_of_files(reversed(files))
    assert digest_of_files(files) != digest_of_files(files[:1])
