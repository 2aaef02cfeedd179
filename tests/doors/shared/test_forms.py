"""Questions as forms, and forms as answers."""

from __future__ import annotations

import json

import pytest

from perstack.core.base.records import JsonObject
from perstack.core.jobs.answer_reading import accepted_answers, read_answer
from perstack.core.runs.open_questions import OpenQuestion
from perstack.doors.shared.question_forms import choices_of, form_of


def asking(schema: JsonObject | None = None, **args: object) -> OpenQuestion:
    return OpenQuestion(
        id="j-1-5",
        run_id="j-1",
        expert_key="guest",
        tool_call_id="c",
        tool_name="askUser",
        text=str(args.get("question", "askUser")),
        args=args,
        requested_schema=schema,
    )


def fields(**properties: JsonObject) -> JsonObject:
    return {"type": "object", "properties": properties}


def test_a_plain_question_is_one_text() -> None:
    question = asking(question="Where to?")
    form = form_of(question)
    assert form.message == "Where to?"
    assert form.schema["required"] == ["answer"]
    assert form_of(question).answer({"answer": "Liguria"}) == "Liguria"
    assert form_of(question).answer({}) is None
    assert form_of(question).answer({"answer": ""}) is None


def test_what_the_model_puts_beside_the_question_is_shown() -> None:
    form = form_of(asking(question="Delete it?", path="a.txt", sizes=[1, 2]))
    assert form.message == "Delete it?\npath: a.txt\nsizes: [1, 2]"
    assert form_of(asking(reason="unclear")).message == "askUser\nreason: unclear"


@pytest.mark.parametrize(
    "options", [["tea", "coffee", "tea"], [{"label": "tea", "description": "hot"}, {"label": "coffee"}]]
)
def test_options_are_a_choice_that_leaves_room_for_ones_own_words(options: list[object]) -> None:
    question = asking(question="Which?", options=options)
    form = form_of(question)
    assert form.schema["properties"]["answer"]["enum"] == ["tea", "coffee"]
    assert "required" not in form.schema
    assert form_of(question).answer({"answer": "tea"}) == "tea"
    assert form_of(question).answer({"answer": "tea", "other": "water"}) == "water"
    assert form_of(question).answer({"answer": None, "other": ""}) is None


@pytest.mark.parametrize(
    ("args", "choices"),
    [
        ({}, ["yes", "no"]),
        ({"options": ["Approve", "Deny"]}, ["Approve", "Deny"]),
        ({"options": ["now"]}, ["yes", "no"]),
    ],
)
def test_a_request_for_approval_is_yes_or_no_with_room_for_words_beside_it(args: dict, choices: list[str]) -> None:
    form = form_of(asking(question="Deploy?", **args).model_copy(update={"approval": True}))
    assert form.schema["properties"]["answer"]["enum"] == choices
    assert form.schema["required"] == ["answer"]
    assert set(form.schema["properties"]) == {"answer", "words"}
    assert form.answer({"answer": choices[1], "words": "not today"}) == f"{choices[1]}: not today"
    assert form.answer({"answer": choices[0], "words": ""}) == choices[0]
    assert ("options" in form.message) is (args == {"options": ["now"]}), "what is not offered is shown"


def test_options_that_bind_leave_no_room_for_other_words() -> None:
    form = form_of(asking(question="Which?", options=["tea", "coffee"], allowOther=False))
    assert form.schema["required"] == ["answer"]
    assert list(form.schema["properties"]) == ["answer"]
    assert form.message == "Which?"


def test_options_of_a_kind_that_we_do_not_know_are_only_shown_as_text() -> None:
    assert form_of(asking(question="Which?", options=[1, 2])).schema["required"] == ["answer"]


def test_a_tools_flat_question_is_its_own_form_and_its_answer_fits() -> None:
    schema = fields(
        name={"type": "string", "title": "Name", "format": "email", "pattern": "@", "x-more": 1},
        age={"type": "integer", "minimum": 0},
        colours={"type": "array", "items": {"type": "string", "enum": ["red", "blue"]}},
        sure={"type": "boolean", "default": True},
    ) | {"required": ["name"]}
    question = asking(schema)
    form = form_of(question)
    assert form.schema["required"] == ["name"]
    assert form.schema["properties"]["name"] == {"type": "string", "title": "Name", "format": "email"}
    content = {"name": "a@b", "age": 7, "colours": ["red"], "sure": None}
    said = form_of(question).answer(content)
    assert said is not None
    assert json.loads(said) == {"name": "a@b", "age": 7, "colours": ["red"]}
    answer = read_answer(accepted_answers(question), said)
    assert (answer.action, answer.value) == ("accept", {"sure": True, **json.loads(said)})


@pytest.mark.parametrize(
    "field",
    [
        {"type": "object", "properties": {"a": {"type": "string"}}},
        {"type": "array", "items": {"type": "string"}},
        {"type": ["string", "null"]},
        {"$ref": "#/$defs/x"},
        {},
    ],
)
def test_a_question_that_is_not_flat_is_asked_for_as_one_text(field: JsonObject) -> None:
    question = asking(fields(where=field))
    form = form_of(question)
    assert list(form.schema["properties"]) == ["answer"]
    assert "JSON object by this schema" in form.message
    assert form_of(question).answer({"answer": '{"where": 1}'}) == '{"where": 1}'


def test_a_choice_of_several_is_asked_for_as_text_where_forms_have_none() -> None:
    question = asking(fields(colours={"type": "array", "items": {"enum": ["red", "blue"]}}))
    assert list(form_of(question).schema["properties"]) == ["colours"]
    old = form_of(question, has_lists=False)
    assert list(old.schema["properties"]) == ["answer"]
    assert old.answer({"answer": '{"colours": ["red"]}'}) == '{"colours": ["red"]}'


def test_a_yes_or_no_has_no_fields() -> None:
    question = asking(fields())
    said = form_of(question).answer({})
    assert said == "{}"
    assert read_answer(accepted_answers(question), said).action == "accept"


@pytest.mark.parametrize(
    ("question", "choices"),
    [
        (asking(question="Which?", options=["tea", "coffee"]), {"tea": "tea", "coffee": "coffee"}),
        (asking(question="Which?"), {}),
        (asking({"type": "object", "properties": {}}), {"yes": "yes", "no": "no"}),
        (asking(fields(sure={"type": "boolean"})), {"yes": "yes", "no": "no"}),
        (asking(fields(size={"type": "string", "enum": ["s", "m"]})), {"s": "s", "m": "m"}),
        (asking(fields(size={"type": "string", "oneOf": [{"const": "s", "title": "Small"}]})), {"s": "Small"}),
        (asking(fields(size={"type": "string", "enum": ["s"]}, sure={"type": "boolean"})), {}),
        (asking(fields(name={"type": "string"})), {}),
    ],
)
def test_one_choice_is_known_as_such(question: OpenQuestion, choices: dict[str, str]) -> None:
    assert choices_of(form_of(question)) == choices
    assert all(read_answer(accepted_answers(question), choice).action in ("accept", "decline") for choice in choices)
