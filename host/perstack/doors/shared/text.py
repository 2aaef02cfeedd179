"""Short texts for people: table columns, counts, sizes, times, costs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from perstack.core.base.text import MAX_TIME_MS, count, one_line
from perstack.errors import Problem

if TYPE_CHECKING:
    from perstack.core.messages.messages import ToolCallPart


# Fitting a table to a screen: ids stay whole, texts are cut, then columns are dropped in a fixed order.

GAP = 2  # cells between two columns
_MIN_TEXT_CELLS = 16  # minimum cells of a text column while another column can still be dropped
_MAX_PLAIN_CELLS = 32  # maximum cells of a column that is neither an id nor a text, if the width is limited


def fit_columns(
    widths: Sequence[int],
    headings: Sequence[int],
    width: int | None,
    *,
    whole: Sequence[int],
    texts: Sequence[int],
    drops: Sequence[int],
) -> dict[int, int]:
    """Return the width of each shown column by index: `texts` are cut, `drops` go first; `width` None keeps all."""
    if width is None:
        return dict(enumerate(widths))
    uncapped = (*whole, *texts)
    wanted = {
        i: cells if i in uncapped else min(cells, max(_MAX_PLAIN_CELLS, headings[i])) for i, cells in enumerate(widths)
    }
    min_cells = {i: min(wanted[i], max(_MIN_TEXT_CELLS, headings[i])) for i in texts}
    for index in (None, *drops):
        if index is not None:
            wanted.pop(index, None)
        if _total({**wanted, **min_cells}) <= width:
            break
    return {**wanted, **_share_cells(width - _total(wanted) + sum(wanted[i] for i in texts), wanted, texts, headings)}


def _total(columns: dict[int, int]) -> int:
    return sum(columns.values()) + GAP * (len(columns) - 1)


def _share_cells(free: int, wanted: dict[int, int], texts: Sequence[int], headings: Sequence[int]) -> dict[int, int]:
    """Return the cells of each text column; the shortest is served first, so that its surplus goes to the others."""
    shares: dict[int, int] = {}
    for served, index in enumerate(sorted(texts, key=lambda i: wanted[i])):
        share = free // (len(texts) - served)
        shares[index] = max(min(wanted[index], share), headings[index], 1)
        free -= shares[index]
    return shares


def shorten(text: str, width: int) -> str:
    """Return one line of at most `width` cells; `…` marks a cut."""
    # a cell holds at least one character, so longer text cannot be shown and need not be measured
    line = one_line(text[: width + 200])
    if cells(line) <= width and len(text) <= width + 200:
        return line
    if line.isascii():
        return line[: width - 1].rstrip() + "…"
    from rich.cells import set_cell_size

    return set_cell_size(line, width - 1).rstrip() + "…"


def cells(text: str) -> int:
    """Return the number of terminal columns that one line takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def break_anywhere(line: str, width: int) -> list[str]:
    """Return one clean line in pieces of at most `width` cells, broken anywhere, without losing a character."""
    width = max(2, width)
    if line.isascii():
        return [line[start : start + width] for start in range(0, len(line), width)] or [""]
    pieces, used_cells = [""], 0
    for char in line:
        char_cells = cells(char)
        if used_cells + char_cells > width:
            pieces.append("")
            used_cells = 0
        pieces[-1] += char
        used_cells += char_cells
    return pieces


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Return the text cut or filled to exactly `width` cells; `right` aligns it right."""
    fitted = text if cells(text) <= width else shorten(text, width)
    padding = " " * (width - cells(fitted))
    return padding + fitted if right else fitted + padding


def size(number: int) -> str:
    """Return `7 B`, `1.2 KB`, `34 MB`, with 1,000 as the base."""
    value, unit = float(number), "B"
    for next_unit in ("KB", "MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1000, next_unit
    return f"{value:.1f} {unit}" if unit != "B" and value < 9.95 else f"{value:.0f} {unit}"


def local_time(milliseconds: int) -> datetime:
    """Return the local time; a value outside the calendar, as in a damaged log, is clamped to it."""
    return datetime.fromtimestamp(min(max(milliseconds / 1000, 0), MAX_TIME_MS / 1000)).astimezone()


def minute(milliseconds: int) -> str:
    """Return `2026-11-27 18:30`, in local time."""
    return f"{local_time(milliseconds):%Y-%m-%d %H:%M}"


def age_text(moment: int, now: int) -> str:
    """Return the time between two moments in milliseconds: `just now`, `5 min ago`, `3 days ago`."""
    seconds = (now - moment) // 1000
    for size, noun in ((86_400, "day"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            number = seconds // size
            return f"{count(number, noun) if noun == 'day' else f'{number} {noun}'} ago"
    return "just now" if seconds < 10 else f"{seconds} s ago"


def brief(part: ToolCallPart) -> str:
    """Return the call's arguments without their names, in short form."""
    if part.raw_args is not None:
        return part.raw_args
    values = (
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in part.args.values()
    )
    return " ".join(values)


# Problems of a definition.


def describe_problems(problems: Sequence[Problem]) -> list[str]:
    """Return a line for each problem, `file:line: severity: key: message`, and a last line with counts."""
    lines = [_describe(problem) for problem in problems]
    counts = Counter(problem.severity for problem in problems)
    lines.append(f"{count(counts['error'], 'error')}, {count(counts['warning'], 'warning')}")
    return lines


def _describe(problem: Problem) -> str:
    parts = [problem.file if problem.line is None else f"{problem.file}:{problem.line}", problem.severity]
    if problem.key is not None:
        parts.append(problem.key)
    return ": ".join((*parts, problem.message))
