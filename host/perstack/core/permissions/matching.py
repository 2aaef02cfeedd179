"""Whether a rule is about a call, or about one of the things that a call does.

Rules that deny or ask are strict: they match if any name of the thing does. One that allows must match all of them.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Sequence

from pydantic import JsonValue

from perstack.core.policy.calls import PolicyCall
from perstack.core.policy.globs import Glob
from perstack.core.policy.rules import PermissionRule
from perstack.core.policy.urls import readings
from perstack.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """One thing that a call does: with one path, by one command, or all of it."""

    call: PolicyCall
    shown: str
    """As people read it."""
    path: str | None = None
    url: str | None = None
    lines: tuple[str, ...] = ()
    """The command line as it is written, and what it comes to besides, which counts for strict rules."""
    start: str | None = None
    """What is known of a line that is not known as a whole: how it begins."""


def is_about(rule: PermissionRule, call: PolicyCall) -> bool:
    """Whether the rule names the tool, whatever its arguments."""
    if rule.is_delegate:
        return call.kind == "delegate" and rule.tool.matches(call.tool)
    if rule.skill is not None and not (call.skill and rule.skill.matches(call.skill)):
        return False
    return rule.tool.matches(call.tool) or (call.shown != "" and rule.tool.matches(call.shown))


def matches(rule: PermissionRule, target: Target, *, is_strict: bool) -> bool:
    """Whether the rule is about this."""
    call = target.call
    if not is_about(rule, call):
        return False
    if rule.bare is not None:
        return _bare(rule.bare, target, is_strict=is_strict)
    return all(_named(name, glob, call, is_strict=is_strict) for name, glob in rule.named)


def could_match(rule: PermissionRule, target: Target) -> bool:
    """Whether the rule may be about a line of which only the start is known."""
    if target.start is None or not is_about(rule, target.call):
        return False
    return rule.bare is None or rule.bare.could_match(target.start)


def is_exact(rule: PermissionRule, target: Target) -> bool:
    """Whether the rule is the very line."""
    if rule.bare is None or not rule.bare.is_literal or target.start is not None or not target.lines:
        return False
    return is_about(rule, target.call) and rule.bare.literal == target.lines[0]


def _bare(glob: Glob, target: Target, *, is_strict: bool) -> bool:
    if target.path is not None:
        return _path(glob, target.path, target.call, is_strict=is_strict)
    if target.url is not None:
        return _url(glob, target.url, is_strict=is_strict)
    if target.lines:
        lines = target.lines if is_strict else target.lines[:1]
        return any(glob.matches_line(line) for line in lines)
    values = list(target.call.args.values())
    return bool(values) and _whether(
        [_value(glob, value, target.call, is_strict=is_strict) for value in values], is_strict=is_strict
    )


def _named(name: str, glob: Glob, call: PolicyCall, *, is_strict: bool) -> bool:
    paths = call.paths().get(name)
    if paths is not None:
        return _whether([_path(glob, path, call, is_strict=is_strict) for path in paths], is_strict=is_strict)
    urls = call.urls().get(name)
    if urls is not None:
        return _whether([_url(glob, url, is_strict=is_strict) for url in urls], is_strict=is_strict)
    return name in call.args and _value(glob, call.args[name], call, is_strict=is_strict)


def _path(glob: Glob, path: str, call: PolicyCall, *, is_strict: bool) -> bool:
    if glob.matches_path(path, is_strict=is_strict):
        return True
    if not is_strict:
        return False
    is_inside = bool(call.root) and not path.startswith("/")
    if is_inside and glob.matches_path(posixpath.normpath(f"{call.root}/{path}"), is_strict=True):
        return True
    return call.effect == "sideEffect" and glob.is_around(path)


def _url(glob: Glob, url: str, *, is_strict: bool) -> bool:
    return _whether([glob.matches(one) for one in readings(url, is_strict=is_strict)], is_strict=is_strict)


def _value(glob: Glob, value: JsonValue, call: PolicyCall, *, is_strict: bool) -> bool:
    match value:
        case str():
            return any(glob.matches(text) for text in (_readings(value, call) if is_strict else [value]))
        case list() if value:
            whole = is_strict and glob.matches(_json(value))
            each = [_value(glob, one, call, is_strict=is_strict) for one in value]
            return whole or _whether(each, is_strict=is_strict)
        case _:
            return glob.matches(_json(value))


def _readings(text: str, call: PolicyCall) -> Sequence[str]:
    """A text, and what it is as a path: `a/../b` is `b`, and so is the workspace's own name before it."""
    if "/" not in text or "://" in text:
        return (text,)
    path = posixpath.normpath(text)
    inside = path.removeprefix(f"{call.root}/") if call.root else path
    return tuple(dict.fromkeys((text, path, inside)))


def _whether(found: Sequence[bool], *, is_strict: bool) -> bool:
    return any(found) if is_strict else all(found) and bool(found)


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
