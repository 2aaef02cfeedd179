"""Models that an Expert uses: one name, a list of fallbacks, names from `[models]`, prices and rate limits."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from perstack.core.base.records import Record, falsy
from perstack.core.base.usage import Usage
from perstack.core.definitions.keys import NOT_EMPTY, Key, Rule, at_least, price_problem, tool_price_problem
from perstack.dataclass import dataclass

NAMED = "models."


def as_tuple(value: object) -> object:
    """Convert a TOML list to a tuple."""
    return tuple(value) if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def models_problem(models: object) -> str | None:
    if isinstance(models, tuple) and any(not isinstance(name, str) or not name.strip() for name in models):  # pyright: ignore[reportUnknownVariableType]
        return "must not contain an empty name"
    return None


ModelTier = Literal["low", "middle", "high"]
"""Capability of a model, compared with others of its provider. `[models]` may name one for each tier."""

# name as the provider spells it, or `models.NAME`; of several names, the later ones are fallbacks
Models = str | tuple[str, ...]

WrittenModels = Annotated[str | tuple[str, ...], BeforeValidator(as_tuple), NOT_EMPTY, Rule(models_problem)]


class ProviderLimits(Record):
    """`[limits."provider"]`: limits on what all Runs of a process together may ask of an endpoint."""

    name: str
    concurrency: Annotated[int | None, at_least(1), Key("maximum concurrent generations", effect="narrows")] = None
    requests_per_minute: Annotated[
        int | None, at_least(1), Key("maximum generations started in a minute, evenly spread", effect="narrows")
    ] = None
    tokens_per_minute: Annotated[
        int | None,
        at_least(1),
        Key(
            "maximum tokens in a minute, sent and generated; estimated until the reply reports its usage",
            effect="narrows",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Model name after resolving `[models]`."""

    name: str
    may_name_provider: bool  # True if `provider/model` selects that provider: in lists and in `[models]`


class UnknownName(ValueError):
    """Name missing from `[models]`; the message lists the existing ones."""


def resolve_models(models: Models, named_models: Mapping[str, Models]) -> tuple[ModelChoice, ...]:
    """Resolve references to `[models]` and return the models in order, without repetitions. Raises UnknownName."""
    return tuple(dict.fromkeys(_resolve(models, named_models)))


def _resolve(models: Models, named_models: Mapping[str, Models]) -> Iterator[ModelChoice]:
    is_list = not isinstance(models, str)
    for reference in models if isinstance(models, tuple) else (models,):
        if not reference.startswith(NAMED):
            yield ModelChoice(reference, is_list)
            continue
        target = named_models.get(reference.removeprefix(NAMED))
        if target is None:
            known_names = ", ".join(NAMED + name for name in sorted(named_models)) or "none"
            raise UnknownName(f"there is no `{reference}` in [models]; available: {known_names}")
        yield from (ModelChoice(name, True) for name in ((target,) if isinstance(target, str) else target))


def split_name(name: str, providers: Mapping[str, object]) -> tuple[str | None, str]:
    """Split `provider/model` if such a provider exists. Otherwise return None and the whole name."""
    provider, _, model = name.partition("/")
    return (provider, model) if model and provider in providers else (None, name)


def full_name(provider: str, model: str) -> str:
    """Return `provider/model`, as in events."""
    return f"{provider}/{model}"


def split_full_name(name: str) -> tuple[str, str]:
    """Split a full name into provider and model; providers have no `/` in their names."""
    provider, _, model = name.partition("/")
    return provider, model


class Price(Record):
    """`[prices."provider/model"]`: prices of a model's tokens, in US dollars per million."""

    name: str
    input: Annotated[float, Rule(price_problem), Key("sent tokens", effect="pays", is_required=True)] = 0.0
    output: Annotated[
        float, Rule(price_problem), Key("generated tokens, including reasoning", effect="pays", is_required=True)
    ] = 0.0
    cache_read: Annotated[
        float | None,
        Rule(price_problem),
        Key("tokens that the provider had cached; default: the price of `input`", effect="pays"),
    ] = None
    cache_write: Annotated[
        float | None,
        Rule(price_problem),
        Key("tokens that the provider caches; default: the price of `input`", effect="pays"),
    ] = None
    uses: Annotated[
        dict[str, Annotated[float, Rule(tool_price_problem)]],
        Field(exclude_if=falsy),
        Key("US dollars for a thousand uses of one of the `providerTools`; default: published prices", effect="pays"),
    ] = Field(default_factory=dict[str, float])

    @property
    def dearest_input(self) -> float:
        """The highest price of an input token, in US dollars per million."""
        return max(self.input, self.cache_read or 0.0, self.cache_write or 0.0)

    def cost_of(self, usage: Usage) -> float:
        """Return the cost of a usage in US dollars."""
        plain = max(0, usage.input_tokens - usage.cached_input_tokens - usage.cache_write_tokens)
        read_price = self.input if self.cache_read is None else self.cache_read
        write_price = self.input if self.cache_write is None else self.cache_write
        input_cost = (
            plain * self.input + usage.cached_input_tokens * read_price + usage.cache_write_tokens * write_price
        )
        return (input_cost + usage.output_tokens * self.output) / 1_000_000
