"""`perstack mcp`. The order of things in here is what makes its first answer fast."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import click

from perstack.errors import UsageError
from perstack.frontends.cli.options import Setup, driving_options
from perstack.frontends.mcp_server.greeting import greet
from perstack.frontends.mcp_server.names import only_experts
from perstack.frontends.mcp_server.sampling import SamplingPlugin
from perstack.frontends.mcp_server.snippets import CLIENTS, command_of
from perstack.frontends.mcp_server.wire import Wire


@click.command("mcp")
@click.option("--experts", metavar="KEY[,KEY]", help="Offer only these Experts, and drive only their Jobs.")
@click.option(
    "--print-config",
    "client",
    type=click.Choice(list(CLIENTS)),
    help="Print what goes into the settings of this client, with the options given here, and serve nothing.",
)
@click.option("--tasks", is_flag=True, help="Also offer execution memory: tools that keep tasks.")
@click.option("--http", "address", metavar="HOST:PORT", help="Serve over HTTP there, in place of stdin and stdout.")
@click.option(
    "--allow-host",
    "names",
    multiple=True,
    metavar="NAME",
    help="With --http: a name that clients know the server by; may be given again.",
)
@driving_options
def mcp_command(
    experts: str | None, client: str | None, tasks: bool, address: str | None, names: tuple[str, ...], setup: Setup
) -> None:
    """Serve the Experts of a project, and its Jobs, to editors and agents over MCP."""
    keys = tuple(key.strip() for key in experts.split(",") if key.strip()) if experts else ()
    if client is not None:
        _print_config(client, setup, keys)
        return
    if find_spec("mcp") is None:
        raise UsageError("`perstack mcp` needs the MCP SDK: pip install 'perstack[mcp]'")
    if address is not None:
        _serve_http(setup, keys, address, names, tasks=tasks)
    else:
        _serve(setup, keys, tasks=tasks)


def _serve_http(setup: Setup, keys: tuple[str, ...], text: str, names: tuple[str, ...], *, tasks: bool) -> None:
    import asyncio

    from perstack.frontends.mcp_server.http import TOKEN_VARIABLE, Address, Guard, serve_http

    loaded = setup.place.load()
    only_experts(loaded.project, keys)
    guard = Guard(Address.parse(text), setup.env(loaded.project).get(TOKEN_VARIABLE) or None, names)
    guard.check()

    async def main() -> None:
        await serve_http(setup.host(loaded.project, plugins=[SamplingPlugin()]), loaded, guard, keys, tasks=tasks)

    asyncio.run(main())


def _serve(setup: Setup, keys: tuple[str, ...], *, tasks: bool) -> None:
    loaded = setup.place.load()
    only_experts(loaded.project, keys)
    if sys.stdin.isatty():
        click.echo("waiting for an MCP client on stdin; see perstack mcp --help for --print-config", err=True)
    wire = Wire.claim()
    opening = wire.read()
    greeted = greet(opening) if opening is not None else None
    if greeted is not None:
        wire.write(greeted.line)
    # a second of imports, which the client need not wait for any more
    import asyncio

    from perstack.frontends.mcp_server.stdio import serve_stdio

    async def main() -> None:
        await serve_stdio(
            setup.host(loaded.project, plugins=[SamplingPlugin()]), loaded, wire, opening, greeted, keys, tasks=tasks
        )

    asyncio.run(main())


def _print_config(client: str, setup: Setup, keys: tuple[str, ...]) -> None:
    snippet = CLIENTS[client]
    click.echo(f"this goes into {snippet.file}:", err=True)
    click.echo(snippet.text(*command_of(_arguments(setup, keys))))


def _arguments(setup: Setup, keys: tuple[str, ...]) -> list[str]:
    """The options that were given, with absolute paths: the client starts the server wherever it likes."""
    place, overrides = setup.place, setup.overrides
    given: dict[str, object] = {
        "--workspace": Path(place.workspace).resolve(),
        "--config": Path(place.config).resolve() if place.config is not None else None,
        "--storage": place.storage,
        "--experts": ",".join(keys) or None,
        "--provider": overrides.provider,
        "--model": overrides.model,
        "--reasoning-budget": overrides.reasoning_budget,
        "--max-steps": overrides.max_steps,
        "--max-retries": overrides.max_retries,
        "--timeout": overrides.timeout,
    }
    arguments = [part for name, value in given.items() if value is not None for part in (name, str(value))]
    return [*arguments, *(part for path in setup.env_paths for part in ("--env-path", str(Path(path).resolve())))]
