"""Checking what models were sent: each request, built again from its log, against the digests that the log has."""

from __future__ import annotations

from dataclasses import field
from hashlib import sha256

from perstack.core.digests import is_comparable, request_difference, tools_blob
from perstack.core.events import StartGeneration, StoredEvent
from perstack.core.runs.state import Run
from perstack.dataclass import dataclass
from perstack.errors import NotFound, StorageError
from perstack.ports.storage import Storage


@dataclass(slots=True)
class KeptToolsCheck:
    """Looks once at each blob of tools that a Job's logs name."""

    storage: Storage
    job_id: str
    _seen: set[str] = field(default_factory=set[str])

    async def problem(self, event: StoredEvent) -> str | None:
        """What is wrong with the tools that this event names; None if nothing is, or if it was told before."""
        digest = event.tools_digest if isinstance(event, StartGeneration) else None
        name = tools_blob(digest or "")
        if name is None or name in self._seen:
            return None
        self._seen.add(name)
        try:
            blob = await self.storage.blob(self.job_id, name)
        except NotFound:
            return f"the tools that the model was offered, blob {name}, are not there; put the blob back from a copy"
        except StorageError as error:
            return str(error)
        if sha256(blob).hexdigest() != name:
            return f"the tools that the model was offered, blob {name}, were changed; put the blob back from a copy"
        return None


@dataclass(slots=True)
class RequestCheck:
    """The requests of one Run, in their order."""

    inherits_redacted: bool = False
    """Whether the Run begins with messages that were redacted: nothing that holds them can be compared."""
    compared: int = 0
    uncompared: int = 0
    """How many have no digest that this version can compute."""
    _sent: int = 0
    """How many messages the latest request that was compared had."""

    def difference(self, run: Run, event: StoredEvent) -> str | None:
        """In what the model was sent something else than the log says; None if it was not."""
        if not isinstance(event, StartGeneration):
            return None
        if self.inherits_redacted or not is_comparable(event):
            self.uncompared += 1
            return None
        self.compared += 1
        wrong = request_difference(run, event, self._sent)
        self._sent = len(run.messages)
        return wrong
