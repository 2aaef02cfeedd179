"""What the embedded model is told, and how its replies are read."""

from __future__ import annotations

import json

import pytest

from perstack.core.definitions.skills import ToolSpec
from perstack.core.messages.messages import (
    BlobPart,
    ExpertMessage,
    Message,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from perstack_local.prompt import MAX_RESULT_CHARS, Prompt, prompt_of, reply_of, shorten

WRITE = ToolSpec(
    name="writeTextFile",
    description="Create or replace a text file. Missing directories are made.",
    input_schema={
        "type": "object",
        "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
        "required": ["path", "text"],
    },
)
DONE = ToolSpec(name="attemptCompletion", description="Finish the task.", kind="attemptCompletion")


def _query(text: str) -> UserMessage:
    return UserMessage(contents=(TextPart(text=text),))


def _call(name: str = "writeTextFile", **args: str) -> ExpertMessage:
    return ExpertMessage(contents=(ToolCallPart(tool_call_id="c", tool_name=name, args={**args}),))


def _result(text: str, *, is_error: bool = False) -> ToolMessage:
    part = ToolResultPart(
        tool_call_id="c", tool_name="writeTextFile", contents=(TextPart(text=text),), is_error=is_error
    )
    return ToolMessage(contents=(part,))


HISTORY: list[Message] = [
    _query("Write a."),
    _call(path="a.md", text="x"),
    _result("ok"),
    _call(path="b.md", text="y"),
    _result("no room", is_error=True),
]


def test_the_system_message_has_the_instruction_and_one_call_of_each_tool() -> None:
    system = prompt_of("You write.", HISTORY, [WRITE, DONE]).messages[0]
    assert system.role == "system"
    assert system.content == "\n".join(
        [
            "You write.",
            "",
            "You answer with one tool call and nothing else. The calls that you can make:",
            '- {"tool": "writeTextFile", "args": {"path": "<path>", "text": "<text>"}}',
            "  Create or replace a text file.",
            '- {"tool": "attemptCompletion", "args": {}}',
            "  Finish the task.",
        ]
    )


def test_calls_and_results_take_turns_with_the_query_first() -> None:
    prompt = prompt_of("You write.", HISTORY, [WRITE, DONE])
    assert [(turn.role, turn.content) for turn in prompt.messages[1:]] == [
        ("user", "Write a."),
        ("assistant", '{"tool": "writeTextFile", "args": {"path": "a.md", "text": "x"}}'),
        ("user", "Result of writeTextFile: ok"),
        ("assistant", '{"tool": "writeTextFile", "args": {"path": "b.md", "text": "y"}}'),
        ("user", "Error of writeTextFile: no room"),
    ]


def test_a_longer_history_begins_with_the_shorter_one() -> None:
    for length in range(1, len(HISTORY)):
        shorter = prompt_of("You write.", HISTORY[:length], [WRITE, DONE])
        longer = prompt_of("You write.", HISTORY[: length + 1], [WRITE, DONE])
        assert longer.messages[: len(shorter.messages)] == shorter.messages
        assert longer.grammar == shorter.grammar


def test_with_tools_the_reply_is_held_to_a_grammar_and_without_it_is_free_text() -> None:
    assert prompt_of("i", HISTORY, [WRITE, DONE]).grammar is not None
    assert prompt_of("i", HISTORY, []).grammar is None
    assert prompt_of("i", HISTORY, []).messages[0].content == "i"


def test_when_no_call_is_allowed_only_the_end_of_the_chat_differs() -> None:
    with_calls = prompt_of("i", HISTORY, [WRITE, DONE])
    without = prompt_of("i", HISTORY, [WRITE, DONE], allow_tools=False)
    assert without.grammar is None
    assert without.messages[:-1] == with_calls.messages[:-1]
    assert without.messages[-1].content.startswith(with_calls.messages[-1].content)
    assert "Do not call a tool now" in without.messages[-1].content


def test_roles_take_turns_even_if_the_messages_do_not() -> None:
    history: list[Message] = [_query("one"), _query("two"), ExpertMessage(), _query("three")]
    prompt = prompt_of("i", history, [WRITE, DONE], allow_tools=False)
    assert [turn.role for turn in prompt.messages] == ["system", "user"]
    assert prompt.messages[1].content.startswith("one\n\ntwo\n\nthree")


def test_a_reply_of_text_and_calls_is_shown_with_both_and_thinking_with_neither() -> None:
    parts = (ThinkingPart(thinking="hm"), TextPart(text="I write."), *_call(path="a", text="b").contents)
    prompt = prompt_of("i", [_query("q"), ExpertMessage(contents=parts)], [WRITE])
    expected = 'I write.\n{"tool": "writeTextFile", "args": {"path": "a", "text": "b"}}'
    assert prompt.messages[-1].content == expected


def test_a_long_result_is_shown_with_its_head_and_its_tail() -> None:
    prompt = prompt_of("i", [_query("q"), _call(), _result("begin" + "x" * 10_000 + "end")], [WRITE])
    shown = prompt.messages[-1].content
    assert len(shown) < MAX_RESULT_CHARS + 100
    assert shown.startswith("Result of writeTextFile: begin")
    assert shown.endswith("xend")
    assert f"[{10_008 - MAX_RESULT_CHARS} characters left out]" in shown


def test_what_is_short_enough_stays_whole() -> None:
    assert shorten("x" * MAX_RESULT_CHARS) == "x" * MAX_RESULT_CHARS


def test_bytes_are_named_for_a_model_that_reads_text() -> None:
    image = BlobPart(sha256="0" * 64, mime_type="image/png", size=12)
    assert prompt_of("i", [UserMessage(contents=(image,))], []).messages[-1].content == "[image/png, 12 bytes]"


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"enum": ["a", "b"]}, "a|b"),
        ({"type": "string", "description": "Where it is to go. Not a URL."}, "<Where it is to go>"),
        ({"type": "integer"}, 1),
        ({"type": "boolean"}, True),
        ({"type": "array", "items": {"type": "string"}}, ["<x>"]),
        ({"type": "array"}, ["<x>"]),
        ({"type": "object"}, {}),
        ({"type": "object", "properties": {"y": {"type": "number"}}}, {"y": 1.5}),
        ({"anyOf": [{"type": "string"}]}, "<x>"),
        (True, "<x>"),
    ],
)
def test_arguments_are_shown_as_placeholders_of_their_type(schema: object, shown: object) -> None:
    tool = ToolSpec.model_validate({"name": "use", "input_schema": {"properties": {"x": schema}}})
    line = prompt_of("i", [], [tool, DONE]).messages[0].content.splitlines()[3]
    assert json.loads(line.removeprefix("- ")) == {"tool": "use", "args": {"x": shown}}


def test_if_no_tool_can_end_the_run_the_model_may_answer_by_a_call_that_becomes_text() -> None:
    prompt = prompt_of("i", HISTORY, [WRITE])
    assert prompt.answer_tool == "answer"
    assert '{"tool": "answer", "args": {"text": "<text>"}}' in prompt.messages[0].content
    reply, finish_reason = reply_of('{"tool": "answer", "args": {"text": "Done."}}', prompt, "stop", "c")
    assert (reply.text, reply.tool_calls, finish_reason) == ("Done.", (), "stop")


def test_the_answer_gives_way_to_a_tool_of_its_name() -> None:
    prompt = prompt_of("i", HISTORY, [ToolSpec(name="answer")])
    assert prompt.answer_tool == "answer_"
    reply, finish_reason = reply_of('{"tool": "answer", "args": {}}', prompt, "stop", "c")
    assert [call.tool_name for call in reply.tool_calls] == ["answer"]
    assert finish_reason == "toolCalls"


WITH_TOOLS = prompt_of("i", HISTORY, [WRITE, DONE])
FREE = Prompt((), None, None)


def test_a_call_is_read_with_its_arguments() -> None:
    text = '{"tool": "writeTextFile", "args": {"path": "a.md", "text": "é\\n"}}'
    reply, finish_reason = reply_of(text, WITH_TOOLS, "stop", "call_1")
    assert reply.tool_calls == (
        ToolCallPart(tool_call_id="call_1", tool_name="writeTextFile", args={"path": "a.md", "text": "é\n"}),
    )
    assert finish_reason == "toolCalls"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"tool": "writeTextFile", "args": {"path": "a.md", "text": "and so on and so', "writeTextFile"),
        ('{"tool": "wri', "unknown"),
        ("", "unknown"),
        ("[]", "unknown"),
    ],
)
def test_a_call_that_was_cut_off_keeps_what_there_is_of_it(text: str, name: str) -> None:
    reply, finish_reason = reply_of(text, WITH_TOOLS, "length", "c")
    assert [(call.tool_name, call.args, call.raw_args) for call in reply.tool_calls] == [(name, {}, text)]
    assert finish_reason == "length"


def test_a_cut_off_call_is_shown_to_the_model_as_it_was() -> None:
    cut = '{"tool": "writeTextFile", "args": {"pa'
    reply, _ = reply_of(cut, WITH_TOOLS, "length", "c")
    assert prompt_of("i", [_query("q"), reply], [WRITE]).messages[-1].content == cut


def test_free_text_is_the_reply() -> None:
    reply, finish_reason = reply_of(" All is written.\n", FREE, "stop", "c")
    assert (reply.text, finish_reason) == ("All is written.", "stop")


def test_what_ends_the_run_is_shown_last() -> None:
    system = prompt_of("i", HISTORY, [DONE, WRITE]).messages[0].content
    assert system.index("writeTextFile") < system.index("attemptCompletion")
    assert prompt_of("i", HISTORY, [DONE, WRITE]).answer_tool is None


RESULT = {"type": "object", "properties": {"people": {"type": "integer"}}, "required": ["people"]}


def test_a_result_that_has_to_fit_a_schema_is_held_to_it_where_the_reply_is_the_result() -> None:
    alone = prompt_of("i", HISTORY, [], output=RESULT)
    final = prompt_of("i", HISTORY, [WRITE, DONE], allow_tools=False, output=RESULT)
    assert alone.grammar == final.grammar
    assert '\\"people\\"' in (alone.grammar or "")
    assert "as one JSON object" in final.messages[-1].content
    reply, reason = reply_of('{"people": 3}', final, "stop", "c")
    assert (reply.text, reply.tool_calls, reason) == ('{"people": 3}', (), "stop")


def test_what_ends_the_run_takes_no_result_of_its_own_where_a_schema_is_asked_for() -> None:
    done = DONE.model_copy(update={"input_schema": {"type": "object", "properties": {"result": {"type": "string"}}}})
    assert "result" in (prompt_of("i", HISTORY, [done]).grammar or "")
    assert "result" not in (prompt_of("i", HISTORY, [done], output=RESULT).grammar or "")


def test_an_answer_by_a_call_is_the_object_that_was_asked_for() -> None:
    prompt = prompt_of("i", HISTORY, [WRITE], output=RESULT)
    reply, _ = reply_of('{"tool": "answer", "args": {"text": {"people": 3}}}', prompt, "stop", "c")
    assert reply.text == '{"people": 3}'
