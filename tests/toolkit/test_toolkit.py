"""Functions as tools: what a model is offered, what a function is given, and what comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Literal

import pytest
from hosts import Bench, Seen, crashing, results, wait_for
from pydantic import BaseModel, Field
from toolkit_experts import Settings, call, with_kit

from perstack.core.definitions.skills import ToolSpec
from perstack.core.messages.messages import BlobPart, text_of
from perstack.core.runs.facts import Question
from perstack.errors import PluginError, SkillError
from perstack.ports.skill import ToolResult
from perstack.testing.crashing_storage import Crash, CrashPoint
from perstack.testing.scripted import ScriptedProvider, text, tool
from perstack.toolkit import Blob, ToolContext, Toolkit


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int
    y: int = 0


def offered_tools(bench: Bench, kit: Toolkit) -> dict[str, ToolSpec]:
    provider = ScriptedProvider([text("ok")])
    wait_for(bench.host(provider, with_kit(), plugins=(kit,)).run("a", "q"))
    return {spec.name: spec for spec in provider.requests[0].tools if spec.skill_name == "mine"}


def error_of_open(bench: Bench, kit: Toolkit, **settings) -> str:
    seen = Seen()
    job = wait_for(bench.host([text("never")], with_kit(**settings), plugins=(kit,)).run("a", "q", on_event=seen))
    assert job.status == "stoppedByError"
    return seen.of("errorRun")[0].error.message


def test_the_schema_comes_from_the_hints_and_the_words_from_the_docstring(bench: Bench) -> None:
    kit = Toolkit("kit")

    @kit.tool(effect="readOnly")
    async def find(
        schema: str,
        limit: Annotated[int, Field(ge=1, description="Field's own words")] = 10,
        order: Literal["up", "down"] = "up",
        at: Point | None = None,
    ) -> str:
        """Find things.

        Slowly, but surely.

        Args:
            schema (str): what to look for,
                in two lines
            limit: not these words
            order: how they are sorted

        Returns:
            The things.
        """
        return ""

    spec = offered_tools(bench, kit)["find"]
    assert spec.effect == "readOnly"
    assert spec.description == "Find things.\n\nSlowly, but surely.\n\nReturns:\n    The things."
    properties = spec.input_schema["properties"]
    assert properties["schema"] == {"type": "string", "description": "what to look for, in two lines"}
    assert properties["limit"] == {"type": "integer", "minimum": 1, "default": 10, "description": "Field's own words"}
    assert properties["order"]["enum"] == ["up", "down"]
    assert spec.input_schema["required"] == ["schema"]
    assert spec.input_schema["additionalProperties"] is False
    assert spec.input_schema["$defs"]["Point"]["required"] == ["x"]


def test_arguments_reach_the_function_as_the_types_that_it_asks_for(bench: Bench) -> None:
    kit, got = Toolkit("kit"), []

    @kit.tool()
    async def take(day: date, colour: Colour, at: Point, copy: list[Point] = [], *, depth: int = 3) -> None:  # noqa: B006
        """Take."""
        got.extend((day, colour, at, copy, depth))

    args = {"day": "2026-02-28", "colour": "blue", "at": {"x": 1}, "copy": [{"x": 2, "y": 3}]}
    seen, _ = call(bench, kit, tool("take", args))
    assert got == [date(2026, 2, 28), Colour.BLUE, Point(x=1), [Point(x=2, y=3)], 3]
    assert results(seen) == ["Done."]


def test_arguments_that_only_the_types_refuse_are_told_to_the_model(bench: Bench) -> None:
    kit = Toolkit("kit")

    @kit.tool()
    async def take(day: date) -> None:
        """Take."""

    seen, _ = call(bench, kit, tool("take", {"day": "2026-02-30"}))
    assert seen.of("finishToolCall")[0].is_error
    assert results(seen)[0].startswith("Wrong arguments: day: Input should be a valid date")


@dataclass
class Pair:
    left: int
    right: date


async def _text() -> str:
    """Return text."""
    return "plain"


async def _model() -> Point:
    """Return a model."""
    return Point(x=1)


async def _list() -> list[Pair]:
    """Return dataclasses."""
    return [Pair(1, date(2026, 1, 2))]


async def _result() -> ToolResult:
    """Return a result."""
    return ToolResult.text("own", is_error=True)


async def _number() -> float:
    """Return what JSON has no word for."""
    return float("nan")


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (_text, "plain"),
        (_model, '{"x":1,"y":0}'),
        (_list, '[{"left":1,"right":"2026-01-02"}]'),
        (_result, "own"),
        (_number, '"NaN"'),
    ],
)
def test_what_a_function_returns_is_text_or_json(bench: Bench, function, expected: str) -> None:
    kit = Toolkit("kit")
    kit.tool(name="give")(function)
    seen, _ = call(bench, kit, tool("give"))
    assert results(seen) == [expected]
    assert seen.of("finishToolCall")[0].is_error is (expected == "own")


def test_bytes_are_kept_as_blobs_of_the_job_alone_or_among_text(bench: Bench) -> None:
    kit = Toolkit("kit")

    @kit.tool()
    async def draw() -> list[str | Blob]:
        """Draw."""
        return ["a dot", Blob(b"....", "application/x-dots", "dot")]

    @kit.tool()
    async def raw() -> bytes:
        """Give bytes."""
        return b"\x00"

    seen, _ = call(bench, kit, tool("draw"), tool("raw"))
    by_name = {event.tool_name: event.contents for event in seen.of("finishToolCall")}
    assert text_of(by_name["draw"]) == "a dot[application/x-dots, 4 bytes]"
    (blob,) = by_name["raw"]
    assert isinstance(blob, BlobPart)
    assert blob.mime_type == "application/octet-stream"
    job_id = seen.events[0].job_id
    assert wait_for(bench.host([]).storage.blob(job_id, blob.sha256)) == b"\x00"


def test_what_a_function_raises_or_cannot_be_written_goes_to_the_model(bench: Bench) -> None:
    kit = Toolkit("kit")

    @kit.tool()
    async def refuse() -> str:
        """Refuse."""
        raise SkillError("there is no such book; look with find")

    @kit.tool()
    async def fail() -> str:
        """Fail."""
        raise ValueError("a fault")

    @kit.tool()
    async def strange() -> object:
        """Return an object."""
        return object()

    seen, _ = call(bench, kit, tool("refuse"), tool("fail"), tool("strange"))
    told = {event.tool_name: text_of(event.contents) for event in seen.of("finishToolCall") if event.is_error}
    assert told["refuse"] == "there is no such book; look with find"
    assert told["fail"] == "ValueError: a fault"
    assert told["strange"].startswith("the tool returned what is not JSON: Unable to serialize")


def test_the_context_has_settings_workspace_environment_and_the_call(bench: Bench) -> None:
    kit, got = Toolkit("kit", settings=Settings, required_env=("PATH",), instructions="Roll gently."), []

    @kit.tool()
    async def roll(context: ToolContext[Settings], count: int) -> str:
        """Roll."""
        got.append(context)
        context.tool_call.on_progress("rolling")
        return f"{count} of {context.settings.sides} as {context.tool_call.key}"

    seen, provider = call(bench, kit, tool("roll", {"count": 2}), sides=20)
    job_id = seen.events[0].job_id
    assert results(seen) == [f"2 of 20 as {job_id}-1-1-call_0_0"]
    assert got[0].workspace == bench.workspace
    assert dict(got[0].env) == {"PATH": "/usr/bin:/bin"}
    assert [event.message for event in seen.of("toolProgress")] == ["rolling"]
    (spec,) = [spec for spec in provider.requests[0].tools if spec.name == "roll"]
    assert list(spec.input_schema["properties"]) == ["count"], "a model does not see the context"
    assert "Roll gently." in provider.requests[0].instruction


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"sides": 1}, "settings.sides: Input should be greater than or equal to 2"),
        ({"sids": 6}, "settings.sids: Extra inputs are not permitted"),
        ({"secret": {"key": "hunter2"}}, "settings.secret: Input should be a valid string"),
    ],
)
def test_a_wrong_setting_ends_the_run_in_one_line_with_skill_and_key(bench: Bench, settings, expected: str) -> None:
    message = error_of_open(bench, Toolkit("kit", settings=Settings), **settings)
    assert message == f"skill 'mine' cannot be used as perstack.toml declares it: {expected}"


def test_settings_of_a_kit_that_has_none_are_refused(bench: Bench) -> None:
    message = error_of_open(bench, Toolkit("kit"), sides=6)
    assert message == "skill 'mine' has no settings: remove sides from perstack.toml"


def test_a_missing_variable_is_named(bench: Bench) -> None:
    message = error_of_open(bench, Toolkit("kit", required_env=("DICE_TOKEN",)))
    assert message == "skill 'mine' needs DICE_TOKEN: set it in the environment or in a .env file"


def test_types_that_json_has_no_form_for_end_the_run_with_the_tools_name(bench: Bench) -> None:
    kit = Toolkit("kit")

    @kit.tool()
    async def odd(thing: Bench) -> None:
        """Take what no JSON is."""

    message = error_of_open(bench, kit)
    assert "odd of" in message
    assert message.endswith("use types that pydantic reads from JSON")
    assert "\n" not in message


def test_a_function_may_ask_a_person(bench: Bench) -> None:
    kit = Toolkit("kit")

    @kit.tool()
    async def pay(context: ToolContext) -> str | Question:
        """Pay."""
        return context.tool_call.answers[0].action if context.tool_call.answers else Question(message="Pay?")

    host = bench.host([tool("pay"), text("ok")], with_kit(), plugins=(kit,))
    assert wait_for(host.run("a", "q", job_id="job")).question is not None
    seen = Seen()
    assert wait_for(host.answer("yes", job_id="job", on_event=seen)).status == "completed"
    assert results(seen) == ["accept"]


@pytest.mark.parametrize(("effect", "runs"), [("readOnly", 2), ("idempotent", 2), ("sideEffect", 1)])
def test_only_a_declared_tool_is_run_again_after_a_crash(bench: Bench, effect, runs: int) -> None:
    kit, keys = Toolkit("kit"), []

    @kit.tool(effect=effect)
    async def note(context: ToolContext) -> None:
        """Note the call."""
        keys.append(context.tool_call.key)

    script = [tool("note"), text("end")]

    async def crash() -> None:
        point = CrashPoint("before", 4 if effect == "sideEffect" else 3)
        async with bench.host(script, with_kit(), plugins=(kit,), wrap=crashing(point)) as host:
            with pytest.raises(Crash):
                await host.run("a", "q", job_id="job")

    wait_for(crash())
    assert len(keys) == 1
    assert wait_for(bench.host(script, with_kit(), plugins=(kit,)).resume("job")).status == "completed"
    assert len(keys) == runs
    assert len(set(keys)) == 1


def test_a_module_and_an_object_are_both_plugins(bench: Bench) -> None:
    kit = Toolkit("kit")
    kit.tool(name="give")(_text)

    class Module:
        perstack_skills = kit.perstack_skills

    for plugin in (kit, Module):
        seen = Seen()
        host = bench.host([tool("give"), text("ok")], with_kit(), plugins=(plugin,))
        wait_for(host.run("a", "q", on_event=seen))
        assert results(seen) == ["plain"]


def test_a_function_that_is_no_tool_is_refused_when_it_is_declared_with_what_to_change() -> None:
    kit = Toolkit("kit", settings=Settings)

    def yielding() -> Iterator[str]:
        """Several results."""
        yield ""

    async def untyped(count) -> str:
        """No type."""

    async def silent() -> str: ...

    async def stars(*args: int) -> str:
        """Many."""

    async def only(count: int, /) -> str:
        """By position."""

    async def misspelt(count: int) -> str:
        """Count.

        Args:
            cuont: how many
        """

    async def elsewhere(count: NotThere) -> str:  # noqa: F821
        """Hint that is not there."""

    async def other(context: ToolContext[Point]) -> str:
        """Other settings."""

    async def twice(one: ToolContext[Settings], two: ToolContext[Settings]) -> str:
        """Two contexts."""

    expected = {
        yielding: "return a list instead of yielding",
        untyped: "parameter count has no type; annotate it, as in `count: str`",
        silent: "describe it in a docstring",
        stars: "parameter *args cannot be passed by name",
        only: "parameter count cannot be passed by name",
        misspelt: "the docstring describes cuont, which is not a parameter",
        elsewhere: "name 'NotThere' is not defined; define or import",
        other: "the Toolkit's settings are Settings, so take ToolContext[Settings], not Point",
        twice: "take one ToolContext, not 2",
    }
    for function, words in expected.items():
        with pytest.raises(PluginError) as error:
            kit.tool()(function)
        assert words in str(error.value)
        assert f"{function.__qualname__} of {__name__}, line {function.__code__.co_firstlineno}: " in str(error.value)
        assert "\n" not in str(error.value)


def test_a_name_that_is_taken_or_illegal_is_refused() -> None:
    kit = Toolkit("kit")
    kit.tool(name="give")(_text)
    with pytest.raises(PluginError, match="two tools 'give'"):
        kit.tool(name="give")(_model)
    with pytest.raises(PluginError, match="not a valid name of a tool"):
        kit.tool(name="give me")(_model)


def test_a_function_stays_what_it_was() -> None:
    kit = Toolkit("kit")
    assert kit.tool()(_text) is _text
    assert json.loads(json.dumps(asyncio.run(_text()))) == "plain"
