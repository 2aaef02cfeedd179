"""The provider port: a model's endpoint."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field
from typing import Literal, Protocol, runtime_checkable

from perstack.core.base import JsonObject
from perstack.core.definitions import ReasoningBudget
from perstack.core.events import FinishReason
from perstack.core.messages import ExpertMessage, Message
from perstack.core.run_place import RunPlace
from perstack.core.tools import ToolSpec
from perstack.core.usage import Usage
from perstack.dataclass import dataclass

Purpose = Literal["reply", "summary", "sample"]


class BlobReader(Protocol):
    """Gives the bytes of an image or document that a message refers to."""

    async def __call__(self, sha256: str) -> bytes: ...


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Everything that one generation is made from.

    `messages` only grows at its end within one Run, until a compaction replaces it by another History, and
    `instruction` and `tools` stay the same, so that a codec can make byte-stable prefixes. With `tools` empty, or
    `allow_tools` false, the reply may hold no tool call.
    """

    model: str
    instruction: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec]
    blobs: BlobReader
    allow_tools: bool = True
    """False: the tools are shown, for the prefix's sake, but none may be called."""
    reasoning_budget: ReasoningBudget | None = None
    max_tokens: int | None = None
    """At most so many tokens of reply, within what the user has set; None: what the user has set holds alone."""
    temperature: float | None = None
    """In place of what the user has set; a wish, not to be sent to a model that is known to refuse it."""
    output: JsonObject | None = None
    """The JSON schema that the Run's result has to fit, which the instruction has as well.

    A provider whose format has structured output asks for it as far as the model takes it; the host checks each result.
    """
    expert_key: str = ""
    run_id: str = ""
    step: int = 0
    place: RunPlace | None = None
    """Where in its Job's tree the Run is that asks; only for a provider that plays a recording."""
    purpose: Purpose = "reply"
    """What is asked for: a reply, a summary of older turns, or a generation that a tool asks for."""
    memo: dict[Hashable, object] = field(default_factory=dict[Hashable, object], compare=False, repr=False)
    """For the provider alone: what it keeps of a Run from one request to the next, to make nothing twice.

    The host hands the same one on with each request of a Run, retries too, and drops it when it stops driving the Run.
    No two Runs share one. It may be empty at any request, and nothing may depend on it but time.
    """

    def max_tokens_within(self, setting: int | None) -> int | None:
        """The lower of what is asked for and what the user has set."""
        return min((most for most in (self.max_tokens, setting) if most is not None), default=None)

    def temperature_over(self, setting: float | None) -> float | None:
        """What is asked for, or else what the user has set."""
        return setting if self.temperature is None else self.temperature


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of the reply as it comes, for display only."""

    kind: Literal["text", "reasoning"]
    text: str


@dataclass(frozen=True, slots=True)
class Generation:
    """A whole reply. Tool call ids are the provider's own; the host makes missing or double ones unique."""

    reply: ExpertMessage
    usage: Usage
    finish_reason: FinishReason
    context_window: int | None = None
    """How many tokens the model's context can hold, if the endpoint tells."""


class Provider(Protocol):
    """One endpoint with its credentials. Used by several Runs at once."""

    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        """One try of one generation, streamed; a reply that breaks off raises and is dropped whole.

        Raises ProviderError with the status and the endpoint's own words; `is_retryable` is true for connect errors,
        408, 409, 429, 5xx, and a cut stream. Retries, their backoff and the time limit are the host's. Cancelling
        closes the connection.
        """
        ...

    async def close(self) -> None: ...


@runtime_checkable
class TellsSettings(Protocol):
    """What a provider may have beside: without it, nothing is known of its settings."""

    @property
    def reply_settings(self) -> JsonObject:
        """Those of its settings that change replies, for the log. Never a key, a header or an address."""
        ...


def reply_settings(provider: Provider | TellsSettings) -> JsonObject:
    """What a provider tells of its settings; nothing if it tells none."""
    return provider.reply_settings if isinstance(provider, TellsSettings) else {}


@runtime_checkable
class TakesMedia(Protocol):
    """What a provider may have beside: without it, it is taken to send its model all that a person attaches."""

    def takes(self, model: str, mime_type: str) -> bool:
        """Whether the model is sent such an image or document as it is, and not as a line of text."""
        ...


def takes_media(provider: Provider | TakesMedia, model: str, mime_type: str) -> bool:
    """Whether a provider sends a model images or documents of this kind."""
    return not isinstance(provider, TakesMedia) or provider.takes(model, mime_type)


@runtime_checkable
class TellsEndpoint(Protocol):
    """What a provider may have beside: without it, only what uses the same object stands in one line for it."""

    @property
    def endpoint_id(self) -> str:
        """The same for two providers that use one endpoint with one key: a digest, from which neither can be had."""
        ...


def endpoint_id(provider: Provider | TellsEndpoint) -> str:
    """What a provider tells of its endpoint; empty if it tells nothing."""
    return provider.endpoint_id if isinstance(provider, TellsEndpoint) else ""


PriceList = Callable[[str, Usage], tuple[float | None, int | None]]
"""What that much of a model costs in US dollars, and how many tokens its context holds; None where unknown."""


def plays_recording(provider: Provider) -> bool:
    """Whether a provider answers for tools and people as well, by `ports.playing`: it plays a recording."""
    return hasattr(provider, "player")


@runtime_checkable
class ReportsCost(Protocol):
    """What a provider's factory may have beside: its replies say what they cost, and a price is not looked up."""

    @property
    def reports_cost(self) -> bool: ...


def reports_cost(factory: ProviderFactory | ReportsCost) -> bool:
    """Whether a provider's replies say what they cost."""
    return isinstance(factory, ReportsCost) and factory.reports_cost


class PriceSource(Protocol):
    """Where the prices of a provider's models come from."""

    def load(self) -> PriceList:
        """May take long: it is called in a thread, once for each Job, while the model works on its first reply."""
        ...


@runtime_checkable
class TellsPrices(Protocol):
    """What a provider's factory may have beside: without it, nothing is known of what its models cost."""

    @property
    def prices(self) -> PriceSource | None: ...


def price_source(factory: ProviderFactory | TellsPrices) -> PriceSource | None:
    """What a provider's factory tells of prices; None if it tells nothing."""
    return factory.prices if isinstance(factory, TellsPrices) else None


@dataclass(frozen=True, slots=True)
class OfferedModel:
    """A model that may be named in perstack.toml, with what is known of it; None where that is nothing."""

    name: str
    context_window: int | None = None
    """Tokens."""
    input_price: float | None = None
    """US dollars for a million tokens that are sent."""
    output_price: float | None = None
    """US dollars for a million tokens that are generated."""


@runtime_checkable
class ListsModels(Protocol):
    """What a provider's factory, or its price source, may have beside: without it, its models are unknown."""

    def models(self, env: Mapping[str, str]) -> Sequence[OfferedModel]:
        """May take some seconds: it is called in a thread. Raises ProviderError if an endpoint does not answer."""
        ...


def offered_models(factory: ProviderFactory, env: Mapping[str, str]) -> Sequence[OfferedModel]:
    """The models that a provider's factory lists, or else its price source; none if neither lists any."""
    for source in (factory, price_source(factory)):
        if isinstance(source, ListsModels):
            return source.models(env)
    return ()


@dataclass(frozen=True, slots=True)
class ProviderConfig:
    """What an endpoint is made from."""

    setting: JsonObject
    """`[provider.setting]` of perstack.toml."""
    env: Mapping[str, str]
    """The environment, with `.env` files taken in."""


class ProviderFactory(Protocol):
    """What a provider plugin registers. Creating one must import nothing heavy."""

    @property
    def name(self) -> str:
        """As in `providerName`."""
        ...

    @property
    def priority(self) -> int:
        """The order in which configured providers are tried when the user names none; lowest first."""
        ...

    @property
    def default_model(self) -> str | None:
        """The model when the user names none."""
        ...

    @property
    def how_to_configure(self) -> str:
        """For the error that lists the ways: `set EXAMPLE_API_KEY`."""
        ...

    def is_configured(self, env: Mapping[str, str]) -> bool:
        """Whether `create` has what it needs, in this environment with no settings."""
        ...

    def create(self, config: ProviderConfig) -> Provider:
        """Raises MissingCredential naming the variable, or the install command of a missing library."""
        ...
