"""The host names no vendor of models: plugins say what theirs are called, cost and need, and `http_providers` helps."""

from __future__ import annotations

import re
from pathlib import Path

import perstack

HOST = Path(perstack.__file__).parent
VENDORS = (
    r"anthropic|openai|gemini|claude|\bgpt|deepseek|mistral|azure|bedrock|vertex|ollama|genai"
    r"|openrouter|groq|moonshot|kimi|minimax|cerebras|lmstudio|litellm|vllm|sglang"
)
NO_ENDPOINTS = {
    "doors/cli/commands.py": "commands as a person types them, for examples in the help",
    "media/file_headers.py": "the source of the most that an image can count",
    "core/definitions/sandbox.py": "runtimes that a definition of the original Perstack may name",
}


def test_the_host_names_no_vendor_of_models() -> None:
    named = {
        path.relative_to(HOST).as_posix(): words
        for path in HOST.rglob("*.py")
        if HOST / "http_providers" not in path.parents  # a library for providers, with what their vendors say
        if (words := re.findall(VENDORS, path.read_text(), re.IGNORECASE))
    }
    assert named.keys() == NO_ENDPOINTS.keys(), named
