"""Work items (`Order`) as plain JSON, for dispatchers that store them in an external engine."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from perstack.ports.dispatcher import Order

MAX_PRIORITY = (1 << 31) - 1  # highest priority that all engines support; the lowest is its negative
_MAX_REASON_CHARS = 500  # characters kept of the reason why a worker cannot serve a work item


class _Stored(BaseModel):
    """Stored form of a work item. Fields of newer versions are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    job_id: str
    due: int = 0
    priority: int = 0
    labels: dict[str, str] = Field(default_factory=dict)
    submitted_at: int = 0
    takeovers: int = 0
    events: int = 0
    refused: dict[str, str] = Field(default_factory=dict)
    run_id: str | None = None
    storage: str | None = None


def order_of(stored: object) -> Order | None:
    """Return the work item stored in `to_json`, or None if it is not one of ours."""
    try:
        item = _Stored.model_validate(stored)
    except ValidationError:
        return None
    return Order(**item.model_dump())


def to_json(order: Order) -> dict[str, JsonValue]:
    """Return the stored form of a work item."""
    labels: dict[str, JsonValue] = {
        without_unstorable(key): without_unstorable(value) for key, value in order.labels.items()
    }
    refused: dict[str, JsonValue] = {
        without_unstorable(key): without_unstorable(value)[:_MAX_REASON_CHARS] for key, value in order.refused.items()
    }
    optional = (("run_id", order.run_id), ("storage", order.storage))
    present: dict[str, JsonValue] = {key: value for key, value in optional if value is not None}
    return {
        "job_id": order.job_id,
        "due": order.due,
        "priority": priority_of(order),
        "labels": labels,
        "submitted_at": order.submitted_at,
        "takeovers": order.takeovers,
        "events": order.events,
        "refused": refused,
        **present,
    }


def priority_of(order: Order) -> int:
    """Return the priority, limited to the range that engines support."""
    return max(-MAX_PRIORITY, min(order.priority, MAX_PRIORITY))


def without_unstorable(text: str) -> str:
    """Return a text that every engine can store: without NUL and lone surrogates."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()
