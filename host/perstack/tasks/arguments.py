"""Types of arguments of task operations, and the meaning of free text in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, cast, get_args

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue
from pydantic_core import PydanticSerializationError, from_json, to_json

from perstack.core.base.records import JsonObject
from perstack.core.base.text import MAX_TIME_MS, nearest
from perstack.core.definitions.job_status import PauseReason
from perstack.core.secrets.masking import is_secret_in
from perstack.errors import UsageError
from perstack.tasks.events import TaskConfig, WaitingFor

MAX_STATE_BYTES = 1 << 20  # maximum bytes of JSON for each of a task's state, checkpoint data, input and result

FirstStatus = Literal["created", "running"]

_WRAPPER_LEVELS = 16  # levels of nesting that writing and sending add to a value, within which it must stay readable

_MAX_ERROR_CHARS = 500
_TIMED_REASONS = ("scheduled_wait", "rate_limit")


def _check_storable(value: JsonValue) -> JsonValue:
    """Return the value. Raises ValueError if a log could not hold it: unreadable as JSON, or too large."""
    wrapped: JsonValue = value
    for _ in range(_WRAPPER_LEVELS):
        wrapped = [wrapped]
    try:
        content = to_json(wrapped)
        from_json(content, allow_inf_nan=False)
    except (PydanticSerializationError, ValueError) as error:
        raise ValueError(f"is not JSON: {str(error).splitlines()[0]}") from error
    size = len(content) - 2 * _WRAPPER_LEVELS
    if size > MAX_STATE_BYTES:
        raise ValueError(
            f"has {size:,} bytes, and may have {MAX_STATE_BYTES:,}: keep big things in files, and their paths here"
        )
    return value


def _check_text(value: str) -> str:
    _check_storable(value)
    return value


def _check_object(value: JsonObject) -> JsonObject:
    _check_storable(value)
    return value


def _check_known_keys(value: object) -> object:
    """Return the value. Raises ValueError for a key that a config does not have; pydantic would ignore it silently."""
    fields = TaskConfig.model_fields
    keys = {*fields, *(field.alias for field in fields.values())}
    unknown_keys = [key for key in _keys_of(value) if key not in keys]
    if unknown_keys:
        names = ", ".join(str(field.alias) for field in fields.values())
        raise ValueError(f"has no {', '.join(map(repr, unknown_keys))}; there are: {names}")
    return value


def _keys_of(value: object) -> Iterable[object]:
    return cast("dict[object, object]", value) if isinstance(value, dict) else ()


def _as_sequence(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Text = Annotated[str, AfterValidator(_check_text)]
Json = Annotated[JsonValue, AfterValidator(_check_storable)]
State = Annotated[JsonObject, AfterValidator(_check_object)]
Config = Annotated[TaskConfig, BeforeValidator(_check_known_keys)]
Count = Annotated[int, Field(ge=0)]
Moment = Annotated[int, Field(ge=0, le=MAX_TIME_MS)]
PageSize = Annotated[int, Field(ge=1)]
TaskIds = Annotated[Sequence[str], BeforeValidator(_as_sequence)]


def read_start(*, start: bool | None, status: FirstStatus | None) -> bool | None:
    """Return whether a new task starts at once; None if neither argument says. Raises UsageError if they contradict."""
    if status is None or start is None:
        return start if status is None else status == "running"
    if start is not (status == "running"):
        raise UsageError(f"create: `start` is {start}, and `status` is {status!r}: give one of them")
    return start


def parse_reason(text: str | None) -> tuple[PauseReason, str | None]:
    """Return pause reason and message; another text is a question for a person. Raises UsageError."""
    normalized = _normalize(text or "")
    if text is None or not normalized:
        raise UsageError(f"pause: `reason` is missing: give one of {', '.join(get_args(PauseReason))}, or type a text")
    reasons: dict[str, PauseReason] = {_normalize(reason): reason for reason in get_args(PauseReason)}
    if normalized in reasons:
        return reasons[normalized], None
    similar = nearest(normalized, reasons, 0.8) if not text.strip().count(" ") else None
    if similar is not None:
        raise UsageError(
            f"pause: there is no reason {text!r}; did you mean {reasons[similar]!r}? Any other text is a"
            " question for a person: write more than one word"
        )
    return "human_input", text


def check_pause(reason: PauseReason, resume_at: int | None, waiting_for: WaitingFor | None) -> None:
    """Raise UsageError if a pause for this reason needs another argument, or cannot have one."""
    if reason == "scheduled_wait" and resume_at is None:
        raise UsageError("a scheduled wait needs `resumeAt`: when the task is to continue, in milliseconds since 1970")
    if resume_at is not None and reason not in _TIMED_REASONS:
        raise UsageError(f"`resumeAt` is for {' and '.join(_TIMED_REASONS)}, not for {reason}")
    if waiting_for is not None and reason != "external_dependency":
        raise UsageError(f"`waitingFor` is for external_dependency, not for {reason}")
    if waiting_for is not None and is_secret_in(waiting_for.command):
        raise UsageError(
            "the command holds what looks like a secret, and the task's log would keep it: set a variable in the"
            " environment or in .env, and name it as `${VAR}` in a line for sh"
        )


def join_message(text: str | None, message: str | None) -> str | None:
    """Return the message of a pause, joining free text in `reason` and `message`."""
    return f"{text}: {message}" if text and message and text != message else text or message


def split_error(error: str | JsonObject) -> tuple[str, JsonObject | None]:
    """Return an error's text, and its object if it is one: the text is its `message`, or its JSON, shortened."""
    if isinstance(error, str):
        return error, None
    message = error.get("message")
    if isinstance(message, str) and message.strip():
        return message, error
    text = to_json(error).decode()
    return text if len(text) <= _MAX_ERROR_CHARS else f"{text[:_MAX_ERROR_CHARS]}…", error


def _normalize(text: str) -> str:
    """Return the letters and digits of a text, case-folded, so that spellings of one name are equal."""
    return "".join(char for char in text.casefold() if char.isalnum())
