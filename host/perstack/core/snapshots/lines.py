"""How many lines of a text have changed, in time that grows with the text alone."""

from __future__ import annotations

from collections import Counter

_LOOKED_AT = 8_000
"""Bytes: a file with a NUL among the first of them is no text, as git has it."""


def is_text(data: bytes) -> bool:
    """Whether lines of it mean anything to a person."""
    return b"\0" not in data[:_LOOKED_AT]


def changed_lines(old: bytes, new: bytes) -> tuple[int, int] | None:
    """How many lines are in the new text and not in the old, and the other way; None if either is no text.

    A line that was only moved is in both.
    """
    if not is_text(old) or not is_text(new):
        return None
    before, after = Counter(old.splitlines()), Counter(new.splitlines())
    return (after - before).total(), (before - after).total()
