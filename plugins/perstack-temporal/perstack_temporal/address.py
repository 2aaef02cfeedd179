"""Addresses of Temporal servers. They contain no secrets: keys come from the environment."""

from __future__ import annotations

import re
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

    target: str
    """Host and port."""
    namespace: str
    queue: str
    """Prefix of the names of our workflows and queues."""

    @property
    def shown(self) -> str:
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
