"""Provider google-vertex for the providers' test suite: both vendors' formats, with Google's real credential types."""

from __future__ import annotations

import atexit
import json
import tempfile
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from wire import KEY, Wire
from wire_anthropic import AnthropicWire
from wire_google import GoogleWire

from perstack.ports.provider import ProviderConfig
from perstack_vertex.credentials import FILE
from perstack_vertex.plugin import FACTORY

PLACE = {"project": "my-project", "location": "us-central1"}
NOWHERE = {"NO_GCE_CHECK": "true", "CLOUDSDK_CONFIG": "/nowhere"}
"""Variables that exclude all other sources of credentials."""


@cache
def private_key() -> str:
    """Return a private key that belongs to no account."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    kind, format_ = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(kind, format_, serialization.NoEncryption()).decode()


def account_file(folder: Path, token_uri: str) -> str:
    """Write a service account's key as Google Cloud's console does, and return its path."""
    path = folder / "account.json"
    words = {"client_email": "a@my-project.iam.gserviceaccount.com", "private_key_id": "1", "project_id": "my-project"}
    account = {"type": "service_account", **words, "private_key": private_key(), "token_uri": token_uri}
    path.write_text(json.dumps(account))
    return str(path)


class _Tokens(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps({"access_token": KEY, "expires_in": 3600, "token_type": "Bearer"}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Log nothing."""


@cache
def _file_that_gives_key() -> str:
    """Return a credentials file whose tokens are KEY, valid until the process ends."""
    stack = ExitStack()
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), _Tokens))
    stack.callback(server.shutdown)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    atexit.register(stack.close)
    return account_file(folder, f"http://127.0.0.1:{server.server_address[1]}/token")


class _AtVertex(Wire):
    """A wire in whose environment KEY stands for the credentials file that yields it."""

    def config(self, url: str | None, env: Mapping[str, str] | None = None, **more: Any) -> ProviderConfig:
        env = dict(self.env if env is None else env)
        if env.get(FILE) == KEY:
            env[FILE] = _file_that_gives_key()
        return super().config(url, env, **more)


@dataclass(frozen=True, kw_only=True)
class GeminiAtVertex(_AtVertex, GoogleWire):
    """The format generateContent, without call ids."""


@dataclass(frozen=True, kw_only=True)
class ClaudeAtVertex(_AtVertex, AnthropicWire):
    """The Messages format, with the model in the address."""


_COMMON: Mapping[str, Any] = {
    "factory": FACTORY,
    "credential": {"authorization": f"Bearer {KEY}"},
    "env": {FILE: KEY, **NOWHERE},
    "missing": FILE,
    "setting": PLACE,
}
_MODELS = "/v1/projects/my-project/locations/us-central1/publishers"

VERTEX = GeminiAtVertex(
    **_COMMON,
    title="google-vertex",
    model="gemini-3.8-flash",
    path=f"{_MODELS}/google/models/gemini-3.8-flash:streamGenerateContent?alt=sse",
    limits={"generationConfig": {"maxOutputTokens": 99, "temperature": 0.5, "topP": 0.9}},
    schema_at=("generationConfig", "responseJsonSchema"),
    no_tools={"toolConfig": {"functionCallingConfig": {"mode": "NONE"}}},
    overflow="The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).",
    kept={"signature": '"thoughtSignature":"c2ln"'},
    names_calls=False,
)
VERTEX_CLAUDE = ClaudeAtVertex(
    **_COMMON,
    title="google-vertex, Claude",
    model="claude-sonnet-4-5@20250929",
    path=f"{_MODELS}/anthropic/models/claude-sonnet-4-5@20250929:streamRawPredict",
    limits={"max_tokens": 99, "temperature": 0.5, "top_p": 0.9},
    no_tools={"tool_choice": {"type": "none"}},
    overflow="prompt is too long: 210000 tokens > 200000 maximum",
    kept={"signature": '"signature":"sig=="'},
)
