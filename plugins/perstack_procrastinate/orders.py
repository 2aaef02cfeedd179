"""An order as a job of procrastinate, and back.

The whole order is the job's arguments. Beside them stands what the engine chooses by: the priority, the time, a lock
that one running job of an id may have, a lock that one waiting job of an id may have, and the queue. A queue is made of
all orders with the same labels and the same refusals. Its name is a digest of them, for names of queues are short; the
table `queues` says what is in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256

from procrastinate.jobs import Job
from procrastinate.types import JSONDict, JSONValue
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perstack.dataclass import dataclass
from perstack.ports.dispatcher import Order

TASK = "perstack.job"
PLAIN = "perstack"
"""The queue of orders without labels and refusals."""

_LATEST = 253_402_300_799_000
"""The end of the year 9999: no calendar here goes further."""
_PRIORITIES = (1 << 31) - 1
_REASON = 500
"""Characters kept of why a worker cannot serve an order."""


class _Arguments(BaseModel):
    """What is stored. Newer versions may have more; what this one does not know is left out."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    job_id: str
    due: int = 0
    priority: int = 0
    labels: dict[str, str] = Field(default_factory=dict)
    submitted_at: int = 0
    takeovers: int = 0
    events: int = 0
    refused: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Queue:
    """Where an order waits."""

    name: str
    labels: tuple[str, ...]
    refused: tuple[str, ...]


def order_of(arguments: object) -> Order | None:
    """The order of a job's arguments; None if these are none of ours."""
    try:
        found = _Arguments.model_validate(arguments)
    except ValidationError:
        return None
    return Order(**found.model_dump())


def arguments_of(order: Order) -> JSONDict:
    """What is stored of an order."""
    labels: dict[str, JSONValue] = {_text(key): _text(value) for key, value in order.labels.items()}
    refused: dict[str, JSONValue] = {_text(key): _text(value)[:_REASON] for key, value in order.refused.items()}
    return {
        "job_id": order.job_id,
        "due": order.due,
        "priority": priority_of(order),
        "labels": labels,
        "submitted_at": order.submitted_at,
        "takeovers": order.takeovers,
        "events": order.events,
        "refused": refused,
    }


def job_of(order: Order) -> Job:
    """The job that is queued for an order."""
    return Job(
        queue=queue_of(order).name,
        priority=priority_of(order),
        lock=order.job_id,
        queueing_lock=order.job_id,
        task_name=TASK,
        task_kwargs=arguments_of(order),
        scheduled_at=time_of(order.due),
    )


def queue_of(order: Order) -> Queue:
    """Where an order waits."""
    labels, refused = labels_of(order.labels), tuple(sorted(_text(name) for name in order.refused))
    if not labels and not refused:
        return Queue(PLAIN, (), ())
    return Queue(sha256(json.dumps([labels, refused]).encode()).hexdigest()[:32], labels, refused)


def labels_of(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Labels as texts that are equal where key and value are."""
    return tuple(sorted(json.dumps([_text(key), _text(value)]) for key, value in labels.items()))


def priority_of(order: Order) -> int:
    """As the engine has it."""
    return max(-_PRIORITIES, min(order.priority, _PRIORITIES))


def time_of(milliseconds: int) -> datetime | None:
    """A time of a day; None for at once."""
    return datetime.fromtimestamp(min(milliseconds, _LATEST) / 1000, UTC) if milliseconds > 0 else None


def _text(text: str) -> str:
    """What a database can have."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()
