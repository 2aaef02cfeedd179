"""Measures a haiku, which is on stdin: prints a score from 0 to 1, and what would make it better."""

import json
import re
import sys

WANTED = (5, 7, 5)


def syllables(line: str) -> int:
    """Return the approximate number of syllables: the groups of vowels, without a silent e at the end of a word."""
    words = re.findall(r"[a-z']+", line.lower())
    return sum(max(1, len(re.findall(r"[aeiouy]+", re.sub(r"(?<=[^aeiouy])e$", "", word)))) for word in words)


lines = [line for line in sys.stdin.read().splitlines() if line.strip()]
found = [syllables(line) for line in lines]
right = sum(count == wanted for count, wanted in zip(found, WANTED, strict=False))
if len(lines) == len(WANTED):
    analysis = f"The lines have {found} syllables; wanted are {list(WANTED)}."
else:
    analysis = f"There are {len(lines)} lines; wanted are three."
print(json.dumps({"score": right / max(len(WANTED), len(lines)), "analysis": analysis}))
