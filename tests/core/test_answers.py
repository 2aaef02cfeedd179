"""How answers are read: one function for questions of Jobs, of tools at work, and of tasks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perstack.core.base.ids import By
from perstack.core.jobs.answer_reading import (
    APPROVAL,
    NO,
    YES,
    accepted_answers,
    describe_accepted,
    read_answer,
    read_job_answer,
    yes_or_no,
)
from perstack.core.runs.open_questions import OpenQuestion
from perstack.errors import UsageError


def asking(*, approval: bool = False, **args: object) -> OpenQuestion:
    return OpenQuestion.model_validate(
        {
            "id": "j-1-5",
            "run_id": "j-1",
            "expert_key": "guest",
            "tool_call_id": "c",
            "tool_name": "askUser",
            "text": "Well?",
            "args": args,
            "approval": approval,
        }
    )


SEVERAL = {"options": ["Tea", {"label": "Coffee", "description": "fresh"}, "Milk, warm"], "several": True}


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("Tea", '["Tea"]'),
        ("tea, COFFEE", '["Tea", "Coffee"]'),
        ("Tea, tea", '["Tea"]'),
        ("Tea, water", '["Tea", "water"]'),
        ("something cold, please", '["something cold, please"]'),
        ('["Milk, warm", "Tea"]', '["Milk, warm", "Tea"]'),
    ],
)
def test_several_options_are_a_list(said: str, meant: str) -> None:
    assert read_job_answer(asking(**SEVERAL), said) == meant


@pytest.mark.parametrize("said", ["", "[]", "[1]", '["Tea", "water"]', "Tea, water", "water", ",", "[" * 10_000])
def test_without_other_answers_only_options_are_a_list(said: str) -> None:
    with pytest.raises(UsageError, match="say any of these, with commas between: Tea, Coffee, Milk, warm"):
        read_job_answer(asking(**SEVERAL, allowOther=False), said)


def test_several_of_nothing_is_an_ordinary_question() -> None:
    assert read_job_answer(asking(several=True), "well, yes") == "well, yes"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("  YES! ", (True, "")),
        ("ok", (True, "")),
        ("Cancel", (False, "")),
        ("no: not\non a Friday", (False, "not\non a Friday")),
        ("No, not today", (False, "not today")),
        ("ok: go on", (True, "go on")),
        ("ok, not yet", None),
        ("no problem", None),
        ("yes:", None),
        ("maybe", None),
        ("", None),
    ],
)
def test_a_yes_or_a_no_is_known_with_the_words_beside_it(said: str, meant: tuple[bool, str] | None) -> None:
    found = yes_or_no(said)
    assert (found and (found.is_yes, found.words)) == meant


@given(st.sampled_from(sorted(YES | NO)), st.text(min_size=1).filter(lambda text: text.strip() == text))
def test_every_word_for_yes_and_no_means_the_same_alone_and_with_words_after_a_colon(word: str, words: str) -> None:
    for said in (word, word.upper(), f"{word}."):
        assert read_answer(APPROVAL, said).value is (word in YES)
    reading = read_answer(APPROVAL, f"{word}: {words}")
    assert (reading.value, reading.words) == (word in YES, words)


@given(st.text(max_size=30))
def test_any_text_is_read_as_a_yes_or_a_no_or_refused_in_one_line(said: str) -> None:
    if yes_or_no(said) is not None:
        assert isinstance(read_answer(APPROVAL, said).value, bool)
        return
    with pytest.raises(UsageError) as refused:
        read_answer(APPROVAL, said)
    assert str(refused.value) == f"the answer does not fit: {describe_accepted(APPROVAL)}"


@pytest.mark.parametrize(
    ("question", "said", "text"),
    [
        (asking(approval=True), "ok", "yes"),
        (asking(approval=True), "deny", "no"),
        (asking(approval=True), "no: not today", "no: not today"),
        (asking(approval=True, options=["now", "later"]), "yes: now", "yes: now"),
        (asking(approval=True, options=["Approve", "Reject"]), "no", "Reject"),
        (asking(options=["Yes", "No"]), "n", "No"),
        (asking(options=["yes", "no"], allowOther=True), "maybe", "maybe"),
        (asking(options=["tea", "coffee"]), "water", "water"),
        (asking(options=["tea", "coffee"]), "TEA", "tea"),
        (asking(options=["tea", "coffee"], allowOther=False), " Coffee", "coffee"),
        (asking(choices=[{"label": "tea"}, {"label": "coffee"}], allowOther=False), "tea", "tea"),
        (asking(), "no", "no"),
        (asking(), "decline", "decline"),
        (asking(options=[1, 2]), "3", "3"),
    ],
)
def test_an_answer_reaches_the_model_as_the_question_has_it(question: OpenQuestion, said: str, text: str) -> None:
    assert read_job_answer(question, said) == text


@pytest.mark.parametrize(
    ("question", "said", "words"),
    [
        (asking(approval=True), "only b", "answer yes or no"),
        (asking(approval=True, allowOther=True), "maybe", "answer yes or no"),
        (asking(options=["yes", "no"]), "maybe", "answer yes or no"),
        (asking(options=["ok", "cancel"]), "later", "answer yes or no"),
        (asking(options=["tea", "coffee"], allowOther=False), "water", "say one of: tea, coffee"),
    ],
)
def test_what_is_no_answer_is_refused_with_what_is(question: OpenQuestion, said: str, words: str) -> None:
    assert accepted_answers(question).is_restricted
    with pytest.raises(UsageError, match=words):
        read_job_answer(question, said)


@given(st.text(max_size=400), st.text(max_size=400))
def test_who_answered_is_one_short_line_and_survives_the_log(user: str, client: str) -> None:
    by = By(user=user, client=f"evil\x1b[2J\u202e\ud800\n{client}")
    assert By.model_validate_json(by.to_json()) == by
    assert all(len(part) <= 200 and part.isprintable() for part in (by.user, by.client))
    assert by.with_source("urn:\x07x").source == "urn: x"
