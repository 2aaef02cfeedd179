"""Rebuild what a model was sent in one generation from the log, by the same fold, and compare it with its digest."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

from perstack.audit.request_check import is_comparable, request_difference
from perstack.core.base.ids import is_place, place_of
from perstack.core.base.records import JsonObject, read_json
from perstack.core.base.text import count
from perstack.core.messages.adaptations import names_in
from perstack.core.messages.messages import AnyMessage, BlobPart, ToolMessage, UserMessage, estimated_tokens
from perstack.core.runs.events.generations import StartGeneration
from perstack.core.runs.request_digest import tools_blob
from perstack.core.runs.state import Run
from perstack.dataclass import dataclass
from perstack.doors.shared.checkpoint_view import difference, parts_of
from perstack.errors import NotFound, PerstackError
from perstack_studio.studio import Studio

MAX_MESSAGES = 100  # maximum messages of a request that one page shows
MAX_PART_CHARS = 20_000  # maximum shown characters of a part of a message; its event has all of it


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message of a request."""

    number: int  # from 1
    parts: tuple[tuple[str, str], ...]  # author and text of each part
    media: tuple[BlobPart, ...] = ()
    run_id: str = ""  # Run whose log has the event of the message; empty without one
    seq: int = 0  # place of that event
    is_new: bool = False  # True if the previous request did not have it


@dataclass(frozen=True, slots=True)
class SentTool:
    """A tool as the model saw it."""

    name: str
    description: str
    schema: JsonObject
    size: int  # bytes of the tool's JSON
    is_left_out: bool = False  # True if it was not sent, since the endpoint refuses it

    @property
    def tokens(self) -> int:
        return estimated_tokens(self.size)


@dataclass(frozen=True, slots=True)
class SentRequest:
    """The request of one generation."""

    model: str
    settings: str  # settings of the provider as JSON; empty without any
    instruction: str
    guidance: str  # the part of the instruction that skills wrote about their tools
    messages: tuple[SentMessage, ...]  # the messages of one page, at most `MAX_MESSAGES`
    total: int  # number of messages of the whole request
    removed: tuple[SentMessage, ...]  # messages of the previous request that this one lacks or has shortened
    tools: tuple[SentTool, ...]
    tools_problem: str
    final: bool
    check: str  # result of comparing the request with its recorded digest, as text
    is_checked: bool

    @property
    def tools_size(self) -> int:
        """Bytes of all tools."""
        return sum(tool.size for tool in self.tools if not tool.is_left_out)


async def sent_request(
    studio: Studio, job_id: str, event: StartGeneration, previous: str | None, last_number: int | None
) -> SentRequest:
    """Return the request that `event` starts, with the messages up to number `last_number`; None for all.

    `previous` is the id of the event before the context was reduced, None if it was not: the log is folded up to there,
    too, to find the removed messages.
    """
    jobs = studio.host.jobs
    run = await jobs.run_state(job_id, event.run_id, through=event.id)
    if run is None:
        raise NotFound(f"there is no event {event.id}")
    earlier_run = None if previous is None else await jobs.run_state(job_id, event.run_id, through=previous)
    tools, problem = await _read_tools(studio, job_id, event, run)
    return await asyncio.to_thread(_build_request, run, event, earlier_run, tools, problem, last_number)


def _build_request(
    run: Run,
    event: StartGeneration,
    earlier_run: Run | None,
    tools: tuple[SentTool, ...],
    problem: str,
    last_number: int | None,
) -> SentRequest:
    total = len(run.messages)
    end = min(total, last_number or total)
    previous_seq = _seq_of_previous(run, event)
    removed = () if earlier_run is None else difference(earlier_run.messages, run.messages)[0]
    is_comparison = is_comparable(event)
    mismatch = request_difference(run, event, 0) if is_comparison else None
    return SentRequest(
        model=run.active_model,
        settings=json.dumps(run.provider_settings, ensure_ascii=False) if run.provider_settings else "",
        instruction=run.start.instruction,
        guidance=run.guidance,
        messages=tuple(_message_at(run, index, previous_seq) for index in range(max(0, end - MAX_MESSAGES), end)),
        total=total,
        removed=tuple(_describe_message(message, 0) for message in removed[-MAX_MESSAGES:]),
        tools=tools,
        tools_problem=problem,
        final=event.final,
        check=_check_text(event, mismatch)
        if is_comparison
        else "there is no digest of it that this version can compute",
        is_checked=is_comparison and mismatch is None,
    )


def _check_text(event: StartGeneration, mismatch: str | None) -> str:
    return mismatch or f"it matches the digest that was recorded when it was sent: {(event.request_digest or '')[:20]}…"


def _seq_of_previous(run: Run, event: StartGeneration) -> int:
    """Return the place before the last reply in the request: later messages are new. 0 if another Run has it."""
    replies = (index for index in range(len(run.messages) - 1, -1, -1) if run.messages[index].type == "expertMessage")
    index = next(replies, None)
    run_id, seq = ("", 0) if index is None else _origin(run.messages.place(index))
    return seq - 1 if run_id == event.run_id else 0


def _origin(place: str) -> tuple[str, int]:
    """Return the Run and the place that an event's id names; an empty Run if it is no such id."""
    place = place.removesuffix("-continue")
    return place_of(place)[1:] if is_place(place) else ("", 0)


def _message_at(run: Run, index: int, previous_seq: int) -> SentMessage:
    run_id, seq = _origin(run.messages.place(index))
    is_new = run_id == run.id and seq > previous_seq
    return replace(_describe_message(run.messages[index], index + 1), run_id=run_id, seq=seq, is_new=is_new)


def _describe_message(message: AnyMessage, number: int) -> SentMessage:
    match message:
        case UserMessage():
            contents = message.contents
        case ToolMessage():
            contents = tuple(content for part in message.contents for content in part.contents)
        case _:
            contents = ()
    media = tuple(content for content in contents if isinstance(content, BlobPart))
    parts = tuple((author, _cut(text)) for author, text in parts_of(message))
    return SentMessage(number, parts, media)


def _cut(text: str) -> str:
    if len(text) <= MAX_PART_CHARS:
        return text
    return f"{text[:MAX_PART_CHARS]} … {count(len(text) - MAX_PART_CHARS, 'more character')}: see its event"


async def _read_tools(
    studio: Studio, job_id: str, event: StartGeneration, run: Run
) -> tuple[tuple[SentTool, ...], str]:
    """Return the offered tools, or no tools and the reason why they cannot be shown."""
    name = tools_blob(event.tools_digest or "")
    if name is None:
        return (), "the log does not say which tools were offered"
    try:
        stored = read_json(await studio.host.jobs.storage.blob(job_id, name))
    except (PerstackError, ValueError) as error:
        return (), f"the tools cannot be read: {error}"
    left_out = names_in(run.adaptations, "tool")
    return tuple(
        _parse_tool(tool, left_out) for tool in (stored if isinstance(stored, list) else ()) if isinstance(tool, dict)
    ), ""


def _parse_tool(tool: JsonObject, left_out: frozenset[str]) -> SentTool:
    name, schema = str(tool.get("name")), tool.get("inputSchema")
    size = len(json.dumps(tool, ensure_ascii=False).encode(errors="replace"))
    return SentTool(
        name, str(tool.get("description")), schema if isinstance(schema, dict) else {}, size, name in left_out
    )
