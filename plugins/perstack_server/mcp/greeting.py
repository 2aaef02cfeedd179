"""The first answer of the server, sent before anything heavy is imported.

Clients wait for the answer to their opening request, and some drop a server that takes a second. Importing the MCP SDK
takes 0.6 s. So this module, which imports none of it, answers with the server's name and capabilities. The SDK's server
is built from these facts too, and gets the opening request as well; its answer to it is dropped. Spec: MCP 2025-11-25,
lifecycle (`initialize`); MCP 2026-07-28, `server/discover`.
"""

from __future__ import annotations

import json
from typing import TypeAlias

from perstack.dataclass import dataclass
from perstack.version import VERSION

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"
JsonTable: TypeAlias = dict[str, Json]

NAME = "perstack"

INSTRUCTIONS = (
    "Each Expert is a tool of its own: a small agent that works on a query in the project's directory. A call is a Job,"
    " which is recorded step by step and never lost. Its result names the Job: continue with a new query by"
    " continueJob, or by the tool continue_job. A Job that asks a person something waits until the person answers, in"
    " a form that the tool answer shows. One that was interrupted, failed or reached its step limit continues with"
    " resume_job. For long work call with wait: false, and look with get_job."
)

CAPABILITIES: JsonTable = {
    "completions": {},
    "logging": {},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "tools": {"listChanged": True},
}
"""The capabilities, equal in both eras. They must match the handlers of `server`; a test compares them."""

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")  # revisions that begin with `initialize`

STATELESS_VERSIONS = ("2026-07-28",)  # every request is self-contained, and `server/discover` may come first

_VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
_CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
_SERVER_INFO_KEY = "io.modelcontextprotocol/serverInfo"


@dataclass(frozen=True, slots=True)
class Greeting:
    """The answer to an opening request."""

    request_id: str | int
    line: bytes  # JSON-RPC, with its newline


def greet(line: bytes) -> Greeting | None:
    """Return the answer to a client's first message; None unless it is a well-formed opening: then the SDK answers."""
    message = _message(line)
    request_id, params = message.get("id"), message.get("params")
    if not isinstance(request_id, str | int) or isinstance(request_id, bool) or not isinstance(params, dict):
        return None
    match message.get("method"):
        case "initialize":
            result = _initialized(params)
        case "server/discover":
            result = _discovery_meta(params)
        case _:
            result = None
    if result is None:
        return None
    answer = json.dumps({"jsonrpc": "2.0", "id": request_id, "result": result}, ensure_ascii=False)
    try:
        return Greeting(request_id, answer.encode() + b"\n")
    except UnicodeEncodeError:
        return None  # an id with a lone surrogate, which the SDK refuses


def offers_roots(line: bytes) -> bool:
    """Return whether a client's first message says that it can be asked for its open folders."""
    message = _message(line)
    params = message.get("params") if message.get("method") == "initialize" else None
    capabilities = params.get("capabilities") if isinstance(params, dict) else None
    return isinstance(capabilities, dict) and isinstance(capabilities.get("roots"), dict)


def _message(line: bytes) -> JsonTable:
    try:
        message: Json = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


def _initialized(params: JsonTable) -> JsonTable | None:
    asked, client = params.get("protocolVersion"), params.get("clientInfo")
    is_whole = isinstance(asked, str) and isinstance(params.get("capabilities"), dict) and isinstance(client, dict)
    if not is_whole:
        return None
    return {
        "protocolVersion": asked if asked in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1],
        "capabilities": CAPABILITIES,
        "serverInfo": _server_info(),
        "instructions": INSTRUCTIONS,
    }


def _discovery_meta(params: JsonTable) -> JsonTable | None:
    meta = params.get("_meta")
    if not isinstance(meta, dict) or meta.get(_VERSION_KEY) not in STATELESS_VERSIONS or _CAPABILITIES_KEY not in meta:
        return None
    return {
        "resultType": "complete",
        "supportedVersions": list(STATELESS_VERSIONS),
        "capabilities": CAPABILITIES,
        "instructions": INSTRUCTIONS,
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {_SERVER_INFO_KEY: _server_info()},
    }


def _server_info() -> JsonTable:
    return {"name": NAME, "version": VERSION}
