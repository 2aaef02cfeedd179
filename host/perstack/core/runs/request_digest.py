"""Digests of what a model is sent: of its tools, and of the whole request, in a form that no provider has a part in.

docs/events.md specifies both, so that others can compute them. `startGeneration` has them, and replay builds each
request again from the log and compares. What a step adds is all that is hashed for it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256

from pydantic import JsonValue

from perstack.core.base import JsonObject
from perstack.core.canonical import canonical_json
from perstack.core.chain import unpadded
from perstack.core.events import StartGeneration
from perstack.core.instruction import whole_instruction
from perstack.core.runs.state import Run
from perstack.core.tools import ToolSpec
from perstack.dataclass import dataclass

VERSION = "v1"
"""Of the forms that are hashed. Another form has another version, and this one stays computable."""

_TOOLS = re.compile(r"v1:([0-9a-f]{64})")
_HINT = 6
"""Characters that tell of which part differs; the digest itself is over all parts, and whole."""


@dataclass(frozen=True, slots=True)
class KeptTools:
    """The tools of one generation, and the blob that keeps them."""

    specs: tuple[ToolSpec, ...]
    blob: bytes
    sha256: str
    """The blob's name."""

    @property
    def digest(self) -> str:
        return f"{VERSION}:{self.sha256}"


def kept_tools(specs: Sequence[ToolSpec]) -> KeptTools:
    """The tools as they are kept: what a model sees of each, in the order it sees them."""
    shown: JsonValue = [
        {"name": spec.name, "description": spec.description, "inputSchema": spec.input_schema} for spec in specs
    ]
    blob = canonical_json(shown)
    return KeptTools(tuple(specs), blob, sha256(blob).hexdigest())


def tools_blob(digest: str) -> str | None:
    """The name of the blob that holds the tools of a `toolsDigest`; None if this version does not know its form."""
    found = _TOOLS.fullmatch(digest)
    return found[1] if found else None


def request_digest(run: Run, event: StartGeneration) -> str:
    """Of all that the model is sent in the generation that `event` begins after the state `run`.

    Raises ValueError if the event has no tools digest of this version.
    """
    tools = tools_blob(event.tools_digest or "")
    if tools is None:
        raise ValueError(f"{event.id} has no {VERSION} digest of its tools")
    guidance = run.guidance if event.guidance is None else event.guidance
    instruction = _text_digest(whole_instruction(run.start.instruction, guidance))
    settings = sha256(canonical_json(_settings(run, event))).digest()
    sent = len(run.messages)
    messages = run.messages.digest(sent)
    whole = sha256(instruction + settings + bytes.fromhex(tools) + messages).digest()
    hints = (instruction, settings, run.messages.digest(max(0, sent - 1)), messages)
    return f"{VERSION}:{unpadded(whole)}.{'.'.join(unpadded(part)[:_HINT] for part in hints)}"


def is_comparable(event: StartGeneration) -> bool:
    """Whether the event has digests that this version can compute again."""
    digest = event.request_digest
    return digest is not None and digest.startswith(f"{VERSION}:") and tools_blob(event.tools_digest or "") is not None


def request_difference(run: Run, event: StartGeneration, known: int) -> str | None:
    """In what the request, built again, is not the one that was recorded; None if it is the same.

    `known` is how many of the messages were sent before, and compared.
    """
    again = request_digest(run, event)
    recorded = event.request_digest or ""
    if again == recorded:
        return None
    parts = _differing(again.split("."), recorded.split("."), known, len(run.messages))
    return (
        f"generation of step {event.step_number}: what the log says the model was sent is not what its requestDigest"
        f" says: {' and '.join(parts)}"
    )


def _differing(again: list[str], recorded: list[str], known: int, sent: int) -> list[str]:
    if len(recorded) != len(again):
        return ["the digest has not the form of one"]
    (_, instruction, settings, before, messages), (_, *old) = again, recorded
    parts: list[str] = []
    if instruction != old[0]:
        parts.append("the instruction differs")
    if settings != old[1]:
        parts.append("the model or its settings differ")
    if before != old[2]:
        first = min(known + 1, sent - 1)
        parts.append(
            f"message {first} differs" if first == sent - 1 else f"one of messages {first} to {sent - 1} differs"
        )
    elif messages != old[3]:
        parts.append(f"message {sent} differs")
    return parts or ["the tools differ"]


def _settings(run: Run, event: StartGeneration) -> JsonObject:
    """All else that a reply depends on. A key without a value is left out."""
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
    return settings


@lru_cache(maxsize=256)
def _text_digest(text: str) -> bytes:
    """A Run's instruction is long, and the same at every step."""
    return sha256(text.encode("utf-8", "surrogatepass")).digest()
