"""Events of a Job as `session/update` notifications. Source: Agent Client Protocol, «Prompt Turn»."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias, assert_never

from acp import helpers
from acp.schema import ToolCallLocation, ToolKind

from perstack.core.runs import step_events
from perstack.core.runs.display_events import SkillDisconnected, StreamReasoning, StreamText
from perstack.core.runs.events import Event, FinishRun
from perstack.core.runs.facts import RunEvent
from perstack.core.runs.messages import (
    ExpertMessage,
    Message,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolMessage,
    UserMessage,
    text_of,
)
from perstack.doors.shared.event_text import switch_words
from perstack.doors.shared.next_steps import acp_phrase
from perstack.doors.shared.text import brief, shorten

# Messages of a loaded session as updates.

_TITLE_CELLS = 120


def shown_again(messages: Iterable[Message]) -> Iterator[helpers.SessionUpdate]:
    """Yield queries, replies and calls with their results in order."""
    for number, message in enumerate(messages):
        match message:
            case UserMessage():
                yield helpers.update_user_message_text(text_of(message.contents))
            case ExpertMessage():
                yield from _reply(message, number)
            case ToolMessage():
                for result in message.contents:
                    content = [helpers.tool_content(helpers.text_block(text_of(result.contents)))]
                    status: Literal["failed", "completed"] = "failed" if result.is_error else "completed"
                    yield helpers.update_tool_call(
                        f"{number - 1}-{result.tool_call_id}", status=status, content=content
                    )
            case _:
                assert_never(message)


def _reply(message: ExpertMessage, number: int) -> Iterator[helpers.SessionUpdate]:
    for part in message.contents:
        if isinstance(part, TextPart):
            yield helpers.update_agent_message_text(part.text)
        elif isinstance(part, ThinkingPart):
            if part.thinking:
                yield helpers.update_agent_thought_text(part.thinking)
        else:
            title = shorten(f"{part.tool_name} {brief(part)}", _TITLE_CELLS)
            yield helpers.start_tool_call(
                f"{number}-{part.tool_call_id}", title, status="completed", raw_input=part.args
            )


Send: TypeAlias = Callable[[helpers.SessionUpdate], Awaitable[None]]

_MAX_RESULT_CHARS = 10_000  # maximum characters of a tool result that are shown; the model gets all of it

_KINDS: dict[str, ToolKind] = {
    "readTextFile": "read",
    "readImageFile": "read",
    "readPdfFile": "read",
    "getFileInfo": "read",
    "listDirectory": "search",
    "writeTextFile": "edit",
    "appendTextFile": "edit",
    "editTextFile": "edit",
    "createDirectory": "edit",
    "moveFile": "move",
    "deleteFile": "delete",
    "deleteDirectory": "delete",
    "exec": "execute",
    "think": "think",
}
_SILENT = frozenset({"todo", "clearTodo", "attemptCompletion"})  # kinds of calls, not names


class Updates:
    """Conversion of one turn's events into updates. Text comes from the Coordinator; delegates appear as tool calls."""

    def __init__(self, workspace: Path) -> None:
        """Resolve the paths of tool calls relative to `workspace`."""
        self._workspace = workspace
        self._coordinator = ""
        self._said = ""
        self._parts: dict[tuple[str, str], ToolCallPart] = {}
        self._silent: dict[tuple[str, str], str] = {}  # the kind of each such call, by Run and call id

    def of(self, event: Event) -> Iterator[helpers.SessionUpdate]:  # noqa: C901 - one case for each kind of event that shows
        """Yield the updates of an event, if any."""
        match event:
            case step_events.StartGeneration() if self._is_mine(event):
                self._said = ""
            case StreamText() if self._is_mine(event):
                self._said += event.delta
                yield helpers.update_agent_message_text(event.delta)
            case StreamReasoning() if self._is_mine(event):
                yield helpers.update_agent_thought_text(event.delta)
            case step_events.FinishGeneration():
                self._parts |= {(event.run_id, part.tool_call_id): part for part in event.message.tool_calls}
                if self._is_mine(event):
                    yield from self._say(event.message.text)
            case step_events.Retry():
                yield helpers.update_agent_thought_text(
                    f"({shorten(event.error.message, _TITLE_CELLS)}; trying again)\n"
                )
            case step_events.SwitchModel():
                yield helpers.update_agent_thought_text(f"(the model is switched {switch_words(event)})\n")
            case step_events.CallTools():
                yield from self._calls(event)
            case step_events.FinishToolCall():
                yield from self._result(event)
            case FinishRun() if self._is_mine(event):
                yield from self._say(event.text)
            case SkillDisconnected() if event.reason:
                yield helpers.update_agent_thought_text(f"({event.said(acp_phrase)})\n")
            case _:
                pass

    def _is_mine(self, event: RunEvent | StreamText | StreamReasoning) -> bool:
        self._coordinator = self._coordinator or event.run_id
        return event.run_id == self._coordinator

    def _say(self, text: str) -> Iterator[helpers.SessionUpdate]:
        if text.strip() and text.strip() != self._said.strip():
            yield helpers.update_agent_message_text(f"\n\n{text}" if self._said else text)
            self._said = text

    def _calls(self, event: step_events.CallTools) -> Iterator[helpers.SessionUpdate]:
        for call in event.calls:
            part = self._parts.get((event.run_id, call.id))
            if call.kind in _SILENT:
                self._silent[event.run_id, call.id] = call.kind
            if call.kind == "interactive" or call.kind in _SILENT or part is None:
                continue
            whose = "" if event.run_id == self._coordinator else f"{event.expert_key}: "
            yield helpers.start_tool_call(
                _id(event, call.id),
                shorten(f"{whose}{call.tool_name} {brief(part)}", _TITLE_CELLS),
                kind=_KINDS.get(call.tool_name, "other"),
                status="in_progress",
                locations=self._locations(part),
                raw_input=part.args,
            )

    def _result(self, event: step_events.FinishToolCall) -> Iterator[helpers.SessionUpdate]:
        text = text_of(event.contents)
        kind = self._silent.pop((event.run_id, event.tool_call_id), None)
        if kind is not None:
            if kind != "attemptCompletion" and event.run_id == self._coordinator:
                yield from _plan(text)
            return
        if (event.run_id, event.tool_call_id) not in self._parts:
            return
        status: Literal["failed", "completed"] = "failed" if event.is_error else "completed"
        shown = text if len(text) <= _MAX_RESULT_CHARS else f"{text[:_MAX_RESULT_CHARS]} …"
        yield helpers.update_tool_call(
            _id(event, event.tool_call_id), status=status, content=[helpers.tool_content(helpers.text_block(shown))]
        )

    def _locations(self, part: ToolCallPart) -> list[ToolCallLocation] | None:
        path = part.args.get("path")
        if not isinstance(path, str) or part.tool_name not in _KINDS:
            return None
        return [ToolCallLocation(path=str(self._workspace / path))]


def _id(event: RunEvent, call_id: str) -> str:
    return f"{event.run_id}-{event.step_number}-{call_id}"


def _plan(text: str) -> Iterator[helpers.SessionUpdate]:
    try:
        found: object = json.loads(text)
    except ValueError:
        return
    todos: object = found.get("todos") if isinstance(found, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if isinstance(todos, list):
        yield helpers.update_plan(
            helpers.plan_entry(str(todo["title"]), status="completed" if todo["completed"] else "pending")  # pyright: ignore[reportUnknownArgumentType]
            for todo in todos  # pyright: ignore[reportUnknownVariableType]
            if isinstance(todo, dict)
        )


class Sender:
    """A Host listener that sends updates one at a time in the order of the events."""

    def __init__(self, updates: Updates, send: Send) -> None:
        """Send the updates of events with `send`."""
        self._updates = updates
        self._send = send
        self._queue: asyncio.Queue[helpers.SessionUpdate | None] = asyncio.Queue()

    def __call__(self, event: Event, line: bytes) -> None:
        """Queue the updates of an event."""
        for update in self._updates.of(event):
            self._queue.put_nowait(update)

    async def run(self) -> None:
        """Send updates until `end` is called and all earlier ones are sent."""
        while (update := await self._queue.get()) is not None:
            await self._send(update)

    def end(self) -> None:
        """Stop `run` after the queued updates."""
        self._queue.put_nowait(None)
