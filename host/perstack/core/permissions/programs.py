"""Programs that run other programs, by their names and arguments: a call of one is never only what it is called."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from perstack.core.policy.lines import Command, Part, Redirect
from perstack.core.policy.program_tables import (
    INTERPRETERS,
    OTHER_SHELLS,
    READ_INPUT,
    RUNNERS,
    SEEN_THROUGH,
    SHELLS,
    TRAPS,
)
from perstack.core.policy.shell import parts_of_script

VARIABLES = "it sets variables that can change which program runs"

_MOST_WORDS = 60
_LONGEST_WORD = 2_000
_DEEPEST = 6
_VERSION = re.compile(r"python[\d.]*|pypy[\d.]*|perl[\d.]+|ruby[\d.]+|lua[\d.]+|php[\d.]+|g?awk[\d.]+|gcc-\d+")
_SAYS = frozenset({"--version", "-V", "--help", "-h", "-v"})


def parts_of(command: Command, depth: int = 0) -> Iterator[Part]:
    """What a simple command comes to: itself, and what it runs, as far as its words tell."""
    words = command.known
    if not words:
        yield replace(command, reason="which program it runs is known when it runs")
        return
    name = _name(words[0])
    if depth > _DEEPEST:
        yield replace(command, reason=f"{name} runs other programs")
        return
    script = _script(name, command) if name in SHELLS else None
    if script is not None:
        yield replace(command, is_around=True)
        if command.assignments:
            yield replace(command, reason=VARIABLES)
        for part in parts_of_script(script):
            yield from parts_of(part, depth + 1) if isinstance(part, Command) else (part,)
        return
    reason = _reason(name, command)
    yield replace(command, reason=reason or command.reason)
    if reason or name in SEEN_THROUGH:
        yield from _inside(words, depth)


def redirects_of(words: Sequence[str], depth: int = 0) -> Iterator[Redirect]:
    """The files that shells themselves open, wherever among the words a shell is called, as far as that can be read."""
    if depth > _DEEPEST:
        return
    for place in range(min(len(words), _MOST_WORDS)):
        name = _name(words[place])
        script = _script(name, Command(tuple(words[place:]))) if name in SHELLS else None
        for part in parts_of_script(script) if script is not None else ():
            if isinstance(part, Redirect):
                yield part
            elif isinstance(part, Command):
                yield from redirects_of(part.known, depth + 1)


def _name(word: str) -> str:
    name = word.rpartition("/")[2]
    if _VERSION.fullmatch(name):
        return re.sub(r"[\d.-]+$", "", name) or name
    return name


def _script(name: str, command: Command) -> str | None:
    """What a shell is given with `-c`; None if it gets its commands otherwise, or some other option as well."""
    words = list(command.words[1:])
    is_given = False
    while words and (words[0] or "").startswith(("-", "+")):
        option = words.pop(0) or ""
        if option in ("-", "--"):
            break
        if option.startswith("--"):
            if option in ("--norc", "--noprofile", "--posix", "--login"):
                continue
            return None
        if not re.fullmatch(r"[-+][abceflmnoptuvxBCEHPTO]+", option) or "i" in option or "s" in option:
            return None
        is_given = is_given or (option.startswith("-") and "c" in option)
        for _ in range(option.count("o") + option.count("O")):
            if not words or words.pop(0) is None:
                return None
    return words[0] if is_given and words else None


def _reason(name: str, command: Command) -> str:
    """Why a program may run others than itself; empty if it does not."""
    words = command.known[1:]
    if name in SHELLS or name in OTHER_SHELLS:
        return _reason_of_shell(name, words, is_known=command.is_known)
    if name in RUNNERS:
        return "" if command.is_known and _runs_nothing(name, words) else f"{name} runs other programs"
    if name in INTERPRETERS:
        return _reason_of_interpreter(name, words, is_known=command.is_known)
    trap = TRAPS.get(name)
    if trap is None:
        return ""
    found = next((word for word in words if _matches(trap, word)), None)
    if found is not None:
        return f"{name} may run another program because of {found[:60]}"
    if command.is_known or (name == "printf" and words and not words[0].startswith("-")):
        return ""
    return f"what {name} is given is known when it runs"


def _matches(pattern: str, word: str) -> bool:
    """A long word is taken for one that matches: it costs too much to look."""
    return len(word) > _LONGEST_WORD or re.fullmatch(pattern, word, re.DOTALL) is not None


def _reason_of_interpreter(name: str, words: Sequence[str], *, is_known: bool) -> str:
    if any(_matches(INTERPRETERS[name], word) for word in words):
        return f"{name} is given a program as an argument"
    if any(not word.startswith("-") for word in words) and "-" not in words:
        return ""
    if not is_known:
        return f"what {name} is given is known when it runs"
    if name not in READ_INPUT or _SAYS.intersection(words):
        return ""
    return f"{name} runs what it reads from its input"


def _reason_of_shell(name: str, words: Sequence[str], *, is_known: bool) -> str:
    if name in SHELLS and words and not words[0].startswith(("-", "+")):
        return ""  # a file, like any program that is called by its name
    if is_known and words and _SAYS.issuperset(words):
        return ""
    return f"{name} runs commands that are not read"


def _runs_nothing(name: str, words: Sequence[str]) -> bool:
    if name == "exec":
        return not words
    return name == "command" and bool(words) and words[0] in ("-v", "-V")


def _inside(words: Sequence[str], depth: int) -> Iterator[Part]:
    """What may be a command among the arguments: rules that deny it, or ask about it, hold."""
    for place in range(1, min(len(words), _MOST_WORDS)):
        rest = tuple(words[place:])
        yield Command(rest, is_around=True)
        if _name(rest[0]) in SHELLS:
            yield from _around(parts_of(Command(rest), depth + 1))
        if re.search(r"[\s;&|]", words[place]):
            yield from _around(
                inner
                for part in parts_of_script(words[place])
                if isinstance(part, Command)
                for inner in parts_of(part, depth + 1)
            )


def _around(parts: Iterator[Part]) -> Iterator[Part]:
    for part in parts:
        if isinstance(part, Command):
            yield replace(part, is_around=True, reason="")
