"""Names and times shared by workflows and workers, and addresses. Workflows may import nothing else of ours."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import sha256
from urllib.parse import parse_qsl, urlsplit

from perstack.dataclass import dataclass
from perstack.errors import UsageError

DEFAULT_QUEUE = "perstack"
_PORT = 7233
_HOST = re.compile(r"[A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]")
_NAMESPACE = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_QUEUE = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_FORM = (
    "write it as temporal://HOST:PORT/NAMESPACE; its keys are TEMPORAL_API_KEY and TEMPORAL_TLS_… in the environment"
)


@dataclass(frozen=True, slots=True)
class TemporalAddress:
    """Server, namespace, and prefix of our names."""

    target: str  # host and port
    namespace: str
    queue: str  # prefix of the names of our workflows and queues

    @property
    def display_address(self) -> str:
        """Address for messages."""
        queue = "" if self.queue == DEFAULT_QUEUE else f"?queue={self.queue}"
        return f"temporal://{self.target}/{self.namespace}{queue}"

    def workflow_id(self, key: str) -> str:
        """Return the id of the workflow for an order's key."""
        return f"{self.queue}-{key}"


def parse(location: str) -> TemporalAddress:
    """Parse an address without its scheme. Raises UsageError, whose message shows no part of the address."""
    try:
        parts = urlsplit("temporal:" + location)
        port, query = parts.port, parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise UsageError(f"dispatcher: this is not the address of a Temporal server: {_FORM}") from None
    host = parts.netloc.rpartition(":")[0] if port is not None else parts.netloc.removesuffix(":")
    namespace = parts.path.removeprefix("/") or "default"
    is_whole = location.startswith("//") and not parts.fragment and port != 0
    if not is_whole or not _HOST.fullmatch(host) or not _NAMESPACE.fullmatch(namespace):
        raise UsageError(f"dispatcher: this is not the address of a Temporal server: {_FORM}")
    settings = dict(query)
    queue = settings.pop("queue", DEFAULT_QUEUE)
    if settings or len(query) > 1 or not _QUEUE.fullmatch(queue):
        raise UsageError("dispatcher: the address of a Temporal server may have `?queue=NAME`, of letters and digits")
    return TemporalAddress(f"{host}:{_PORT if port is None else port}", namespace, queue)


WORKFLOW = "perstack-job"
DRIVE_ACTIVITY = "perstack-drive"
"""Name of the activity through which an order reaches a worker; the worker holds it until the order is done."""

SUBMIT = "submit"
CHANGE = "change"
CLAIM = "claim"
WITHDRAW = "withdraw"
ORDER = "order"
FACTS = "facts"

LEFT = "Left"  # error type with which a worker gives up a claimed order
UNCLAIMED = "Unclaimed"  # error type with which a worker returns an activity that it did not claim
NOT_REPEATED = ("TemporalTimeout:Heartbeat", "TemporalTimeout:StartToClose", LEFT)
"""Errors that end an activity, so that the workflow decides what happens; the server retries others itself."""

RETURN_DELAY_S = 1.0  # seconds until a returned activity is offered again
MAX_HISTORY_EVENTS = 2_000  # events in a workflow's history after which it continues as a new run
MAX_TIMER_S = 30 * 86_400.0  # maximum seconds of one timer

_MAX_QUEUE_CHARS = 200


def queue_of_all(prefix: str) -> str:
    """Return the queue that workers without labels poll."""
    return f"{prefix}:any"


def queue_of_label(prefix: str, key: str, value: str) -> str:
    """Return the queue that workers with this label poll: readable, or a digest if that is too long."""
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
