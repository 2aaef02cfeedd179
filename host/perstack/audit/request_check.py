"""Compare the requests of a Run with their digests in its log."""

from __future__ import annotations

from perstack.core.runs.events import StartGeneration, StoredEvent
from perstack.core.runs.request_digest import VERSION, request_digest, tools_blob
from perstack.core.runs.state import Run
from perstack.dataclass import dataclass


def is_comparable(event: StartGeneration) -> bool:
    """Return True if this version can compute the event's digests again."""
    digest = event.request_digest
    return digest is not None and digest.startswith(f"{VERSION}:") and tools_blob(event.tools_digest or "") is not None


def request_difference(run: Run, event: StartGeneration, compared: int) -> str | None:
    """Return how the rebuilt request differs; None if it does not. `compared`: messages compared before."""
    recomputed = request_digest(run, event)
    recorded = event.request_digest or ""
    if recomputed == recorded:
        return None
    parts = _differing_parts(recomputed.split("."), recorded.split("."), compared, len(run.messages))
    return (
        f"generation of step {event.step_number}: the request that follows from the log does not match its"
        f" requestDigest:  {' and '.join(parts)}"
    )


def _differing_parts(recomputed: list[str], recorded: list[str], compared: int, sent_count: int) -> list[str]:
    if len(recorded) != len(recomputed):
        return ["the digest is malformed"]
    (_, instruction, settings, earlier_messages, messages), (_, *old) = recomputed, recorded
    parts: list[str] = []
    if instruction != old[0]:
        parts.append("the instruction differs")
    if settings != old[1]:
        parts.append("the model or its settings differ")
    if earlier_messages != old[2]:
        first = min(compared + 1, sent_count - 1)
        parts.append(
            f"message {first} differs"
            if first == sent_count - 1
            else f"one of messages {first} to {sent_count - 1} differs"
        )
    elif messages != old[3]:
        parts.append(f"message {sent_count} differs")
    return parts or ["the tools differ"]


@dataclass(slots=True)
class RequestCheck:
    """A comparison of one Run's requests with the recorded digests, in order."""

    inherits_redacted: bool = False  # True if the Run begins with redacted messages, so that no request can be compared
    compared: int = 0
    uncompared: int = 0  # requests without a digest that this version can compute
    _sent: int = 0

    def difference(self, run: Run, event: StoredEvent) -> str | None:
        """Return how the request differs from the log; None if it does not, or cannot be compared."""
        if not isinstance(event, StartGeneration):
            return None
        if self.inherits_redacted or not is_comparable(event):
            self.uncompared += 1
            return None
        self.compared += 1
        problem = request_difference(run, event, self._sent)
        self._sent = len(run.messages)
        return problem
