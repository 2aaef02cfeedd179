"""Each provider of this plugin by its name: what makes its connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from perstack.ports.provider import ProviderConfig
from perstack_openai.azure import azure_connection
from perstack_openai.compatible import deepseek_connection, ollama_connection
from perstack_openai.provider import OpenAIProvider
from perstack_openai.settings import Connection, openai_connection

CONNECTIONS: Mapping[str, Callable[[ProviderConfig], Connection]] = {
    "openai": openai_connection,
    "deepseek": deepseek_connection,
    "azure-openai": azure_connection,
    "ollama": ollama_connection,
}


def create(name: str, config: ProviderConfig) -> OpenAIProvider:
    """The provider of that name from its settings and the environment."""
    return OpenAIProvider(CONNECTIONS[name](config))
