"""Delegates of a coordinator, `@coordinator/name`: who may name them, and what each other scope means."""

from __future__ import annotations

import pytest

from perstack.trust.definition_files import load_project

GAME = """
[experts.game]
instruction = "x"
delegates = ["@game/design", "@game/code", "critic"]

[experts."@game/design"]
instruction = "x"
delegates = ["@game/code", "critic"]

[experts."@game/code"]
instruction = "x"

[experts.critic]
instruction = "x"
"""


def expert(key: str, *delegates: str) -> str:
    return f'[experts."{key}"]\ninstruction = "x"\ndelegates = {list(delegates)}\n'


def test_a_coordinator_and_its_other_delegates_may_call_a_scoped_one(write):
    experts = load_project(write(GAME)).project.experts
    assert experts["game"].delegates == ("@game/design", "@game/code", "critic")
    assert experts["@game/design"].delegates == ("@game/code", "critic")


@pytest.mark.parametrize(
    ("lister", "delegate", "words"),
    [
        ("writer", "@game/code", "`@game/code` is a delegate of `game` alone: delegate to `game`, or name it without"),
        ("writer", "@game/code@1.0.0", "`@game/code` is a delegate of `game` alone"),
        ("@other/writer", "@game/code", "`@game/code` is a delegate of `game` alone"),
        ("@acme/game", "@game/code", "`@game/code` is a delegate of `game` alone"),
        ("@game/writer", "game", "`@game/writer` is a delegate of `game`, and must not call it"),
        ("game-2", "@game/code", "`@game/code` is a delegate of `game` alone"),
        ("writer", "@game/cod", "there is no Expert `@game/cod`; did you mean `@game/code`?"),
        (
            "writer",
            "@game/quartermaster",
            'there is no Expert `@game/quartermaster`; define it in [experts."@game/quartermaster"]',
        ),
        ("writer", "@acme/unlike", "there is no Expert `@acme/unlike`; bring a published Expert over"),
    ],
)
def test_a_delegate_that_is_not_the_experts_own_is_an_error_at_its_place(problems, lister, delegate, words):
    found = problems(GAME + expert(lister, "critic", delegate))
    (said,) = [entry for entry in found if entry[0] == "error"]
    assert said[2] in (f"experts.{lister}.delegates[1]", f'experts."{lister}".delegates[1]')
    assert said[1] is not None
    assert said[3].startswith(words)


@pytest.mark.parametrize("lister", ["writer", "@acme/writer", "@other/writer"])
def test_a_scope_that_is_no_expert_is_a_publishers_and_anybody_may_call_its_experts(problems, lister):
    assert problems(expert(lister, "@acme/researcher") + expert("@acme/researcher")) == []


@pytest.mark.parametrize(
    "key", ["@game/", "@/code", "@game/code/x", "@ga me/code", "@../code", "@game/../x", "game/code"]
)
def test_a_scoped_key_with_odd_characters_is_refused(problems, key):
    (found,) = problems(expert(key))
    assert "is not a valid Expert key: `name` or `@coordinator/name`" in found[3]
