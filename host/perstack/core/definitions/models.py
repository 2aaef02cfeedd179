"""Which models an Expert thinks with, as perstack.toml says it: one, several that stand in for each other, a name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import BeforeValidator

from perstack.core.base import Fact
from perstack.core.keys import NOT_EMPTY, Key, Rule, at_least
from perstack.dataclass import dataclass

NAMED = "models."
"""What a reference to an entry of `[models]` begins with."""


def as_tuple(value: object) -> object:
    """A list of TOML as the core has lists."""
    return tuple(value) if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def wrong_models(models: object) -> str | None:
    """What is wrong with a list of models."""
    if isinstance(models, tuple) and any(not isinstance(one, str) or not one.strip() for one in models):  # pyright: ignore[reportUnknownVariableType]
        return "must not have an empty name in it"
    return None


Models = str | tuple[str, ...]
"""One model, as its provider spells it, or `models.NAME`; or several, each of which stands in for the one before."""

WrittenModels = Annotated[str | tuple[str, ...], BeforeValidator(as_tuple), NOT_EMPTY, Rule(wrong_models)]


class ProviderLimits(Fact):
    """`[limits."provider"]`: what all Runs of a process together may ask of an endpoint."""

    name: str
    concurrency: Annotated[int | None, at_least(1), Key("generations at the same time")] = None
    requests_per_minute: Annotated[int | None, at_least(1), Key("generations begun in a minute, evenly over it")] = None
    tokens_per_minute: Annotated[
        int | None, at_least(1), Key("tokens in a minute, sent and generated: an estimate until a reply says its own")
    ] = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """One model of those that are written."""

    name: str
    may_name_provider: bool
    """Whether `provider/model` is that provider's model: in a list and in `[models]`."""


class UnknownName(ValueError):
    """A name that `[models]` does not have; its text says what there is."""


def wanted(models: Models, named: Mapping[str, Models]) -> tuple[Wanted, ...]:
    """The models that are meant, each once, in their order. Raises UnknownName."""
    return tuple(dict.fromkeys(_wanted(models, named)))


def _wanted(models: Models, named: Mapping[str, Models]) -> Iterator[Wanted]:
    is_list = not isinstance(models, str)
    for one in models if isinstance(models, tuple) else (models,):
        if not one.startswith(NAMED):
            yield Wanted(one, is_list)
            continue
        found = named.get(one.removeprefix(NAMED))
        if found is None:
            there = ", ".join(NAMED + name for name in sorted(named)) or "none"
            raise UnknownName(f"there is no `{one}` in [models]; there are: {there}")
        yield from (Wanted(name, True) for name in ((found,) if isinstance(found, str) else found))


def split(name: str, providers: Mapping[str, object]) -> tuple[str | None, str]:
    """The provider that `provider/model` names, if there is one of that name, and the model's own name."""
    provider, _, model = name.partition("/")
    return (provider, model) if model and provider in providers else (None, name)


def full_name(provider: str, model: str) -> str:
    """`provider/model`, as events have it."""
    return f"{provider}/{model}"


def parts_of(name: str) -> tuple[str, str]:
    """Provider and model of a full name: no provider has a `/` in its name."""
    provider, _, model = name.partition("/")
    return provider, model
