"""Match rules with calls: a rule that denies or asks must match one reading of a target, a rule that allows all.

An allow rule without a skill matches tools of the base skill and the host; for a program it is a command pattern.
"""

from __future__ import annotations

import json
import posixpath
import re
import unicodedata
from collections.abc import Sequence
from posixpath import normpath
from urllib.parse import unquote

from pydantic import JsonValue

from perstack.core.definitions.permissions import PermissionRule
from perstack.core.definitions.skills import PathUse
from perstack.core.files.globs import Glob
from perstack.core.permissions.command_patterns import WordPattern, matches_arguments, parse_command
from perstack.core.permissions.policy_calls import PolicyCall
from perstack.core.permissions.shell_syntax import ShellCommand
from perstack.dataclass import dataclass

# Readings of an address: as written, and as programs understand it. A strict rule matches any of them, so that
# `HTTP://EXAMPLE.com:80/a/../b` cannot bypass a rule for `http://example.com/b`.

_MAX_HOST_CHARS = 1_000
_SPECIAL = re.compile(r"(?i)(https?|wss?|ftp):[\\/]*(.*)", re.DOTALL)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?!\d)")
_IGNORED_CHARS = re.compile(r"[\t\r\n]")
_NUMBER = re.compile(r"(?i)(?:0x[0-9a-f]*|\d+)(?:\.(?:0x[0-9a-f]*|\d+)){0,3}")
_PORTS = {"http": "80", "https": "443", "ws": "80", "wss": "443", "ftp": "21"}


def address_readings(text: str, *, is_strict: bool) -> tuple[str, ...]:
    """Return the readings of an address, the written one first. `is_strict`: add a missing scheme."""
    plain = _IGNORED_CHARS.sub("", text.strip("".join(map(chr, range(33)))))
    addresses = (
        [plain] if _SCHEME.match(plain) else [f"{scheme}://{plain}" for scheme in ("https", "http") if is_strict]
    )
    readings = [text]
    for address in addresses:
        for reading in (address.replace("\\", "/"), address):  # browsers and libraries disagree about backslashes
            readings += _normalized_addresses(reading)
    return tuple(dict.fromkeys(readings))


def _normalized_addresses(text: str) -> tuple[str, ...]:
    special = _SPECIAL.fullmatch(text)
    if special is None:
        return ()
    scheme = special[1].lower()
    authority, path, query = _split_location(special[2])
    host, port = _host_and_port(authority.rpartition("@")[2])
    origin = f"{scheme}://{host}{f':{port}' if port and port != _PORTS[scheme] else ''}"
    normalized = normpath(f"/{unquote(path)}".replace("//", "/"))
    is_folder = path.endswith("/") and normalized != "/"
    return (f"{origin}{normalized}{'/' if is_folder else ''}{query}",)


def _split_location(text: str) -> tuple[str, str, str]:
    text = text.partition("#")[0]
    location, mark, query = text.partition("?")
    authority, _, path = location.partition("/")
    return authority, path, f"{mark}{query}"


def _host_and_port(text: str) -> tuple[str, str]:
    if len(text) > _MAX_HOST_CHARS:  # no host name is that long
        return text.lower(), ""
    if text.startswith("["):
        host, _, tail = text.partition("]")
        return _normalized_ipv6(host[1:]), tail.removeprefix(":")
    host, _, port = text.partition(":")
    host = unicodedata.normalize("NFKC", unquote(host)).lower().rstrip(".")
    return (_dotted_ipv4(host) if _NUMBER.fullmatch(host) else _to_ascii(host)), port


def _dotted_ipv4(host: str) -> str:
    """Return an IPv4 address in the usual form, from `127.1`, `0x7f000001` or `0177.0.0.1`."""
    *first, last = (_number(part) for part in host.split("."))
    if any(part > 255 for part in first) or last >= 256 ** (4 - len(first)):
        return host
    value = sum(part << (24 - 8 * index) for index, part in enumerate(first)) + last
    return ".".join(str(value >> shift & 255) for shift in (24, 16, 8, 0))


def _number(part: str) -> int:
    if part.startswith("0x"):
        return int(part[2:] or "0", 16)
    is_octal = part.startswith("0") and not set(part) - set("01234567")
    return int(part, 8 if is_octal else 10)


def _to_ascii(host: str) -> str:
    if host.isascii():
        return host
    try:
        return host.encode("idna").decode("ascii")
    except UnicodeError:
        return host


def _normalized_ipv6(text: str) -> str:
    """Return an IPv6 address in brackets in its shortest form; an IPv4-mapped one becomes the IPv4 address."""
    from ipaddress import AddressValueError, IPv6Address

    try:
        address = IPv6Address(text)
    except AddressValueError:
        return f"[{text.lower()}]"
    return str(address.ipv4_mapped) if address.ipv4_mapped is not None else f"[{address}]"


@dataclass(frozen=True, slots=True)
class RuleTarget:
    """Part of a call that rules decide: one path, one address, one command, or all of it."""

    policy_call: PolicyCall
    shown: str
    path: str | None = None
    use: PathUse | None = None  # what the tool does with the path
    url: str | None = None
    lines: tuple[str, ...] = ()  # command line as written, then equivalent forms, which count for strict rules only
    start: str | None = None  # beginning of a line whose rest is known only at run time; None for a fully known one
    command: ShellCommand | None = None


def is_about(rule: PermissionRule, policy_call: PolicyCall, *, is_strict: bool = True) -> bool:
    """Return True if the rule names the tool, with any arguments. `is_strict`: False for a rule that allows."""
    if rule.is_delegate:
        return policy_call.kind == "delegate" and rule.tool.matches(policy_call.tool)
    if rule.skill is None and not is_strict and not policy_call.is_host:
        return False
    if rule.group is not None and policy_call.may_use_paths(rule.group):
        return True
    return (rule.group is None or is_strict) and _names_tool(rule, policy_call)


def _names_tool(rule: PermissionRule, policy_call: PolicyCall) -> bool:
    if rule.skill is not None and not (policy_call.skill and rule.skill.matches(policy_call.skill)):
        return False
    return rule.tool.matches(policy_call.tool) or (policy_call.shown != "" and rule.tool.matches(policy_call.shown))


def _has_use(rule: PermissionRule, target: RuleTarget, *, is_strict: bool) -> bool:
    """Return True if the rule covers this use of the target. A strict `read(…)` also means a tool named `read`."""
    return rule.group in (None, target.use) or (is_strict and _names_tool(rule, target.policy_call))


def matches(rule: PermissionRule, target: RuleTarget, *, is_strict: bool) -> bool:
    policy_call = target.policy_call
    if not is_about(rule, policy_call, is_strict=is_strict) or not _has_use(rule, target, is_strict=is_strict):
        return False
    if target.lines and rule.has_arguments and not is_strict:
        return _allows_command(rule, target)
    if rule.bare is not None:
        return _matches_bare(rule.bare, target, is_strict=is_strict)
    return all(_matches_named(name, glob, policy_call, is_strict=is_strict) for name, glob in rule.named)


def could_match(rule: PermissionRule, target: RuleTarget) -> bool:
    """Return True if the rule could match a line whose beginning alone is known."""
    if target.start is None or not is_about(rule, target.policy_call):
        return False
    return rule.bare is None or rule.bare.could_match(target.start)


def is_exact(rule: PermissionRule, target: RuleTarget) -> bool:
    """Return True if the rule is literally the target's command line, and the line runs in the top folder."""
    if rule.bare is None or target.start is not None or not target.lines or not _is_at_top(target):
        return False
    if not is_about(rule, target.policy_call, is_strict=False):
        return False
    if rule.bare.is_literal and rule.bare.literal == target.lines[0]:
        return True
    words = _words_of_rule(rule.bare)
    return words is not None and words == _words_of_target(target)


def _words_of_rule(glob: Glob) -> tuple[str, ...] | None:
    try:
        return parse_command(glob.text).words
    except ValueError:
        return None


def _words_of_target(target: RuleTarget) -> tuple[str, ...] | None:
    command = target.command
    if command is None or target.policy_call.script is not None:
        return None
    return (*command.assignments, *command.known)


def _is_at_top(target: RuleTarget) -> bool:
    is_moved = target.command is not None and target.command.has_unknown_folder
    return not is_moved and all(name == "." for name in target.policy_call.folder_names)


def _allows_command(rule: PermissionRule, target: RuleTarget) -> bool:
    """Return True if a rule allows a command: only in the top folder, and only if every word is known."""
    command, policy_call = target.command, target.policy_call
    if command is None or not command.is_known or command.assignments or command.has_unknown_folder:
        return False
    subject, arguments = policy_call.subject, dict(rule.named)
    pattern = rule.bare
    if subject is not None and subject.script:
        pattern = pattern or arguments.pop(subject.script, None)
    folder = arguments.pop(subject.folder, None) if subject is not None else None
    if not _runs_in(folder, target):
        return False
    if pattern is not None and not _matches_words(pattern, command, policy_call):
        return False
    if pattern is None and subject is not None:
        program, argument = (_take_word(arguments, name) for name in (subject.program, subject.arguments))
        if not matches_arguments(program, argument, command.known, policy_call.is_within):
            return False
    return all(_matches_named(name, glob, policy_call, is_strict=False) for name, glob in arguments.items())


def _matches_words(glob: Glob, command: ShellCommand, policy_call: PolicyCall) -> bool:
    try:
        return parse_command(glob.text).matches(command.known, policy_call.is_within)
    except ValueError:
        return False


def _take_word(arguments: dict[str, Glob], name: str) -> WordPattern | None:
    glob = arguments.pop(name, None)
    return None if glob is None else WordPattern(glob.texts)


def _runs_in(folder: Glob | None, target: RuleTarget) -> bool:
    if folder is None:
        return _is_at_top(target)
    return target.policy_call.is_within(".") and all(
        folder.matches_path(name, is_strict=False) for name in target.policy_call.folder_names
    )


def _matches_bare(glob: Glob, target: RuleTarget, *, is_strict: bool) -> bool:
    if target.path is not None:
        return _matches_path(glob, target.path, target.policy_call, is_strict=is_strict)
    if target.url is not None:
        return _matches_url(glob, target.url, is_strict=is_strict)
    if target.lines:
        return any(glob.matches_line(line) for line in target.lines)
    values = list(target.policy_call.args.values())
    return bool(values) and _any_or_all(
        [_matches_value(glob, value, target.policy_call, is_strict=is_strict) for value in values], is_strict=is_strict
    )


def _matches_named(name: str, glob: Glob, policy_call: PolicyCall, *, is_strict: bool) -> bool:
    paths = policy_call.paths().get(name)
    if paths is not None:
        results = [_matches_path(glob, path, policy_call, is_strict=is_strict) for path in paths]
        return _any_or_all(results, is_strict=is_strict)
    urls = policy_call.urls().get(name)
    if urls is not None:
        return _any_or_all([_matches_url(glob, url, is_strict=is_strict) for url in urls], is_strict=is_strict)
    return name in policy_call.args and _matches_value(glob, policy_call.args[name], policy_call, is_strict=is_strict)


def _matches_path(glob: Glob, path: str, policy_call: PolicyCall, *, is_strict: bool) -> bool:
    if glob.matches_path(path, is_strict=is_strict):
        return True
    if not is_strict:
        return False
    is_inside = bool(policy_call.root) and not path.startswith("/")
    if is_inside and glob.matches_path(posixpath.normpath(f"{policy_call.root}/{path}"), is_strict=True):
        return True
    return policy_call.effect == "sideEffect" and glob.names_something_in(path)


def _matches_url(glob: Glob, url: str, *, is_strict: bool) -> bool:
    return _any_or_all(
        [glob.matches(reading) for reading in address_readings(url, is_strict=is_strict)], is_strict=is_strict
    )


def _matches_value(glob: Glob, value: JsonValue, policy_call: PolicyCall, *, is_strict: bool) -> bool:
    match value:
        case str():
            return any(glob.matches(text) for text in (_path_readings(value, policy_call) if is_strict else [value]))
        case list() if value:
            matches_whole = is_strict and glob.matches(_json(value))
            results = [_matches_value(glob, item, policy_call, is_strict=is_strict) for item in value]
            return matches_whole or _any_or_all(results, is_strict=is_strict)
        case _:
            return glob.matches(_json(value))


def _path_readings(text: str, policy_call: PolicyCall) -> Sequence[str]:
    """Return a text and its readings as a path: normalized, so that `a/../b` is `b`, and relative to the workspace."""
    if "/" not in text or "://" in text:
        return (text,)
    path = posixpath.normpath(text)
    relative = path.removeprefix(f"{policy_call.root}/") if policy_call.root else path
    return tuple(dict.fromkeys((text, path, relative)))


def _any_or_all(results: Sequence[bool], *, is_strict: bool) -> bool:
    return any(results) if is_strict else all(results) and bool(results)


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
