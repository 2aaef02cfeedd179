"""The command `perstack mcp`. The SDK is imported last, so that the help appears quickly."""

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
from perstack_server.mcp.client_config import CLIENTS, launch_command

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
    server_options = _ServerOptions(options, keys, tasks, _uses_default_place(click.get_current_context()))
    if address is not None:
        _serve_http(server_options, address, names)
    else:
        _serve_stdio(server_options)


@dataclass(frozen=True, slots=True)
class _ServerOptions:
    """The options of a server, from which it opens workspaces."""

    options: HostOptions
    experts: tuple[str, ...]
    tasks: bool
    follows_roots: bool  # True if each client is served the folder that it has open

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

    def with_home(self, home: Workspace | PerstackError, *, asks_for_roots: bool = True) -> ServeOptions:
        from perstack_server.mcp.workspaces import ServeOptions

        return ServeOptions(
            home, self.open_root if self.follows_roots and asks_for_roots else None, self.experts, self.tasks
        )


def _uses_default_place(context: click.Context) -> bool:
    return all(context.get_parameter_source(name) is ParameterSource.DEFAULT for name in ("workspace", "config"))


def _serve_http(server: _ServerOptions, text: str, names: tuple[str, ...]) -> None:
    import asyncio

    from perstack_server.http.server import serve_http

    loaded = server.load()
    rules = _access_rules(server.options, loaded.project, text, names)

    async def main() -> None:
        await serve_http(
            server.with_home(server.open(loaded), asks_for_roots=rules.address.is_loopback),
            rules,
        )

    asyncio.run(main())


def _access_rules(options: HostOptions, project: Project, text: str, names: tuple[str, ...]) -> AccessRules:
    """Return the checked rules of access. On a loopback address without a token, use this project's own."""
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
    # Only from the environment: a definition could name a file. It is removed, so no program of an Expert inherits it.
    rules = AccessRules(address, token, os.environ.pop(DECISION_VARIABLE, None) or None, names)
    rules.check()
    return rules


def _serve_stdio(server_options: _ServerOptions) -> None:
    loaded = _load_if_needed(server_options)
    if sys.stdin.isatty():
        print_err("waiting for an MCP client on stdin; `perstack mcp --help` explains --print-config")
    wire = ProtocolStdio.take_over()
    opening = wire.read()
    if isinstance(loaded, PerstackError) and (opening is None or not offers_roots(opening)):
        raise loaded
    import asyncio

    from perstack_server.mcp.server import serve_stdio

    async def main() -> None:
        home = loaded if isinstance(loaded, PerstackError) else server_options.open(loaded)
        await serve_stdio(server_options.with_home(home), wire, opening)

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


def _load_if_needed(server_options: _ServerOptions) -> LoadedProject | PerstackError:
    """Return the project, or its error if the client may have another project open. Raise any other error."""
    try:
        return server_options.load()
    except PerstackError as error:
        if not server_options.follows_roots or sys.stdin.isatty():
            raise
        return error


def _print_config(client: str, options: HostOptions, keys: tuple[str, ...]) -> None:
    snippet = CLIENTS[client]
    text = snippet.text(*launch_command(_typed_options(click.get_current_context(), options, keys)))
    print_err(f"this goes into {snippet.file}:")
    print_out(text)


def _print_remote(client: str, options: HostOptions, text: str, names: tuple[str, ...]) -> None:
    rules = _access_rules(options, options.project(required=True), text, names)
    if rules.token is None or rules.address.port == 0:
        raise UsageError(f"--http {text}: clients need a fixed address: write HOST:PORT")
    from perstack_server.http.access import PATH

    print_err(f"this goes into {CLIENTS[client].file}; it contains a secret, so keep it out of git:")
    print_out(CLIENTS[client].remote_text(rules.address.url(PATH, names[0] if names else None), rules.token))


def _resolved_location_options(options: HostOptions) -> dict[str, object]:
    """Return the location options with absolute paths. A workspace need not be below perstack.toml's folder."""
    place = options.find()
    try:
        project = options.project(required=False)
    except DefinitionError:
        project = Project()
    workspace = place.workspace(project, options.workspace_path)
    config, storage = options.config and place.config, options.storage
    if config is None and find_config(workspace) != place.config:
        config = place.config
        if storage is None and not _is_absolute(project.storage):
            storage = _resolve_storage(place.state_root, project.storage)
    if storage is not None and workspace != place.folder:
        storage = _resolve_storage(place.folder, storage)
    return {"--workspace": workspace, "--config": config, "--storage": storage}


def _resolve_storage(folder: Path, address: str) -> str:
    scheme, _, location = address.partition(":")
    return address if _is_absolute(address) else f"{scheme}:{folder / location}"


def _is_absolute(address: str) -> bool:
    """Return whether a storage address does not depend on the folder: a URL, or an address in a variable."""
    return bool(variables_in([address])) or "://" in address


_NOT_COPIED = frozenset({"client", "address", "names", "experts", "config", "workspace", "storage"})
"""Parameters that `--print-config` does not copy as typed."""


def _typed_options(context: click.Context, options: HostOptions, keys: tuple[str, ...]) -> list[str]:
    """Return the typed options with absolute paths: the client starts the server in any folder."""
    values = {**_resolved_location_options(options), "--experts": ",".join(keys) or None}
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
