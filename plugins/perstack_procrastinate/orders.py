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

from perstack.dataclass import dataclass
from perstack.ports.dispatcher import Order
from perstack.ports.stored_orders import priority_of, storable, stored

TASK = "perstack.job"
PLAIN = "perstack"
"""The queue of orders without labels and refusals."""

_LATEST = 253_402_300_799_000
"""The end of the year 9999: no calendar here goes further."""


@dataclass(frozen=True, slots=True)
class Queue:
    """Where an order waits."""

    name: str
    labels: tuple[str, ...]
    refused: tuple[str, ...]


def job_of(order: Order) -> Job:
    """The job that is queued for an order."""
    return Job(
        queue=queue_of(order).name,
        priority=priority_of(order),
        lock=order.key,
        queueing_lock=order.key,
        task_name=TASK,
        task_kwargs=stored(order),
        scheduled_at=time_of(order.due),
    )


def queue_of(order: Order) -> Queue:
    """Where an order waits."""
    labels, refused = labels_of(order.labels), tuple(sorted(storable(name) for name in order.refused))
    if not labels and not refused:
        return Queue(PLAIN, (), ())
    return Queue(sha256(json.dumps([labels, refused]).encode()).hexdigest()[:32], labels, refused)


def labels_of(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Labels as texts that are equal where key and value are."""
    return tuple(sorted(json.dumps([storable(key), storable(value)]) for key, value in labels.items()))


def time_of(milliseconds: int) -> datetime | None:
    """A time of a day; None for at once."""
    return datetime.fromtimestamp(min(milliseconds, _LATEST) / 1000, UTC) if milliseconds > 0 else None
