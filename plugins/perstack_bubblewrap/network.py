"""Which places a program may reach over the network. Pure: names are resolved elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

from perstack.dataclass import dataclass

_WEB = frozenset({80, 443})
"""The ports of an entry that names none."""
LOCAL = "localhost"
_NAT64 = IPv6Network("64:ff9b::/96")


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
        raise Refused(f"{host}:{port} is not among the places that this program may reach ([sandbox] network)")


def check_address(host: str, port: int, address: str, allowed: Iterable[str]) -> None:
    """Raises Refused if a name that is listed leads to an address that is nobody's but this machine's or network's."""
    name = host.rstrip(".").casefold()
    if name == LOCAL and f"{LOCAL}:{port}" in allowed:
        return
    found = ip_address(address.partition("%")[0])
    if not all(one.is_global and not one.is_multicast for one in (found, *_within(found))):
        raise Refused(f"{host}:{port} is at {address}, which is no public address")


def local_ports(allowed: Iterable[str]) -> tuple[int, ...]:
    """The ports of the host's loopback that are listed by name."""
    found = (entry.rpartition(":") for entry in allowed)
    return tuple(dict.fromkeys(int(port) for name, _, port in found if name == LOCAL))


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
