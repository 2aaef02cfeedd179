"""Compute digests of the tools and of the whole request that a model receives, independent of providers' formats.

docs/events.md specifies both, so that others can compute them. `startGeneration` records them, and replay rebuilds each
request from the log and compares. Each step hashes only what it adds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING

from pydantic import JsonValue

from perstack.core.base.chain import encode_digest
from perstack.core.base.records import JsonObject, canonical_json, read_json
from perstack.core.definitions.instruction import whole_instruction
from perstack.core.definitions.skills import ToolSpec
from perstack.core.runs.state import Run
from perstack.dataclass import dataclass

if TYPE_CHECKING:
    from perstack.core.runs.events.generations import StartGeneration

VERSION = "v1"  # version of the hashed form; a changed form needs a new version, and this one must stay computable

_TOOLS_DIGEST = re.compile(r"v1:([0-9a-f]{64})")
_HINT_CHARS = 6  # characters per part that tell which part differs; the digest itself is complete and covers all parts


@dataclass(frozen=True)
class StoredTools:
    """The tools of one generation, and the blob that stores them. It has no slots: a cache refers to it weakly."""

    specs: tuple[ToolSpec, ...]
    blob: bytes
    sha256: str

    @property
    def digest(self) -> str:
        """The value of `toolsDigest`."""
        return f"{VERSION}:{self.sha256}"


def stored_tools(specs: Sequence[ToolSpec]) -> StoredTools:
    """Return the tools in their stored form: what a model sees of each, in the order in which it sees them."""
    tools: JsonValue = [
        {"name": spec.name, "description": spec.description, "inputSchema": spec.input_schema} for spec in specs
    ]
    blob = canonical_json(tools)
    return StoredTools(tuple(specs), blob, sha256(blob).hexdigest())


def schemas_in(blob: bytes) -> Mapping[str, JsonObject]:
    """Return the schemas of stored tools, by name. Raises ValueError for a blob of another form."""
    tools = read_json(blob)
    if not isinstance(tools, list):
        raise ValueError("the tools are no list")
    schemas: dict[str, JsonObject] = {}
    for tool in tools:
        if not isinstance(tool, dict) or not isinstance(schema := tool.get("inputSchema"), dict):
            raise ValueError("a tool has no schema")
        schemas[str(tool.get("name"))] = schema
    return schemas


def tools_blob(digest: str) -> str | None:
    """Return the name of the blob that `toolsDigest` refers to; None if this version does not know its form."""
    match = _TOOLS_DIGEST.fullmatch(digest)
    return match[1] if match else None


def request_digest(run: Run, event: StartGeneration) -> str:
    """Return the digest of the request that `event` starts. Raises ValueError if it has no tools digest."""
    tools = tools_blob(event.tools_digest or "")
    if tools is None:
        raise ValueError(f"{event.id} has no {VERSION} digest of its tools")
    guidance = run.guidance if event.guidance is None else event.guidance
    instruction = _text_digest(whole_instruction(run.start.instruction, guidance))
    settings = sha256(canonical_json(_settings(run, event))).digest()
    sent_count = len(run.messages)
    messages = run.messages.digest(sent_count)
    digest = sha256(instruction + settings + bytes.fromhex(tools) + messages).digest()
    hints = (instruction, settings, run.messages.digest(max(0, sent_count - 1)), messages)
    return f"{VERSION}:{encode_digest(digest)}.{'.'.join([encode_digest(part)[:_HINT_CHARS] for part in hints])}"


def _settings(run: Run, event: StartGeneration) -> JsonObject:
    """Return everything else that a reply depends on. Keys without a value are left out."""
    provider = run.provider_settings if event.provider_settings is None else event.provider_settings
    settings: JsonObject = {"model": run.model}
    if run.start.reasoning_budget is not None:
        settings["reasoningBudget"] = run.start.reasoning_budget
    if event.final:
        settings["final"] = True
    if event.max_tokens is not None:
        settings["maxTokens"] = event.max_tokens
    if provider:
        settings["provider"] = {name: provider[name] for name in sorted(provider)}
    if run.adaptations:
        settings["adaptations"] = [item.model_dump(mode="json", by_alias=True) for item in run.adaptations]
    return settings


@lru_cache(maxsize=256)
def _text_digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogatepass")).digest()
