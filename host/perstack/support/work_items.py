"""An order as plain JSON, for dispatchers that keep it in an engine of another's making."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from perstack.ports.dispatcher import Order

MOST_PRIORITY = (1 << 31) - 1
"""The highest priority that engines can have; the lowest is as far below 0."""
_REASON = 500
"""Characters kept of why a worker cannot serve an order."""


class _Stored(BaseModel):
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
    run_id: str | None = None
    storage: str | None = None


def order_of(stored: object) -> Order | None:
    """The order that was stored so; None if it is none of ours."""
    try:
        found = _Stored.model_validate(stored)
    except ValidationError:
        return None
    return Order(**found.model_dump())


def stored(order: Order) -> dict[str, JsonValue]:
    """What is stored of an order."""
    labels: dict[str, JsonValue] = {storable(key): storable(value) for key, value in order.labels.items()}
    refused: dict[str, JsonValue] = {storable(key): storable(value)[:_REASON] for key, value in order.refused.items()}
    known = (("run_id", order.run_id), ("storage", order.storage))
    more: dict[str, JsonValue] = {key: value for key, value in known if value is not None}
    return {
        "job_id": order.job_id,
        "due": order.due,
        "priority": priority_of(order),
        "labels": labels,
        "submitted_at": order.submitted_at,
        "takeovers": order.takeovers,
        "events": order.events,
        "refused": refused,
        **more,
    }


def priority_of(order: Order) -> int:
    """Within what engines can have."""
    return max(-MOST_PRIORITY, min(order.priority, MOST_PRIORITY))


def storable(text: str) -> str:
    """A text that every engine can have: no NUL, no half of a character."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()
