"""Decode the parts of replies that the vendors' formats share.

Servers of all formats deviate in like ways, so replies are repaired here once, for every codec:

- Fields of another type: `Text`, `Index` and `Count` accept what can be read as one, and `OrNone` drops the rest.
- Characters that a gateway has cut between two deltas: `StreamedText` joins their halves, and shows whole ones only.
- Arguments that come twice, or after a placeholder: `join_arguments`.
- Token counts that fall or are missing within one reply: `highest`.
- Errors in place of events: `read_event` raises them (see stream_errors.py).

A decoder has `feed`, which processes the data of one event and returns the `ReplyProgress`, and `finish`, which returns
the reply or raises. The client counts silence by the progress (see client.py): a decoder returns IDLE for every event
that brings nothing of the reply.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, JsonValue, ValidationError, WrapValidator
from pydantic_core.core_schema import ValidatorFunctionWrapHandler

from perstack.core.base.records import JsonObject, layers
from perstack.core.messages.messages import ExpertMessage, FinishReason, ReplyPart, ToolCallPart
from perstack.core.schemas.json_schema import MAX_VALUE_DEPTH
from perstack.errors import ProviderError
from perstack.http_providers.errors import bad_response, stream_interrupted
from perstack.http_providers.stream_errors import error_in
from perstack.ports.provider import Delta

END_MARK = "[DONE]"
TOO_DEEP = f"(they have more than {MAX_VALUE_DEPTH} levels)"  # replacement for arguments that are nested too deep


class ReplyProgress(Enum):
    """State of a reply after one event."""

    IDLE = "idle"  # the event brought nothing of the reply, such as a ping
    MORE = "more"
    FINISHED = "finished"  # the reply has ended; token counts or an end mark may follow
    LAST = "last"  # no event follows


OnData = Callable[[str], ReplyProgress]  # processes the data of one event


# Fields of events, as servers send them.


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else ""


def _as_number(value: object) -> int | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return int(value) if math.isfinite(value) else None
    except OverflowError:  # an integer beyond the greatest float
        return None


def _valid_or_none(value: object, validate: ValidatorFunctionWrapHandler) -> Any:
    try:
        return validate(value)
    except ValidationError:
        return None


Text = Annotated[str, BeforeValidator(_as_text)]
Index = Annotated[int | None, BeforeValidator(_as_number)]
Count = Annotated[int | None, BeforeValidator(_as_number)]
"""Number of tokens; None if it is missing or not a number."""

_T = TypeVar("_T")
OrNone = Annotated[_T | None, WrapValidator(_valid_or_none)]
"""Field without which the rest of the event is still valid; None if its value is not."""


class Wire(BaseModel):
    """Base of models for endpoints' replies. Unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", defer_build=True)


_WireT = TypeVar("_WireT", bound=Wire)

_MAY_FAIL = re.compile(r'"(error|errors|base_resp)"')


def read_event(kind: type[_WireT], data: str, api: str) -> _WireT:
    """Parse the data of one event. Raises ProviderError if it is an error, or does not fit the format of `api`."""
    try:
        event = kind.model_validate_json(data)
    except ValidationError as error:
        document = parsed(data)
        _raise_error_in(document)
        if is_too_deep(document):
            raise unexpected_event(data, api) from error
        try:  # only this parser accepts halves of surrogate pairs
            return kind.model_validate(document)
        except ValidationError:
            raise unexpected_event(data, api) from error
    if not event.model_fields_set or _MAY_FAIL.search(data):
        _raise_error_in(parsed(data), is_unknown=not event.model_fields_set)
    return event


def _raise_error_in(document: JsonValue, *, is_unknown: bool = False) -> None:
    error = error_in(document, is_unknown=is_unknown)
    if error is not None:
        raise error


def parsed(text: str) -> JsonValue:
    """Return the value of a JSON text; None if it is not JSON."""
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value


def unexpected_event(data: str, api: str) -> ProviderError:
    """Return the error for an event that does not fit the format of `api`; another attempt may get a valid one."""
    return bad_response(f"an event is not in the format of {api}: {data[:200]}", retryable=True)


# Characters.

_HIGH_HALF = re.compile("[\ud800-\udbff]\\Z")


def whole_characters(text: str) -> str:
    """Return the text with halves of surrogate pairs joined; one without its other half becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


_JsonT = TypeVar("_JsonT", bound=JsonValue)


def whole_json(value: _JsonT) -> _JsonT:
    """Return JSON whose texts have whole characters, for data that is sent back as it came."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        whole: _JsonT = json.loads(replace_lone_surrogates(json.dumps(value)))
        return whole
    return value


class StreamedText:
    """Text of one part of a reply that comes in pieces. Each piece is shown when its last character is whole."""

    def __init__(self, on_delta: Callable[[Delta], None], kind: Literal["text", "reasoning"]) -> None:
        """Start with an empty text."""
        self._on_delta = on_delta
        self._kind: Literal["text", "reasoning"] = kind
        self._pieces: list[str] = []
        self._half = ""  # the end of the latest piece, if it waits for its other half

    def add(self, piece: str) -> bool:
        """Append a piece and show it. Return False for an empty one."""
        if not piece:
            return False
        self._pieces.append(piece)
        unshown_text = self._half + piece
        self._half = unshown_text[-1] if _HIGH_HALF.search(unshown_text) else ""
        self._show(unshown_text[:-1] if self._half else unshown_text)
        return True

    def complete(self, text: str) -> None:
        """Append the part of the whole text that the pieces do not have."""
        text = whole_characters(text)
        streamed_text = "".join(self._pieces)
        if text.startswith(whole_characters(streamed_text)) or not streamed_text:
            self.add(text[len(whole_characters(streamed_text)) :])

    def end(self) -> str:
        """Return the whole text, after showing a half that stays alone."""
        half, self._half = self._half, ""
        self._show(half)
        return self.text

    @property
    def text(self) -> str:
        """The text so far."""
        return whole_characters("".join(self._pieces))

    def _show(self, text: str) -> None:
        if text:
            self._on_delta(Delta(self._kind, whole_characters(text)))


_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_MAY_BE_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def replace_lone_surrogates(text: str) -> str:
    """Replace each escape that is half of a surrogate pair by U+FFFD, since JSON parsers refuse it."""
    return _ESCAPE.sub(_whole_escape, text) if _MAY_BE_HALF.search(text) else text


def _whole_escape(match: re.Match[str]) -> str:
    return match.group() if match[1] is None else "\\ufffd"


# Arguments of calls.

_PLACEHOLDERS = frozenset(("", "{}", "null", '""'))  # texts that servers send before the arguments
_DECODER = json.JSONDecoder()


def join_arguments(pieces: Sequence[str]) -> str:
    """Return the text of a call's arguments, without a placeholder before them and without repetitions.

    The pieces joined are the arguments if that is JSON. Otherwise, the first rule that fits holds: each piece repeats
    the ones before and extends them; the text has one object several times, apart from placeholders.
    """
    text = whole_characters("".join(pieces))
    if parsed(text) is not None or not text.strip():
        return text
    own_pieces = [whole_characters(piece) for piece in pieces if not is_placeholder(piece)]
    if (
        own_pieces
        and is_object(own_pieces[-1])
        and (
            own_pieces[-1].startswith("".join(own_pieces[:-1]))
            or all(after.startswith(before) for before, after in pairwise(own_pieces))
        )
    ):
        return own_pieces[-1]
    values = _values_in(text)
    values = [value for value in values if json.dumps(value) not in _PLACEHOLDERS]
    are_equal = bool(values) and all(value == values[0] for value in values)
    return json.dumps(values[0], ensure_ascii=False) if are_equal else text


def is_placeholder(text: str) -> bool:
    """Return whether a text is what servers send before the arguments come."""
    return text.strip() in _PLACEHOLDERS


def is_object(text: str) -> bool:
    """Return whether a text is one whole JSON object that is more than a placeholder."""
    return not is_placeholder(text) and isinstance(parsed(text), dict)


def _values_in(text: str) -> list[JsonValue]:
    """Return the JSON values that follow each other in a text; none if anything else is in it."""
    values: list[JsonValue] = []
    rest = text.lstrip()
    while rest:
        try:
            value, end = _DECODER.raw_decode(rest)
        except (ValueError, RecursionError):
            return []
        values.append(value)
        rest = rest[end:].lstrip()
    return values


def arguments_text(value: JsonValue) -> str:
    """Return the text of arguments that a server may also send as an object."""
    if isinstance(value, str):
        return value
    if is_too_deep(value):
        return TOO_DEEP
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def read_arguments(text: str) -> tuple[JsonObject, str | None]:
    """Parse a model's arguments into `args` and `raw_args`; only one of them has content."""
    if not text.strip():
        return {}, None
    try:
        value: JsonValue = json.loads(replace_lone_surrogates(text))
        if isinstance(value, str) and isinstance(parsed(value), dict):  # encoded twice
            value = json.loads(replace_lone_surrogates(value))
    except (ValueError, RecursionError):
        return {}, text
    if is_too_deep(value):
        return {}, TOO_DEEP
    if isinstance(value, dict):
        return value, None
    return {}, None if value is None or value == "" else text


def is_too_deep(value: JsonValue) -> bool:
    """Return whether a value is nested deeper than a reply may be, so that no message part can hold it."""
    return any(level > MAX_VALUE_DEPTH for level, _ in enumerate(layers(value)))


# Counts and ends.


def highest(known: dict[str, int], reported: Mapping[str, int | None]) -> None:
    """Raise the known token counts to the reported ones. They never fall in a reply: some servers end with zeros."""
    for name, count in reported.items():
        if count is not None:
            known[name] = max(known.get(name, 0), count)


def finish_reason(reason: FinishReason, reply: ExpertMessage) -> FinishReason:
    """Return the reply's finish reason. Some models report a normal end though the reply has calls."""
    return "toolCalls" if reason == "stop" and reply.tool_calls else reason


_FAILURE = re.compile(r"error|abort|cancel|fail|time_?out|interrupt|insufficient|malformed|overload", re.IGNORECASE)
"""Finish reasons that report a failure, not the end of a reply."""


def check_end(reason: str, known: Iterable[str], parts: Iterable[ReplyPart], *, has_mark: bool, missing: str) -> None:
    """Raise ProviderError if a reply with this finish reason, which may be empty, is a failed try.

    `has_mark`: the stream has also ended with the format's end mark. Without the mark, an unknown reason does not count
    as an end; with it but without a reason, a call whose arguments are no JSON was cut off. `missing`: phrase that
    says which mark did not arrive.
    """
    if reason in known:
        return
    if reason and _FAILURE.search(reason):
        raise bad_response(f"the endpoint ended the reply as failed: {reason}", retryable=True)
    if not has_mark:
        raise stream_interrupted(f"its finish reason is {reason}, and {missing}" if reason else missing)
    if not reason and any(isinstance(part, ToolCallPart) and part.raw_args is not None for part in parts):
        raise stream_interrupted("no finish reason came, and the arguments of a call are incomplete")
