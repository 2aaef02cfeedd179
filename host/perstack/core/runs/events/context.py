"""Define the events that change the messages of a Run: shrunk results, summarised history, texts that people post."""

from typing import Literal

from pydantic import AliasChoices, Field
from typing_extensions import override

from perstack.core.base.ids import By
from perstack.core.base.records import IllegalEvent, Text, falsy
from perstack.core.base.text import count
from perstack.core.base.usage import Charge, Usage
from perstack.core.messages.messages import (
    History,
    Message,
    TextPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
    text_of,
    tokens_of_contents,
)
from perstack.core.messages.standing import without_text
from perstack.core.messages.tool_search import names_in
from perstack.core.runs.commands import Command, Compact, Shrink
from perstack.core.runs.context_window import short_text
from perstack.core.runs.events.base import (
    LaterEvent,
    add_spending,
    difference_of,
    unexpected_event,
    with_saying,
)
from perstack.core.runs.facts import ErrorInfo, ShrunkResult
from perstack.core.runs.log_rows import EventContext, LogRow, author_rows, tokens
from perstack.core.runs.state import Run, continues_reply
from perstack.dataclass import replace


class ShrinkResults(LaterEvent):
    """The shortening of old results of read-only tools: from now on the model sees only their beginning and end."""

    type: Literal["shrinkResults"] = "shrinkResults"
    results: tuple[ShrunkResult, ...]
    head: int  # characters kept of the beginning of each result; `tail`: of its end
    tail: int

    def fold(self, run: Run) -> Run:
        """Shorten the results in the messages. Raises IllegalEvent for a result that does not exist."""
        by_event: dict[str, dict[str, ShrunkResult]] = {}
        for result in self.results:
            by_event.setdefault(result.at, {})[result.tool_call_id] = result
        items: list[Message] = []
        freed = 0
        for index, message in enumerate(run.messages):
            shrunk = by_event.pop(run.messages.place(index), None)
            if shrunk is None or not isinstance(message, ToolMessage):
                items.append(message)
                continue
            parts = tuple(self._short(part, shrunk.get(part.tool_call_id)) for part in message.contents)
            freed += sum(tokens_of_contents(part.contents) for part in message.contents)
            freed -= sum(tokens_of_contents(part.contents) for part in parts)
            items.append(ToolMessage(contents=parts))
        if by_event:
            raise IllegalEvent(f"there are no results of {', '.join(by_event)}")
        is_relieved = run.context.is_relieved or run.context.overflow is not None
        context = replace(
            run.context, freed=run.context.freed + freed, overflow=None, is_relieved=is_relieved, has_dropped=True
        )
        return replace(run, messages=History(items, _places(run)), context=context)

    def _short(self, part: ToolResultPart, shrunk: ShrunkResult | None) -> ToolResultPart:
        if shrunk is None:
            return part
        text = TextPart(text=short_text(part, shrunk.blob, self.head, self.tail))
        return part.model_copy(update={"contents": (text,)})

    @override
    def difference(self, run: Run, command: Command | None) -> str | None:
        if not isinstance(command, Shrink):
            return unexpected_event(self, run, command)
        expected = (command.results, command.head, command.tail)
        return difference_of(expected, (self.results, self.head, self.tail), "results")

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        text = f"{count(len(self.results), 'old result')}: the model sees the ends of each"
        return [LogRow("shrinks", text, "yellow")]


def _places(run: Run) -> list[str]:
    return [run.messages.place(index) for index in range(len(run.messages))]


class StartCompaction(LaterEvent):
    """A summary of a part of the history, from message `first` through `through` (event ids), is requested."""

    is_progress = False
    type: Literal["startCompaction"] = "startCompaction"
    first: str = Field(serialization_alias="from", validation_alias=AliasChoices("from", "first"))
    through: str
    model: str
    reserved: Charge | None = None  # maximum cost, as in `StartGeneration`; only with a budget

    def fold(self, run: Run) -> Run:
        """Reserve the maximum cost of the summary."""
        context = replace(run.context, summarising=self.id)
        return replace(run, spending=run.spending.reserve(self.reserved), context=context)

    @override
    def difference(self, run: Run, command: Command | None) -> str | None:
        if not isinstance(command, Compact):
            return unexpected_event(self, run, command)
        return difference_of((command.first, command.through), (self.first, self.through), "range")

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        return [LogRow("compacts", f"{self.first} to {self.through}, by {self.model}")] if context.full else []


class CompactHistory(LaterEvent):
    """A text that replaces the history from message `first` through `through` (event ids). The log keeps all."""

    type: Literal["compactHistory"] = "compactHistory"
    first: str = Field(serialization_alias="from", validation_alias=AliasChoices("from", "first"))
    through: str
    kept: tuple[str, ...] = Field(default=(), exclude_if=falsy)  # event ids of messages between the two that stay
    text: Text
    model: str = Field(default="", exclude_if=falsy)  # `provider/model`; empty if no model wrote the text
    usage: Usage | None = None
    assumed: Charge | None = None  # additional charge if no usage was reported; only with a budget
    tokens_before: int = 0  # estimated tokens of the next request without the compaction; `tokens_after`: with it
    tokens_after: int = 0
    duration_ms: int = Field(default=0, exclude_if=falsy)
    error: ErrorInfo | None = None  # reason why no model wrote the summary although one was asked
    left_out: int = Field(default=0, exclude_if=falsy)  # texts of people that do not fit into their share of the window

    def fold(self, run: Run) -> Run:
        """Replace a range of messages by the text, after the kept ones. Raises IllegalEvent if there is no range."""
        messages, places = run.messages, _places(run)
        if self.first not in places or self.through not in places:
            raise IllegalEvent(f"there are no messages from {self.first} through {self.through}")
        first, last, kept = places.index(self.first), places.index(self.through), set(self.kept)
        if last < first:
            raise IllegalEvent(f"{self.through} is before {self.first}")
        leading = [*range(first), *(index for index in range(first, last) if places[index] in kept)]
        trailing = range(last + 1, len(messages))
        text = UserMessage(contents=(TextPart(text=self.text),))
        items = [*(messages[index] for index in leading), text, *(messages[index] for index in trailing)]
        new_places = [*(places[index] for index in leading), self.id, *(places[index] for index in trailing)]
        removed = [index for index in range(first, last + 1) if index == last or places[index] not in kept]
        names = (name for index in removed for name in names_in(messages[index]))
        context = replace(
            run.context,
            freed=0,
            counted=None,
            overflow=None,
            is_relieved=run.context.is_relieved or run.context.overflow is not None,
            summarising="",
            has_dropped=True,
            summaries=(run.context.summaries & set(new_places)) | {self.id},
            revealed=tuple(dict.fromkeys((*run.context.revealed, *names))),
        )
        spending = replace(add_spending(run, self.usage, self.assumed), reserved=None)
        return replace(run, messages=History(items, new_places), context=context, spending=spending)

    @override
    def difference(self, run: Run, command: Command | None) -> str | None:
        if not isinstance(command, Compact):
            return unexpected_event(self, run, command)
        problem = difference_of((command.first, command.through), (self.first, self.through), "range")
        return problem or difference_of(command.kept, self.kept, "kept messages")

    def describe(self, context: EventContext) -> list[LogRow]:
        """Return the range with its sizes before and after; the text on request."""
        sizes = f"about {self.tokens_before:,} tokens became {self.tokens_after:,}"
        author = f", by {self.model}" if self.model else ""
        usage = "" if self.usage is None else f", {tokens(self.usage)}"
        error_rows = [] if self.error is None else [LogRow("error", f"no summary: {self.error.words}", "red")]
        text = [LogRow("summary", self.text)] if context.full else []
        if self.left_out:
            words = f"{count(self.left_out, 'text')} of people, the oldest, no longer sent: they take too much room"
            error_rows.append(LogRow("warning", words, "yellow"))
        span = f"{self.first} to {self.through}"
        return [LogRow("compacts", f"{span}: {sizes}{author}{usage}", "yellow"), *error_rows, *text]


class TellRun(LaterEvent):
    """A text that a person posted to a Run: a message to its model before the next generation, kept word for word."""

    is_decided = False
    type: Literal["tellRun"] = "tellRun"
    posted: str  # id of the text while it waited; each is taken once
    text: Text
    by: By

    def fold(self, run: Run) -> Run:
        """Add the message, and discard a result that the Run has already written."""
        if continues_reply(run):
            raise IllegalEvent("a message cannot separate a reply from its continuation")
        run = with_saying(_take_posted(run, self), self.id, self.text, self.by, self.id)
        messages = run.messages.append(UserMessage(contents=(TextPart(text=self.text),)), self.id)
        return replace(run, messages=messages, result=None, is_declared_done=False, is_final_generation=False)

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        return [LogRow("told", self.text, "magenta"), *author_rows(self.by)]


class DropText(LaterEvent):
    """A person's removal of an earlier text of people: it is not sent to the model again."""

    is_decided = False
    type: Literal["dropText"] = "dropText"
    posted: str  # id of the removal while it waited; each is taken once
    dropped: str  # id of the event that brought the text
    by: By

    def fold(self, run: Run) -> Run:
        """Remove the text from the kept ones, and from the compaction that repeats it."""
        dropped = next((saying for saying in run.sayings if saying.id == self.dropped), None)
        if dropped is None:
            raise IllegalEvent(f"no text of a person has the id {self.dropped}")
        run = _take_posted(run, self)
        items, places, freed = list(run.messages), _places(run), 0
        for index, place in enumerate(places):
            message = items[index]
            if place in run.context.summaries and isinstance(message, UserMessage):
                part = TextPart(text=without_text(text_of(message.contents), dropped.text))
                items[index] = UserMessage(contents=(part,))
                freed += tokens_of_contents(message.contents) - tokens_of_contents((part,))
        remaining = tuple(saying for saying in run.sayings if saying is not dropped)
        if not freed:
            return replace(run, sayings=remaining)
        context = replace(run.context, freed=run.context.freed + freed)
        return replace(run, sayings=remaining, messages=History(items, places), context=context)

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        return [LogRow("drops", f"the text of {self.dropped}", "magenta"), *author_rows(self.by)]


def _take_posted(run: Run, event: TellRun | DropText) -> Run:
    if event.posted in run.taken_posts:
        raise IllegalEvent(f"the posted text {event.posted} was taken before")
    return replace(run, taken_posts={**run.taken_posts, event.posted: event.id})


ContextEvent = ShrinkResults | StartCompaction | CompactHistory | TellRun | DropText
