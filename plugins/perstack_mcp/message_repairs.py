"""Repairs of JSON-RPC messages and greetings that deviate slightly from the protocol. Pure functions.

The SDK rejects a message for one wrong field, and the message is lost: a call then waits until its timeout, or the
connection fails. So each message is repaired once, before the SDK sees it. Every function returns notes for the person,
one for each repair. Text that is not a message is left alone, and so is anything that would have to be guessed: an
unknown revision, a server without a name, a `tools` capability that is `true`.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

from pydantic_core import from_json

from perstack.core.base.records import JsonObject
from perstack.dataclass import dataclass

if TYPE_CHECKING:
    from pydantic import JsonValue

BARE_RESULT = "perstack/bareResult"
"""Key under which a result that is not an object passes the SDK's check of the envelope."""

UNKNOWN_ID = ""
"""Id of an answer that does not name its request."""

_MAX_BATCH = 1_000
_MAX_ERROR_CHARS = 1_000

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Received:
    """A message that the SDK accepts, with notes on its repairs."""

    message: JsonObject
    notes: tuple[str, ...] = ()


def kind_of(value: JsonValue) -> str:
    """Return the kind of a JSON value as text for a note."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    match value:
        case str():
            return "a text"
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            return "a number"


def kind_at(message: JsonObject, key: str) -> str:
    """Return "missing" for an absent key, otherwise the kind of its value."""
    return kind_of(message[key]) if key in message else "missing"


# Repair of JSON-RPC envelopes.


def received_messages(text: bytes, request_id: int | str | None = None) -> Sequence[Received]:
    """Return the messages in a received text; empty if it is not a message.

    `request_id` is the request that the text answers; None if the transport does not know it.
    """
    text = text.strip().removeprefix(BOM_UTF8)
    notes: tuple[str, ...] = ()
    try:
        value = cast("JsonValue", from_json(text))
    except ValueError:
        if b'"jsonrpc"' not in text:
            return []
        value, notes = _read_damaged(text), ("it has damaged characters",)
    if not isinstance(value, list):
        received = _repair_message(value, request_id)
        return [] if received is None else [Received(received.message, notes + received.notes)]
    notes += ("its messages come in a list",)
    if len(value) > _MAX_BATCH:
        notes += (f"its list has more than {_MAX_BATCH} messages: the rest is ignored",)
    batch = [_repair_message(item, request_id) for item in value[:_MAX_BATCH]]
    return [Received(received.message, notes + received.notes) for received in batch if received is not None]


def _read_damaged(text: bytes) -> JsonValue:
    """Return the JSON value of a text that contains lone surrogates, invalid UTF-8, or control characters."""
    try:
        value: object = json.loads(text.decode("utf-8", "replace"), strict=False)
        return cast("JsonValue", from_json(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")))
    except (ValueError, RecursionError):
        return None


def _repair_message(value: JsonValue, request_id: int | str | None) -> Received | None:
    """Return a JSON value as a message, repaired; None if it is not a message."""
    if not isinstance(value, dict):
        return None
    is_answer = "result" in value or value.get("error") is not None
    if not is_answer and not isinstance(value.get("method"), str):
        return None
    if value.get("jsonrpc") != "2.0" and not _is_likely_message(value, is_answer):
        return None
    notes: list[str] = []
    message = dict(value)
    if message.get("jsonrpc") != "2.0":
        notes.append(f"jsonrpc is {kind_at(message, 'jsonrpc')}")
        message["jsonrpc"] = "2.0"
    if is_answer:
        _repair_answer(message, request_id, notes.append)
    elif not isinstance(message.get("params", {}), dict | None):
        notes.append(f"params of {message['method']} is {kind_of(message.pop('params'))}")
    return Received(message, tuple(notes))


def _is_likely_message(value: JsonObject, is_answer: bool) -> bool:
    """Return whether a value without a valid `jsonrpc` is probably a message, rather than a line of a JSON log."""
    if "jsonrpc" in value:
        return True
    return is_answer and "id" in value and value.keys() <= {"id", "result", "error", "method"}


def _repair_answer(message: JsonObject, request_id: int | str | None, note: Note) -> None:
    """Give an answer in place a valid id, and either a result or an error."""
    if message.pop("method", None) is not None:
        note("an answer has a method")
    identity = message.get("id")
    if isinstance(identity, float) and identity.is_integer():
        note("id is not an integer")
        message["id"] = int(identity)
    elif isinstance(identity, bool) or not isinstance(identity, int | str):
        note(f"id is {kind_at(message, 'id')}")
        message["id"] = UNKNOWN_ID if request_id is None else request_id
    error = message.get("error")
    if error is not None and not (error == {} and "result" in message):
        message.pop("result", None)
        message["error"] = _repair_error(error, note)
        return
    if message.pop("error", None) is not None:
        note("error is an object without content")
    if not isinstance(message["result"], dict):
        message["result"] = {BARE_RESULT: message["result"]}


def _repair_error(error: JsonValue, note: Note) -> JsonObject:
    if not isinstance(error, dict):
        note(f"error is {kind_of(error)}")
        return {"code": -32603, "message": str(error)[:_MAX_ERROR_CHARS]}
    code, message = error.get("code"), error.get("message")
    if isinstance(code, bool) or not isinstance(code, int):
        note(f"error.code is {kind_at(error, 'code')}")
        code = _int_or_default(code, -32603)
    if not isinstance(message, str):
        note(f"error.message is {kind_at(error, 'message')}")
        message = str(error if message is None else message)[:_MAX_ERROR_CHARS]
    return {**error, "code": code, "message": message}


def _int_or_default(value: JsonValue, default: int) -> int:
    try:
        return int(value) if isinstance(value, str | float) else default
    except (ValueError, OverflowError):
        return default


def unwrapped_result(result: JsonObject) -> JsonValue:
    """Return a result as the server sent it, without the object that `received_messages` wrapped around it."""
    return result.get(BARE_RESULT, cast("JsonValue", result))


# Repair of greetings, the answers to `initialize` and to `server/discover`.

_REVISIONS = {"2024-10-07": "2024-11-05"}  # revision used for earlier ones, whose lists and results are the same


def repaired_greeting(result: JsonObject) -> tuple[JsonObject, Sequence[str]]:
    """Return the repaired answer to `initialize` or `server/discover`, and notes on the repairs."""
    notes: list[str] = []
    greeting = dict(result)
    if not greeting.get("capabilities") and greeting.get("capabilities") != {}:
        notes.append(f"capabilities is {kind_at(greeting, 'capabilities')}")
        greeting["capabilities"] = {}
    if isinstance(greeting.get("capabilities"), dict):
        greeting["capabilities"] = _repair_capabilities(cast("JsonObject", greeting["capabilities"]), notes.append)
    if not isinstance(greeting.get("instructions", ""), str | None):
        notes.append(f"instructions is {kind_of(greeting.pop('instructions'))}")
    if not isinstance(greeting.get("_meta", {}), dict | None):
        notes.append(f"_meta is {kind_of(greeting.pop('_meta'))}")
    if isinstance(greeting.get("protocolVersion"), str):
        greeting["protocolVersion"] = _repair_version(str(greeting["protocolVersion"]), notes.append)
    if isinstance(greeting.get("serverInfo"), dict):
        greeting["serverInfo"] = _repair_identity(cast("JsonObject", greeting["serverInfo"]), notes.append)
    if isinstance(greeting.get("supportedVersions"), str):
        notes.append("supportedVersions is a text")
        greeting["supportedVersions"] = [greeting["supportedVersions"]]
    if "supportedVersions" in greeting:
        notes += add_freshness(greeting)
    return greeting, notes


_FRESHNESS: JsonObject = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


def add_freshness(result: JsonObject) -> Sequence[str]:
    """Add the missing fields about a result's age that stateless revisions require; nothing here caches results."""
    invalid_keys = [key for key, value in _FRESHNESS.items() if type(result.get(key)) is not type(value)]
    notes = [f"{key} is {kind_at(result, key)}" for key in invalid_keys]
    result.update({key: _FRESHNESS[key] for key in invalid_keys})
    return notes


def _repair_capabilities(capabilities: JsonObject, note: Note) -> JsonObject:
    return dict(_usable_capabilities(capabilities, note))


def _usable_capabilities(capabilities: JsonObject, note: Note) -> Iterator[tuple[str, JsonValue]]:
    for name, value in capabilities.items():
        if isinstance(value, list):
            # an empty object is often encoded as an empty list
            note(f"capabilities.{name} is a list")
            yield name, {}
        elif isinstance(value, dict):
            yield name, dict(_usable_flags(name, value, note))
        elif name == "tools" and value is not None:
            yield name, value  # leave it for the SDK to refuse: its meaning is unknown
        elif value is not None:
            note(f"capabilities.{name} is {kind_of(value)}")


def _usable_flags(name: str, capability: JsonObject, note: Note) -> Iterator[tuple[str, JsonValue]]:
    for flag, value in capability.items():
        if flag in ("listChanged", "subscribe") and not isinstance(value, bool | None):
            note(f"capabilities.{name}.{flag} is {kind_of(value)}")
        else:
            yield flag, value


def _repair_version(version: str, note: Note) -> str:
    repaired = version.strip()
    repaired = _REVISIONS.get(repaired, repaired)
    if repaired != version:
        note(f"protocolVersion is {version[:50]!r}, read as {repaired[:50]}")
    return repaired


def _repair_identity(identity: JsonObject, note: Note) -> JsonObject:
    repaired: JsonObject = {}
    for key, value in identity.items():
        if key in ("name", "version") and isinstance(value, int | float) and not isinstance(value, bool):
            note(f"serverInfo.{key} is a number")
            repaired[key] = str(value)
        elif key in ("name", "version") or isinstance(value, _IDENTITY_TYPES.get(key, object)):
            repaired[key] = value
        elif value is not None:
            note(f"serverInfo.{key} is {kind_of(value)}")
    return repaired


_IDENTITY_TYPES: dict[str, type] = {"title": str, "description": str, "websiteUrl": str, "icons": list}
