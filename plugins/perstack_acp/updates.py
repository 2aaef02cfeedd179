"""Events of a Job as `session/update` notifications. Source: Agent Client Protocol, "Prompt Turn"."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias, assert_never

from acp import helpers
from acp.schema import ToolCallLocation, ToolKind

from perstack.core.messages.messages import (
    ExpertMessage,
    Message,
    ProviderToolPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolMessage,
    UserMessage,
    text_of,
)
from perstack.core.runs import events
from perstack.core.runs.display_events import SkillDisconnected, StreamReasoning, StreamText
from perstack.core.runs.events import Event
from perstack.core.runs.events.lifecycle import FinishRun
from perstack.core.runs.facts import RunEvent
from perstack.doors.shared.activity import CallActivity, JobActivity, todos_in
from perstack.doors.shared.next_step_phrases import acp_phrase
from perstack.doors.shared.text import brief, shorten

# Messages of a loaded session as updates.

_TITLE_CELLS = 120


def replay_updates(messages: Iterable[Message]) -> Iterator[helpers.SessionUpdate]:
    """Yield the updates of queries, replies, and calls with their results, in order."""
    for number, message in enumerate(messages):
        match message:
            case UserMessage():
                yield helpers.update_user_message_text(text_of(message.contents))
            case ExpertMessage():
                yield from _replay_reply(message, number)
            case ToolMessage():
                for result in message.contents:
                    content = [helpers.tool_content(helpers.text_block(text_of(result.contents)))]
                    status: Literal["failed", "completed"] = "failed" if result.is_error else "completed"
                    yield helpers.update_tool_call(
                        f"{number - 1}-{result.tool_call_id}", status=status, content=content
                    )
            case _:
                assert_never(message)


def _provider_tool_call(part: ProviderToolPart, call_id: str) -> helpers.SessionUpdate:
    """Return the finished call of a tool that the model's provider ran."""
    return helpers.start_tool_call(
        call_id,
        shorten(f"{part.tool_name} {brief(part.call)}", _TITLE_CELLS),
        kind="fetch",
        status="failed" if part.is_error else "completed",
        content=[helpers.tool_content(helpers.text_block(part.result))],
        raw_input=part.args,
    )


def _replay_reply(message: ExpertMessage, number: int) -> Iterator[helpers.SessionUpdate]:
    for index, part in enumerate(message.contents):
        if isinstance(part, TextPart):
            yield helpers.update_agent_message_text(part.text)
        elif isinstance(part, ThinkingPart):
            if part.thinking:
                yield helpers.update_agent_thought_text(part.thinking)
        elif isinstance(part, ProviderToolPart):
            yield _provider_tool_call(part, f"{number}-{index}-{part.id}")
        else:
            title = shorten(f"{part.tool_name} {brief(part)}", _TITLE_CELLS)
            yield helpers.start_tool_call(
                f"{number}-{part.tool_call_id}", title, status="completed", raw_input=part.args
            )


Send: TypeAlias = Callable[[helpers.SessionUpdate], Awaitable[None]]

_MAX_RESULT_CHARS = 10_000  # maximum shown characters of a tool result; the model gets all of it

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
_SILENT_KINDS = frozenset({"todo", "clearTodo", "attemptCompletion"})  # kinds of calls without an update of their own


class Updates:
    """Converter of one turn's events to updates. Text comes from the Coordinator; delegates appear as tool calls."""

    def __init__(self, workspace: Path) -> None:
        """Resolve the paths of tool calls relative to `workspace`."""
        self._workspace = workspace
        self._activity = JobActivity()
        self._sent_text = ""  # part of the Coordinator's current reply that was sent already

    def of(self, event: Event) -> Iterator[helpers.SessionUpdate]:  # noqa: C901 - one case for each kind of event that has an update
        self._activity.follow(event)
        is_coordinators = not self._activity.is_delegate(event.run_id)
        match event:
            case events.StartGeneration() if is_coordinators:
                self._sent_text = ""
            case StreamText() if is_coordinators:
                self._sent_text += event.delta
                yield helpers.update_agent_message_text(event.delta)
            case StreamReasoning() if is_coordinators:
                yield helpers.update_agent_thought_text(event.delta)
            case events.FinishGeneration():
                for index, part in enumerate(event.reply):
                    if isinstance(part, ProviderToolPart):
                        yield _provider_tool_call(part, _update_id(event, f"{index}-{part.id}"))
                if is_coordinators:
                    yield from self._unsent_text(event.message.text)
            case events.Retry():
                yield helpers.update_agent_thought_text(
                    f"({shorten(event.error.message, _TITLE_CELLS)}; trying again)\n"
                )
            case events.AdaptRequest():
                yield helpers.update_agent_thought_text(f"(requests are sent {shorten(event.words, _TITLE_CELLS)})\n")
            case events.SwitchModel():
                yield helpers.update_agent_thought_text(f"(the model is switched {event.words})\n")
            case events.CallTools():
                for decided in event.calls:
                    yield from self._start_call(event, decided.id)
            case events.FinishToolCall():
                yield from self._finish_call(event)
            case FinishRun() if is_coordinators:
                yield from self._unsent_text(event.text)
            case SkillDisconnected() if event.reason:
                yield helpers.update_agent_thought_text(f"({event.text_for(acp_phrase)})\n")
            case _:
                pass

    def _unsent_text(self, text: str) -> Iterator[helpers.SessionUpdate]:
        """Yield a complete text, unless it was streamed already."""
        if text.strip() and text.strip() != self._sent_text.strip():
            yield helpers.update_agent_message_text(f"\n\n{text}" if self._sent_text else text)
            self._sent_text = text

    def _find_call(self, event: RunEvent, call_id: str) -> CallActivity | None:
        activity = self._activity.run(event.run_id)
        return None if activity is None else activity.calls.get(call_id)

    def _start_call(self, event: events.CallTools, call_id: str) -> Iterator[helpers.SessionUpdate]:
        call_activity = self._find_call(event, call_id)
        if (
            call_activity is None
            or call_activity.part is None
            or call_activity.kind == "interactive"
            or call_activity.kind in _SILENT_KINDS
        ):
            return
        owner = f"{event.expert_key}: " if self._activity.is_delegate(event.run_id) else ""
        yield helpers.start_tool_call(
            _update_id(event, call_id),
            shorten(f"{owner}{call_activity.name} {brief(call_activity.part)}", _TITLE_CELLS),
            kind=_KINDS.get(call_activity.name, "other"),
            status="in_progress",
            locations=self._locations(call_activity.part),
            raw_input=call_activity.part.args,
        )

    def _finish_call(self, event: events.FinishToolCall) -> Iterator[helpers.SessionUpdate]:
        call_activity = self._find_call(event, event.tool_call_id)
        text = text_of(event.contents)
        if call_activity is None or call_activity.kind in _SILENT_KINDS:
            todos = None if call_activity is None or call_activity.kind == "attemptCompletion" else todos_in(text)
            if todos is not None and not self._activity.is_delegate(event.run_id):
                yield helpers.update_plan(
                    helpers.plan_entry(todo.title, status="completed" if todo.completed else "pending")
                    for todo in todos
                )
        elif call_activity.part is not None:
            status: Literal["failed", "completed"] = "failed" if event.is_error else "completed"
            excerpt = text if len(text) <= _MAX_RESULT_CHARS else f"{text[:_MAX_RESULT_CHARS]} …"
            content = [helpers.tool_content(helpers.text_block(excerpt))]
            yield helpers.update_tool_call(_update_id(event, event.tool_call_id), status=status, content=content)

    def _locations(self, part: ToolCallPart) -> list[ToolCallLocation] | None:
        path = part.args.get("path")
        if not isinstance(path, str) or part.tool_name not in _KINDS:
            return None
        return [ToolCallLocation(path=str(self._workspace / path))]


def _update_id(event: RunEvent, call_id: str) -> str:
    return f"{event.run_id}-{event.step_number}-{call_id}"


class Sender:
    """A Host listener that queues updates; `run` sends them one at a time, in the order of the events."""

    def __init__(self, updates: Updates, send: Send) -> None:
        self._updates = updates
        self._send = send
        self._queue: asyncio.Queue[helpers.SessionUpdate | None] = asyncio.Queue()

    def __call__(self, event: Event, line: bytes) -> None:
        for update in self._updates.of(event):
            self._queue.put_nowait(update)

    async def run(self) -> None:
        """Send queued updates until `end` was called and all earlier ones are sent."""
        while (update := await self._queue.get()) is not None:
            await self._send(update)

    def end(self) -> None:
        """Stop `run` after the queued updates."""
        self._queue.put_nowait(None)
