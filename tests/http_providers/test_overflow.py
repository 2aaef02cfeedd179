"""A request that does not fit the context is recognised by status, code and words; nothing else is taken for one."""

from __future__ import annotations

import json

import pytest

from perstack.errors import ProviderError
from perstack.http_providers.errors import error_from_status, status_error

OVERFLOWS: dict[str, tuple[int, str, int | None]] = {  # status, message and stated window of each server
    "anthropic": (400, "prompt is too long: 210000 tokens > 200000 maximum", 200_000),
    "anthropic with the reply": (
        400,
        "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length",
        200_000,
    ),
    "openai": (400, "Your input exceeds the context window of this model. Please adjust your input.", None),
    "openai, older": (
        400,
        "This model's maximum context length is 131072 tokens. However, you requested 140000.",
        131_072,
    ),
    "openai, configured": (
        400,
        "Input tokens exceed the configured limit of 272,000 tokens. They are 280000.",
        272_000,
    ),
    "google": (
        400,
        "The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).",
        1_048_576,
    ),
    "bedrock": (400, "Input is too long for requested model.", None),
    "bedrock, counted": (400, "Input Tokens Exceeded: Number of input tokens exceeds maximum length.", None),
    "bedrock, limit": (400, "Input exceeds the max input token limit", None),
    "vllm": (400, "The decoder prompt (length 70311) is longer than the maximum model length of 40960.", 40_960),
    "vllm, input": (400, "The input length (70311) exceeds model's maximum context length (40960).", 40_960),
    "vllm, only": (
        400,
        "You passed 40961 input tokens. However, the model's context length is only 40960 tokens",
        40_960,
    ),
    "vllm, reply": (400, "'max_tokens' is too large: 5000. This model's maximum context length is 4096 tokens", 4_096),
    "vllm, nothing left": (400, "max_tokens must be at least 1, got -1234.", None),
    "sglang": (400, "The input (70311 tokens) is longer than the model's context length (40960 tokens).", 40_960),
    "sglang, requested": (
        400,
        "Requested token count exceeds the model's maximum context length of 40960 tokens.",
        40_960,
    ),
    "ollama": (500, "prompt too long; exceeded max context length by 1918 tokens", None),
    "lmstudio": (400, "tokens to keep is greater than the context length (n_keep: 5030 >= n_ctx: 4096).", 4_096),
    "lmstudio, older": (
        400,
        "when context the overflows. The model is loaded with context length of only 4096 tokens",
        4_096,
    ),
    "llama.cpp": (500, "the request exceeds the available context size, try increasing it", None),
    "tgi": (422, "`inputs` must have less than 1024 tokens. Given: 2000", 1_024),
    "tgi, sum": (422, "`inputs` tokens + `max_new_tokens` must be <= 4097. Given: 5000", 4_097),
    "copilot": (400, "prompt token count of 135000 exceeds the limit of 128000", 128_000),
    "github": (413, "Request body too large for gpt-4o model. Max size: 8000 tokens.", 8_000),
    "groq": (
        413,
        "Request too large on tokens per minute (TPM): Limit 12000, Requested 18000, reduce your size",
        12_000,
    ),
    "groq, as a rate limit": (429, "Request too large on tokens per min (TPM): Limit 30000, Requested 45000.", 30_000),
    "cerebras": (400, "Please reduce the length of the messages. Current length is 70000 while limit is 40960", 40_960),
    "mistral": (400, "Prompt contains 40000 tokens, too large for model with 32768 maximum context length", 32_768),
    "xai": (400, "This model's maximum prompt length is 131072 but the request contains 537812 tokens.", 131_072),
    "moonshot": (400, "Your request exceeded model token limit: 8192", 8_192),
    "minimax": (400, "invalid params, context window exceeds limit (2013)", None),
    "zai": (400, "Prompt exceeds max length", None),
    "dashscope": (400, "Range of input length should be [1, 30720]", 30_720),
    "litellm": (400, "litellm.ContextWindowExceededError: BadRequestError: too many tokens", None),
    "cohere": (400, "total number of tokens in the prompt cannot exceed 128000 - received 135000", 128_000),
    "databricks": (400, "Input length 140000 exceeds the maximum allowed input length of 131072 tokens", 131_072),
    "nvidia": (400, "Input length 140000 exceeds maximum allowed token size 131072", 131_072),
    "siliconflow": (400, "length of prompt_tokens (70000) must be less than max_seq_len (40960).", 40_960),
    "baidu": (400, "the max input characters is 516096, the input is too large", None),
    "transformers": (
        500,
        "Token indices sequence length is longer than the maximum sequence length for this model (70311 > 40960)",
        40_960,
    ),
    "unknown, sequence": (500, "failed: sequence length 70311 > 40960", 40_960),
    "unknown, fit": (422, "The prompt (70000 tokens) does not fit", None),
    "unknown, advice": (400, "Please shorten your prompt", None),
    "unknown, chat": (500, "Conversation too long; start a new chat", None),
    "any 413": (413, "no", None),
    "a proxy's 413": (413, "Request Entity Too Large", None),
}

NO_OVERFLOWS: dict[str, tuple[int, str, str]] = {  # status, message and name
    "output, openai": (
        400,
        "max_tokens is too large: 100000. This model supports at most 16384 completion tokens",
        "BadRequest",
    ),
    "output, responses": (400, "Invalid 'max_output_tokens': integer above maximum value, got 100000.", "BadRequest"),
    "output, anthropic": (400, "max_tokens: 100000 > 64000, the maximum allowed number of output tokens", "BadRequest"),
    "output, bedrock": (400, "The maximum tokens you requested exceeds the model limit of 4096.", "BadRequest"),
    "output, google": (
        400,
        "it has a maxOutputTokens value of 100000 but the supported range is 1 to 8193",
        "BadRequest",
    ),
    "output, groq": (
        400,
        "`max_tokens` must be less than or equal to `8192`, the maximum is less than the `context_window`",
        "BadRequest",
    ),
    "thinking": (400, "`max_tokens` must be greater than `thinking.budget_tokens`", "BadRequest"),
    "rate, with 413": (
        413,
        "Rate limit on tokens per minute (TPM): Limit 12000, Used 11000, Requested 3000.",
        "RateLimit",
    ),
    "rate, with 400": (400, "ThrottlingException: Too many tokens, please wait before trying again.", "RateLimit"),
    "rate, with 500": (500, "litellm.RateLimitError: input tokens exceed your limit", "RateLimit"),
    "rate": (429, "This request would exceed the limit of 40,000 input tokens per minute.", "RateLimit"),
    "many": (429, "Too many tokens, context length exceeded", "RateLimit"),
    "service": (500, "Service unavailable: the input queue exceeds its limit", "ServerError"),
    "key": (400, "Incorrect API key provided: token too long", "BadRequest"),
    "key, 401": (401, "Invalid API key: token limit exceeded", "Authentication"),
    "token": (400, "The access token has exceeded its lifetime", "BadRequest"),
    "invalid token": (400, "invalid token: longer than allowed", "BadRequest"),
    "money": (
        402,
        "This request requires more credits, or fewer max_tokens: prompt tokens limit exceeded",
        "QuotaExceeded",
    ),
    "model": (404, "prompt is too long", "NotFound"),
    "image": (400, "messages.3.content.0.image: image exceeds 5 MB maximum: 6291456 bytes > 5242880", "BadRequest"),
    "image, 413": (413, "image exceeds 5 MB maximum", "RequestTooLarge"),
    "id": (400, "Invalid 'messages[3].tool_calls[0].id': string too long. Expected at most 40", "BadRequest"),
    "name": (400, "tools.0.custom.name: String should have at most 128 characters", "BadRequest"),
    "pages": (400, "A maximum of 100 PDF pages may be provided.", "BadRequest"),
    "field": (400, "Unsupported parameter: 'context_length' exceeds nothing", "BadRequest"),
    "temperature": (400, "temperature must be less than or equal to 1", "BadRequest"),
    "down": (500, "Internal Server Error", "ServerError"),
}


def _error(status: int, message: str, **more: object) -> ProviderError:
    body = json.dumps({"error": {"message": message, **more}}).encode()
    return status_error(status, {}, body, "https://llm.example/v1/chat")


@pytest.mark.parametrize("server", OVERFLOWS)
def test_an_overflow_is_recognised_in_the_words_of(server: str) -> None:
    status, words, window = OVERFLOWS[server]
    error = _error(status, words)
    assert (error.name, error.context_window) == ("ContextOverflow", window)
    assert not error.is_retryable, "the same request would fail again, also with a status of 500"
    assert words in str(error)
    assert "longer context" in str(error), "says what to do"


@pytest.mark.parametrize("what", NO_OVERFLOWS)
def test_no_overflow_is_seen_in_the_words_about(what: str) -> None:
    status, words, name = NO_OVERFLOWS[what]
    assert _error(status, words).name == name


@pytest.mark.parametrize("status", [400, 413, 422, 500])
@pytest.mark.parametrize(
    "code", ["context_length_exceeded", "exceed_context_size_error", "model_max_prompt_tokens_exceeded", "1261"]
)
def test_an_overflow_may_be_told_by_its_code_alone(code: str, status: int) -> None:
    assert _error(status, "Please try again.", code=code).name == "ContextOverflow"
    assert _error(status, "Please try again.", type=code).name == "ContextOverflow"


def test_an_overflow_may_say_how_much_fits_beside_its_words() -> None:
    body = {
        "error": {"message": "the request exceeds the available context size"},
        "n_prompt_tokens": 8200,
        "n_ctx": 4096,
    }
    assert status_error(400, {}, json.dumps(body).encode(), "https://x").context_window == 4096


@pytest.mark.parametrize("body", [b"", b"<html><title>413 Request Entity Too Large</title></html>", b"{}", b"null"])
def test_a_413_is_an_overflow_whatever_its_body(body: bytes) -> None:
    assert status_error(413, {}, body, "https://x").name == "ContextOverflow"


@pytest.mark.parametrize("body", [b"", b"{}", b'{"detail":[{"msg":"no"}]}', b"<html>x</html>"])
@pytest.mark.parametrize(
    ("status", "may"), [(400, True), (422, True), (500, True), (401, False), (503, False), (429, False)]
)
def test_a_refusal_without_a_reason_may_be_an_overflow(body: bytes, status: int, may: bool) -> None:
    assert status_error(status, {}, body, "https://x").may_not_fit is may


@pytest.mark.parametrize("what", [name for name in NO_OVERFLOWS if name not in ("down", "temperature")])
def test_a_refusal_with_another_reason_is_never_taken_for_an_overflow(what: str) -> None:
    status, words, _ = NO_OVERFLOWS[what]
    assert not _error(status, words).may_not_fit


def test_an_error_in_a_stream_is_read_in_the_same_way() -> None:
    assert error_from_status("context length exceeded", 500).name == "ContextOverflow"


def test_a_long_text_is_searched_in_little_time() -> None:
    words = "context " * 20_000 + "tokens " * 20_000 + "7" * 50_000
    assert _error(400, words).status_code == 400
