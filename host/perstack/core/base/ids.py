"""Ids of Jobs, Runs, events and checkpoints, each of which contains its owner's id; owners of logs, and actors.

A Run's id is `{jobId}-{n}`; the id of an event, and of the checkpoint it makes, is `{runId}-{seq}` (both from 1). So
everything is found by its id without a scan. A Job's id is the user's (`--job-id`), or 12 characters of a ULID: nine of
its time, which sort, and three random ones; if the storage refuses it as taken, the host generates another.

Two processes that drive Runs of one Job never assign one number twice: the driver of a separate delegate Run has a
block of numbers that start with that Run's number, and the Job has all numbers below the first block.
"""

import re
import unicodedata
from typing import Literal, NamedTuple, TypeAlias

from pydantic import ConfigDict, Field, field_validator

from perstack.core.base.records import Record, falsy
from perstack.errors import UsageError
from perstack.next_steps import Inspect

BLOCK_SIZE = 10_000  # distance between the first numbers of two blocks; a block itself has one number less
# Run numbers that a Job's own driver assigns once other workers drive some of its Runs
OWN_NUMBERS = range(1, 2 * BLOCK_SIZE)
_MAX_NUMBER = (1 << 63) - 1  # highest number: storages sort by 63 bits

_ID_PATTERN = re.compile(r"[A-Za-z0-9_-]+")
_MAX_JOB_ID_CHARS = 128
_MAX_DERIVED_ID_CHARS = 160


def check_job_id(job_id: str) -> str:
    """Return the id. Raises UsageError if it is empty, longer than 128 characters, or could be a path."""
    return _check(job_id, "job", _MAX_JOB_ID_CHARS)


def check_id(value: str, kind: str) -> str:
    """Return the id of a Run, checkpoint or event. Raises UsageError, calling it a `kind` id, if it is invalid."""
    return _check(value, kind, _MAX_DERIVED_ID_CHARS)


def job_id_of(ulid: str) -> str:
    """Return the short form of a ULID that is used as a Job's id."""
    return ulid[1:13].lower()


def run_id_of(job_id: str, number: int) -> str:
    """Return the id of a Job's n-th Run."""
    return f"{job_id}-{number}"


def event_id_of(run_id: str, seq: int) -> str:
    """Return the id of the event, and of the checkpoint, at position `seq` of a Run's log."""
    return f"{run_id}-{seq}"


def job_of_run(run_id: str) -> str:
    """Return the id of the Run's Job. Raises UsageError if it is not a Run id of this host."""
    return _split(run_id, "run")[0]


def place_of(checkpoint_id: str, kind: str = "checkpoint") -> tuple[str, str, int]:
    """Return the Job id, Run id and log position in the id of a checkpoint or other `kind`. Raises UsageError."""
    run_id, seq = _split(checkpoint_id, kind)
    return _split(run_id, kind)[0], run_id, seq


def is_place(checkpoint_id: str) -> bool:
    """Return True if a checkpoint's id contains a Run and a position; ids of other programs do not."""
    run_id, separator, seq = checkpoint_id.rpartition("-")
    return bool(separator) and seq.isdigit() and number_of_run(run_id) > 0


def number_of_run(run_id: str) -> int:
    """Return the number of a Run in its Job; 0 for an id without a number, such as another program's."""
    head, separator, tail = check_id(run_id, "run").rpartition("-")
    return int(tail) if separator and head and tail.isdigit() else 0


def block_of(number: int) -> range:
    """Return the numbers that the driver of Run `number` assigns to Runs below it. Number 0 means the Job's driver."""
    return range(number * BLOCK_SIZE + 1, (number + 1) * BLOCK_SIZE) if number else OWN_NUMBERS


def may_be_remote(run_id: str) -> bool:
    """Return True if the Run may have its own driver: it has a block of numbers, and its id may name a lease."""
    number = number_of_run(run_id)
    return number > 1 and (number + 1) * BLOCK_SIZE <= _MAX_NUMBER and len(run_id) <= _MAX_JOB_ID_CHARS


def _check(value: str, kind: str, max_chars: int) -> str:
    if not _ID_PATTERN.fullmatch(value) or len(value) > max_chars:
        shown = value if len(value) <= 40 else value[:37] + "…"
        raise UsageError(f"{shown!r} is not a valid {kind} id: use 1 to {max_chars} of the characters A-Z a-z 0-9 _ -")
    return value


def _split(value: str, kind: str) -> tuple[str, int]:
    check_id(value, kind)
    head, separator, tail = value.rpartition("-")
    if not separator or not head or not tail.isdigit():
        raise UsageError(f"{value!r} is not {_with_article(kind)} id of this host", next_steps=(Inspect("log"),))
    return head, int(tail)


def _with_article(kind: str) -> str:
    return f"an {kind}" if kind[:1] in "aeiou" else f"a {kind}"


# Owners of logs. A Job, a task, a series of iterations and a schedule may have one id.

OwnerKind: TypeAlias = Literal["job", "task", "iterations", "schedule"]


class Owner(NamedTuple):
    """The owner of one or more logs."""

    kind: OwnerKind
    id: str


_MAX_NAME_CHARS = 200


class By(Record):
    """The actor of an event, and the door through which it acted.

    Names are claims of the caller and prove nothing. They are cut to 200 characters, without control characters.
    """

    model_config = ConfigDict(frozen=True)

    user: str = Field(default="", exclude_if=falsy)  # operating-system user; empty if unknown, as over a network
    door: str = "python"  # `cli`, `start`, `mcp`, `acp`, `http` or `python`; `recording` if a recording is played
    client: str = Field(default="", exclude_if=falsy)  # name and version of the client program, such as an editor
    source: str = Field(default="", exclude_if=falsy)  # source of the event from outside; empty for a person

    @field_validator("user", "door", "client", "source", mode="before")
    @classmethod
    def _clean(cls, value: object) -> object:
        return one_plain_line(value) if isinstance(value, str) else value

    def with_source(self, source: str) -> "By":
        """Return this actor with the source of the event that it delivers."""
        return By(user=self.user, door=self.door, client=self.client, source=source)

    def __str__(self) -> str:
        """Return the actor as shown to people: `alice, mcp, an-editor 1.0`."""
        return ", ".join(part for part in (self.source, self.user, self.door, self.client) if part)


def one_plain_line(text: str) -> str:
    """Return the text as one line of at most 200 characters, without any that affect how the rest is shown."""
    visible = "".join(" " if unicodedata.category(char)[0] in "CZ" else char for char in text[: 10 * _MAX_NAME_CHARS])
    return " ".join(visible.split())[:_MAX_NAME_CHARS]


_HEX = frozenset("0123456789abcdef")


def is_digest(text: str) -> bool:
    """Return True if a text has the form of a SHA-256 in hex."""
    return len(text) == 64 and _HEX.issuperset(text)
