"""What a vendor's models are called, cost and need is said by the plugins of providers: the host names none."""

from __future__ import annotations

import re
from pathlib import Path

import perstack

HOST = Path(perstack.__file__).parent
VENDORS = r"anthropic|openai|gemini|claude|\bgpt|deepseek|mistral|azure|bedrock|vertex|ollama|genai"
NO_ENDPOINTS = {
    "frontends/cli/commands.py": "commands as a person types them, for examples in the help",
    "frontends/mcp_server/snippets.py": "the programs that `perstack mcp` is set up in",
    "config/runtimes.py": "runtimes that a definition of the original Perstack may name",
}


def test_the_host_names_no_vendor_of_models() -> None:
    named = {
        path.relative_to(HOST).as_posix(): words
        for path in HOST.rglob("*.py")
        if (words := re.findall(VENDORS, path.read_text(), re.IGNORECASE))
    }
    assert named.keys() == NO_ENDPOINTS.keys(), named
