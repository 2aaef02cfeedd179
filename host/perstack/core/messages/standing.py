"""Keep what a person said in a Run: queries, posted texts, answers, reasons of refusals. No compaction summarises them.

The state holds each text with the id of the message that shows it to the model. Once a compaction leaves that message
out, the summary that replaces the history ends with these texts. They are in the cached prefix from then on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from perstack.core.base.ids import By
from perstack.core.messages.messages import estimated_tokens
from perstack.dataclass import dataclass, replace

STANDING_SHARE = 1 / 8  # maximum share of the context window for these texts; the oldest are left out first

STANDING_MARK = "\n\n[What a person said, word for word, oldest first. It still holds unless a later text changes it.]"


@dataclass(frozen=True)
class Saying:
    """A text that a person, or the definition, has given to a Run."""

    id: str  # id of the event that recorded it; empty for a text of the definition
    text: str
    place: str = ""  # id of the message that shows it; empty while its step has no message with results
    by: By | None = None  # author; None if the event names none


def with_place(sayings: tuple[Saying, ...], place: str) -> tuple[Saying, ...]:
    """Return the sayings after the results of their step became the message `place`."""
    if all(saying.place for saying in sayings):
        return sayings
    return tuple(saying if saying.place else replace(saying, place=place) for saying in sayings)


def sayings_of_definition(texts: Iterable[str]) -> tuple[Saying, ...]:
    """Return the texts of an Expert's definition, which precede those of people."""
    return tuple(Saying("", text.strip(), _DEFINITION) for text in texts)


_DEFINITION = "the definition"  # place of texts that are in no message


def standing_text(sayings: Iterable[Saying], shown_places: Collection[str], window: int) -> str:
    """Return the sayings that no message in `shown_places` contains, as one text; empty without any.

    `window`: context size in tokens. Beyond their share of it the oldest are left out, and the text says how many.
    """
    lines, left_out = _fitting_lines(sayings, shown_places, window)
    if not lines and not left_out:
        return ""
    is_one = left_out == 1
    note = (
        f"\n[{left_out} older {'text does' if is_one else 'texts do'} not fit and {'is' if is_one else 'are'} left out;"
        " recallHistory finds what was left out.]"
    )
    return "".join((STANDING_MARK, note if left_out else "", *lines))


def count_left_out(sayings: Iterable[Saying], shown_places: Collection[str], window: int) -> int:
    """Return how many of the oldest sayings `standing_text` leaves out."""
    return _fitting_lines(sayings, shown_places, window)[1]


def _fitting_lines(sayings: Iterable[Saying], shown_places: Collection[str], window: int) -> tuple[list[str], int]:
    hidden = [saying.text for saying in sayings if saying.place and saying.place not in shown_places]
    remaining = int(window * STANDING_SHARE)
    lines: list[str] = []
    for text in reversed(hidden):
        remaining -= estimated_tokens(len(text.encode(errors="replace"))) + 1
        if remaining < 0:
            break
        lines.append(_item(text))
    return lines[::-1], len(hidden) - len(lines)


def without_text(compacted: str, text: str) -> str:
    """Return the text of a compaction without one of the sayings at its end."""
    summary, mark, standing = compacted.partition(STANDING_MARK)
    end = _item("")
    remaining = f"{standing}{end}".replace(f"{_item(text)}{end}", end, 1).removesuffix(end)
    return f"{summary}{mark}{remaining}" if remaining else summary


def _item(text: str) -> str:
    """Return a text as an item of a list. Later lines are indented: otherwise they could look like items."""
    return "\n- " + text.replace("\n", "\n  ")
