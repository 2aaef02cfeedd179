r"""Command patterns: what an `exec(…)` rule in `allow` means.

A rule in `deny` or `ask` is one glob over the whole command line. In `allow` the same text is read word by word, so
that it holds for what it shows and for nothing else:

WORD       this word, which may be an option. Quotes and backslashes work as in a shell and make `*` literal
WO*RD      one operand of this form; `--name=*` is an option with an attached value
*          any number of operands
{-x,-n *}  options that the call may have at any place after this one, in any order: as they would be typed, `-n *` with
           the value as the next word, `-n*` and `--since=*` with an attached one

`*` matches an operand within the workspace (`is_within`) that is not hidden, and never an option: no word that begins
with `-`, `+` or `@`, no `name=value` whose name is not in the rule. So the rule decides what an option is, and no list
of options is needed. The rule holds in the workspace's top folder, for a command whose every word is known before it
runs.

Programs whose operand is itself a program (an interpreter's script, a subcommand) are the exception that needs tables:
`*` never matches that operand. They are below, and name programs, not options.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TypeAlias

from perstack.core.permissions.programs import (
    AWKS,
    INTERPRETERS,
    OTHER_SHELLS,
    SHELLS,
    WRAPPERS,
    program_name,
)
from perstack.core.permissions.shell_syntax import split_names
from perstack.dataclass import dataclass

Within: TypeAlias = Callable[[str], bool]
"""Return True if a path, which may not exist, is in the workspace after following links."""


@dataclass(frozen=True, slots=True)
class WordPattern:
    """Pattern of one word: the literal texts between its wildcards."""

    texts: tuple[str, ...]

    @property
    def is_literal(self) -> bool:
        """True if the pattern matches one word only."""
        return len(self.texts) == 1

    @property
    def is_star(self) -> bool:
        """True for `*` alone."""
        return self.texts == ("", "")

    def matches(self, word: str) -> bool:
        """Return True if the whole word has this form."""
        first, *rest = self.texts
        if not rest:
            return word == first
        *middle, last = rest
        if not word.startswith(first) or len(word) < len(first) + len(last) or not word.endswith(last):
            return False
        start, end = len(first), len(word) - len(last)
        for text in middle:
            position = word.find(text, start, end)
            if position < 0:
                return False
            start = position + len(text)
        return True


_STAR = WordPattern(("", ""))


@dataclass(frozen=True, slots=True)
class OptionPattern:
    """Option that a rule permits, with the pattern of the next word if that is its value."""

    word: WordPattern
    value: WordPattern | None = None


@dataclass(frozen=True, slots=True)
class OptionGroup:
    """`{…}`: options that a call may have from here on."""

    options: tuple[OptionPattern, ...]


Item: TypeAlias = WordPattern | OptionGroup


@dataclass(frozen=True, slots=True)
class CommandPattern:
    """Parsed command pattern."""

    items: tuple[Item, ...]

    @property
    def words(self) -> tuple[str, ...] | None:
        """The words of a pattern that matches one command only; None for any other."""
        words = [item.texts[0] for item in self.items if isinstance(item, WordPattern) and item.is_literal]
        return tuple(words) if len(words) == len(self.items) else None

    @property
    def glued_word(self) -> str | None:
        """The last word if a wildcard follows its letters directly, as in `git status*`; None otherwise."""
        last = self.items[-1]
        if not isinstance(last, WordPattern) or last.is_literal or last.is_star:
            return None
        is_word = last.texts[-1] == "" and len(last.texts) == 2 and last.texts[0][-1:].isalnum()
        return "*".join(last.texts) if is_word and not last.texts[0].startswith(_OPTION_STARTS) else None

    def matches(self, words: Sequence[str], within: Within) -> bool:
        """Return True if the rule allows a command of these words."""
        program = self.items[0]
        if not words or not isinstance(program, WordPattern) or not _matches_program(program, words[0]):
            return False
        return _Matcher(self.items, program_name(words[0]), within).matches(words)


# Parsing.

_OPTION_STARTS = ("-", "+")
_OPTION_WITH_VALUE = re.compile(r"(?:--?|\+)[^-=\s][^=\s]*=.*", re.DOTALL)
_SHORT_OPTION = re.compile(r"[-+][^-=\s]")


@lru_cache(maxsize=4096)
def parse_command(text: str) -> CommandPattern:
    """Parse a command pattern. Raises ValueError with the reason why it can match nothing."""
    items = tuple(_Reader(text).items())
    if not items:
        raise ValueError("names no program")
    if isinstance(items[0], OptionGroup):
        raise ValueError("begins with options: the program comes first")
    if not items[0].is_literal and "/" in "".join(items[0].texts):
        raise ValueError("has a wildcard in the path of a program: name the program")
    for item in items:
        if isinstance(item, WordPattern):
            _check_option(item)
    return CommandPattern(items)


def has_options(text: str) -> bool:
    """Return True if a rule has options in braces, which only an allow rule may have."""
    return re.search(r"(?:^|\s)\{\s*[-+]", text) is not None


def _check_option(word: WordPattern) -> None:
    """Raise ValueError for an option whose name is not literal."""
    start = word.texts[0]
    if word.is_literal or not start.startswith(_OPTION_STARTS):
        return
    if _OPTION_WITH_VALUE.fullmatch(start) is None and _SHORT_OPTION.fullmatch(start) is None:
        raise ValueError(f"has a wildcard in the name of an option, {'*'.join(word.texts)}: write the whole name")


class _Reader:
    """Reader of the words and option groups in one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def items(self) -> Iterator[Item]:
        while self._skip_spaces():
            if re.match(r"\{\s*[-+]", self._text[self._position :]):
                yield self._group()
            else:
                yield self._word(ends="")

    def _skip_spaces(self) -> bool:
        while self._peek().isspace():
            self._position += 1
        return self._peek() != ""

    def _peek(self) -> str:
        return self._text[self._position : self._position + 1]

    def _take_character(self) -> str:
        character = self._peek()
        self._position += 1
        return character

    def _group(self) -> OptionGroup:
        self._position += 1
        options: list[OptionPattern] = []
        while True:
            words: list[WordPattern] = []
            while self._skip_spaces() and self._peek() not in (",", "}"):
                words.append(self._word(ends=",}"))
            options.append(_option(words))
            match self._take_character():
                case ",":
                    continue
                case "}":
                    break
                case _:
                    raise ValueError("has no `}` after its options")
        if self._peek() and not self._peek().isspace():
            raise ValueError("has no space after the `}` of its options")
        return OptionGroup(tuple(options))

    def _word(self, ends: str) -> WordPattern:
        texts = [""]
        while (character := self._peek()) and not character.isspace() and character not in ends:
            self._position += 1
            match character:
                case "*":
                    texts += [] if len(texts) > 1 and texts[-1] == "" else [""]
                case "'" | '"':
                    texts[-1] += self._quoted(character)
                case "\\":
                    texts[-1] += self._take_character()
                case _:
                    texts[-1] += character
        return WordPattern(tuple(texts))

    def _quoted(self, quote: str) -> str:
        text = ""
        while (character := self._take_character()) != quote:
            if not character:
                raise ValueError(f"has a {quote} that is not closed: close it, or put a backslash before it")
            text += (
                self._take_character() if character == "\\" and quote == '"' and self._peek() in '"\\' else character
            )
        return text


def _option(words: Sequence[WordPattern]) -> OptionPattern:
    if not words or not words[0].texts[0].startswith(_OPTION_STARTS):
        raise ValueError("has something other than options in braces")
    if len(words) > 2 or (len(words) == 2 and not words[0].is_literal):
        raise ValueError("has an option with more than one value in braces: separate options by commas")
    _check_option(words[0])
    return OptionPattern(words[0], words[1] if len(words) == 2 else None)


def literal_word(word: str) -> str:
    """Return a word as a rule spells it to match this word only.

    >>> literal_word("a*b"), literal_word("--since=2 days"), literal_word("CI=1")
    ("'a*b'", "'--since=2 days'", "'CI=1'")
    """
    if re.fullmatch(r"[\w\-./:@%+^~#]+", word):
        return word
    return "'" + word.replace("'", "'\\''") + "'"


# Matching.

_PLAIN_OPERAND = re.compile(r"[\w \-./,:=@%+#^~*?\[\]]+")
"""Operand without the characters that program code needs: no quote, bracket of a block, `;`, `|`, `$` or `!`."""

_NOT_AN_OPERAND = re.compile(r"[-+@~]|[A-Za-z_][\w.-]*=")
_NOT_A_VALUE = re.compile(r"[-+@~]")
_REMOTE = re.compile(r"[^/]*:")  # `host:path`, `https:`, `file:`
_ABSOLUTE = re.compile(r"(?:^|[^\w.\-/])[/~]")  # a path from the root or a home folder, also after `=`, `:` or `,`
_PARENT = re.compile(r"(?:^|[^\w.\-])\.\.(?:$|[^\w.\-])")  # `..` as a part of a path
_HIDDEN = re.compile(r"(?:^|[^\w.\-*?\]])\.[^./]")  # `.env`, `.git`: as in a shell, `*` is no hidden name
_PATH_SEPARATORS = re.compile(r"[=:,]")  # between the paths of one word
_MAX_PATHS = 20


def is_within(word: str, start: str, within: Within) -> bool:
    """Return True if a word names nothing outside the workspace, unless `start` does: the rule spells that itself."""
    rest = word[len(start) :]
    if _ABSOLUTE.search(rest) or _PARENT.search(rest) or _REMOTE.match(rest if ":" in start else word):
        return False
    if _HIDDEN.search(rest):
        return False
    if start.startswith(("/", "~")) or _PARENT.search(start):
        return True  # the rule names a folder outside, and the rest of the word stays in it
    paths = _PATH_SEPARATORS.split(word)
    return len(paths) <= _MAX_PATHS and within(word) and all(within(path) for path in paths if path)


def _matches_program(pattern: WordPattern, word: str) -> bool:
    if pattern.is_literal:
        return pattern.matches(word)
    return pattern.matches(word) and "/" not in word and _PLAIN_OPERAND.fullmatch(word) is not None


@dataclass(frozen=True, slots=True)
class _State:
    index: int  # index of the next item
    value: WordPattern | None = None  # pattern of the next word, if that is the value of an option
    has_operand: bool = False


class _Matcher:
    """Matcher of one command. After each word it keeps all states that the words so far can lead to."""

    def __init__(self, items: Sequence[Item], program: str, within: Within) -> None:
        self._items = items
        self._program = program
        self._within = within

    def matches(self, words: Sequence[str]) -> bool:
        states = {_State(1)}
        for index, word in enumerate(words[1:]):
            states = {after for state in states for after in self._states_after(state, word, is_first=index == 0)}
            if not states:
                return False
        return any(state.value is None and self._is_end(state.index) for state in states)

    def _is_end(self, index: int) -> bool:
        return all(isinstance(item, OptionGroup) or item.is_star for item in self._items[index:])

    def _states_after(self, state: _State, word: str, *, is_first: bool) -> Iterator[_State]:
        if state.value is not None:
            if _is_value(state.value, word, self._within):
                yield _State(state.index, None, state.has_operand)
            return
        index = state.index
        while True:
            item = self._items[index] if index < len(self._items) else None
            if isinstance(item, OptionGroup):
                index += 1
                continue
            yield from self._after_option(_State(index, None, state.has_operand), word)
            if item is None:
                return
            if self._is_item(item, word, state, is_first=is_first):
                is_option = word.startswith(_OPTION_STARTS)
                yield _State(index if item.is_star else index + 1, None, state.has_operand or not is_option)
            if not item.is_star:
                return
            index += 1

    def _after_option(self, state: _State, word: str) -> Iterator[_State]:
        for item in self._items[: state.index]:
            for option in item.options if isinstance(item, OptionGroup) else ():
                if _is_option(option.word, word, self._within):
                    yield _State(state.index, option.value, state.has_operand)

    def is_argument(self, word: str, index: int) -> bool:
        """Return True if a word matches the only item, as an argument with this index."""
        item = self._items[0]
        return isinstance(item, WordPattern) and self._is_item(
            item, word, _State(0, None, index > 0), is_first=not index
        )

    def _is_item(self, item: WordPattern, word: str, state: _State, *, is_first: bool) -> bool:
        if item.is_literal:
            return item.matches(word)
        if item.texts[0].startswith(_OPTION_STARTS):
            return _is_option(item, word, self._within)
        if not state.has_operand and _is_program_operand(self._program, word, is_first=is_first):
            return False
        return (
            item.matches(word)
            and (item.texts[0] != "" or _NOT_AN_OPERAND.match(word) is None)
            and _PLAIN_OPERAND.fullmatch(word) is not None
            and is_within(word, item.texts[0], self._within)
        )


def _is_option(pattern: WordPattern, word: str, within: Within) -> bool:
    if pattern.is_literal or not pattern.matches(word):
        return pattern.matches(word)
    value = word[len(pattern.texts[0]) :]
    if "=" not in pattern.texts[0] and value[:1].isalpha():
        return False  # `-n*` names one option; letters after it may be others
    return bool(value) and _NOT_A_VALUE.match(value) is None and is_within(value, "", within)


def _is_value(pattern: WordPattern, word: str, within: Within) -> bool:
    if pattern.is_literal:
        return pattern.matches(word)
    start = pattern.texts[0]
    return (
        pattern.matches(word) and (start != "" or _NOT_A_VALUE.match(word) is None) and is_within(word, start, within)
    )


def matches_arguments(
    program: WordPattern | None, argument: WordPattern | None, words: Sequence[str], within: Within
) -> bool:
    """Return True if a rule that names arguments, `exec(command=git, args=log)`, allows a command of these words.

    Each word after the program must match `argument`, an option only if the pattern names it.
    """
    if not words or not _matches_program(program or _STAR, words[0]):
        return False
    matcher = _Matcher((argument or _STAR,), program_name(words[0]), within)
    return all(matcher.is_argument(word, index) for index, word in enumerate(words[1:]))


# Programs whose first operand is a program, so that the rule itself must name it.

_GIT_COMMANDS = split_names(
    """
    add annotate blame branch cat-file check-ignore cherry cherry-pick commit count-objects describe diff diff-tree
    fetch for-each-ref fsck grep log ls-files ls-tree merge merge-base mv name-rev pull push range-diff reflog reset
    restore rev-list rev-parse revert rm shortlog show show-branch show-ref stash status switch tag version whatchanged
    """
)
"""Commands of git that `exec(git *)` covers: they neither change its configuration nor run other programs."""

_SCRIPTED = INTERPRETERS.keys() | AWKS | SHELLS | OTHER_SHELLS | WRAPPERS | {"sed", "gsed", "m4", "dc", "jshell", "tsx"}
_DASHLESS = frozenset({"tar", "bsdtar", "gtar", "ar", "ps", "unrar", "7z"})  # read options in the first word: `tar xf`


def _is_program_operand(program: str, word: str, *, is_first: bool) -> bool:
    """Return True if the program may run the operand, or read options from it."""
    if program == "git":
        return word not in _GIT_COMMANDS
    return program in _SCRIPTED or (is_first and program in _DASHLESS)
