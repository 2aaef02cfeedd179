"""Make text from outside safe to show: of models, servers, files and paths.

A terminal obeys control characters, C1 controls and escape sequences, and direction controls change the order of text.
Both are removed from text, and written as JSON escapes in JSON. The module also has helpers for commands, long texts
and time spans.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
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
_BLANK_CHARS = (
    r"\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"  # spaces
    r"\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200c\u200d\u2800\u3164\ufe00-\ufe0f\uffa0"  # and invisible
    r"\u070f\ufff0-\ufff8\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a"  # of some scripts
    r"\ue000-\uf8ff\U000f0000-\U0010ffff"  # private use: shown as a font likes, also as nothing
)
_INVISIBLE = f"[{_BLANK_CHARS}{_HIDDEN_CHARS}]"
_LONG_BLANKS = rf"[ \t{_BLANK_CHARS}{_HIDDEN_CHARS}]{{21,}}"
_WHITE_SPACE = rf"[ \t\n{_BLANK_CHARS}{_HIDDEN_CHARS}]{{6,}}"
_MAX_LINE_ENDS = 5
_UNSAFE_BREAKS = rf"[\s{_HIDDEN_CHARS}]+"


def one_line(text: str) -> str:
    """Return the text on one line: characters that move the cursor and runs of white space become a space."""
    return re.sub(_UNSAFE_BREAKS, " ", text).strip()


def plain_text(text: str) -> str:
    """Return the text with lines and tabs, without anything that a terminal obeys."""
    return re.sub(_UNSAFE, "", text)


def visible_text(text: str) -> str:
    r"""Return the text with tabs, and `\u` escapes for everything else that a terminal obeys: nothing is dropped."""
    return re.sub(rf"\n|{_UNSAFE}", _escape, text)


def approvable_text(text: str) -> str:
    r"""Return the text for a person who approves it: nothing invisible, and long white space replaced by its length."""
    return re.sub(_INVISIBLE, _escape, counted_blanks(text))


def counted_blanks(text: str) -> str:
    """Return the text with each long run of white space, or of invisible characters, replaced by its length."""
    return re.sub(_WHITE_SPACE, _counted_lines, text)


def _counted_lines(match: re.Match[str]) -> str:
    text = match[0]
    line_ends = text.count("\n")
    if line_ends > _MAX_LINE_ENDS:
        text = f"\n⟦{line_ends:,} line ends⟧\n{text.rpartition(chr(10))[2]}"
    return re.sub(_LONG_BLANKS, _describe_blanks, text)


def _describe_blanks(match: re.Match[str]) -> str:
    text = match[0]
    kind = "spaces" if not text.strip(" ") else "tabs" if not text.strip("\t") else "blanks"
    return f"⟦{len(text):,} {kind}⟧"


def plain_json(line: bytes) -> bytes:
    r"""Return the JSON with `\u` escapes for all that a terminal obeys; bytes that are not UTF-8 are replaced."""
    return re.sub(_UNSAFE, _escape, line.decode("utf-8", "replace")).encode()


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[index]:02x}{units[index + 1]:02x}" for index in range(0, len(units), 2))


# Commands: one line for `sh`, or a program and its arguments.

_T = TypeVar("_T")
_SHELL = ("sh", "-c")


def argv_of(command: str | _T) -> tuple[str, ...] | _T:
    """Return the words to execute: a line is run by `sh`, an empty one not at all; a sequence is unchanged."""
    if not isinstance(command, str):
        return command
    return (*_SHELL, command) if command.strip() else ()


def is_line(argv: Sequence[str]) -> bool:
    """Return True if the words run a line by `sh`."""
    return len(argv) == 3 and tuple(argv[:2]) == _SHELL


def line_of(argv: Sequence[str]) -> str:
    """Return the command for people: the line for `sh`, or the words joined."""
    return argv[2] if is_line(argv) else " ".join(argv)


# Long texts for models: the beginning and the end, and the blob with the whole text.


def head_and_tail(text: str, max_chars: int, blob: str) -> str:
    """Return the beginning and end of a text longer than `most` characters; `blob`: SHA-256 of all of it."""
    half = max_chars // 2
    left_out = len(text) - 2 * half
    gap = f"\n… {left_out} characters left out: readTextFile, path blob:{blob} …\n"
    return text[:half] + gap + text[len(text) - half :]


# Time spans: `90s`, `5m`, `2h`, `7d`.

_SPAN = r"([0-9]{1,15})(ms|s|m|h|d)?"
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def milliseconds(text: str) -> int:
    """Return a time span in milliseconds, the unit of a bare number. Raises ValueError."""
    match = re.fullmatch(_SPAN, text)
    if match is None:
        raise ValueError("must be a time such as 90s, 5m, 2h or 7d")
    return int(match[1]) * _UNITS[match[2] or "ms"]


def wrong_span(text: str) -> str | None:
    """Return the problem of a time span, as a phrase that follows its name; None if it is valid."""
    try:
        milliseconds(text)
    except ValueError as error:
        return str(error)
    return None


# Short texts for people.


def count(number: int, noun: str) -> str:
    """Return `1 step`, `2,000 steps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(milliseconds: int) -> str:
    """Return `7 ms`, `1.3 s`, `2 min 5 s`, `3 h 12 min`."""
    if milliseconds < 1000:
        return f"{max(0, milliseconds)} ms"
    seconds = round(milliseconds / 1000, 1)
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, remainder = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {remainder} s"
    return f"{minutes // 60} h {minutes % 60} min"


def nearest(word: str, words: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the most similar word, for «did you mean»; None if none has this ratio of similarity."""
    from difflib import get_close_matches  # only for mistakes

    return next(iter(get_close_matches(word, list(words), 1, cutoff)), None)


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return the remedy for an unknown word: «did you mean» the nearest one, or the list of all."""
    choices = list(words)
    similar = nearest(word, choices)
    return f"there are: {', '.join(choices)}" if similar is None else f"did you mean `{similar}`?"
