"""Which addresses a remote server may have."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

from perstack.errors import SkillError

_NAT64 = IPv6Network("64:ff9b::/96")
_LOCAL = (IPv6Network("64:ff9b:1::/48"), IPv6Network("fec0::/10"))
"""A network's own translation (RFC 8215) and what was site-local (RFC 3879): the library calls them global."""


def is_public(text: str) -> bool:
    """Whether an address is one of the internet, also when it wraps another."""
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address) and any(address in network for network in _LOCAL):
        return False
    inner = _wrapped(address) if isinstance(address, IPv6Address) else None
    return all(one.is_global and not one.is_multicast for one in (address, *([inner] if inner else [])))


def _wrapped(address: IPv6Address) -> IPv4Address | None:
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo is not None else None)


def refuse_private(text: str, host: str) -> None:
    """Raises SkillError if an address that a host name stands for is not one of the internet."""
    if not is_public(text):
        shown = text if text == host else f"{host} ({text})"
        raise SkillError(f"{shown} is a private or local address: set `allowLocalNetwork = true` to connect to it")


async def public_addresses(host: str, port: int) -> list[str]:
    """The addresses of a host. Raises SkillError if any of them is not public: which is used would be chance."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise SkillError(f"{host} has no address ({error}): correct `endpoint`, or see to the network") from error
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    for address in addresses:
        refuse_private(address, host)
    return addresses
