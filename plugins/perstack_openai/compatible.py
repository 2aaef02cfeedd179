"""Providers `deepseek` and `ollama`: Chat Completions at other addresses."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from perstack.errors import DefinitionError, Problem
from perstack.ports.environment import refuse_redirected
from perstack.ports.provider import ProviderConfig
from perstack_http.endpoint import choose_base_url, is_loopback, missing_key, read_key, read_settings
from perstack_openai.settings import CompatibleSettings, Connection, dialect_of, endpoint_of, has_credential

DEEPSEEK_BASE_URL = "https://api.deepseek.com"
OLLAMA_BASE_URL = "http://localhost:11434"

_OLLAMA_PORT = 11434


def deepseek_connection(config: ProviderConfig) -> Connection:
    """Source: DeepSeek API documentation, «Your First API Call»."""
    settings = read_settings(CompatibleSettings, config.setting)
    keys = ("DEEPSEEK_API_KEY",)
    base_url = choose_base_url(settings, config.env, "DEEPSEEK_BASE_URL", DEEPSEEK_BASE_URL, keys=keys)
    headers: dict[str, str] = {}
    key = read_key(config.env, "DEEPSEEK_API_KEY")
    if key:
        headers["Authorization"] = f"Bearer {key}"
    headers.update(settings.headers)
    if not has_credential(headers) and not is_loopback(base_url):
        raise missing_key("deepseek", "DEEPSEEK_API_KEY")
    return Connection(endpoint_of(base_url, headers, settings, "chat"), dialect_of(settings, "deepseek"), "chat")


def ollama_connection(config: ProviderConfig) -> Connection:
    """Without a key, as it is used within a network, also over plain http; never a key over that.

    Source: Ollama documentation, «OpenAI compatibility» and «FAQ», section on OLLAMA_HOST.
    """
    settings, env = read_settings(CompatibleSettings, config.setting), config.env
    variable = "OLLAMA_BASE_URL" if env.get("OLLAMA_BASE_URL") else "OLLAMA_HOST"
    address = {variable: _ollama_url(env.get(variable, ""))}
    if settings.base_url is None:
        refuse_redirected(env, variable, ("OLLAMA_API_KEY",))
    base_url = choose_base_url(settings, address, variable, OLLAMA_BASE_URL, allow_plain=True)
    headers: dict[str, str] = {}
    key = read_key(env, "OLLAMA_API_KEY")
    is_safe = base_url.startswith("https:") or is_loopback(base_url)
    if key and is_safe:
        headers["Authorization"] = f"Bearer {key}"
    headers.update(settings.headers)
    if not is_safe and has_credential(headers):
        wrong = f"a credential is not sent over http://, where others would see it: use https://{base_url[7:]}"
        raise DefinitionError((Problem(wrong, "perstack.toml", key="provider.setting.headers"),))
    base_url = re.sub(r"/(api|v1)$", "", base_url)
    dialect = dialect_of(settings, "ollama")
    return Connection(endpoint_of(base_url, headers, settings, "chat"), dialect, "chat", prefix="/v1")


def _ollama_url(host: str) -> str:
    """An address from what OLLAMA_HOST may hold: `host`, `host:port`, `:port` or an address; empty if nothing."""
    host = host.strip()
    if not host:
        return ""
    given = "//" in host
    if host.startswith(":"):
        host = f"localhost{host}"
    try:
        parts = urlsplit(host if given else f"http://{host}")
    except ValueError:
        return host  # whoever checks it says what is wrong with it
    # what a server listens on when it listens to all is not an address of a host
    netloc = re.sub(r"^(0\.0\.0\.0|\[::\])(?=:|$)", "localhost", parts.netloc)
    if not given and not re.search(r":\d+$", netloc):
        netloc = f"{netloc}:{_OLLAMA_PORT}"
    return parts._replace(netloc=netloc).geturl()
