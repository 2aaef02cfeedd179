"""The provider port: the endpoint of a model.

A provider plugin registers a `ProviderFactory`; the host creates a `Provider` from it and calls `generate`. Both are
base classes. Members that are not abstract have defaults, which describe a provider without that ability.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Literal, Protocol

from perstack.core.base.records import JsonObject
from perstack.core.base.usage import Usage
from perstack.core.definitions.models import ModelTier
from perstack.core.definitions.settings import ReasoningBudget
from perstack.core.definitions.skills import ToolSpec
from perstack.core.jobs.summary import RunPlace
from perstack.core.messages.adaptations import Adaptation, Adaptations
from perstack.core.messages.media import MediaLimits
from perstack.core.messages.messages import ExpertMessage, FinishReason, Message
from perstack.dataclass import dataclass
from perstack.errors import ProviderError

if TYPE_CHECKING:
    from perstack.core.definitions.experts import FileSearchOptions, WebToolOptions

Purpose = Literal["reply", "summary", "sample"]


class BlobReader(Protocol):
    """Reads the bytes of an image or document that a message refers to."""

    async def __call__(self, sha256: str) -> bytes:
        """Return the bytes of the blob with this hex sha256."""
        ...


@dataclass(frozen=True, slots=True)
class ProviderTool:
    """A tool that a provider runs itself, while the model writes its reply."""

    name: str  # neutral name, such as `webSearch`: Experts and rules use it for every provider that has the tool
    alias: str = ""  # another name, which Experts and rules may use for this provider
    options: frozenset[str] = frozenset()  # options that the endpoint applies, by their names in `providerToolOptions`
    required: frozenset[str] = frozenset()  # options without which it cannot be used


ANY_TOOL = ProviderTool("*")
"""Wildcard for tools of every name with every option, of a provider that plays a script."""


@dataclass(frozen=True, slots=True)
class OfferedProviderTool:
    """A provider's tool that the model may use in one generation."""

    name: str
    options: WebToolOptions | FileSearchOptions | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Input of one generation.

    Within one Run, `messages` only grows at its end until a compaction replaces it by another History, and
    `instruction` and `tools` do not change, so that a codec can produce byte-stable prefixes. If `tools` is empty or
    `allow_tools` is false, the reply must not contain a tool call. Of the tools that the provider runs
    itself, the model may use only `provider_tools`; the host drops uses of others.
    """

    model: str
    instruction: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec]
    blobs: BlobReader
    allow_tools: bool = True  # False: tools are sent, to keep the prefix stable, but must not be called
    reasoning_budget: ReasoningBudget | None = None
    max_tokens: int | None = None  # maximum reply tokens; the user's setting applies as well. None: only that
    temperature: float | None = None  # takes precedence over the user's setting; left out for a model that refuses it
    provider_tools: tuple[OfferedProviderTool, ...] = ()
    output: JsonObject | None = None
    """JSON schema of the Run's result, which the instruction contains as well.

    A provider with structured output requests it as far as the model supports it. The host validates each result.
    """
    expert_key: str = ""
    run_id: str = ""
    step: int = 0
    place: RunPlace | None = None  # the Run's place in the tree of its Job; only for a provider that plays a recording
    purpose: Purpose = "reply"
    adaptations: Adaptations = ()
    """Changes for parts that this endpoint refuses. They only grow within one Run.

    The host has removed omitted tools from `tools`. A codec adapts fields and schemas of tools; `message_encoder`
    adapts messages."""
    memo: dict[Hashable, object] = field(default_factory=dict[Hashable, object], compare=False, repr=False)
    """The provider's own cache for one Run, kept from one request to the next to avoid repeated work.

    The host passes one dictionary with every request of a Run, including retries, and drops it when it stops
    driving the Run. No two Runs share one. It may be empty in any request: only speed may depend on it.
    """

    def max_tokens_within(self, setting: int | None) -> int | None:
        """Return the lower of the requested limit and the user's setting; None without either."""
        return min((limit for limit in (self.max_tokens, setting) if limit is not None), default=None)

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
    context_window: int | None = None  # context size of the model in tokens; None if the endpoint does not report it
    max_tokens: int | None = None  # tokens that the request allowed the reply; None if it set no limit

    @property
    def is_cut_early(self) -> bool:
        """True if the reply was cut far below its limit: its context is full, or the endpoint has a lower limit."""
        is_short = self.max_tokens is not None and self.usage.output_tokens < self.max_tokens // 2
        return self.finish_reason == "length" and is_short


class Provider(ABC):
    """One endpoint with its credentials. Several Runs use it at once."""

    reply_settings: JsonObject = {}  # noqa: RUF012 - nothing changes it
    """The settings that change replies, for the log. Never a key, a header or an address."""
    endpoint_id: str = ""
    """A digest of endpoint and key: equal if both are equal, and neither can be recovered from it.

    Providers with equal digests share one rate limiter. Empty: only users of this object share one.
    """
    tools: tuple[ProviderTool, ...] = ()
    """Tools that this endpoint runs itself; a subset of the tools of its factory."""
    may_omit_usage: bool = False
    """True if replies may have no token counts, which the host then estimates. If False, a count of 0 is exact."""
    player: object | None = None
    """Source of recorded answers (`perstack.recordings.play.Player`) that also replaces tools, skills and people.

    None: tools run and people are asked.
    """

    @abstractmethod
    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        """Make one attempt at one generation, and stream it to `on_delta`.

        A reply that breaks off raises an error and is discarded entirely. Raises ProviderError with the status and the
        endpoint's own message; `is_retryable` is true for connection errors, 408, 409, 429, 5xx and an interrupted
        stream. The host does retries, backoff and the time limit. Cancellation closes the connection.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close connections."""

    def adapt(self, request: GenerationRequest, error: ProviderError) -> Sequence[Adaptation]:
        """Return adaptations of the parts of `request` that the endpoint's refusal names.

        Called once for each refusal, with the request as it was sent. The host repeats the request with the adaptations
        that are new, and fails the generation if none is.
        """
        return ()

    def media_limits(self, model: str) -> MediaLimits | None:
        """Return the endpoint's limits for images and documents, which the host meets before it sends them.

        None if there are none or they are unknown: media are then sent unchanged.
        """
        return None

    def takes(self, model: str, mime_type: str) -> bool:
        """Return whether the model receives an image or document of this type; False: a line of text replaces it."""
        return True


PriceList = Callable[[str, Usage], tuple[float | None, int | None]]
"""Return the cost of a usage of a model in US dollars, and the model's context size in tokens. None if unknown."""


@dataclass(frozen=True, slots=True)
class OfferedModel:
    """A model that perstack.toml may name. None in a field means unknown."""

    name: str
    context_window: int | None = None  # context size in tokens
    input_price: float | None = None  # US dollars per million input tokens
    output_price: float | None = None  # US dollars per million output tokens


class PriceSource(ABC):
    """Source of the prices of a provider's models."""

    @abstractmethod
    def load(self) -> PriceList:
        """Return the price list; called in a thread, once for each Job, while the model works on its first reply."""

    def models(self) -> Sequence[OfferedModel]:
        """Return the models with a known price. Called in a thread."""
        return ()


@dataclass(frozen=True, slots=True)
class ProviderConfig:
    """Arguments for creating a provider."""

    setting: JsonObject  # `[provider.setting]` of perstack.toml
    env: Mapping[str, str]  # the environment, including variables of `.env` files


class ProviderFactory(ABC):
    """Factory of providers, registered by a plugin. Creating one must import nothing heavy."""

    name: str  # the value of `providerName`
    priority: int  # position among configured providers when the user names none; lowest first
    default_model: str | None = None  # the default model, of tier `middle`; None if the user must name one
    low_model: str | None = None  # a cheaper model than the default one, for tier `low`; None without one
    high_model: str | None = None  # a more capable model than the default one, for tier `high`; None without one
    served_by: str = ""  # command that starts its server on this machine, if that needs no key; empty otherwise
    takes_any_address: bool = False  # True if `baseUrl` may name any server that speaks its wire format
    needs_name: bool = False  # True if it is never chosen by default: only a Run that names it uses it
    has_one_model: bool = False  # True if it has a single model, so that nobody has to name one
    how_to_configure: str  # instruction for error messages, such as `set EXAMPLE_API_KEY`
    prices: PriceSource | None = None  # the source of the models' prices; None if they are unknown
    tools: tuple[ProviderTool, ...] = ()  # tools that its providers may run themselves
    reports_cost: bool = False  # True if replies contain their cost, so that no price is looked up
    is_vendor: bool = False
    """True if its providers, without settings, do nothing but send requests with the user's key to the vendor's address
    or to one in the user's environment. A definition may name such a provider without the user's agreement."""

    def model_of(self, tier: ModelTier) -> str | None:
        """Return the model for a tier, or None."""
        by_tier: dict[ModelTier, str | None] = {
            "low": self.low_model,
            "middle": self.default_model,
            "high": self.high_model,
        }
        return by_tier[tier]

    @abstractmethod
    def is_configured(self, env: Mapping[str, str]) -> bool:
        """Return whether `create` would succeed in this environment without settings."""

    @abstractmethod
    def create(self, config: ProviderConfig) -> Provider:
        """Create a provider. Raises MissingCredential, naming the variable or how to install a missing library."""

    def models(self, env: Mapping[str, str]) -> Sequence[OfferedModel] | None:
        """Return the endpoint's own list of models, or None; called in a thread. Raises ProviderError."""
        return None
