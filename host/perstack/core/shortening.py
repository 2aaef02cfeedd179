"""A long text as a model sees it: its beginning and its end, and where all of it is."""

from __future__ import annotations


def head_and_tail(text: str, most: int, blob: str) -> str:
    """At most so many characters of a text that is longer; all of it is the blob of that SHA-256."""
    half = most // 2
    left_out = len(text) - 2 * half
    gap = f"\n… {left_out} characters left out: readTextFile, path blob:{blob} …\n"
    return text[:half] + gap + text[len(text) - half :]
