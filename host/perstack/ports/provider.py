"""The provider port: the endpoint of a model.

A provider plugin registers a `ProviderFactory`; the host creates a `Provider` from it and calls `generate`. Both may
have optional abilities, each a protocol of its own with a function that reads it or returns the default
(`reply_settings`, `takes_media`, …).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field
from typing import Literal, Protocol, runtime_checkable

from perstack.core.base.records import JsonObject
from perstack.core.base.usage import Usage
from perstack.core.definitions.experts import ReasoningBudget
from perstack.core.definitions.skills import ToolSpec
from perstack.core.jobs.summary import RunPlace
from perstack.core.runs.messages import ExpertMessage, Message
from perstack.core.runs.step_events import FinishReason
from perstack.dataclass import dataclass

Purpose = Literal["reply", "summary", "sample"]


class BlobReader(Protocol):
    """Reads the bytes of an image or document that a message refers to."""

    async def __call__(self, sha256: str) -> bytes:
        """Return the bytes of the blob with this hex sha256."""
        ...


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Input of one generation.

    Within one Run, `messages` only grows at its end until a compaction replaces it by another History, and
    `instruction` and `tools` stay the same, so that a codec can produce byte-stable prefixes. If `tools` is empty or
    `allow_tools` is false, the reply must not contain a tool call.
    """

    model: str
    instruction: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec]
    blobs: BlobReader
    allow_tools: bool = True
    """False: tools are sent, to keep the prefix stable, but must not be called."""
    reasoning_budget: ReasoningBudget | None = None
    max_tokens: int | None = None
    """Maximum reply tokens, within the user's own setting; None: only the user's setting applies."""
    temperature: float | None = None
    """Overrides the user's setting. A wish: do not send it to a model that is known to refuse it."""
    output: JsonObject | None = None
    """JSON schema of the Run's result, which the instruction contains as well.

    A provider with structured output requests it as far as the model supports it. The host validates each result.
    """
    expert_key: str = ""
    run_id: str = ""
    step: int = 0
    place: RunPlace | None = None
    """The Run's place in the tree of its Job; only for a provider that plays a recording."""
    purpose: Purpose = "reply"
    """The kind of generation: a reply, a summary of older turns, or a sample that a tool requests."""
    memo: dict[Hashable, object] = field(default_factory=dict[Hashable, object], compare=False, repr=False)
    """The provider's own cache for one Run, kept from one request to the next to avoid repeated work.

    The host passes the same dictionary with every request of a Run, including retries, and drops it when it stops
    driving the Run. No two Runs share one. It may be empty in any request: only speed may depend on it.
    """

    def max_tokens_within(self, setting: int | None) -> int | None:
        """Return the lower of the requested limit and the user's setting; None without either."""
        return min((most for most in (self.max_tokens, setting) if most is not None), default=None)

    def temperature_over(self, setting: float | None) -> float | None:
        """Return the requested temperature, or else the user's setting."""
        return setting if self.temperature is None else self.temperature


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of the streamed reply, for display only."""

    kind: Literal["text", "reasoning"]
    text: str


@dataclass(frozen=True, slots=True)
class Generation:
    """A complete reply. Tool call ids come from the provider; the host replaces missing or duplicate ones."""

    reply: ExpertMessage
    usage: Usage
    finish_reason: FinishReason
    context_window: int | None = None
    """Context size of the model in tokens; None if the endpoint does not report it."""


class Provider(Protocol):
    """One endpoint with its credentials. Several Runs use it at once."""

    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        """Make one attempt at one generation, and stream it to `on_delta`.

        A reply that breaks off raises an error and is discarded entirely. Raises ProviderError with the status and the
        endpoint's own message; `is_retryable` is true for connection errors, 408, 409, 429, 5xx and an interrupted
        stream. The host does retries, backoff and the time limit. Cancellation closes the connection.
        """
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


@runtime_checkable
class TellsSettings(Protocol):
    """Optional ability of a provider. Without it, nothing is known of its settings."""

    @property
    def reply_settings(self) -> JsonObject:
        """The settings that change replies, for the log. Never a key, a header or an address."""
        ...


def reply_settings(provider: Provider | TellsSettings) -> JsonObject:
    """Return the provider's settings that change replies; empty if it does not report them."""
    return provider.reply_settings if isinstance(provider, TellsSettings) else {}


@runtime_checkable
class TakesMedia(Protocol):
    """Optional ability of a provider. Without it, the host assumes that it sends every attachment to the model."""

    def takes(self, model: str, mime_type: str) -> bool:
        """Return whether the model receives such an image or document as it is, not as a line of text."""
        ...


def takes_media(provider: Provider | TakesMedia, model: str, mime_type: str) -> bool:
    """Return whether the provider sends images or documents of this MIME type to the model."""
    return not isinstance(provider, TakesMedia) or provider.takes(model, mime_type)


@runtime_checkable
class TellsEndpoint(Protocol):
    """Optional ability of a provider. Without it, only users of the same object share one rate limiter."""

    @property
    def endpoint_id(self) -> str:
        """A digest of endpoint and key: equal if both are equal, and neither can be recovered from it."""
        ...


def endpoint_id(provider: Provider | TellsEndpoint) -> str:
    """Return the provider's endpoint digest; empty if it does not report one."""
    return provider.endpoint_id if isinstance(provider, TellsEndpoint) else ""


PriceList = Callable[[str, Usage], tuple[float | None, int | None]]
"""Return the cost of a usage of a model in US dollars, and the model's context size in tokens. None if unknown."""


def plays_recording(provider: Provider) -> bool:
    """Return whether the provider plays a recording (`ports.playing`) and so answers for tools and people too."""
    return hasattr(provider, "player")


@runtime_checkable
class ReportsCost(Protocol):
    """Optional ability of a provider's factory: its replies contain their cost, so no price is looked up."""

    @property
    def reports_cost(self) -> bool:
        """Whether replies contain their cost."""
        ...


def reports_cost(factory: ProviderFactory | ReportsCost) -> bool:
    """Return whether the provider's replies contain their cost."""
    return isinstance(factory, ReportsCost) and factory.reports_cost


class PriceSource(Protocol):
    """Source of the prices of a provider's models."""

    def load(self) -> PriceList:
        """Return the price list. Called in a thread, since it may take long.

        The host calls it once for each Job, while the model works on its first reply.
        """
        ...


@runtime_checkable
class TellsPrices(Protocol):
    """Optional ability of a provider's factory. Without it, the prices of its models are unknown."""

    @property
    def prices(self) -> PriceSource | None:
        """The source of prices; None if it has none."""
        ...


def price_source(factory: ProviderFactory | TellsPrices) -> PriceSource | None:
    """Return the factory's source of prices, or None."""
    return factory.prices if isinstance(factory, TellsPrices) else None


@dataclass(frozen=True, slots=True)
class OfferedModel:
    """A model that perstack.toml may name. None in a field means unknown."""

    name: str
    context_window: int | None = None
    """Context size in tokens."""
    input_price: float | None = None
    """US dollars per million input tokens."""
    output_price: float | None = None
    """US dollars per million output tokens."""


@runtime_checkable
class ListsModels(Protocol):
    """Optional ability of a provider's factory or its price source. Without it, its models are unknown."""

    def models(self, env: Mapping[str, str]) -> Sequence[OfferedModel]:
        """Return the models that can be used in this environment. Called in a thread, since it may take seconds.

        Raises ProviderError if an endpoint does not answer.
        """
        ...


def offered_models(factory: ProviderFactory, env: Mapping[str, str]) -> Sequence[OfferedModel]:
    """Return the models that a provider's factory lists, or else its price source; empty if neither lists any."""
    for source in (factory, price_source(factory)):
        if isinstance(source, ListsModels):
            return source.models(env)
    return ()


@dataclass(frozen=True, slots=True)
class ProviderConfig:
    """Arguments for creating a provider."""

    setting: JsonObject
    """`[provider.setting]` of perstack.toml."""
    env: Mapping[str, str]
    """The environment, including variables of `.env` files."""


class ProviderFactory(Protocol):
    """What a provider plugin registers. Creating one must import nothing heavy."""

    @property
    def name(self) -> str:
        """The value of `providerName`."""
        ...

    @property
    def priority(self) -> int:
        """Position among configured providers when the user names none; lowest first."""
        ...

    @property
    def default_model(self) -> str | None:
        """The default model; None if the user must name one."""
        ...

    @property
    def how_to_configure(self) -> str:
        """Instruction for error messages, such as `set EXAMPLE_API_KEY`."""
        ...

    def is_configured(self, env: Mapping[str, str]) -> bool:
        """Return whether `create` would succeed in this environment without settings."""
        ...

    def create(self, config: ProviderConfig) -> Provider:
        """Create a provider. Raises MissingCredential, naming the variable or how to install a missing library."""
        ...
