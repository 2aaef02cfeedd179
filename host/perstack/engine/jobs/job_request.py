"""Requests for new Jobs, and the fields of a new Run that its caller sets.

`CallerFields` declares these fields, such as `labels`, next to the event that records them. Functions between a caller
and that event pass them on as `**caller_fields`, so a new field changes none of these functions; `takes_caller_fields`
lists the fields in their signatures.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeVar

from perstack.core.jobs.job_choice import check_labels
from perstack.core.runs.start import CallerFields
from perstack.dataclass import dataclass
from perstack.engine.jobs.model_output import ResultReader

if TYPE_CHECKING:
    from perstack.engine.runs.input_protocols import Attachable

_Function = TypeVar("_Function", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A caller's request for a new Job. So far only `caller_fields` and the model of `results` are checked."""

    expert_key: str
    query: str
    job_id: str | None
    attachments: Sequence[Attachable]
    caller_fields: Mapping[str, Any]
    results: ResultReader = field(default_factory=ResultReader)


def checked_fields(caller_fields: CallerFields) -> dict[str, Any]:
    """Return the fields that are set, as `startRun` records them. Raises UsageError for illegal labels."""
    set_fields = {name: value for name, value in caller_fields.items() if value is not None}
    return {**set_fields, "labels": check_labels(caller_fields.get("labels") or {})}


def takes_caller_fields(function: _Function) -> _Function:
    """Decorate a function with `**caller_fields: Unpack[CallerFields]`, so that its signature names each field.

    Documentation and the check of arguments read the signature. Each field may be left out, or None.
    """
    signature = inspect.signature(function)
    named = [value for value in signature.parameters.values() if value.kind is not value.VAR_KEYWORD]
    annotations = {name: re.sub(r"[a-z_]+\.", "", str(type_)) for name, type_ in CallerFields.__annotations__.items()}
    fields = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in annotations.items()
    ]
    vars(function)["__signature__"] = signature.replace(parameters=[*named, *fields])
    return function
