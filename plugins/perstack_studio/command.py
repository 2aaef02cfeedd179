"""The command `perstack studio`. The server is imported last, so that the help appears quickly."""

from __future__ import annotations

import os
import re
from dataclasses import replace

import click

from perstack.doors.cli.options import GroupedCommand, HostOptions, driving_options
from perstack.doors.cli.terminal import print_out
from perstack.errors import UsageError

_DEFAULT_ADDRESS = "127.0.0.1:7475"
_HOST_NAME = re.compile(r"[A-Za-z0-9._-]+(:[0-9]{1,5})?")


@click.command("studio", cls=GroupedCommand)
@click.option(
    "--http", "address", metavar="HOST:PORT", default=_DEFAULT_ADDRESS, show_default=True, help="The address."
)
@click.option("--read-only", is_flag=True, help="Only show: no answer, no new Job, no rewind.")
@click.option("--link", is_flag=True, help="Only print a new link to the studio that runs at this address.")
@click.option(
    "--behind-proxy",
    metavar="NAME",
    default="",
    help="The name of a proxy with TLS in front of the studio: allows an address that others can reach.",
)
@click.option(
    "--tls-cert",
    metavar="FILE",
    default="",
    help="Speak TLS with this certificate (PEM): allows an address that others can reach, by the certificate's names.",
)
@click.option("--tls-key", metavar="FILE", default="", help="The private key of the certificate (PEM).")
@driving_options
def studio_command(
    address: str, read_only: bool, link: bool, behind_proxy: str, tls_cert: str, tls_key: str, options: HostOptions
) -> None:
    """See Jobs in a browser: why they did what they did, what they ask, what they cost.

    A link is printed that lets one browser in, once, within ten minutes.
    """
    import asyncio

    from perstack.doors.shared.http_connections import ListenAddress
    from perstack.doors.shared.local_secret import local_secret
    from perstack.system.clock import SYSTEM
    from perstack_studio.access import LOOPBACK_NAMES, StudioAccess
    from perstack_studio.server import StudioOptions, is_listening, new_link, serve_studio
    from perstack_studio.tls import load_tls

    listen_address = ListenAddress.parse(address, allows_socket=False)
    if listen_address.socket_path is not None:
        raise UsageError("--http: a browser opens no Unix socket: write HOST:PORT")
    if not listen_address.is_loopback and not (behind_proxy or tls_cert or tls_key):
        raise UsageError(
            f"--http {address}: others can reach this address: give a certificate with --tls-cert and --tls-key, or put"
            " a proxy with TLS in front, and name it with --behind-proxy"
        )
    if behind_proxy and (tls_cert or tls_key):
        raise UsageError("--behind-proxy: with --tls-cert there is no proxy in front: leave out one of the two")
    if behind_proxy and not _HOST_NAME.fullmatch(behind_proxy):
        raise UsageError(f"--behind-proxy {behind_proxy}: write its host name alone, such as studio.example.org")
    tls, names = None, LOOPBACK_NAMES
    if tls_cert or tls_key:
        tls, names = load_tls(tls_cert, tls_key, SYSTEM)
    elif behind_proxy:
        names = (*LOOPBACK_NAMES, behind_proxy.lower().partition(":")[0])
    loaded = options.load()
    secret = local_secret("studio", options.find().state_root.resolve(), os.environ)
    access = StudioAccess(secret, SYSTEM, names, is_secure=bool(behind_proxy) or tls is not None)
    serve_options = StudioOptions(listen_address, read_only, behind_proxy, tls)
    if link:
        if not is_listening(listen_address):
            raise UsageError(f"no studio runs at {address}: start it with `perstack studio`")
        print_out(new_link(serve_options, access, listen_address.port))
        return
    access.started_at = SYSTEM.now()
    host = replace(options, is_attended=lambda: True).open_host(loaded.project)
    provider = options.overrides.provider
    if provider is not None and not host.leaves_to_workers:
        host.jobs.source.setup.plugins.provider(provider)  # a misspelt one is reported now, not at each start of a Job
    asyncio.run(serve_studio(host, loaded, access, serve_options))
