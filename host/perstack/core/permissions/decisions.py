"""What rules decide about a command line: about each simple command in it, and each file that it is redirected to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import assert_never

from perstack.core.base import JsonObject
from perstack.core.policy.calls import PolicyCall, line_of
from perstack.core.policy.lines import Command, Part, Redirect, Unread
from perstack.core.policy.matching import Target
from perstack.core.policy.programs import VARIABLES, parts_of, redirects_of
from perstack.core.policy.rulings import Rules, Ruling, strictest
from perstack.core.policy.variables import is_harmless
from perstack.core.tools import Subject

_WRITE = "writeTextFile"
_READ = "readTextFile"
_FILE = Subject(paths=("path",))


def decide_command(rules: Rules, call: PolicyCall) -> Ruling:
    """What a set of rules decides about a call that runs a program."""
    changed = tuple(f"{name}={value}" for name, value in call.variables.items() if not is_harmless(name))
    command = Command(call.command, changed)
    whole = _target(call, command)
    if call.script is not None:
        whole = replace(whole, shown=call.script, lines=(call.script, *whole.lines))
    rulings = [one for part in parts_of(command) for one in _about(rules, call, part)]
    exact = rules.exactly(whole)
    if exact is not None:
        return strictest([exact, *(one for one in rulings if one.decision == "deny" and one.rule)])
    return strictest(rulings) if rulings else rules.about(whole)


def _about(rules: Rules, call: PolicyCall, part: Part) -> Iterator[Ruling]:
    match part:
        case Command():
            yield from _of_command(rules, _target(call, part), part)
        case Redirect() if part.path is None:
            yield _asked(rules, None, Target(call, part.shown), "what it is redirected to is known when it runs")
        case Redirect():
            yield from _file(rules, call, part.path or "", _READ if part.is_read else _WRITE)
        case Unread():
            yield _asked(rules, None, Target(call, part.shown), part.reason)
        case _:
            assert_never(part)


def _of_command(rules: Rules, target: Target, command: Command) -> Iterator[Ruling]:
    ruling = rules.about(target)
    if command.is_around:
        if ruling.rule and (ruling.decision == "deny" or (ruling.decision == "ask" and rules.names_line(ruling.rule))):
            yield ruling
        return
    reason = command.reason or (VARIABLES if command.assignments else "")
    if not reason:
        yield ruling
        return
    denied = ruling.decision == "deny" and ruling.rule
    yield (None if denied else rules.exactly(target)) or _asked(rules, ruling, target, reason)


def _asked(rules: Rules, ruling: Ruling | None, target: Target, reason: str) -> Ruling:
    """What would be allowed is asked about; with a default of deny, denied."""
    if ruling is None:
        ruling = Ruling(rules.default, "", "default", f"{rules.source}.default", target.shown)
    if ruling.decision == "deny":
        return ruling
    if ruling.decision == "ask" and ruling.rule:
        return ruling
    return Ruling("ask", "", "default", rules.source, target.shown, reason)


def redirected(call: PolicyCall) -> Iterator[PolicyCall]:
    """What a call of a program has shells open, each as a call of the tool that it is decided as."""
    for one in redirects_of(call.command):
        if one.path is not None:
            name = call.resolve(one.path, call.folder)[0]
            yield _as_file(call, name, _READ if one.is_read else _WRITE)


def _as_file(call: PolicyCall, path: str, tool: str) -> PolicyCall:
    return replace(call, tool=tool, shown="", args={"path": path}, subject=_FILE)


def _file(rules: Rules, call: PolicyCall, path: str, tool: str) -> Iterator[Ruling]:
    file = _as_file(call, path, tool)
    for name in call.resolve(path, call.folder):
        yield rules.about(Target(file, name, path=name))


def _target(call: PolicyCall, command: Command) -> Target:
    """The command as a call of its own: the rules see its words, as if nothing were around it."""
    known = command.known
    line = line_of([*command.assignments, *known])
    start = None if command.is_known else (f"{line} " if line else "")
    shown = line if start is None else f"{start}…"
    base = known[0].rpartition("/")[2] if known else ""
    others: tuple[str, ...] = (line_of(known), line_of([base, *known[1:]])) if known else ()
    if start is not None:
        # no rule but one with a wildcard there can match a line with this mark in it
        others = tuple(f"{one} \ue000" for one in others)
        line = f"{start}\ue000"
    inner = replace(call, args={**call.args, **_arguments(call.subject, command)})
    return Target(inner, shown, lines=tuple(dict.fromkeys((line, *others))), start=start)


def _arguments(subject: Subject | None, command: Command) -> JsonObject:
    if subject is None or not command.known:
        return {}
    if subject.script:
        return {subject.script: line_of(command.known)}
    return {subject.program: command.known[0], subject.arguments: [*command.known[1:]]}
