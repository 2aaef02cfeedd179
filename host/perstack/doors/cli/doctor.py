"""`perstack models`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import click
from pydantic.alias_generators import to_camel

from perstack.config.check import suggestion
from perstack.config.settings import Overrides
from perstack.engine.provider_states import ProviderState
from perstack.errors import NotFound
from perstack.frontends.cli.options import PlaceOptions, Setup, place_options
from perstack.frontends.cli.terminal import Screen, data, err, out, table
from perstack.ports.provider import OfferedModel


@click.command("models")
@click.argument("provider", required=False)
@click.option("--json", "as_json", is_flag=True, help="All of it as one JSON object.")
@place_options
def models_command(
    provider: str | None, as_json: bool, config: str | None, workspace: str | None, storage: str | None
) -> None:
    """List the providers, which of them are set up here, and the default; of PROVIDER, all of its models.

    Context is what a model can see at once, in tokens. Prices are US dollars for a million tokens, as published.
    """
    place = PlaceOptions(config, workspace, storage)
    setup = Setup(place, Overrides(), ())
    project = place.project(required=False)

    async def ask() -> tuple[ProviderState, ...]:
        async with place.host(project, env=setup.env(project)) as host:
            return await host.experts.providers()

    found = asyncio.run(ask())
    if provider is not None:
        names = [one.name for one in found]
        found = tuple(one for one in found if one.name == provider)
        if not found:
            near = suggestion(provider, names)
            raise NotFound(f"there is no provider {provider!r}{near or ': `perstack models` lists them'}")
    if as_json:
        data(json.dumps({"providers": [_to_json(one) for one in found]}, ensure_ascii=False))
    elif provider is None:
        _print_providers(found)
    else:
        _print_models(found[0])


def _to_json(state: ProviderState) -> dict[str, object]:
    models = [_camel(asdict(model)) for model in state.models]
    return _camel({**asdict(state), "models": models})


def _camel(fields: Mapping[str, object]) -> dict[str, object]:
    return {to_camel(name): value for name, value in fields.items()}


def _print_providers(found: Sequence[ProviderState]) -> None:
    rows = [
        (one.name, one.default_model or "-", *_facts(_default_of(one)), f"{len(one.models) or '-'}", _use(one))
        for one in found
    ]
    headings = ("provider", "default model", "context", "in", "out", "models", "here")
    table(Screen.of_stdout(), headings, rows, right=(2, 3, 4, 5), drops=(5, 2, 4, 3, 1))
    for one in found:
        if not one.is_configured:
            out(f"{one.name}: {one.how_to_configure}")
    if not any(one.is_configured for one in found):
        err("no provider is set up: one of these is enough, in the environment or in a file .env")


def _use(state: ProviderState) -> str:
    if not state.is_configured:
        return "not set up"
    use = "the default" if state.is_default else "ready"
    return f"{use}; {state.problem}" if state.problem else use


def _default_of(state: ProviderState) -> OfferedModel:
    return next((one for one in state.models if one.name == state.default_model), OfferedModel(""))


def _print_models(state: ProviderState) -> None:
    if state.models:
        rows = [(one.name, *_facts(one)) for one in state.models]
        table(Screen.of_stdout(), ("model", "context", "in", "out"), rows, right=(1, 2, 3))
    else:
        out(f"{state.name} does not list its models: {state.problem or 'see its own pages'}")


def _facts(model: OfferedModel) -> tuple[str, str, str]:
    window = "-" if model.context_window is None else f"{model.context_window:,}"
    return window, _price(model.input_price), _price(model.output_price)


def _price(price: float | None) -> str:
    return "-" if price is None else f"{price:.2f}"
