"""Which places a program may reach over the network. Pure: names are resolved elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from perstack.dataclass import dataclass

_WEB = frozenset({80, 443})
"""The ports of an entry that names none."""
LOCAL = "localhost"
_NAT64 = IPv6Network("64:ff9b::/96")
_UNICAST = IPv6Network("2000::/3")
"""All that of version 6 is given to anybody; what else there is are old, local and translated addresses."""
_NOBODYS = (
    IPv4Network("192.0.0.0/24"),
    IPv4Network("192.88.99.0/24"),
    IPv4Network("168.63.129.16/32"),  # where a cloud tells its machines their secrets, at an address that looks public
    IPv6Network("3fff::/20"),
)
_LONGEST = 253
"""Characters of a name; a program may ask for one of any length."""
MOST_PORTS = 64
"""Ports of the host's loopback: each is listened on before each program."""
_LOWEST_PORT = 1024
"""Below, only an administrator may listen."""
_PROXY_PORT = 3128


@dataclass(frozen=True, slots=True)
class Refused(Exception):
    """Why a place may not be reached, in words for a model."""

    words: str

    def __str__(self) -> str:
        return self.words


def check_named(host: str, port: int, allowed: Iterable[str]) -> None:
    """Raises Refused if no entry names this host and port."""
    name = host.rstrip(".").casefold()
    if not any(_names(entry, name, port) for entry in allowed):
        raise Refused(f"{_short(host)}:{port} is not among the places that this program may reach ([sandbox] network)")


def check_address(host: str, port: int, address: str, allowed: Iterable[str]) -> None:
    """Raises Refused if a name that is listed leads to an address that is nobody's but this machine's or network's."""
    name = host.rstrip(".").casefold()
    found = ip_address(address.partition("%")[0])
    if name == LOCAL and port in local_ports(allowed):
        if not found.is_loopback:
            raise Refused(f"{host}:{port} is at {address}, which is not this machine")
        return
    if not all(map(_is_public, (found, *_within(found)))):
        raise Refused(f"{host}:{port} is at {address}, which is no public address")


def local_ports(allowed: Iterable[str]) -> tuple[int, ...]:
    """The ports of the host's loopback that are listed by name."""
    found = (entry.casefold().rpartition(":") for entry in allowed)
    return tuple(dict.fromkeys(int(port) for name, _, port in found if name == LOCAL))


def proxy_port(allowed: Iterable[str]) -> int:
    """The port of the proxy inside: none that is listed."""
    taken = local_ports(allowed)
    return next(port for port in range(_PROXY_PORT, _PROXY_PORT + MOST_PORTS + 1) if port not in taken)


def wrong_ports(allowed: Iterable[str]) -> str:
    """What of the ports of this machine that are listed cannot be given to a program; empty if nothing."""
    ports = local_ports(allowed)
    if len(ports) > MOST_PORTS:
        return f"`network`: {len(ports)} ports of this machine are listed, and at most {MOST_PORTS} can be"
    low = next((port for port in ports if port < _LOWEST_PORT), None)
    return "" if low is None else f"`network`: localhost:{low} cannot be listened on inside, where ports begin at 1024"


def _short(host: str) -> str:
    return host if len(host) <= _LONGEST else f"{host[:_LONGEST]}…"


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    is_given = isinstance(address, IPv4Address) or address in _UNICAST or address in _NAT64
    return is_given and address.is_global and not address.is_multicast and not any(address in one for one in _NOBODYS)


def _within(address: IPv4Address | IPv6Address) -> tuple[IPv4Address, ...]:
    """The address of version 4 that one of version 6 leads to."""
    if isinstance(address, IPv4Address):
        return ()
    if address in _NAT64:
        return (IPv4Address(int(address) & 0xFFFFFFFF),)
    return tuple(one for one in (address.ipv4_mapped, address.sixtofour) if one is not None)


def _names(entry: str, host: str, port: int) -> bool:
    name, _, of_port = entry.casefold().partition(":")
    if (port not in _WEB) if not of_port else (str(port) != of_port):
        return False
    return host.endswith(name[1:]) if name.startswith("*.") else host == name
