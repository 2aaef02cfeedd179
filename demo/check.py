"""Whether a run did the work. What the model says of itself counts for nothing: the file and the events do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from run import Event, Outcome

FILE = "summary.md"

FEWEST_WORDS = 12
"""A note of fewer words says nothing."""

LONGEST = 1.1
"""The note is at most this many times as long as the text. The embedded model likes to take a text over sentence by
sentence, which is faithful; what is longer than the text was made up."""

KEY_TERMS, NAMED = 25, 4
"""The note names at least so many of the text's so many most frequent terms."""

GROUNDED = 0.45
"""The share of the note's terms that must be the text's own. Notes that were made up have had 0 to 0.25."""

_COMMON = """
about above after again also because been before being below between both could does each every from have having here
into itself more most must need only other over same should some such than that their them then there these they this
those through under until very were what when where which while will with without would your text says said summary
"""


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
    """What is wrong with a note as a note on that text."""
    found: list[str] = []
    words = re.findall(r"\w+", note)
    if len(words) < FEWEST_WORDS:
        found.append(f"the note has only {len(words)} words")
    if len(note) > LONGEST * len(text):
        found.append("the note is longer than the text")
    if re.search(r"<\w+>|\.\.\.", note):
        found.append("the note has a placeholder in it")
    named = key_terms(text) & set(terms(note))
    if len(named) < NAMED:
        found.append(f"the note names only {len(named)} of the text's key terms")
    share = grounding(note, text)
    if share < GROUNDED:
        found.append(f"only {share:.0%} of the note's terms are the text's")
    return found


def nearest(note: str, candidates: Iterable[str]) -> int:
    """The index of the text that shares most of its key terms with the note."""
    said = set(terms(note))
    scores = [len(key_terms(text) & said) / len(key_terms(text)) for text in candidates]
    return max(range(len(scores)), key=scores.__getitem__)


def grounding(note: str, text: str) -> float:
    """The share of the note's different terms that the text has too."""
    said = set(terms(note))
    return len(said & set(terms(text))) / len(said) if said else 0.0


def key_terms(text: str) -> set[str]:
    """The text's most frequent terms."""
    return {term for term, _ in Counter(terms(text)).most_common(KEY_TERMS)}


def terms(text: str) -> list[str]:
    """Words that mean something, cut to six letters so that `storage` and `storages` are one."""
    return [word[:6] for word in re.findall(r"[a-z]{4,}", text.lower()) if word not in _COMMON.split()]


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
