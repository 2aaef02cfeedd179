"""The command `perstack mcp`. The SDK is imported last."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click
from click.core import ParameterSource

from perstack.config.project_place import find_config
from perstack.core.definitions.project import Project
from perstack.dataclass import dataclass
from perstack.doors.cli.options import GroupedCommand, HostOptions, driving_options
from perstack.doors.cli.terminal import print_err, print_out
from perstack.doors.served_project import only_experts
from perstack.doors.shared.stdio import ProtocolStdio
from perstack.errors import DefinitionError, PerstackError, UsageError
from perstack.support.variables import variables_in
from perstack.toml_reader.definition_with_includes import LoadedProject
from perstack_server.mcp.client_config import CLIENTS, command_of

if TYPE_CHECKING:
    from perstack_server.http.access import AccessRules
    from perstack_server.mcp.workspaces import ServeOptions, Workspace


_HTTP = "Serve over HTTP instead of stdin and stdout: an address, or a Unix socket for programs of your own user."


@click.command("mcp", cls=GroupedCommand)
@click.option("--experts", metavar="KEY[,KEY]", help="Serve only these Experts and their Jobs.")
@click.option(
    "--print-config",
    "client",
    type=click.Choice(list(CLIENTS)),
    help="Only print the configuration for this client, with the options of this command line.",
)
@click.option("--tasks", is_flag=True, help="Also serve the tools of execution memory, for tasks.")
@click.option("--http", "address", metavar="HOST:PORT|unix:PATH", help=_HTTP)
@click.option(
    "--allow-host",
    "names",
    multiple=True,
    metavar="NAME",
    help="With --http: a host name by which clients may call the server; repeatable.",
)
@driving_options
def mcp_command(
    experts: str | None,
    client: str | None,
    tasks: bool,
    address: str | None,
    names: tuple[str, ...],
    options: HostOptions,
) -> None:
    """Serve the Experts of a project, and its Jobs, to editors and agents over MCP."""
    keys = tuple(key.strip() for key in experts.split(",") if key.strip()) if experts else ()
    if client is not None:
        if address is None:
            _print_config(client, options, keys)
        else:
            _print_remote(client, options, address, names)
        return
    serving = _Serving(options, keys, tasks, _names_no_place(click.get_current_context()))
    if address is not None:
        _serve_http(serving, address, names)
    else:
        _serve(serving)


@dataclass(frozen=True, slots=True)
class _Serving:
    options: HostOptions
    experts: tuple[str, ...]
    tasks: bool
    follows_roots: bool  # True if the folder that each client has open is looked for

    def load(self) -> LoadedProject:
        """Return the project. Raises DefinitionError and UsageError."""
        loaded = self.options.load()
        only_experts(loaded.project, self.experts)
        return loaded

    def open(self, loaded: LoadedProject) -> Workspace:
        """Return the workspace of a loaded project. Raises UsageError."""
        from perstack_server.mcp.elicitation import ASKS
        from perstack_server.mcp.sampling import SamplingPlugin

        options = replace(self.options, is_attended=ASKS.get)
        return options.open_host(loaded.project, plugins=[SamplingPlugin()]), loaded

    def open_root(self, folder: Path) -> Workspace:
        """Return the workspace of another folder. Raises DefinitionError and UsageError."""
        rooted = replace(self, options=replace(self.options, folder=str(folder)))
        return rooted.open(rooted.load())

    def offer(self, home: Workspace | PerstackError, *, asks_for_roots: bool = True) -> ServeOptions:
        from perstack_server.mcp.workspaces import ServeOptions

        return ServeOptions(
            home, self.open_root if self.follows_roots and asks_for_roots else None, self.experts, self.tasks
        )


def _names_no_place(context: click.Context) -> bool:
    return all(context.get_parameter_source(name) is ParameterSource.DEFAULT for name in ("workspace", "config"))


def _serve_http(serving: _Serving, text: str, names: tuple[str, ...]) -> None:
    import asyncio

    from perstack_server.http.server import serve_http

    loaded = serving.load()
    guard = _guard(serving.options, loaded.project, text, names)

    async def main() -> None:
        await serve_http(serving.offer(serving.open(loaded), asks_for_roots=guard.address.is_loopback), guard)

    asyncio.run(main())


def _guard(options: HostOptions, project: Project, text: str, names: tuple[str, ...]) -> AccessRules:
    """Return the rules of access for the address; on this machine, a token is created if none is set."""
    from perstack.doors.shared.http_connections import ListenAddress
    from perstack.doors.shared.local_secret import local_secret
    from perstack_server.http.access import DECISION_VARIABLE, TOKEN_VARIABLE, AccessRules

    address = ListenAddress.parse(text)
    token = None
    if address.socket_path is None:
        token = options.env(project).get(TOKEN_VARIABLE) or None
        if token is None and address.is_loopback:
            project_folder = options.find().state_root.resolve()
            token = local_secret("http", project_folder, os.environ, f"set {TOKEN_VARIABLE} to a secret instead")
    # never from a file, which a definition could name; no server or program of an Expert inherits it
    guard = AccessRules(address, token, os.environ.pop(DECISION_VARIABLE, None) or None, names)
    guard.check()
    return guard


def _serve(serving: _Serving) -> None:
    loaded = _load_if_needed(serving)
    if sys.stdin.isatty():
        print_err("waiting for an MCP client on stdin; `perstack mcp --help` explains --print-config")
    wire = ProtocolStdio.take_over()
    opening = wire.read()
    if isinstance(loaded, PerstackError) and (opening is None or not offers_roots(opening)):
        raise loaded
    import asyncio

    from perstack_server.mcp.server import serve_stdio

    async def main() -> None:
        home = loaded if isinstance(loaded, PerstackError) else serving.open(loaded)
        await serve_stdio(serving.offer(home), wire, opening)

    asyncio.run(main())


def offers_roots(opening: bytes) -> bool:
    """Return whether a client's first message offers roots, the folders that it has open."""
    try:
        message: object = json.loads(opening)
    except (ValueError, RecursionError):
        return False
    for key in ("params", "capabilities", "roots"):
        message = cast("dict[str, object]", message).get(key) if isinstance(message, dict) else None
    return isinstance(message, dict)


def _load_if_needed(serving: _Serving) -> LoadedProject | PerstackError:
    """Return the project; if the client may have another project open, return the error instead of raising it."""
    try:
        return serving.load()
    except PerstackError as error:
        if not serving.follows_roots or sys.stdin.isatty():
            raise
        return error


def _print_config(client: str, options: HostOptions, keys: tuple[str, ...]) -> None:
    snippet = CLIENTS[client]
    text = snippet.text(*command_of(_arguments(click.get_current_context(), options, keys)))
    print_err(f"this goes into {snippet.file}:")
    print_out(text)


def _print_remote(client: str, options: HostOptions, text: str, names: tuple[str, ...]) -> None:
    guard = _guard(options, options.project(required=True), text, names)
    if guard.token is None or guard.address.port == 0:
        raise UsageError(f"--http {text}: clients need a fixed address: write HOST:PORT")
    from perstack_server.http.access import PATH

    print_err(f"this goes into {CLIENTS[client].file}; it contains a secret, so keep it out of git:")
    print_out(CLIENTS[client].remote_text(guard.address.url(PATH, names[0] if names else None), guard.token))


def _location_options(options: HostOptions) -> dict[str, object]:
    """Return the location options. A workspace named by perstack.toml need not be below its folder."""
    place = options.find()
    try:
        project = options.project(required=False)
    except DefinitionError:
        project = Project()
    workspace = place.workspace(project, options.workspace_path)
    config, storage = options.config and place.config, options.storage
    if config is None and find_config(workspace) != place.config:
        config = place.config
        if storage is None and not _is_anywhere(project.storage):
            storage = _resolve_from(place.state_root, project.storage)
    if storage is not None and workspace != place.folder:
        storage = _resolve_from(place.folder, storage)
    return {"--workspace": workspace, "--config": config, "--storage": storage}


def _resolve_from(folder: Path, address: str) -> str:
    scheme, _, location = address.partition(":")
    return address if _is_anywhere(address) else f"{scheme}:{folder / location}"


def _is_anywhere(address: str) -> bool:
    """Return whether a storage address does not depend on the folder: a server's address, or one in a variable."""
    return bool(variables_in([address])) or "://" in address


_NOT_COPIED = frozenset({"client", "address", "names", "experts", "config", "workspace", "storage"})
"""Parameters that `--print-config` does not copy as typed."""


def _arguments(context: click.Context, options: HostOptions, keys: tuple[str, ...]) -> list[str]:
    """Return the typed options with absolute paths: the client starts the server in any folder."""
    values = {**_location_options(options), "--experts": ",".join(keys) or None}
    arguments = [part for name, value in values.items() if value is not None for part in (name, str(value))]
    flags: list[str] = []
    for option in context.command.params:
        name = option.name or ""
        if name in _NOT_COPIED or context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        if isinstance(option, click.Option) and option.is_flag:
            flags.append(option.opts[0])
            continue
        value = context.params[name]
        for item in value if option.multiple else (value,):
            arguments += (option.opts[0], str(Path(item).resolve() if option.metavar == "FILE" else item))
    return [*arguments, *flags]
