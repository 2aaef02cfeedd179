"""Work items (`Order`) as plain JSON, for dispatchers that store them in an external engine."""

from __future__ import annotations

from functools import lru_cache

from pydantic import JsonValue, TypeAdapter, ValidationError

from perstack.ports.dispatcher import Order

MAX_PRIORITY = (1 << 31) - 1  # highest priority that all engines support; the lowest is its negative
_MAX_REASON_CHARS = 500  # characters kept of the reason why a worker cannot serve a work item


def order_of(stored: object) -> Order | None:
    """Return the work item that `to_json` has stored, or None if `stored` is not one of ours."""
    try:
        return _adapter().validate_python(stored) if isinstance(stored, dict) else None
    except ValidationError:
        return None


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[Order]:
    return TypeAdapter(Order)  # it ignores fields of newer versions


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
