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

MAX_MESSAGES = 100  # messages of a request that one page shows
MAX_PART_CHARS = 20_000  # characters of a part of a message that are shown; the message's event has all of it


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message of a request."""

    number: int  # from 1
    parts: tuple[tuple[str, str], ...]  # who wrote each part, and its text
    media: tuple[BlobPart, ...] = ()
    run_id: str = ""  # Run whose log has the event that brought the message; empty if no event did
    seq: int = 0  # place of that event
    is_new: bool = False  # True if the request before did not have it


@dataclass(frozen=True, slots=True)
class SentTool:
    """A tool as the model saw it."""

    name: str
    description: str
    schema: JsonObject
    size: int  # bytes of the tool's JSON
    is_left_out: bool = False  # True if the endpoint refuses it, so that it was not sent

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
    messages: tuple[SentMessage, ...]  # those up to the page's end, at most `MAX_MESSAGES`
    total: int  # messages of the whole request
    gone: tuple[SentMessage, ...]  # messages that the request before had, and this one has not, or only shortened
    tools: tuple[SentTool, ...]
    tools_problem: str
    final: bool
    check: str  # how the request compares with the digest that was recorded when it was sent
    is_checked: bool

    @property
    def tools_size(self) -> int:
        """Bytes of all tools."""
        return sum(tool.size for tool in self.tools if not tool.is_left_out)


async def sent_request(
    studio: Studio, job_id: str, event: StartGeneration, previous: str | None, until: int | None
) -> SentRequest:
    """Return the request that `event` starts, with the messages up to number `until`.

    `previous` is the id of the generation before it if the context was reduced between the two: then what is gone is
    found by folding the log up to there, too.
    """
    jobs = studio.host.jobs
    run = await jobs.run_state(job_id, event.run_id, through=event.id)
    if run is None:
        raise NotFound(f"there is no event {event.id}")
    earlier_run = None if previous is None else await jobs.run_state(job_id, event.run_id, through=previous)
    tools, problem = await _tools(studio, job_id, event, run)
    return await asyncio.to_thread(_request, run, event, earlier_run, tools, problem, until)


def _request(
    run: Run,
    event: StartGeneration,
    earlier_run: Run | None,
    tools: tuple[SentTool, ...],
    problem: str,
    until: int | None,
) -> SentRequest:
    total = len(run.messages)
    end = min(total, until or total)
    known = _seq_of_previous(run, event)
    gone = () if earlier_run is None else difference(earlier_run.messages, run.messages)[0]
    is_comparison = is_comparable(event)
    wrong = request_difference(run, event, 0) if is_comparison else None
    return SentRequest(
        model=run.active_model,
        settings=json.dumps(run.provider_settings, ensure_ascii=False) if run.provider_settings else "",
        instruction=run.start.instruction,
        guidance=run.guidance,
        messages=tuple(_message(run, index, known) for index in range(max(0, end - MAX_MESSAGES), end)),
        total=total,
        gone=tuple(_sent_message(message, 0) for message in gone[-MAX_MESSAGES:]),
        tools=tools,
        tools_problem=problem,
        final=event.final,
        check=_check_words(event, wrong) if is_comparison else "there is no digest of it that this version can compute",
        is_checked=is_comparison and wrong is None,
    )


def _check_words(event: StartGeneration, wrong: str | None) -> str:
    return wrong or f"it matches the digest that was recorded when it was sent: {(event.request_digest or '')[:20]}…"


def _seq_of_previous(run: Run, event: StartGeneration) -> int:
    """Return the place of the last reply in the request: later messages are new in it."""
    replies = (index for index in range(len(run.messages) - 1, -1, -1) if run.messages[index].type == "expertMessage")
    index = next(replies, None)
    run_id, seq = ("", 0) if index is None else _origin(run.messages.place(index))
    return seq - 1 if run_id == event.run_id else 0


def _origin(place: str) -> tuple[str, int]:
    """Return the Run and the place of the event with this id; an empty Run if no event has it."""
    place = place.removesuffix("-continue")
    return place_of(place)[1:] if is_place(place) else ("", 0)


def _message(run: Run, index: int, known: int) -> SentMessage:
    run_id, seq = _origin(run.messages.place(index))
    is_new = run_id == run.id and seq > known
    return replace(_sent_message(run.messages[index], index + 1), run_id=run_id, seq=seq, is_new=is_new)


def _sent_message(message: AnyMessage, number: int) -> SentMessage:
    match message:
        case UserMessage():
            contents = message.contents
        case ToolMessage():
            contents = tuple(content for part in message.contents for content in part.contents)
        case _:
            contents = ()
    media = tuple(content for content in contents if isinstance(content, BlobPart))
    parts = tuple((who, _cut(text)) for who, text in parts_of(message))
    return SentMessage(number, parts, media)


def _cut(text: str) -> str:
    if len(text) <= MAX_PART_CHARS:
        return text
    return f"{text[:MAX_PART_CHARS]} … {count(len(text) - MAX_PART_CHARS, 'more character')}: see its event"


async def _tools(studio: Studio, job_id: str, event: StartGeneration, run: Run) -> tuple[tuple[SentTool, ...], str]:
    """Return the offered tools, or why they cannot be shown."""
    name = tools_blob(event.tools_digest or "")
    if name is None:
        return (), "the log does not say which tools were offered"
    try:
        stored = read_json(await studio.host.jobs.storage.blob(job_id, name))
    except (PerstackError, ValueError) as error:
        return (), f"the tools cannot be read: {error}"
    left_out = names_in(run.adaptations, "tool")
    return tuple(
        _tool(tool, left_out) for tool in (stored if isinstance(stored, list) else ()) if isinstance(tool, dict)
    ), ""


def _tool(tool: JsonObject, left_out: frozenset[str]) -> SentTool:
    name, schema = str(tool.get("name")), tool.get("inputSchema")
    size = len(json.dumps(tool, ensure_ascii=False).encode(errors="replace"))
    return SentTool(
        name, str(tool.get("description")), schema if isinstance(schema, dict) else {}, size, name in left_out
    )
