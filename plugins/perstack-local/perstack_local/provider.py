"""Provider port implemented with an embedded model that runs in this process.

`weights` finds or downloads the GGUF file. `llama` loads it through xllamacpp, one model per process and settings, and
generates in a thread. `prompt` builds the chat and interprets the reply; `grammar` restricts replies to well-formed
calls or to a result schema.

A call is only parsed when it is complete, so just free text is streamed. The model supports text only.

Change together: the spelling of calls in `grammar.json_text` and `prompt.call_text`; settings with `ModelSettings`.
"""

from __future__ import annotations

from collections.abc import Callable

from pydantic import Field
from typing_extensions import override

from perstack.core.base.records import JsonObject, Record
from perstack.errors import ProviderError
from perstack.http_providers.endpoint import read_settings
from perstack.ports.provider import Delta, Generation, GenerationRequest, Provider, ProviderConfig
from perstack_local import MODEL
from perstack_local.llama import LlamaModel, ModelSettings, model_for, require_library
from perstack_local.prompt import Prompt, prompt_of, reply_of
from perstack_local.weights import MODEL_PATH_VARIABLE, find_model


class LocalSettings(Record, extra="forbid"):
    """Settings of provider `local` (`[provider.setting]`)."""

    model_path: str | None = None  # GGUF file to use instead of the embedded model's weights
    context_length: int = Field(default=8192, ge=512)  # tokens of prompt and reply together
    max_tokens: int = Field(default=768, ge=16)  # maximum tokens of one reply
    repeat_penalty: float = Field(default=1.1, ge=1.0)
    """Penalty against repetition, which small models are prone to; 1 for none."""
    temperature: float = Field(default=0.0, ge=0.0)  # temperature; with 0 equal prompts get equal replies
    cache_ram_mib: int = Field(default=512, ge=0)  # MiB of memory for the prompt cache
    threads: int | None = Field(default=None, ge=1)  # processor threads; None for llama.cpp's default


class LocalProvider(Provider):
    """Provider of a model in this process: the embedded MODEL, or a file of the user's own under any name."""

    def __init__(self, settings: LocalSettings, runtime: LlamaModel, *, is_embedded: bool) -> None:
        self._settings = settings
        self.reply_settings: JsonObject = settings.model_dump(
            mode="json", by_alias=True, include={"context_length", "max_tokens", "repeat_penalty", "temperature"}
        )
        self._is_embedded = is_embedded
        self._runtime = runtime

    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        """Generate one reply: a call if tools may be called, free text otherwise. Only free text is streamed."""
        self._check_model(request.model)
        prompt = prompt_of(
            request.instruction,
            request.messages,
            request.tools,
            allow_tools=request.allow_tools,
            output=request.output,
        )
        shows_text = not prompt.is_call
        answer = await self._runtime.chat(
            self._body(prompt, request), lambda text: on_delta(Delta("text", text)) if shows_text else None
        )
        reply, finish_reason = reply_of(answer.text, prompt, answer.finish_reason, f"call_{request.step}")
        return Generation(reply, answer.usage, finish_reason, self._settings.context_length)

    @override
    def takes(self, model: str, mime_type: str) -> bool:
        return False

    async def close(self) -> None:
        """Keep the model loaded for other Runs of this process."""

    def _check_model(self, model: str) -> None:
        if self._is_embedded and model != MODEL:
            raise ProviderError(
                f"provider `local` has no model {model!r}: set model = {MODEL!r}, or name a GGUF file with "
                f"modelPath in [provider.setting] or in {MODEL_PATH_VARIABLE}",
                name="UnknownModel",
            )

    def _body(self, prompt: Prompt, request: GenerationRequest) -> JsonObject:
        body: JsonObject = {
            "messages": [{"role": turn.role, "content": turn.content} for turn in prompt.messages],
            "max_tokens": request.max_tokens_within(self._settings.max_tokens),
            "temperature": request.temperature_over(self._settings.temperature),
            "repeat_penalty": self._settings.repeat_penalty,
            "cache_prompt": True,
        }
        return body if prompt.grammar is None else {**body, "grammar": prompt.grammar}


def create(config: ProviderConfig) -> Provider:
    """Create the provider without loading the model. Raises as `LocalProviderFactory.create` does."""
    require_library()
    settings = read_settings(LocalSettings, config.setting)
    path = find_model(settings.model_path, config.env)
    runtime = model_for(ModelSettings(path, settings.context_length, settings.cache_ram_mib, settings.threads))
    is_embedded = settings.model_path is None and not config.env.get(MODEL_PATH_VARIABLE)
    return LocalProvider(settings, runtime, is_embedded=is_embedded)
