"""Text from outside, made safe to show: whatever a model, a server, a file or a path says, it is only read.

A terminal obeys control characters, C1 as well as escape sequences, and shows text in another order than it has for
controls of direction. Both are dropped from text, and written as JSON's own escapes in JSON.
"""

from __future__ import annotations

import re

_HIDDEN = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls, but for tab and newline
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction
    r"\u2028\u2029"  # line and paragraph ends
    r"\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff"  # shown as nothing
    r"\ud800-\udfff"  # lone surrogates, which no stream can write
)
_UNSAFE = f"[{_HIDDEN}]"
_UNSAFE_BREAKS = rf"[\s{_HIDDEN}]+"


def one_line(text: str) -> str:
    """The text on one line: what could move the cursor becomes a space, as do runs of white space."""
    return re.sub(_UNSAFE_BREAKS, " ", text).strip()


def plain_text(text: str) -> str:
    """The text with its lines and tabs, and without all that a terminal would obey."""
    return re.sub(_UNSAFE, "", text)


def visible_text(text: str) -> str:
    """The text with its tabs, and all else that a terminal would obey as `\\u` escapes: nothing of it is dropped."""
    return re.sub(rf"\n|{_UNSAFE}", _escaped, text)


def plain_json(line: bytes) -> bytes:
    """The same JSON, with all that a terminal would obey as `\\u` escapes; what is not UTF-8 is replaced."""
    return re.sub(_UNSAFE, _escaped, line.decode("utf-8", "replace")).encode()


def _escaped(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
