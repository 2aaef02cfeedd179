"""Models of a running Ollama server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import httpx
from pydantic import BaseModel, Field, ValidationError

from perstack.errors import ProviderError
from perstack.ports.provider import OfferedModel, ProviderConfig
from perstack.support.http.endpoint import is_loopback
from perstack_openai.endpoints import ollama_connection

_TIMEOUT_S = 2.0
_MAX_BYTES = 4_000_000


class _Model(BaseModel):
    id: str = Field(max_length=500)


class _Models(BaseModel):
    data: list[_Model] = Field(max_length=10_000)


def models(env: Mapping[str, str]) -> Sequence[OfferedModel]:
    """Return the server's models by name. Raises ProviderError without a valid answer.

    Source: Ollama documentation, «OpenAI compatibility», `/v1/models`.
    """
    endpoint = ollama_connection(ProviderConfig({}, env)).endpoint
    try:
        body = _body(f"{endpoint.base_url}/v1/models", endpoint.headers)
    except httpx.HTTPError as error:
        raise ProviderError(f"no server answers at {endpoint.base_url}: start it with `ollama serve`") from error
    try:
        found = _Models.model_validate_json(body)
    except ValidationError as error:
        raise ProviderError(f"the server at {endpoint.base_url} does not list models as Ollama does") from error
    return sorted((OfferedModel(model.id) for model in found.data), key=lambda model: model.name)


def _body(url: str, headers: Mapping[str, str]) -> bytes:
    """Return the response body, truncated above the maximum size of a model list."""
    body = b""
    with (
        httpx.Client(timeout=_TIMEOUT_S, trust_env=not is_loopback(url)) as client,
        client.stream("GET", url, headers=dict(headers)) as answer,
    ):
        answer.raise_for_status()
        for piece in answer.iter_bytes():
            body += piece
            if len(body) > _MAX_BYTES:
                break
    return body
