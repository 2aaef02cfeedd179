"""Words for people: states, short texts, times, sizes."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING

from perstack.core.moments import LATEST
from perstack.core.plain import one_line
from perstack.core.statuses import TYPED_STATUS, JobStatus

if TYPE_CHECKING:  # whatever is written to a terminal is shortened here, before there is a Job too
    from perstack.core.job import JobSummary, RunSummary
    from perstack.core.messages import ToolCallPart
    from perstack.core.model_events import SwitchModel, SwitchReason
    from perstack.core.usage import Usage

STATUS_WORDS: dict[JobStatus, str] = {status: typed.replace("-", " ") for typed, status in TYPED_STATUS.items()}
"""Each status as people are shown it."""


def status_of(job: JobSummary) -> str:
    """How a Job stands, in a word, or two for one that was closed for good."""
    word = STATUS_WORDS[job.status]
    return word if job.closed is None else f"{word}, closed"


def run_status_of(run: RunSummary) -> str:
    """How a Run stands, which may wait for others."""
    return "waits for delegates" if run.status == "stoppedByDelegate" else STATUS_WORDS[run.status]


def shorten(text: str, width: int) -> str:
    """One line of at most that many cells; `…` tells that there was more."""
    # a cell holds at least one character, so more than this cannot be shown, and need not be looked at
    line = one_line(text[: width + 200])
    if cells(line) <= width and len(text) <= width + 200:
        return line
    if line.isascii():
        return line[: width - 1].rstrip() + "…"
    from rich.cells import set_cell_size

    return set_cell_size(line, width - 1).rstrip() + "…"


def cells(text: str) -> int:
    """The columns of a terminal that one line takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def pad(text: str, width: int, *, right: bool = False) -> str:
    """The text, cut or filled to exactly that many cells; `right` fills before it."""
    cut = text if cells(text) <= width else shorten(text, width)
    filling = " " * (width - cells(cut))
    return filling + cut if right else cut + filling


def count(number: int, noun: str) -> str:
    """`1 step`, `2,000 steps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(number: int) -> str:
    """`7 B`, `1.2 KB`, `34 MB`: of 1,000 each."""
    value, unit = float(number), "B"
    for larger in ("KB", "MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.1f} {unit}" if unit != "B" and value < 9.95 else f"{value:.0f} {unit}"


def cost(usage: Usage, unpriced_tokens: int) -> str:
    """`$0.0123`, `at least $0.0123`, `cost unknown`; empty if nothing was used."""
    from perstack.core.job import cost_of

    spent = cost_of(usage, unpriced_tokens)
    if spent is None:
        return ""
    if spent == "unknown":
        return "cost unknown"
    return f"{'at least ' if unpriced_tokens else ''}${spent:,.4f}"


def spent(job: JobSummary) -> str:
    """`12 steps, 3,400 tokens, $0.0123`."""
    words = (
        count(job.total_steps, "step"),
        count(job.usage.total_tokens, "token"),
        cost(job.usage, job.unpriced_tokens),
    )
    return ", ".join(word for word in words if word)


WITHOUT_EFFECT = "no call had an effect, and the Expert declares `effects = true`: check before you rely on the result"


def duration(milliseconds: int) -> str:
    """`7 ms`, `1.3 s`, `2 min 5 s`, `3 h 12 min`."""
    if milliseconds < 1000:
        return f"{max(0, milliseconds)} ms"
    seconds = round(milliseconds / 1000, 1)
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {left} s"
    return f"{minutes // 60} h {minutes % 60} min"


def local_time(milliseconds: int) -> datetime:
    """A moment here; of one that no calendar has, as a damaged log may, the first or last that has a name."""
    return datetime.fromtimestamp(min(max(milliseconds / 1000, 0), LATEST / 1000)).astimezone()


def ago(then: int, now: int) -> str:
    """How long before `now`, both in milliseconds: `just now`, `5 min ago`, `3 days ago`."""
    seconds = (now - then) // 1000
    for size, noun in ((86_400, "day"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            number = seconds // size
            return f"{count(number, noun) if noun == 'day' else f'{number} {noun}'} ago"
    return "just now" if seconds < 10 else f"{seconds} s ago"


def brief(part: ToolCallPart) -> str:
    """The arguments as one would say them: short values, without their names."""
    if part.raw_args is not None:
        return part.raw_args
    values = (
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in part.args.values()
    )
    return " ".join(values)


_SWITCHED: dict[SwitchReason, str] = {
    "overloaded": "overloaded",
    "rateLimit": "its rate limit is used up",
    "quota": "its quota is used up",
    "refusal": "it refused",
    "timeout": "it took too long",
    "unreachable": "it cannot be reached",
    "circuitOpen": "it failed again and again",
    "serverError": "its server failed",
    "notConfigured": "it cannot be used here",
    "triedAgain": "the first one is tried again",
}


def switch_words(event: SwitchModel, *, whole: bool = False) -> str:
    """`from A to B: overloaded`; the `whole` of it has the endpoint's words."""
    said = f" ({event.error.message})" if whole and event.error is not None else ""
    return f"from {event.before} to {event.to}: {_SWITCHED[event.reason]}{said}"
