"""Names and times shared by workflows and workers. Workflows may import this module and nothing else of ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256

WORKFLOW = "perstack-job"
DRIVE_ACTIVITY = "perstack-drive"
"""Name of the activity through which an order reaches a worker; the worker holds it until the order is done."""

SUBMIT = "submit"
CHANGE = "change"
CLAIM = "claim"
WITHDRAW = "withdraw"
ORDER = "order"
FACTS = "facts"

LEFT = "Left"
"""Error type with which a worker gives up a claimed order."""
UNCLAIMED = "Unclaimed"
"""Error type with which a worker returns an activity that it did not claim."""
NOT_REPEATED = ("TemporalTimeout:Heartbeat", "TemporalTimeout:StartToClose", LEFT)
"""Errors that end an activity, so that the workflow decides what happens; the server retries others itself."""

RETURN_DELAY_S = 1.0
"""Seconds until a returned activity is offered again."""
MAX_HISTORY_EVENTS = 2_000
"""Events in a workflow's history after which it continues as a new run."""
MAX_TIMER_S = 30 * 86_400.0
"""Maximum seconds of one timer."""

_MAX_QUEUE_CHARS = 200


def queue_of_all(prefix: str) -> str:
    """Return the queue that workers without labels poll."""
    return f"{prefix}:any"


def queue_of_label(prefix: str, key: str, value: str) -> str:
    """Return the queue that workers with this label poll.

    Readable where its length permits, for users of the server's interface; a digest otherwise.
    """
    text = json.dumps([key, value])
    name = text if len(text) <= _MAX_QUEUE_CHARS else sha256(text.encode()).hexdigest()
    return f"{prefix}:{name}"


def queues_of_order(prefix: str, labels: Mapping[str, str]) -> list[str]:
    """Return the queues in which an order is offered. With labels there are several; the first claim gets it."""
    return [queue_of_all(prefix), *(queue_of_label(prefix, key, value) for key, value in sorted(labels.items()))]


def queues_of_seat(prefix: str, labels: Mapping[str, str]) -> list[str]:
    """Return the queues that a worker polls."""
    if not labels:
        return [queue_of_all(prefix)]
    return [queue_of_label(prefix, key, value) for key, value in sorted(labels.items())]


def urgency_of(priority: int) -> int:
    """Convert a priority to the server's priority key: 1 (most urgent) to 5, with 3 as the default."""
    return max(1, min(3 - priority, 5))
