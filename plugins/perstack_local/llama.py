"""llama.cpp in this process: loads a GGUF file once and answers one chat after the other.

Each model has one thread of its own, in which it is loaded, on its first use, and in which it generates. The binding is
`xllamacpp` (MIT), imported only there. What llama.cpp has to say goes to stderr, errors only: stdout is the host's.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Protocol, cast

from pydantic import BaseModel

from perstack.core.base import JsonObject
from perstack.core.events import FinishReason
from perstack.core.usage import Usage
from perstack.dataclass import dataclass
from perstack.errors import MissingCredential, ProviderError
from perstack_local.names import INSTALL

LIBRARY = "xllamacpp"


BATCH = 128
"""Prompt tokens that are worked off between two looks at whether the generation was cancelled: some 3 s on 2 cores."""


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """What a model is loaded with."""

    model_path: Path
    context_length: int = 8192
    """Tokens of prompt and reply together."""
    cache_ram_mib: int = 512
    """MiB of memory for the states of prompts, so that Runs that take turns need not read theirs again."""
    threads: int | None = None
    """None: as many as llama.cpp thinks good."""


@dataclass(frozen=True, slots=True)
class ChatReply:
    """The model's text, and its own figures."""

    text: str
    usage: Usage
    finish_reason: FinishReason


class Server(Protocol):
    """The part of `xllamacpp.Server` that is used. A callback that returns true ends the generation."""

    def handle_chat_completions(self, body: JsonObject, callback: Callable[[JsonObject], bool], /) -> object: ...


OpenServer = Callable[[RuntimeSettings], Server]


class _PromptDetails(BaseModel):
    cached_tokens: int = 0


class _UsageFigures(BaseModel):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails = _PromptDetails()


class _Delta(BaseModel):
    content: str | None = None


class _Choice(BaseModel):
    delta: _Delta = _Delta()
    finish_reason: str | None = None


class _Failure(BaseModel):
    code: int | None = None
    message: str = ""
    type: str = ""


class _Chunk(BaseModel):
    """One event of the stream, as OpenAI's Chat Completions has it; llama.cpp's additions are left out."""

    choices: list[_Choice] = []
    usage: _UsageFigures | None = None
    error: _Failure | None = None


@dataclass(slots=True)
class _Stream:
    """Takes the chunks in as they come."""

    on_text: Callable[[str], None]
    stopped: threading.Event = field(default_factory=threading.Event)
    texts: list[str] = field(default_factory=list[str])
    usage: Usage = field(default_factory=Usage)
    finish: str | None = None
    failure: _Failure | None = None

    def take(self, raw: JsonObject) -> bool:
        """Whether the generation is to end here."""
        if self.stopped.is_set():
            return True
        chunk = _Chunk.model_validate(raw)
        self.failure = chunk.error or self.failure
        if chunk.usage is not None:
            cached = chunk.usage.prompt_tokens_details.cached_tokens
            self.usage = Usage.of(chunk.usage.prompt_tokens, chunk.usage.completion_tokens, cached=cached)
        for choice in chunk.choices:
            self.finish = choice.finish_reason or self.finish
            if choice.delta.content:
                self.texts.append(choice.delta.content)
                self.on_text(choice.delta.content)
        return False

    def reply(self) -> ChatReply:
        """Raises ProviderError if the stream told of an error, or broke off."""
        if self.failure is not None:
            raise _error_of(self.failure)
        if self.finish is None:
            raise ProviderError("the embedded model's reply broke off", name="CutStream", is_retryable=True)
        return ChatReply("".join(self.texts), self.usage, "length" if self.finish == "length" else "stop")


class Runtime:
    """One model in its thread. Chats wait for each other; a chat that is cancelled while it waits never starts."""

    def __init__(self, settings: RuntimeSettings, open_server: OpenServer | None = None) -> None:
        self._settings = settings
        self._open = open_server or _open_xllamacpp
        self._server: Server | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="perstack-local")

    async def chat(self, body: JsonObject, on_text: Callable[[str], None]) -> ChatReply:
        """One reply to an OpenAI-style request body; `on_text` gets its pieces, in the caller's event loop.

        Raises MissingCredential if the library is not installed, ProviderError if the model cannot be loaded or
        refuses the request. When it is cancelled, the model stops at its next token or batch of the prompt.
        """
        loop = asyncio.get_running_loop()
        stream = _Stream(lambda text: _call_soon(loop, on_text, text))
        try:
            return await loop.run_in_executor(self._thread, self._generate, body, stream)
        finally:
            stream.stopped.set()

    def _generate(self, body: JsonObject, stream: _Stream) -> ChatReply:
        if self._server is None:
            self._server = self._open(self._settings)
        request: JsonObject = {"stream": True, "stream_options": {"include_usage": True}, "return_progress": True}
        self._server.handle_chat_completions({**body, **request}, stream.take)
        return stream.reply()


_runtimes: dict[RuntimeSettings, Runtime] = {}
_runtimes_lock = threading.Lock()


def runtime_for(settings: RuntimeSettings) -> Runtime:
    """The one Runtime of this process with these settings. Nothing is loaded before its first chat."""
    with _runtimes_lock:
        return _runtimes.setdefault(settings, Runtime(settings))


def is_installed() -> bool:
    """Whether the library is there, without importing it."""
    return importlib.util.find_spec(LIBRARY) is not None


def require_library() -> None:
    """Raises MissingCredential with the command that installs the library, if it is not there."""
    if not is_installed():
        raise MissingCredential(f"the embedded model needs the library {LIBRARY}: install it with `{INSTALL}`")


class _ModelParameters(Protocol):
    path: str


class _CpuParameters(Protocol):
    n_threads: int


class _Parameters(Protocol):
    """The part of `xllamacpp.CommonParams` that is set, under llama.cpp's own names."""

    model: _ModelParameters
    cpuparams: _CpuParameters
    n_ctx: int
    n_batch: int
    n_ubatch: int
    n_parallel: int
    cache_ram_mib: int
    cors_origins: str
    api_keys: list[str]
    n_threads_http: int
    endpoint_slots: bool
    ui: bool
    warmup: bool
    verbosity: int


class _Library(Protocol):
    def CommonParams(self) -> _Parameters: ...
    def Server(self, parameters: _Parameters, /) -> Server: ...


def _library() -> _Library:
    require_library()
    # the library has no type information: from here on it has ours
    return cast("_Library", importlib.import_module(LIBRARY))


def _open_xllamacpp(settings: RuntimeSettings) -> Server:
    library = _library()
    parameters = library.CommonParams()
    parameters.model.path = str(settings.model_path)
    parameters.n_ctx = settings.context_length
    parameters.n_batch = parameters.n_ubatch = BATCH
    parameters.n_parallel = 1
    parameters.cache_ram_mib = settings.cache_ram_mib
    if settings.threads is not None:
        parameters.cpuparams.n_threads = settings.threads
    _close_http(parameters)
    parameters.warmup = False
    parameters.verbosity = 1
    try:
        return library.Server(parameters)
    except RuntimeError as error:
        raise ProviderError(
            f"cannot load {settings.model_path} ({error}): is it a whole GGUF file, and is there memory for it?",
            name="ModelNotLoaded",
        ) from error


def _close_http(parameters: _Parameters) -> None:
    """The library always listens on a port of the loopback interface, which nobody here uses: let nobody else."""
    parameters.api_keys = [secrets.token_hex(32)]
    parameters.cors_origins = "http://localhost"
    parameters.n_threads_http = 1
    parameters.endpoint_slots = False
    parameters.ui = False


def _error_of(failure: _Failure) -> ProviderError:
    if "exceed_context_size" in failure.type:
        message = f"{failure.message}: raise contextLength in [provider.setting], or give the Expert less to read"
        return ProviderError(message, name="ContextOverflow", status_code=failure.code)
    name = "BadRequest" if failure.code == 400 else "ProviderError"
    return ProviderError(failure.message or "the embedded model failed", name=name, status_code=failure.code)


def _call_soon(loop: asyncio.AbstractEventLoop, on_text: Callable[[str], None], text: str) -> None:
    # a loop that has ended has nobody left to show the text to
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(on_text, text)
