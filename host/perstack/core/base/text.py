"""Make text from outside safe to show: of models, servers, files and paths.

A terminal obeys control characters, C1 controls and escape sequences, and direction controls change the order of text.
Both are removed from text, and written as JSON escapes in JSON. The module also has helpers for commands, long texts
and time spans.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

REDACTED = "[redacted]"

# latest time, in milliseconds since 1970, that can be shown: days before the year 10000
MAX_TIME_MS = 253_402_000_000_000


_HIDDEN_CHARS = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls, but for tab and newline
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction
    r"\u2028\u2029"  # line and paragraph ends
    r"\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff"  # invisible
    r"\ud800-\udfff"  # lone surrogates, which no stream can write
)
_UNSAFE = f"[{_HIDDEN_CHARS}]"
_UNSAFE_BREAKS = rf"[\s{_HIDDEN_CHARS}]+"


def one_line(text: str) -> str:
    """Return the text on one line: characters that move the cursor and runs of white space become a space."""
    return re.sub(_UNSAFE_BREAKS, " ", text).strip()


def plain_text(text: str) -> str:
    """Return the text with lines and tabs, without anything that a terminal obeys."""
    if text.isascii() and text.isprintable():  # true of most texts, and compiling the pattern takes long
        return text
    return re.sub(_UNSAFE, "", text)


def visible_text(text: str) -> str:
    r"""Return the text with tabs, and `\u` escapes for everything else that a terminal obeys: nothing is dropped."""
    return re.sub(rf"\n|{_UNSAFE}", _escape, text)


# Text on a page of consent: a character is shown only if it certainly has a glyph, and written as an escape otherwise.

_BLANK, _MARK, _LETTER, _OTHER = "\0", "\1", "\2", "\3"  # kinds of characters, next to space, tab and line end
_NAMES_OF_BLANKS = r"\b(?:BLANK|FILL|FILLER|INHERENT|INVISIBLE|JOINER|NULL|SELECTOR|SPACE|JUNGSEONG|JONGSEONG)\b"
"""Words in the names of letters, marks and symbols that have no glyph or no width. Unicode never changes a name."""
_MAX_MARKS = 2  # marks shown on one letter; further ones could cover the lines around it
_LONG_WHITE_SPACE = rf"[ \t\n{_BLANK}]{{6,}}"
_LONG_BLANKS = rf"[ \t{_BLANK}]{{21,}}"
_BLANKS_AND_MARKS = rf"{_BLANK}+|{_MARK}+"
_MAX_LINE_ENDS = 5


class _Kinds(dict[int, str]):
    """The kind of each character, for `str.translate`."""

    def __missing__(self, code: int) -> str:
        self[code] = kind = _kind_of(chr(code))
        return kind


def _kind_of(char: str) -> str:
    if char in " \t\n":
        return char
    if char.isascii():
        return _LETTER if char.isalnum() else _OTHER if char.isprintable() else _BLANK
    import unicodedata  # large, and few texts need it

    category, name = unicodedata.category(char), unicodedata.name(char, "")
    if not name or re.search(_NAMES_OF_BLANKS, name):
        return _BLANK
    if category in ("Mn", "Mc"):
        return _MARK
    if category[0] not in "LNPS":
        return _BLANK
    compatible = unicodedata.normalize("NFKC", char)
    if compatible != char and any(_KINDS[ord(other)] in (" ", _BLANK) for other in compatible):
        return _BLANK
    return _LETTER if category[0] in "LN" else _OTHER


_KINDS = _Kinds()


def approvable_text(text: str) -> str:
    r"""Return the text for a person who agrees to it: nothing invisible, and long white space replaced by its length.

    Only letters, numbers, punctuation, symbols, marks on letters, the space, tabs and line ends are shown. Everything
    else is a `\u` escape: other spaces, format and direction controls, private and unassigned characters, and letters
    and symbols without a glyph.
    """
    text = counted_blanks(text)
    if _is_plain(text):
        return text
    return _replace_runs(_BLANKS_AND_MARKS, text, text.translate(_KINDS), _visible)


def approvable_line(text: str) -> str:
    r"""Return `approvable_text` on one line, with `\n` for its line ends."""
    return approvable_text(text).replace("\n", "\\n")


def _is_plain(text: str) -> bool:
    return text.isascii() and text.replace("\n", "").isprintable()


def _visible(text: str, before: str) -> str:
    count = _marks_on(before, text) if _KINDS[ord(text[0])] == _MARK else 0
    return text[:count] + _escape_text(text[count:])


def _marks_on(letter: str, marks: str) -> int:
    """Return the number of combining marks to show on a letter; an ASCII letter keeps one, if the two compose."""
    if not letter or _KINDS[ord(letter)] != _LETTER:
        return 0
    if letter.isascii():
        import unicodedata

        return 1 if len(unicodedata.normalize("NFC", letter + marks[0])) == 1 else 0
    return min(len(marks), _MAX_MARKS)


def counted_blanks(text: str) -> str:
    """Return the text with each long run of white space, or of invisible characters, replaced by its length."""
    return _replace_runs(
        _LONG_WHITE_SPACE, text, text if _is_plain(text) else text.translate(_KINDS), _describe_long_run
    )


def _replace_runs(pattern: str, text: str, kinds: str, replacement: Callable[[str, str], str]) -> str:
    """Replace each part whose `kinds` match the pattern by `replacement(part, character before it)`.

    `kinds` has one character for each character of the text.
    """
    parts: list[str] = []
    end = 0
    for match in re.finditer(pattern, kinds):
        start = match.start()
        parts += text[end:start], replacement(text[start : match.end()], text[start - 1 : start])
        end = match.end()
    return "".join((*parts, text[end:]))


def _describe_long_run(text: str, before: str) -> str:
    line_ends = text.count("\n")
    if line_ends > _MAX_LINE_ENDS:
        text = f"\n⟦{line_ends:,} line ends⟧\n{text.rpartition(chr(10))[2]}"
    return _replace_runs(_LONG_BLANKS, text, text.translate(_KINDS), _describe_blanks)


def _describe_blanks(text: str, before: str) -> str:
    kind = "spaces" if not text.strip(" ") else "tabs" if not text.strip("\t") else "blanks"
    return f"⟦{len(text):,} {kind}⟧"


def plain_json(line: bytes) -> bytes:
    r"""Return the JSON with `\u` escapes for all that a terminal obeys; bytes that are not UTF-8 are replaced."""
    return re.sub(_UNSAFE, _escape, line.decode("utf-8", "replace")).encode()


def _escape(match: re.Match[str]) -> str:
    return _escape_text(match[0])


def _escape_text(text: str) -> str:
    units = text.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[index]:02x}{units[index + 1]:02x}" for index in range(0, len(units), 2))


# Commands: one line for `sh`, or a program and its arguments.

_T = TypeVar("_T")
_SHELL = ("sh", "-c")


def argv_of(command: str | _T) -> tuple[str, ...] | _T:
    """Return the words to execute: a line is run by `sh`, an empty one not at all; a sequence is unchanged."""
    if not isinstance(command, str):
        return command
    return (*_SHELL, command) if command.strip() else ()


def is_shell_line(argv: Sequence[str]) -> bool:
    """Return True if the words run a line by `sh`."""
    return len(argv) == 3 and tuple(argv[:2]) == _SHELL


def command_line(argv: Sequence[str]) -> str:
    """Return the command for people: the line for `sh`, or the words joined."""
    return argv[2] if is_shell_line(argv) else " ".join(argv)


# Long texts for models: the beginning and the end, and the blob with the whole text.


def head_and_tail(text: str, max_chars: int, blob: str) -> str:
    """Return the beginning and end of a text longer than `max_chars` characters; `blob`: SHA-256 of all of it."""
    half = max_chars // 2
    left_out = len(text) - 2 * half
    gap = f"\n… {left_out} characters left out: readTextFile, path blob:{blob} …\n"
    return text[:half] + gap + text[len(text) - half :]


# Time spans: `90s`, `5m`, `2h`, `7d`.

_SPAN = r"([0-9]{1,15})(ms|s|m|h|d)?"
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_span(text: str) -> int:
    """Return a time span in milliseconds, the unit of a bare number. Raises ValueError."""
    match = re.fullmatch(_SPAN, text)
    if match is None:
        raise ValueError("must be a time such as 90s, 5m, 2h or 7d")
    return int(match[1]) * _UNITS[match[2] or "ms"]


def span_problem(text: str) -> str | None:
    """Return the problem of a time span, as a phrase that follows its name; None if it is valid."""
    try:
        parse_span(text)
    except ValueError as error:
        return str(error)
    return None


# Short texts for people.


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 step`, `2,000 steps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(milliseconds: int) -> str:
    """Return a duration for people: `7 ms`, `1.3 s`, `2 min 5 s`, `3 h 12 min`."""
    if milliseconds < 1000:
        return f"{max(0, milliseconds)} ms"
    seconds = round(milliseconds / 1000, 1)
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, remainder = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {remainder} s"
    return f"{minutes // 60} h {minutes % 60} min"


def is_blank(text: str) -> bool:
    """Return True if a text has no printing character, or none at all: several endpoints refuse such a text."""
    return not any(char.isprintable() and not char.isspace() for char in text)


def nearest(word: str, words: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the most similar word, for «did you mean»; None if none has this ratio of similarity."""
    from difflib import get_close_matches  # imported late: needed only after a mistake

    return next(iter(get_close_matches(word, list(words), 1, cutoff)), None)


def edit_distance(first: str, second: str) -> int:
    """Return the number of letters to insert, remove or replace that make one word the other.

    Source: Levenshtein, by the algorithm of Wagner and Fischer (1974).
    """
    row = list(range(len(second) + 1))
    for number, letter in enumerate(first, 1):
        above = row
        row = [number]
        for column, other in enumerate(second, 1):
            row.append(min(above[column] + 1, row[-1] + 1, above[column - 1] + (letter != other)))
    return row[-1]


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return the remedy for an unknown word: «did you mean» the nearest one, or the list of all."""
    choices = list(words)
    similar = nearest(word, choices)
    return f"available: {', '.join(choices)}" if similar is None else f"did you mean `{similar}`?"


def suggestion(word: str, words: Iterable[str], cutoff: float = 0.6) -> str:
    """Return `; did you mean «x»?` with the most similar word; empty if none is similar."""
    similar = nearest(word, words, cutoff)
    return "" if similar is None else f"; did you mean `{similar}`?"
