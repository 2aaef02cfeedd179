"""llama.cpp in this process: loads a GGUF file once and generates one chat at a time.

Each model has a thread, in which it is loaded on first use and generates. The binding is `xllamacpp` (MIT),
imported only here. llama.cpp logs errors only, to stderr, because stdout belongs to the host.
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

from perstack.core.base.records import JsonObject
from perstack.core.base.usage import Usage
from perstack.core.messages.messages import FinishReason
from perstack.dataclass import dataclass
from perstack.errors import MissingCredential, ProviderError
from perstack_local import INSTALL

LIBRARY = "xllamacpp"


BATCH_TOKENS = 128  # prompt tokens processed between checks for cancellation: about 3 s on 2 cores


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The options with which a model is loaded."""

    model_path: Path
    context_length: int = 8192  # tokens of prompt and reply together
    cache_ram_mib: int = 512
    """MiB of memory for prompt states, so that alternating Runs need not process their prompts again."""
    threads: int | None = None  # processor threads; None for llama.cpp's default


@dataclass(frozen=True, slots=True)
class ChatReply:
    """The text of a reply, with the model's own token counts."""

    text: str
    usage: Usage
    finish_reason: FinishReason


class LlamaServer(Protocol):
    """Used part of `xllamacpp.Server`. A callback that returns True ends the generation."""

    def handle_chat_completions(self, body: JsonObject, callback: Callable[[JsonObject], bool], /) -> object:
        """Generate a reply, passing each chunk to `callback`. Blocks."""
        ...


OpenServer = Callable[[ModelSettings], LlamaServer]


class _LlamaPromptDetails(BaseModel):
    cached_tokens: int = 0


class _UsageFigures(BaseModel):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _LlamaPromptDetails = _LlamaPromptDetails()


class _Delta(BaseModel):
    content: str | None = None


class _LlamaChoice(BaseModel):
    delta: _Delta = _Delta()
    finish_reason: str | None = None


class _LlamaError(BaseModel):
    code: int | None = None
    message: str = ""
    type: str = ""


class _LlamaChunk(BaseModel):
    """Event of the stream in OpenAI's Chat Completions format, without llama.cpp's additions."""

    choices: list[_LlamaChoice] = []
    usage: _UsageFigures | None = None
    error: _LlamaError | None = None


@dataclass(slots=True)
class _ReplyStream:
    on_text: Callable[[str], None]
    stopped: threading.Event = field(default_factory=threading.Event)
    texts: list[str] = field(default_factory=list[str])
    usage: Usage = field(default_factory=Usage)
    finish: str | None = None
    failure: _LlamaError | None = None

    def add_chunk(self, raw: JsonObject) -> bool:
        """Process a chunk. Return True to end the generation."""
        if self.stopped.is_set():
            return True
        chunk = _LlamaChunk.model_validate(raw)
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
        """Return the reply. Raises ProviderError if the stream reported an error or ended early."""
        if self.failure is not None:
            raise _convert_failure(self.failure)
        if self.finish is None:
            raise ProviderError("the embedded model's reply ended early", name="CutStream", is_retryable=True)
        return ChatReply("".join(self.texts), self.usage, "length" if self.finish == "length" else "stop")


class LlamaModel:
    """A model with its thread. Chats run one at a time; a chat that is cancelled while it waits never starts."""

    def __init__(self, settings: ModelSettings, open_server: OpenServer | None = None) -> None:
        """Load nothing yet; `open_server` replaces xllamacpp."""
        self._settings = settings
        self._open = open_server or _open_xllamacpp
        self._server: LlamaServer | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="perstack-local")

    async def chat(self, body: JsonObject, on_text: Callable[[str], None]) -> ChatReply:
        """Generate one reply to an OpenAI-style request body; `on_text` gets its pieces in the caller's event loop.

        Raises MissingCredential or ProviderError. A cancelled model stops at its next token or prompt batch.
        """
        loop = asyncio.get_running_loop()
        stream = _ReplyStream(lambda text: _call_soon(loop, on_text, text))
        try:
            return await loop.run_in_executor(self._thread, self._generate, body, stream)
        finally:
            stream.stopped.set()

    def _generate(self, body: JsonObject, stream: _ReplyStream) -> ChatReply:
        if self._server is None:
            self._server = self._open(self._settings)
        request: JsonObject = {"stream": True, "stream_options": {"include_usage": True}, "return_progress": True}
        self._server.handle_chat_completions({**body, **request}, stream.add_chunk)
        return stream.reply()


_runtimes: dict[ModelSettings, LlamaModel] = {}
_runtimes_lock = threading.Lock()


def model_for(settings: ModelSettings) -> LlamaModel:
    """Return this process's model for these settings. It is loaded at its first chat."""
    with _runtimes_lock:
        return _runtimes.setdefault(settings, LlamaModel(settings))


def is_installed() -> bool:
    """Return whether the library is installed, without importing it."""
    return importlib.util.find_spec(LIBRARY) is not None


def require_library() -> None:
    """Raise MissingCredential with the install command if the library is missing."""
    if not is_installed():
        raise MissingCredential(f"the embedded model needs the library {LIBRARY}: install it with `{INSTALL}`")


class _ModelParameters(Protocol):
    path: str


class _CpuParameters(Protocol):
    n_threads: int


class _Parameters(Protocol):
    """Used part of `xllamacpp.CommonParams`, under llama.cpp's own names."""

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


class _Xllamacpp(Protocol):
    def CommonParams(self) -> _Parameters: ...
    def Server(self, parameters: _Parameters, /) -> LlamaServer: ...


def _import_library() -> _Xllamacpp:
    require_library()
    # the library has no types; these declarations are ours
    return cast("_Xllamacpp", importlib.import_module(LIBRARY))


def _open_xllamacpp(settings: ModelSettings) -> LlamaServer:
    """Load the model. Raises ProviderError if llama.cpp cannot load the file."""
    library = _import_library()
    parameters = library.CommonParams()
    parameters.model.path = str(settings.model_path)
    parameters.n_ctx = settings.context_length
    parameters.n_batch = parameters.n_ubatch = BATCH_TOKENS
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
            f"cannot load {settings.model_path} ({error}): is it a complete GGUF file, and is there enough memory?",
            name="ModelNotLoaded",
        ) from error


def _close_http(parameters: _Parameters) -> None:
    """Lock the HTTP port: the library always listens on loopback, and nothing here uses it."""
    parameters.api_keys = [secrets.token_hex(32)]
    parameters.cors_origins = "http://localhost"
    parameters.n_threads_http = 1
    parameters.endpoint_slots = False
    parameters.ui = False


def _convert_failure(failure: _LlamaError) -> ProviderError:
    if "exceed_context_size" in failure.type:
        message = f"{failure.message}: raise contextLength in [provider.setting], or give the Expert less to read"
        return ProviderError(message, name="ContextOverflow", status_code=failure.code)
    name = "BadRequest" if failure.code == 400 else "ProviderError"
    return ProviderError(failure.message or "the embedded model failed", name=name, status_code=failure.code)


def _call_soon(loop: asyncio.AbstractEventLoop, on_text: Callable[[str], None], text: str) -> None:
    # if the event loop is closed, nobody reads the text
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(on_text, text)
