"""Decide whether an IP address is on the public internet; one rule for MCP servers, sandboxes and definitions.

These are not public: private, local and reserved addresses, IPv6 addresses that wrap one of them, and addresses at
which a cloud gives secrets to its machines. An address that is not known to be public counts as private.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_UNICAST = IPv6Network("2000::/3")  # the allocated part of IPv6; everything else is old, local or translated

_NAT64 = IPv6Network("64:ff9b::/96")

_RESERVED = (  # never public. The standard library is not asked: its answer depends on the Python version
    IPv4Network("192.0.0.0/24"),
    IPv4Network("192.88.99.0/24"),
    IPv4Network("168.63.129.16/32"),  # a cloud's metadata service
    IPv6Network("3fff::/20"),
)


def is_public(text: str) -> bool:
    """Return True if an address and every address that it wraps are public. Raises ValueError for an invalid one."""
    address = ip_address(text.partition("%")[0])
    return all(map(_is_public_unicast, (address, *_embedded_ipv4(address))))


def _is_public_unicast(address: IPv4Address | IPv6Address) -> bool:
    is_unicast = isinstance(address, IPv4Address) or address in _UNICAST or address in _NAT64
    is_reserved = address.is_multicast or any(address in network for network in _RESERVED)
    return is_unicast and address.is_global and not is_reserved


def _embedded_ipv4(address: IPv4Address | IPv6Address) -> tuple[IPv4Address, ...]:
    if isinstance(address, IPv4Address):
        return ()
    if address in _NAT64:
        return (IPv4Address(int(address) & 0xFFFFFFFF),)
    teredo = address.teredo
    embedded = (address.ipv4_mapped, address.sixtofour, None if teredo is None else teredo[1])
    return tuple(item for item in embedded if item is not None)
