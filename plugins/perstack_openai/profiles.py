"""Profiles: the peculiarities of endpoints that speak OpenAI's formats, as data.

One row per endpoint. The codecs read a row and never ask for a vendor's name, so that adding an endpoint is adding a
row: its provider, its key, its prices, its place in `perstack init` and its line in docs/providers.md follow from it.
`make matrix` prints the table there; tests run each row against a server that refuses what the row says.

`refuses` uses one vocabulary, for known refusals and for those named in an error: a field of the request
(`stream_options`), a field of its messages (`messages.name`), or one of the forms in `FORMS`. The encoder leaves all of
these out. So an endpoint without a row starts as `PLAIN`, and learns from its errors.

Every command imports this module, so patterns of models' names are texts here and compiled where they are used.
"""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from perstack.dataclass import dataclass

FORMS = {
    "null content": "`null` as the content of a reply that has only calls",
    "empty content": "an empty text as that content",
    "absent content": "no content at all there",
    "consecutive users": "two messages of the user in a row",
    "user after tool": "a message of the user right after a tool's result",
    "changed call ids": "changed ids of calls: its ids carry signatures",
    "long call ids": "ids of calls that are not nine letters and digits",
}
"""Forms of messages that an endpoint may refuse, with their meaning for people."""


@dataclass(frozen=True, slots=True)
class Efforts:
    """The nearest reasoning effort for each word of a reasoning budget, for a family of models."""

    models: str = ""
    none: str = "none"
    minimal: str = "minimal"
    low: str = "low"
    medium: str = "medium"
    high: str = "high"

    def nearest(self, word: str) -> str:
        """Return the effort that is sent for a word."""
        return str(getattr(self, word))


@dataclass(frozen=True, slots=True)
class ModelRules:
    """Rules for the models of one vendor, by their names."""

    take_schemas: str | None = None  # models known to accept a schema for the reply
    without_reasoning: str | None = None  # models that reject reasoning options
    call_only_without_reasoning: str | None = None
    """Models that reject tools over Chat Completions unless the reasoning effort is explicitly `none`."""
    fixed_temperature: bool = False  # True if models that reason reject a temperature
    efforts: tuple[Efforts, ...] = (Efforts(),)


@dataclass(frozen=True, slots=True)
class Profile:
    """One endpoint: its address, what it needs and refuses, and its forms of reasoning and usage."""

    name: str  # value of `providerName`
    address: str  # base URL, without the path of a method; empty if each user has a different one
    sources: tuple[str, ...]  # documentation and reports on which the row is based
    keys: tuple[str, ...] = ()  # environment variables of the key, the usual one first
    address_variables: tuple[str, ...] = ()
    is_local: bool = False  # a server that the user runs: its address must be set, plain http is allowed, no key needed
    other_hosts: tuple[str, ...] = ()  # further addresses of this service
    takes_any_address: bool = False  # True if users often set `baseUrl` to a server without a row
    has_own_port: bool = False  # True if other programs rarely use its port, so that `perstack init` looks there
    start: str = ""  # command that starts a local server, for error messages
    priority: int = 80  # position among the configured providers if the user names none
    default_model: str | None = None
    low_model: str | None = None  # model for tier `low`; the default model is that of `middle`
    high_model: str | None = None
    price_list: str | None = None  # id of the vendor in the library of published prices
    refuses: frozenset[str] = frozenset()
    max_tokens: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"  # preferred name of the reply's limit
    reasoning: tuple[str, ...] = ()  # fields of readable reasoning, for documentation: the decoder finds others as well
    needs_reasoning: str | None = None  # field that each earlier reply with calls must have
    reasoning_models: str = ""  # pattern of the models with that need
    no_reasoning: str = " "  # value of that field for a reply without reasoning, or from another endpoint
    reads_tags: bool = True  # True if `<think>` at the start of a reply's text begins reasoning
    thinking_switch: Literal["none", "on and off", "off"] = "none"
    """Use of the field `thinking`: it switches reasoning on and off, in addition to the effort, or only off."""
    speaks_responses: bool = False  # True if Responses is used unless `api` says otherwise, and PDFs are accepted
    usage_at: Literal["top", "choice", "x_groq"] = "top"  # where the token counts are in a chunk
    models: ModelRules = ModelRules()

    @property
    def host(self) -> str:
        return urlsplit(self.address).hostname or ""


_OPENAI_MODELS = ModelRules(
    # source: OpenAI guide, "Structured model outputs", section "Supported models"
    take_schemas=r"^(gpt-4o(?!-2024-05)|gpt-4\.|gpt-[5-9]|o1(?!-mini|-preview)|o[3-9])",
    without_reasoning=r"gpt-(3|4)|chat-latest",
    call_only_without_reasoning=r"^gpt-(5\.[4-9]|[6-9])",
    fixed_temperature=True,
    # source: OpenAI documentation, "Reasoning models", section "Reasoning effort"
    efforts=(
        Efforts(r"^o\d", none="low", minimal="low"),
        Efforts(r"^gpt-5(-|$)", none="minimal"),
        Efforts(r"^gpt-(5\.|[6-9])", minimal="low"),
        Efforts(),
    ),
)
_NO_MINIMAL = ModelRules(efforts=(Efforts(minimal="low"),))
_TEMPLATE = frozenset({"consecutive users"})
"""Refusals of servers that apply the model's own chat template: many templates require alternating roles.

Source: vllm-project/vllm#6862; withcatai/node-llama-cpp#263; the templates of Mistral and Gemma models.
"""

PLAIN = Profile(
    name="",
    address="",
    sources=("what most compatible servers have in common", "usage is asked for, since budgets need counts"),
    refuses=frozenset({"max_completion_tokens", "null content", "consecutive users"}),
    reasoning=("reasoning_content", "reasoning", "reasoning_details", "<think>"),
)
"""Profile of an endpoint without a row."""

PROFILES: tuple[Profile, ...] = (
    Profile(
        name="openai",
        address="https://api.openai.com/v1",
        other_hosts=("openai.com",),
        takes_any_address=True,
        sources=('OpenAI API reference, "Chat Completions"',),
        keys=("OPENAI_API_KEY",),
        address_variables=("OPENAI_BASE_URL",),
        priority=20,
        default_model="gpt-5-mini",
        low_model="gpt-5-nano",
        high_model="gpt-5",
        price_list="openai",
        max_tokens="max_completion_tokens",  # OpenAI's reasoning models reject `max_tokens`
        refuses=frozenset({"max_tokens"}),
        reads_tags=False,
        speaks_responses=True,
        models=_OPENAI_MODELS,
    ),
    Profile(
        name="deepseek",
        address="https://api.deepseek.com",
        sources=('DeepSeek API documentation, "Your First API Call", "Thinking Mode"',),
        keys=("DEEPSEEK_API_KEY",),
        address_variables=("DEEPSEEK_BASE_URL",),
        priority=40,
        default_model="deepseek-flash",
        low_model="deepseek-flash",
        high_model="deepseek-v4-pro",
        price_list="deepseek",
        refuses=frozenset({"max_completion_tokens", "consecutive users", "null content"}),
        reasoning=("reasoning_content",),
        needs_reasoning="reasoning_content",  # "Missing `reasoning_content` field in the assistant message"
        no_reasoning="",
        thinking_switch="on and off",
        models=ModelRules(efforts=(Efforts(minimal="low", medium="high"),)),
    ),
    Profile(
        name="azure-openai",
        address="",
        sources=('Azure OpenAI documentation, "REST API reference"',),
        keys=("AZURE_OPENAI_API_KEY", "AZURE_API_KEY", "AZURE_OPENAI_AD_TOKEN"),
        address_variables=("AZURE_RESOURCE_NAME", "AZURE_OPENAI_ENDPOINT", "AZURE_BASE_URL"),
        priority=50,
        price_list="azure",
        max_tokens="max_completion_tokens",
        refuses=frozenset({"max_tokens"}),
        reads_tags=False,
        models=_OPENAI_MODELS,
    ),
    Profile(
        name="openrouter",
        address="https://openrouter.ai/api/v1",
        sources=(
            'OpenRouter documentation, "Reasoning Tokens", section "Preserving Reasoning"',
            "pydantic-ai, `providers/openrouter.py`",
        ),
        keys=("OPENROUTER_API_KEY",),
        address_variables=("OPENROUTER_BASE_URL",),
        priority=80,
        price_list="openrouter",
        refuses=frozenset({"max_completion_tokens", "empty content", "consecutive users"}),
        reasoning=("reasoning", "reasoning_details", "extra_content"),
    ),
    Profile(
        name="groq",
        address="https://api.groq.com/openai/v1",
        sources=(
            'Groq documentation, "OpenAI Compatibility", section "Currently Unsupported OpenAI Features"',
            "vercel/ai, `packages/groq`",
        ),
        keys=("GROQ_API_KEY",),
        address_variables=("GROQ_BASE_URL",),
        priority=81,
        default_model="openai/gpt-oss-120b",
        price_list="groq",
        refuses=frozenset({"messages.name", "logprobs", "logit_bias", "top_logprobs", "messages.reasoning_content"}),
        reasoning=("reasoning",),
        usage_at="x_groq",
        models=_NO_MINIMAL,
    ),
    Profile(
        name="mistral",
        address="https://api.mistral.ai/v1",
        sources=(
            'Mistral API reference, "Chat"',
            "mistralai/platform-docs-public#7",
            "anomalyco/opencode#1680",
            "charmbracelet/crush#1590",
        ),
        keys=("MISTRAL_API_KEY",),
        address_variables=("MISTRAL_BASE_URL",),
        priority=82,
        default_model="mistral-medium-latest",
        price_list="mistral",
        # Mistral sends the usage without `stream_options`, and answers that field with status 422
        refuses=frozenset(
            {
                "stream_options",
                "max_completion_tokens",
                "messages.reasoning_content",
                "messages.reasoning",
                "null content",
                "consecutive users",
                "user after tool",
                "long call ids",
            }
        ),
        reasoning=("thinking in the content",),
        models=ModelRules(efforts=(Efforts(minimal="high", low="high", medium="high"),)),
    ),
    Profile(
        name="xai",
        address="https://api.x.ai/v1",
        sources=('xAI API reference, "Chat Completions"', "vercel/ai, `packages/xai`"),
        keys=("XAI_API_KEY",),
        address_variables=("XAI_BASE_URL",),
        priority=83,
        default_model="grok-4.7",
        price_list="x-ai",
        max_tokens="max_completion_tokens",
        refuses=frozenset({"null content"}),
        reasoning=("reasoning_content",),
        models=_NO_MINIMAL,
    ),
    Profile(
        name="together",
        address="https://api.together.xyz/v1",
        sources=(
            'Together AI documentation, "OpenAI Compatibility", "GLM-5.3 quickstart"',
            "vercel/ai, `packages/togetherai`",
        ),
        keys=("TOGETHER_API_KEY", "TOGETHER_AI_API_KEY"),
        address_variables=("TOGETHER_BASE_URL",),
        priority=84,
        default_model="openai/gpt-oss-120b",
        price_list="together",
        refuses=frozenset({"max_completion_tokens", "null content"}) | _TEMPLATE,
        reasoning=("reasoning", "reasoning_content"),
        models=_NO_MINIMAL,
    ),
    Profile(
        name="fireworks",
        address="https://api.fireworks.ai/inference/v1",
        sources=(
            'Fireworks AI documentation, "OpenAI compatibility"',
            "FlowiseAI/Flowise#2866 (unknown fields are a 400)",
            "vercel/ai, `packages/fireworks`",
        ),
        keys=("FIREWORKS_API_KEY",),
        address_variables=("FIREWORKS_BASE_URL",),
        priority=85,
        default_model="accounts/fireworks/models/glm-5p3",
        price_list="fireworks",
        refuses=frozenset({"max_completion_tokens", "messages.name", "null content"}) | _TEMPLATE,
        reasoning=("reasoning_content",),
        models=_NO_MINIMAL,
    ),
    Profile(
        name="cerebras",
        address="https://api.cerebras.ai/v1",
        sources=(
            'Cerebras documentation, "OpenAI Compatibility", "Reasoning"',
            "QwenLM/qwen-code#11045",
            "agno-agi/agno#4508",
            "vercel/ai, `packages/cerebras`",
        ),
        keys=("CEREBRAS_API_KEY",),
        address_variables=("CEREBRAS_BASE_URL",),
        priority=86,
        default_model="gpt-oss-120b",
        price_list="cerebras",
        max_tokens="max_completion_tokens",
        refuses=frozenset(
            {"parallel_tool_calls", "logit_bias", "messages.reasoning_content", "messages.reasoning_details"}
        ),
        reasoning=("reasoning",),
        models=_NO_MINIMAL,
    ),
    Profile(
        name="moonshot",
        other_hosts=("api.moonshot.cn",),
        address="https://api.moonshot.ai/v1",
        sources=(
            'Moonshot AI documentation, "Use Kimi K2 Thinking Model"',
            "continuedev/continue#11600",
            "HKUDS/nanobot#3939",
            "pydantic-ai, `providers/moonshotai.py`",
        ),
        keys=("MOONSHOT_API_KEY", "MOONSHOTAI_API_KEY"),
        address_variables=("MOONSHOT_BASE_URL",),
        priority=87,
        default_model="kimi-k3",
        price_list="moonshotai",
        refuses=frozenset({"empty content", "max_completion_tokens", "consecutive users"}),
        reasoning=("reasoning_content",),
        needs_reasoning="reasoning_content",  # "thinking is enabled but reasoning_content is missing"
        reasoning_models="kimi",
        usage_at="choice",
        thinking_switch="off",
        models=ModelRules(fixed_temperature=True),
    ),
    Profile(
        name="zai",
        other_hosts=("open.bigmodel.cn",),
        address="https://api.z.ai/api/paas/v4",
        sources=('Z.AI documentation, "Thinking Mode", "Chat Completion"', "pydantic-ai, `providers/zai.py`"),
        keys=("ZAI_API_KEY",),
        address_variables=("ZAI_BASE_URL",),
        priority=88,
        default_model="glm-5.3",
        price_list="zai",
        refuses=frozenset({"max_completion_tokens", "null content", "consecutive users"}),
        reasoning=("reasoning_content",),
        thinking_switch="off",
        models=ModelRules(efforts=(Efforts(minimal="low", medium="high"),)),
    ),
    Profile(
        name="minimax",
        other_hosts=("api.minimaxi.com",),
        address="https://api.minimax.io/v1",
        sources=(
            'MiniMax documentation, "Compatible OpenAI API"',
            "RakuenSoftware/aimee#761 (unknown fields are a 400)",
            "CherryHQ/cherry-studio#16431",
        ),
        keys=("MINIMAX_API_KEY",),
        address_variables=("MINIMAX_BASE_URL",),
        priority=89,
        default_model="MiniMax-M3",
        price_list="minimax",
        max_tokens="max_completion_tokens",
        refuses=frozenset({"max_tokens", "tool_choice", "reasoning_effort", "messages.name", "null content"}),
        reasoning=("<think>", "reasoning_content", "reasoning_details"),
        thinking_switch="off",
    ),
    Profile(
        name="ollama",
        address="http://localhost:11434",
        sources=('Ollama documentation, "OpenAI compatibility", "FAQ"',),
        keys=("OLLAMA_API_KEY",),
        address_variables=("OLLAMA_BASE_URL", "OLLAMA_HOST"),
        is_local=True,
        has_own_port=True,
        start="ollama serve",
        priority=90,
        refuses=frozenset({"max_completion_tokens"}) | _TEMPLATE,
        reasoning=("reasoning",),
        models=_NO_MINIMAL,
    ),
    Profile(
        name="lmstudio",
        address="http://localhost:1234",
        sources=('LM Studio documentation, "OpenAI Compatibility Endpoints"',),
        keys=("LMSTUDIO_API_KEY", "LM_API_TOKEN"),
        address_variables=("LMSTUDIO_BASE_URL",),
        is_local=True,
        has_own_port=True,
        start="lms server start",
        priority=91,
        refuses=frozenset({"max_completion_tokens", "null content"}) | _TEMPLATE,
        reasoning=("reasoning_content", "reasoning", "<think>"),
        models=_NO_MINIMAL,
    ),
    Profile(
        name="llamacpp",
        address="http://localhost:8080",
        sources=("llama.cpp, `tools/server/README.md`, section on `/v1/chat/completions`",),
        keys=("LLAMACPP_API_KEY", "LLAMA_API_KEY"),
        address_variables=("LLAMACPP_BASE_URL",),
        is_local=True,
        start="llama-server",
        priority=92,
        refuses=frozenset({"null content"}) | _TEMPLATE,
        reasoning=("reasoning_content", "<think>"),
    ),
    Profile(
        name="vllm",
        address="http://localhost:8000",
        sources=('vLLM documentation, "OpenAI-Compatible Server", "Interleaved Thinking"', "vllm-project/vllm#6862"),
        keys=("VLLM_API_KEY",),
        address_variables=("VLLM_BASE_URL",),
        is_local=True,
        start="vllm serve",
        priority=93,
        refuses=frozenset({"null content"}) | _TEMPLATE,
        reasoning=("reasoning", "reasoning_content", "<think>"),
        models=_NO_MINIMAL,
    ),
    Profile(
        name="sglang",
        address="http://localhost:30000",
        sources=('SGLang documentation, "OpenAI APIs - Completions", "Reasoning Parser"',),
        keys=("SGLANG_API_KEY",),
        address_variables=("SGLANG_BASE_URL",),
        is_local=True,
        start="python -m sglang.launch_server",
        priority=94,
        refuses=frozenset({"null content"}) | _TEMPLATE,
        reasoning=("reasoning_content", "<think>"),
        models=_NO_MINIMAL,
    ),
    Profile(
        name="litellm",
        address="http://localhost:4000",
        sources=('LiteLLM documentation, "Proxy", "\'Thinking\' / \'Reasoning Content\'", "Gemini 3"',),
        keys=("LITELLM_API_KEY", "LITELLM_PROXY_API_KEY"),
        address_variables=("LITELLM_BASE_URL", "LITELLM_PROXY_API_BASE"),
        is_local=True,
        start="litellm --config config.yaml",
        priority=95,
        refuses=frozenset({"empty content", "consecutive users", "changed call ids"}),
        reasoning=("reasoning_content", "thinking_blocks", "provider_specific_fields"),
    ),
)

_BY_NAME = {profile.name: profile for profile in PROFILES}
_BY_HOST = {
    host: profile
    for profile in PROFILES
    for host in (profile.host, *profile.other_hosts)
    if host and not profile.is_local
}


def profile_named(name: str) -> Profile:
    return _BY_NAME[name]


def profile_at(address: str) -> Profile:
    """Return the row of the vendor whose host, or one above it, this address has; `PLAIN` for an unknown endpoint."""
    host = urlsplit(address).hostname or ""
    while host and host not in _BY_HOST:
        host = host.partition(".")[2]
    return _BY_HOST.get(host, PLAIN)
