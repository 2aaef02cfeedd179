"""Rules for the network addresses that a program may reach. Pure functions: `proxy_main` resolves names."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address

from perstack.core.definitions.public_addresses import is_public
from perstack.dataclass import dataclass

_WEB = frozenset({80, 443})  # ports of an entry that names none
LOCAL = "localhost"
_MAX_HOST_CHARS = 253  # maximum characters of a host name in messages; a program may send a longer one
MAX_PORTS = 64  # maximum number of listed host ports: each needs a listener before each program
_MIN_PORT = 1024  # ports below this one need administrator rights
_PROXY_PORT = 3128


@dataclass(frozen=True, slots=True)
class PlaceRefused(Exception):
    """Refusal of a network address, with a message for the model."""

    message: str

    def __str__(self) -> str:
        return self.message


def check_named(host: str, port: int, allowed: Iterable[str]) -> None:
    """Raise PlaceRefused if no entry names this host and port."""
    name = host.rstrip(".").casefold()
    if not any(_allows(entry, name, port) for entry in allowed):
        raise PlaceRefused(
            f"{_short_host(host)}:{port} is not an address that this program may reach ([sandbox] network)"
        )


def check_address(host: str, port: int, address: str, allowed: Iterable[str]) -> None:
    """Raise PlaceRefused unless the address is public; for a listed port of `localhost`, unless it is loopback."""
    name = host.rstrip(".").casefold()
    if name == LOCAL and port in local_ports(allowed):
        if not ip_address(address.partition("%")[0]).is_loopback:
            raise PlaceRefused(f"{host}:{port} is at {address}, which is not this machine")
        return
    if not is_public(address):
        raise PlaceRefused(f"{host}:{port} is at {address}, which is not a public address")


def local_ports(allowed: Iterable[str]) -> tuple[int, ...]:
    """Return the listed ports of the host's loopback."""
    entries = (entry.casefold().rpartition(":") for entry in allowed)
    return tuple(dict.fromkeys(int(port) for name, _, port in entries if name == LOCAL))


def proxy_port(allowed: Iterable[str]) -> int:
    """Return the proxy's port inside, which is none of the listed ports."""
    listed_ports = local_ports(allowed)
    return next(port for port in range(_PROXY_PORT, _PROXY_PORT + MAX_PORTS + 1) if port not in listed_ports)


def wrong_ports(allowed: Iterable[str]) -> str:
    """Describe the listed host ports that cannot be offered to a program; empty if there are none."""
    ports = local_ports(allowed)
    if len(ports) > MAX_PORTS:
        return f"`network`: {len(ports)} ports of this machine are listed, and at most {MAX_PORTS} can be"
    low = next((port for port in ports if port < _MIN_PORT), None)
    return "" if low is None else f"`network`: localhost:{low} cannot be listened on inside, where ports begin at 1024"


def _short_host(host: str) -> str:
    return host if len(host) <= _MAX_HOST_CHARS else f"{host[:_MAX_HOST_CHARS]}…"


def _allows(entry: str, host: str, port: int) -> bool:
    name, _, entry_port = entry.casefold().partition(":")
    if (port not in _WEB) if not entry_port else (str(port) != entry_port):
        return False
    return host.endswith(name[1:]) if name.startswith("*.") else host == name
