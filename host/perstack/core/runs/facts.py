"""Parts of Runs' events: common fields, delegation, errors, questions, todos."""

import json
from abc import abstractmethod
from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal, Protocol, TypedDict

from pydantic import Field, JsonValue, computed_field

from perstack.core.base.ids import By
from perstack.core.base.records import EMPTIED, JsonObject, Record, Text, falsy
from perstack.core.definitions.expert_changes import ExpertOfRun
from perstack.core.definitions.instruction import AgentsMdFile
from perstack.core.definitions.settings import ReasoningBudget
from perstack.core.messages.messages import ResultContent
from perstack.core.runs.log_rows import EventContext, LogRow

# Questions of tools during a call, and the answers to them. The shapes are MCP's: elicitation in form mode
# (`elicitation/create`).


class Question(Record):
    """A question that a tool needs answered before it can continue."""

    message: Text
    # schema of the answer's content; empty if the answer is yes or no
    requested_schema: Annotated[JsonObject, EMPTIED] = Field(default_factory=dict, exclude_if=falsy)


class Answer(Record):
    """A person's answer to a tool's question."""

    question: Question
    action: Literal["accept", "decline", "cancel"]
    # fits the question's schema; empty unless accepted
    content: Annotated[JsonObject, EMPTIED] = Field(default_factory=dict, exclude_if=falsy)


class RunEvent(Record):
    """The fields that all events of a Run share, and what holds for each kind of event."""

    is_decided: ClassVar[bool] = True  # False: no decision of the loop leads to it, so a replay accepts it anywhere
    is_progress: ClassVar[bool] = True  # False: a Job without any other event since a takeover has made no progress
    is_quiet: ClassVar[bool] = False  # True: it marks a position, and lists show it only on request
    original_types: ClassVar[tuple[str, ...]] = ()  # its other names in the original Perstack; an export uses the first

    type: str
    id: str
    timestamp: int  # milliseconds since 1970, UTC
    job_id: str
    run_id: str
    expert_key: str
    step_number: int

    @computed_field
    def step(self) -> int:
        """Return `step_number`, under a shorter name for one-line scripts."""
        return self.step_number

    @property
    def named_runs(self) -> tuple[str, ...]:
        """The ids of other Runs that the event names."""
        return ()

    @property
    def named_tree(self) -> str | None:
        """The digest of the tree that the event names, whose blobs belong to it; None if it names none."""
        return None

    @property
    def media(self) -> tuple[ResultContent, ...]:
        """The contents that may be images or documents."""
        return ()

    @abstractmethod
    def describe(self, context: EventContext) -> list[LogRow]:
        """Return the rows of the event for people; empty if it has nothing new for them."""


class DelegatedBy(Record):
    """The call of the parent Run that a delegate works for."""

    expert_key: str
    run_id: str
    tool_call_id: str
    tool_name: str


class ContinuedFrom(Record):
    """The checkpoint whose messages a Run begins with."""

    run_id: str
    checkpoint_id: str
    answers: bool = Field(default=False, exclude_if=falsy)  # True: it begins with another answer to the open question
    as_it_was: bool = Field(default=False, exclude_if=falsy)  # True: it begins without a query


class Delegation(Record):
    """A delegate Run, recorded before it starts."""

    tool_call_id: str
    tool_name: str
    expert_key: str
    run_id: str
    query: Text


class DelegateHead(Record):
    """The last sequence number and hash of a delegate's log: an anchor outside that log."""

    run_id: str
    seq: int
    hash: str


class DelegateReport(Record):
    """The outcome of a delegate's Run, apart from its result."""

    outcome: Literal["completed", "failed"]
    steps: int
    effects: int = Field(default=0, exclude_if=falsy)  # calls that had an effect, of its delegates too
    without_effect: bool = Field(default=False, exclude_if=falsy)  # though its Expert declares an effect
    text: Text  # text that the caller's model sees after the result


class Definition(Record):
    """A definition that replaces the original definition of a Run."""

    model: str
    provider: str
    instruction: Text
    expert: ExpertOfRun
    reasoning_budget: ReasoningBudget | None = None
    agents_md: Annotated[tuple[AgentsMdFile, ...], EMPTIED] = Field(default=(), exclude_if=falsy)
    fallbacks: tuple[str, ...] = Field(default=(), exclude_if=falsy)
    mask_secrets: bool = Field(default=False, exclude_if=falsy)


class Closed(Record):
    """The permanent close of a Run or Job."""

    by: By
    reason: str = Field(default="", exclude_if=falsy)
    at: int  # milliseconds since 1970


class Queued(Record):
    """The latest queueing of a Run or Job for a worker."""

    since: int  # milliseconds since 1970, as is `due`, the earliest start
    due: int = Field(default=0, exclude_if=falsy)
    priority: int = Field(default=0, exclude_if=falsy)
    by: By


# Decision about an interrupted call without a result: `done` (it had its effect), `retry` (run it again), `ask` (a
# person is asked which of these), `tell` (the model learns that it was interrupted, and decides).
Settlement = Literal["done", "retry", "ask", "tell"]


class ErrorInfo(Record):
    """An error in the provider's own words."""

    name: str
    message: Text
    status_code: int | None = None
    is_retryable: bool = False

    @property
    def words(self) -> str:
        status = f" {self.status_code}" if self.status_code else ""
        return f"{self.name}{status}: {self.message}"


class ShrunkResult(Record):
    """A result of which the model sees only the beginning and the end."""

    at: str  # id of the event with the step's last result, which the message of results belongs to
    tool_call_id: str
    blob: str  # SHA-256 (hex) of the whole text, which is a blob of the Job


# Warnings: to a person about a completed Run, and to a model in the result of a call that was repeated too often.

WITHOUT_EFFECT = "no call had an effect, and the Expert declares `effects = true`: check before you rely on the result"


def repeat_warning(max_repeats: int, *, is_one: bool) -> str:
    """Return the warning to a model at half of the `max_repeats` repetitions; `is_one`: of one call in each step."""
    return (
        f"{'This call' if is_one else 'These calls'} had the same arguments and the same "
        f"{'result' if is_one else 'results'} {(max_repeats + 1) // 2} times in a row. Another repetition will not"
        f" help: do something else, or finish. After {max_repeats} times the Run is stopped."
    )


def is_repeat_warning(text: str) -> bool:
    """Return True if the text is exactly a `repeat_warning`."""
    max_repeats = text.rpartition("After ")[2].removesuffix(" times the Run is stopped.")
    return (
        max_repeats.isdecimal()
        and len(max_repeats) < 10
        and text in (repeat_warning(int(max_repeats), is_one=single) for single in (True, False))
    )


# The common fields of events, and their source.


class EventStamp(TypedDict):
    """Id, time and Run of one event."""

    id: str
    timestamp: int
    job_id: str
    run_id: str
    expert_key: str
    step_number: int


class CheckpointStamp(EventStamp):
    """The stamp of an event that makes a checkpoint."""

    checkpoint_id: str


class Stamps(Protocol):
    """A source of stamps for the next events of a Run's log."""

    def __call__(self, ahead: int = 0) -> EventStamp:
        """Return the stamp of the next event; `ahead`: of the event that many positions later."""
        ...


def at_checkpoint(stamp: EventStamp) -> CheckpointStamp:
    """Return the stamp of an event that makes a checkpoint, whose id is the event's."""
    return {**stamp, "checkpoint_id": stamp["id"]}


# The todo list of one Run. Names and the shape of results are as in Perstack's base skill: `{"todos": [{"id",
# "title", "completed"}]}`.


class Todo(Record):
    """A todo; `id` counts from 0 within its Run."""

    id: int
    title: Text
    completed: bool = False


Todos = tuple[Todo, ...]


def apply_todo(todos: Todos, args: JsonObject) -> Todos:
    """Return the list after a call of `todo`: complete `completedTodos` (unknown ids are ignored), add `newTodos`."""
    completed_ids = _ids(args.get("completedTodos"))
    updated = [todo.model_copy(update={"completed": True}) if todo.id in completed_ids else todo for todo in todos]
    titles = args.get("newTodos")
    next_id = max((todo.id for todo in todos), default=-1) + 1
    new = [title for title in titles if isinstance(title, str)] if isinstance(titles, list) else []
    return (*updated, *(Todo(id=next_id + i, title=title) for i, title in enumerate(new)))


def remaining_todos(todos: Iterable[Todo]) -> Todos:
    return tuple(todo for todo in todos if not todo.completed)


def ids_of(todos: Iterable[Todo]) -> tuple[int, ...]:
    """Return the ids, which a redaction leaves."""
    return tuple(todo.id for todo in todos)


def todos_json(todos: Iterable[Todo], key: str = "todos") -> str:
    """Return the list as the JSON that the model sees."""
    return json.dumps({key: [todo.model_dump() for todo in todos]}, ensure_ascii=False, separators=(",", ":"))


def _ids(value: JsonValue) -> frozenset[int]:
    if not isinstance(value, list):
        return frozenset()
    return frozenset(int(item) for item in value if isinstance(item, int | float))
