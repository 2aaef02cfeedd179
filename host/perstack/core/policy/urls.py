"""The readings of an address, for permission rules: as it is written, and as programs understand it.

A rule that denies or asks matches any of them, so that `HTTP://EXAMPLE.com:80/a/../b` is not another address than
`http://example.com/b`. One that allows must match all of them.
"""

from __future__ import annotations

import re
import unicodedata
from posixpath import normpath
from urllib.parse import unquote

_LONGEST_HOST = 1_000
_SPECIAL = re.compile(r"(?i)(https?|wss?|ftp):[\\/]*(.*)", re.DOTALL)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?!\d)")
_UNSEEN = re.compile(r"[\t\r\n]")
_NUMBER = re.compile(r"(?i)(?:0x[0-9a-f]*|\d+)(?:\.(?:0x[0-9a-f]*|\d+)){0,3}")
_PORTS = {"http": "80", "https": "443", "ws": "80", "wss": "443", "ftp": "21"}


def readings(text: str, *, is_strict: bool) -> tuple[str, ...]:
    """What an address may be taken for, itself first. `is_strict`: one without a scheme may get one, too."""
    plain = _UNSEEN.sub("", text.strip("".join(map(chr, range(33)))))
    wholes = [plain] if _SCHEME.match(plain) else [f"{scheme}://{plain}" for scheme in ("https", "http") if is_strict]
    found = [text]
    for whole in wholes:
        for one in (whole.replace("\\", "/"), whole):  # browsers and libraries do not agree on a backslash
            found += _understood(one)
    return tuple(dict.fromkeys(found))


def _understood(text: str) -> tuple[str, ...]:
    special = _SPECIAL.fullmatch(text)
    if special is None:
        return ()
    scheme = special[1].lower()
    authority, path, query = _parts(special[2])
    host, port = _host_and_port(authority.rpartition("@")[2])
    there = f"{scheme}://{host}{f':{port}' if port and port != _PORTS[scheme] else ''}"
    way = normpath(f"/{unquote(path)}".replace("//", "/"))
    is_folder = path.endswith("/") and way != "/"
    return (f"{there}{way}{'/' if is_folder else ''}{query}",)


def _parts(rest: str) -> tuple[str, str, str]:
    rest = rest.partition("#")[0]
    before, mark, query = rest.partition("?")
    authority, _, path = before.partition("/")
    return authority, path, f"{mark}{query}"


def _host_and_port(text: str) -> tuple[str, str]:
    if len(text) > _LONGEST_HOST:  # no host has that many characters
        return text.lower(), ""
    if text.startswith("["):
        host, _, rest = text.partition("]")
        return f"{_address(host[1:])}", rest.removeprefix(":")
    host, _, port = text.partition(":")
    host = unicodedata.normalize("NFKC", unquote(host)).lower().rstrip(".")
    return (_dotted(host) if _NUMBER.fullmatch(host) else _in_ascii(host)), port


def _dotted(host: str) -> str:
    """An address of version 4 as it is usually written, however it is: `127.1`, `0x7f000001`, `0177.0.0.1`."""
    *first, last = (_number(part) for part in host.split("."))
    if any(part > 255 for part in first) or last >= 256 ** (4 - len(first)):
        return host
    whole = sum(part << (24 - 8 * place) for place, part in enumerate(first)) + last
    return ".".join(str(whole >> shift & 255) for shift in (24, 16, 8, 0))


def _number(part: str) -> int:
    if part.startswith("0x"):
        return int(part[2:] or "0", 16)
    is_octal = part.startswith("0") and not set(part) - set("01234567")
    return int(part, 8 if is_octal else 10)


def _in_ascii(host: str) -> str:
    if host.isascii():
        return host
    try:
        return host.encode("idna").decode("ascii")
    except UnicodeError:
        return host


def _address(text: str) -> str:
    """An address of version 6 in brackets, as short as it can be; one that maps an older one is that one."""
    from ipaddress import AddressValueError, IPv6Address

    try:
        address = IPv6Address(text)
    except AddressValueError:
        return f"[{text.lower()}]"
    return str(address.ipv4_mapped) if address.ipv4_mapped is not None else f"[{address}]"
