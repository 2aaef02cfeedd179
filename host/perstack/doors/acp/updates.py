"""What a Job does, as the `session/update` notifications of ACP. Source: Agent Client Protocol, «Prompt Turn»."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias

from acp.helpers import (
    SessionUpdate,
    plan_entry,
    start_tool_call,
    text_block,
    tool_content,
    update_agent_message_text,
    update_agent_thought_text,
    update_plan,
    update_tool_call,
)
from acp.schema import ToolCallLocation, ToolKind

from perstack.core.events import (
    CallTools,
    Event,
    FinishGeneration,
    FinishRun,
    FinishToolCall,
    Retry,
    RunEvent,
    SkillDisconnected,
    StartGeneration,
    StreamReasoning,
    StreamText,
    SwitchModel,
)
from perstack.core.messages import ToolCallPart, text_of
from perstack.frontends.acp.next_steps import said
from perstack.frontends.shared.words import brief, shorten, switch_words

Send: TypeAlias = Callable[[SessionUpdate], Awaitable[None]]

_TITLE = 120
_RESULT = 10_000
"""Characters of a tool's result that are shown; the model has all of it."""

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
_SILENT = frozenset({"todo", "clearTodo", "attemptCompletion"})
"""Calls that are shown in another way."""


class Updates:
    """Turns the events of one turn into updates. The Coordinator speaks; delegates are seen by their tool calls."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._coordinator = ""
        self._said = ""
        self._parts: dict[tuple[str, str], ToolCallPart] = {}

    def of(self, event: Event) -> Iterator[SessionUpdate]:  # noqa: C901 - one case for each kind of event that shows
        """What an event shows, if it shows something."""
        match event:
            case StartGeneration() if self._is_mine(event):
                self._said = ""
            case StreamText() if self._is_mine(event):
                self._said += event.delta
                yield update_agent_message_text(event.delta)
            case StreamReasoning() if self._is_mine(event):
                yield update_agent_thought_text(event.delta)
            case FinishGeneration():
                self._parts |= {(event.run_id, part.tool_call_id): part for part in event.message.tool_calls}
                if self._is_mine(event):
                    yield from self._say(event.message.text)
            case Retry():
                yield update_agent_thought_text(f"({shorten(event.error.message, _TITLE)}; trying again)\n")
            case SwitchModel():
                yield update_agent_thought_text(f"(the model is switched {switch_words(event)})\n")
            case CallTools():
                yield from self._calls(event)
            case FinishToolCall():
                yield from self._result(event)
            case FinishRun() if self._is_mine(event):
                yield from self._say(event.text)
            case SkillDisconnected() if event.reason:
                yield update_agent_thought_text(f"({event.said(said)})\n")
            case _:
                pass

    def _is_mine(self, event: RunEvent | StreamText | StreamReasoning) -> bool:
        self._coordinator = self._coordinator or event.run_id
        return event.run_id == self._coordinator

    def _say(self, text: str) -> Iterator[SessionUpdate]:
        """A text that has not been said already."""
        if text.strip() and text.strip() != self._said.strip():
            yield update_agent_message_text(f"\n\n{text}" if self._said else text)
            self._said = text

    def _calls(self, event: CallTools) -> Iterator[SessionUpdate]:
        for call in event.calls:
            part = self._parts.get((event.run_id, call.id))
            if call.kind in ("interactive", "todo", "clearTodo", "attemptCompletion") or part is None:
                continue
            whose = "" if event.run_id == self._coordinator else f"{event.expert_key}: "
            yield start_tool_call(
                _id(event, call.id),
                shorten(f"{whose}{call.tool_name} {brief(part)}", _TITLE),
                kind=_KINDS.get(call.tool_name, "other"),
                status="in_progress",
                locations=self._locations(part),
                raw_input=part.args,
            )

    def _result(self, event: FinishToolCall) -> Iterator[SessionUpdate]:
        text = text_of(event.contents)
        if event.tool_name in _SILENT:
            if event.tool_name != "attemptCompletion" and event.run_id == self._coordinator:
                yield from _plan(text)
            return
        if (event.run_id, event.tool_call_id) not in self._parts:
            return
        status: Literal["failed", "completed"] = "failed" if event.is_error else "completed"
        shown = text if len(text) <= _RESULT else f"{text[:_RESULT]} …"
        yield update_tool_call(_id(event, event.tool_call_id), status=status, content=[tool_content(text_block(shown))])

    def _locations(self, part: ToolCallPart) -> list[ToolCallLocation] | None:
        path = part.args.get("path")
        if not isinstance(path, str) or part.tool_name not in _KINDS:
            return None
        return [ToolCallLocation(path=str(self._workspace / path))]


def _id(event: RunEvent, call_id: str) -> str:
    return f"{event.run_id}-{event.step_number}-{call_id}"


def _plan(text: str) -> Iterator[SessionUpdate]:
    """The todos, as the editor's plan."""
    try:
        found: object = json.loads(text)
    except ValueError:
        return
    todos: object = found.get("todos") if isinstance(found, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if isinstance(todos, list):
        yield update_plan(
            plan_entry(str(todo["title"]), status="completed" if todo["completed"] else "pending")  # pyright: ignore[reportUnknownArgumentType]
            for todo in todos  # pyright: ignore[reportUnknownVariableType]
            if isinstance(todo, dict)
        )


class Sender:
    """Sends updates one after the other, in the order of the events; a listener of the Host."""

    def __init__(self, updates: Updates, send: Send) -> None:
        self._updates = updates
        self._send = send
        self._queue: asyncio.Queue[SessionUpdate | None] = asyncio.Queue()

    def __call__(self, event: Event, line: bytes) -> None:
        for update in self._updates.of(event):
            self._queue.put_nowait(update)

    async def run(self) -> None:
        """Until `end`, and all that came before it has been sent."""
        while (update := await self._queue.get()) is not None:
            await self._send(update)

    def end(self) -> None:
        """Nothing more will come."""
        self._queue.put_nowait(None)
