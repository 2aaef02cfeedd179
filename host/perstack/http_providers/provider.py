"""Base classes of providers that use HTTP: registration with the host, and the connection to the endpoint.

A plugin registers an `EndpointProviderFactory`, a table of what the host must know before it creates the provider. The
provider itself derives from `HttpProvider` and adds its codec.

Every command imports this module with the plugins that are installed. So nothing here may import httpx (100 ms) or the
modules of settings: both are imported when a provider is created or generates for the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from perstack.core.base.usage import Usage
from perstack.core.messages.adaptations import REFUSAL_STATUSES, Adaptation
from perstack.dataclass import dataclass
from perstack.errors import ProviderError
from perstack.ports.environment import source_of
from perstack.ports.provider import (
    GenerationRequest,
    OfferedModel,
    PriceList,
    PriceSource,
    Provider,
    ProviderConfig,
    ProviderFactory,
    ProviderTool,
)

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo

    from perstack.core.base.records import JsonObject
    from perstack.core.messages.media import MediaLimits
    from perstack.http_providers.client import ReadEvents, StreamClient
    from perstack.http_providers.endpoint import Endpoint
    from perstack.http_providers.replies import OnData


@dataclass(frozen=True, slots=True)
class EndpointProviderFactory(ProviderFactory):
    """Factory of a provider that is configured by environment variables."""

    name: str
    priority: int  # position among configured providers if the user names none; lowest first
    how_to_configure: str
    needs: tuple[tuple[str, ...], ...]  # groups of variables, of each of which at least one must be set
    make: Callable[[ProviderConfig], Provider]  # create the provider; must import the rest of the plugin itself
    default_model: str | None = None
    prices: PriceSource | None = None
    tools: tuple[ProviderTool, ...] = ()  # tools that the endpoint runs itself
    libraries: tuple[str, ...] = ()  # modules of optional dependencies, without which the provider is not configured
    is_vendor: bool = True
    low_model: str | None = None
    high_model: str | None = None
    served_by: str = ""
    takes_any_address: bool = False

    def is_configured(self, env: Mapping[str, str]) -> bool:
        """Return whether the environment has the required variables, and the libraries are installed."""
        has_variables = all(any(env.get(name, "").strip() for name in group) for group in self.needs)
        return has_variables and are_installed(self.libraries)

    def create(self, config: ProviderConfig) -> Provider:
        """Create the provider without connecting yet.

        Raises MissingCredential if a key, an address or a library is missing, DefinitionError for an invalid setting,
        UsageError for an invalid variable.
        """
        provider = self.make(config)
        if isinstance(provider, HttpProvider):
            provider.name, provider.env = self.name, config.env
            provider.tools = self.tools if provider.runs_tools else ()
        return provider


def are_installed(modules: tuple[str, ...]) -> bool:
    """Return whether all modules can be imported, without importing them."""
    try:
        return all(find_spec(module) is not None for module in modules)
    except ModuleNotFoundError:  # the parent package of one is missing
        return False


class HttpProvider(Provider):
    """Provider of one endpoint, whose connections are opened by the first request."""

    may_omit_usage = True
    required_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields that its format requires, in addition to `REQUIRED_FIELDS`."""

    def __init__(self, endpoint: Endpoint, reply_settings: JsonObject, read_events: ReadEvents | None = None) -> None:
        """Import and connect nothing yet. `read_events` splits a reply into events; None for server-sent events."""
        self.endpoint = endpoint
        self.reply_settings = reply_settings
        self.name = ""  # named in errors; set by the factory, as `env`
        self.env: Mapping[str, str] | None = None
        self.runs_tools = True  # False if the endpoint runs none of the tools of its factory
        self._read_events = read_events
        self._client: StreamClient | None = None

    @cached_property
    def credential(self) -> str:
        """Text that names the credential for errors, found at the first one: it takes the patterns of secrets."""
        return "" if self.env is None else _credential_of(self.endpoint, self.env)

    async def post(self, path: str, body: bytes, on_data: OnData, headers: Mapping[str, str] | None = None) -> None:
        """Send a request as `StreamClient.post` does. An error about the credential says where to set it."""
        if self._client is None:
            from perstack.http_providers.client import StreamClient
            from perstack.http_providers.event_streams import server_sent_events

            self._client = StreamClient(self.endpoint, self._read_events or server_sent_events)
        try:
            await self._client.post(path, body, on_data, headers)
        except ProviderError as error:
            from perstack.http_providers.errors import refused_credential

            failure = refused_credential(self.classified(error), self.name, self.credential)
            if failure.status_code in REFUSAL_STATUSES:
                failure.refused_body = body
            raise failure from error.__cause__

    @override
    def adapt(self, request: GenerationRequest, error: ProviderError) -> Sequence[Adaptation]:
        from perstack.http_providers.refusals import refused_parts

        return refused_parts(request, error, self.refused_fields)

    def refused_fields(self, error: ProviderError, body: JsonObject) -> Sequence[Adaptation]:
        """Return the optional fields of `body` that a refusal names."""
        from perstack.http_providers.refusals import refused_fields

        return refused_fields(error, body, self.required_fields)

    @override
    def media_limits(self, model: str) -> MediaLimits | None:
        from perstack.http_providers.media_limits import limits_of

        return limits_of(self.name, model)

    def classified(self, error: ProviderError) -> ProviderError:
        """Return the endpoint's error, renamed if its status has another meaning at this endpoint."""
        return error

    @override
    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()


def _credential_of(endpoint: Endpoint, env: Mapping[str, str]) -> str:
    """Return a text that names the credential in an endpoint's headers, never its value; empty without one."""
    secrets = endpoint.secrets  # computed at each access
    name = next((name for name, value in env.items() if value.strip() in secrets), None)
    if name is not None:
        return f"the key in {name}, which is set in {source_of(env, name)}"
    return "the `headers` of [provider.setting]" if secrets else ""


_IMPORT_LOCK = Lock()  # held to import the library of prices: threads that import it at once can find each other locked
_UNITS = {"webSearch": "web_searches", "fileSearch": "storage_searches"}
"""Names in that library of the provider tools that cost something by themselves; results cost their tokens."""
_QUERY_TOKENS = 1_000  # tokens per price query: few enough to stay in every vendor's first price tier


@dataclass(frozen=True, slots=True)
class PublishedPrices(PriceSource):
    """Published prices of one vendor, by the vendor's id in that library."""

    vendor: str

    def load(self) -> PriceList:
        """Load the library, which takes 0.2 s the first time, and return its price list."""
        with _IMPORT_LOCK:
            import genai_prices

        def look_up(model: str, usage: Usage) -> tuple[float | None, int | None]:
            token_counts = genai_prices.Usage(
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                cache_read_tokens=usage.cached_input_tokens or None,
                cache_write_tokens=usage.cache_write_tokens or None,
            )
            tool_uses = {_UNITS[name]: count for name, count in usage.provider_tools.items() if name in _UNITS}
            try:
                price = genai_prices.calc_price(token_counts, model, provider_id=self.vendor)
                fees = [
                    genai_prices.calc_price(genai_prices.Usage(**{unit: count}), model, provider_id=self.vendor)
                    for unit, count in tool_uses.items()
                ]
            except (LookupError, ValueError, ArithmeticError):
                return None, None  # an unknown model, or inconsistent token counts
            window = price.model.context_window
            if not all(fee.total_price for fee in fees):
                return None, window  # a tool without a published price
            return float(price.total_price + sum(fee.total_price for fee in fees)), window

        return look_up

    def models(self) -> Sequence[OfferedModel]:
        """Return the vendor's models with a published price that are not deprecated, by name."""
        return _offered_models(self)


@cache  # a thousand models have a price: computing them takes a quarter of a second
def _offered_models(source: PublishedPrices) -> Sequence[OfferedModel]:
    with _IMPORT_LOCK:
        from genai_prices.data_snapshot import get_snapshot

        providers = get_snapshot().providers  # imports the module of the data
    vendor = next((provider for provider in providers if provider.id == source.vendor), None)
    models = () if vendor is None else (model for model in vendor.models if not model.deprecated)
    price = source.load()
    return tuple(sorted((_offered_model(model, price) for model in models), key=lambda model: model.name))


def _offered_model(model: ModelInfo, price: PriceList) -> OfferedModel:
    queries = (Usage(input_tokens=_QUERY_TOKENS), Usage(output_tokens=_QUERY_TOKENS))
    input_price, output_price = (price(model.id, usage)[0] for usage in queries)
    return OfferedModel(model.id, model.context_window, _price_of_million(input_price), _price_of_million(output_price))


def _price_of_million(price: float | None) -> float | None:
    return None if price is None else round(price * 1_000_000 / _QUERY_TOKENS, 6)
