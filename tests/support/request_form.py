"""Compute a request's digest from docs/events.md alone, without the host's code."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from perstack.ports.provider import GenerationRequest


def form(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def b64(digest: bytes) -> str:
    return urlsafe_b64encode(digest)[:43].decode()


def digest_of(instruction: str, settings: dict[str, Any], tools: list[Any], messages: Sequence[Any]) -> str:
    chain = [bytes(32)]
    for message in messages:
        chain.append(sha256(chain[-1] + sha256(form(message)).digest()).digest())
    first, second = sha256(instruction.encode()).digest(), sha256(form(settings)).digest()
    whole = sha256(first + second + sha256(form(tools)).digest() + chain[-1]).digest()
    return ".".join(["v1:" + b64(whole), *(b64(part)[:6] for part in (first, second, chain[-2], chain[-1]))])


def digest_of_request(request: GenerationRequest, provider: dict[str, Any] | None = None) -> str:
    """Return the digest of a request that a provider actually received."""
    settings: dict[str, Any] = {"model": request.model}
    if request.reasoning_budget is not None:
        settings["reasoningBudget"] = request.reasoning_budget
    if not request.allow_tools:
        settings["final"] = True
    if provider:
        settings["provider"] = provider
    tools = [
        {"name": one.name, "description": one.description, "inputSchema": one.input_schema} for one in request.tools
    ]
    return digest_of(request.instruction, settings, tools, [json.loads(one.to_json()) for one in request.messages])
