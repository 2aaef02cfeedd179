"""Names and times that workflows and workers have in common. A workflow may import this and nothing else of ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256

WORKFLOW = "perstack-job"
TICKET = "perstack-drive"
"""The activity by which an order reaches a worker, and which it holds until it is seen to."""

SUBMIT = "submit"
CHANGE = "change"
CLAIM = "claim"
WITHDRAW = "withdraw"
ORDER = "order"
FACTS = "facts"

LEFT = "Left"
"""The type of error with which a worker gives up what it held."""
UNCLAIMED = "Unclaimed"
"""The type of error with which a worker gives back what it did not take."""
NOT_REPEATED = ("TemporalTimeout:Heartbeat", "TemporalTimeout:StartToClose", LEFT)
"""What the server tells the workflow of, and does not put right itself."""

GIVEN_BACK_FOR = 1.0
"""Seconds until an order that was given back is offered again."""
LONGEST_HISTORY = 2_000
"""Events of a workflow, after which it goes on in a new run."""
LONGEST_TIMER = 30 * 86_400.0
"""Seconds."""

_LONGEST_QUEUE = 200


def queue_of_all(prefix: str) -> str:
    """Where workers without labels look."""
    return f"{prefix}:any"


def queue_of_label(prefix: str, key: str, value: str) -> str:
    """Where workers with that label look. Plain where it can be, for those who look at the server."""
    text = json.dumps([key, value])
    name = text if len(text) <= _LONGEST_QUEUE else sha256(text.encode()).hexdigest()
    return f"{prefix}:{name}"


def queues_of_order(prefix: str, labels: Mapping[str, str]) -> list[str]:
    """Where an order is offered: of a Job with labels, there are several, and the first worker has it."""
    return [queue_of_all(prefix), *(queue_of_label(prefix, key, value) for key, value in sorted(labels.items()))]


def queues_of_seat(prefix: str, labels: Mapping[str, str]) -> list[str]:
    """Where a worker looks."""
    if not labels:
        return [queue_of_all(prefix)]
    return [queue_of_label(prefix, key, value) for key, value in sorted(labels.items())]


def urgency_of(priority: int) -> int:
    """The server's key of a priority: it has five, of which 1 is the most urgent and 3 the ordinary one."""
    return max(1, min(3 - priority, 5))
