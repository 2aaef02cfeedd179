"""Whether a run did the work. What the model says of itself counts for nothing: the file and the events do."""

from __future__ import annotations

import re
from pathlib import Path

from run import Event, Outcome

FILE = "summary.md"

FEWEST_WORDS = 5
"""A quotation of fewer words says nothing."""

GROUNDED = 0.6
"""The share of the file's longer words, cut to six letters, that must be the text's own."""

LARGEST_SHARE = 0.6
"""More of the text's words than this are no choice, but a copy of the text."""


def problems_of(outcome: Outcome) -> list[str]:
    """What is wrong with this run; nothing means that the work was done."""
    if outcome.exit_code != 0:
        return [f"perstack run ended with status {outcome.exit_code}"]
    path = outcome.workspace / FILE
    if not path.is_file():
        return [f"there is no {FILE}"]
    note = path.read_text(encoding="utf-8")
    return [*_problems_of_making(outcome, note), *problems_of_note(note, outcome.text.body)]


def problems_of_note(note: str, text: str) -> list[str]:
    """What is wrong with a file that is to hold one sentence of that text, or one about it in the text's own words."""
    said, words = _words(note), _words(text)
    if len(said) < FEWEST_WORDS:
        return [f"the file has only {len(said)} words"]
    if len(said) > LARGEST_SHARE * len(words):
        return ["the file is a copy of the text, not one sentence of it"]
    own = {word[:6] for word in words}
    telling = {word[:6] for word in said if len(word) > 3}
    share = len(telling & own) / max(1, len(telling))
    return [] if share >= GROUNDED else [f"only {share:.0%} of the file's words are the text's"]


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _problems_of_making(outcome: Outcome, note: str) -> list[str]:
    """The file must come from a tool call of the delegate, with these very words, started by the Coordinator."""
    delegated = [event for event in outcome.of("startRun", "writer") if event.get("delegatedBy")]
    if not delegated:
        return ["the Coordinator delegated nothing"]
    runs = {event["runId"] for event in delegated}
    written = [args.get("text") for event in outcome.events if event.get("runId") in runs for args in _writes(event)]
    failed = {e["toolCallId"] for e in outcome.of("finishToolCall", "writer") if e.get("isError")}
    if not written or len(failed) >= len(written):
        return ["the delegate's tool wrote nothing"]
    return [] if note in written else [f"{FILE} is not what the delegate's tool wrote"]


def _writes(event: Event) -> list[dict[str, str]]:
    if event["type"] != "finishGeneration":
        return []
    return [p["args"] for p in event["reply"] if p["type"] == "toolCallPart" and p["toolName"] == "writeTextFile"]


def summary_path(outcome: Outcome) -> Path:
    """Where the note is."""
    return outcome.workspace / FILE
