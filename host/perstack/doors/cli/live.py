"""The lines at the bottom of a terminal while a Job is driven: what each Run does, and what it all has cost."""

from __future__ import annotations

from collections.abc import Callable

from perstack.core.plain import one_line, plain_text
from perstack.frontends.cli.terminal import Painted, Screen
from perstack.frontends.shared.live_state import Lane, LiveState
from perstack.frontends.shared.live_words import timed, todos_words, totals, work_words
from perstack.frontends.shared.words import cells, count, pad, shorten

Line = tuple[str | Painted, ...]

_MOST_LANES = 8
_MOST_TEXT = 6
"""Lines of a text while it comes."""

_WIDEST_LABEL = 24


def lines_of(state: LiveState, screen: Screen, now: int, colour: Callable[[str], str]) -> list[Line]:
    """As many lines as the screen has room for, each narrower than it. `colour` is that of a Run's label."""
    lanes = list(state.lanes.values())
    if not lanes and not state.skills:
        return []
    room = max(1, min(_MOST_LANES, screen.height - 4))
    shown = lanes[-room:]
    found: list[Line] = []
    if len(lanes) > len(shown):
        found.append((screen.paint(_cut(f"{count(len(lanes) - len(shown), 'more Run')} at work", screen), dim=True),))
    label = min(_WIDEST_LABEL, screen.width // 4, max((cells(lane.label) for lane in shown), default=0))
    for lane in shown:
        found += _lane(lane, screen, now, label, colour(lane.run_id), room if len(lanes) == 1 else 1)
    found += [(_cut(todos_words(lane), screen),) for lane in lanes[:1] if lane.todos]
    found.append((screen.paint(_cut(", ".join(totals(state, now)), screen), dim=True),))
    return found


def line_of(state: LiveState, screen: Screen, now: int) -> Line:
    """All of it in one line."""
    lanes = list(state.lanes.values())
    if len(lanes) == 1:
        first = f"{lanes[0].label} {_doing(lanes[0], now)}"
    else:
        first = f"{count(len(lanes), 'Run')} at work" if lanes else "begins"
    return (screen.paint(_cut(f"{', '.join(totals(state, now))}: {first}", screen), dim=True),)


def _lane(lane: Lane, screen: Screen, now: int, width: int, colour: str, room: int) -> list[Line]:
    label = screen.paint(pad(lane.label, width), fg=colour)
    left = max(4, screen.width - 1 - width - 1)
    if lane.text:
        texts = _tail(lane.text, left, min(room, _MOST_TEXT))
        style: dict[str, str | bool] = {"dim": True} if lane.is_thinking else {}
        return [
            (label if not at else " " * width, " ", screen.paint(text, **style) if style else text)
            for at, text in enumerate(texts)
        ]
    works = list(lane.work.values())
    if len(works) > 1 and room > 1:
        shown = works[-room:]
        return [
            (label if not at else " " * width, " ", screen.paint(work_words(one, now, left), fg="cyan"))
            for at, one in enumerate(shown)
        ]
    doing = _doing(lane, now, left)
    return [(label, " ", screen.paint(doing, fg="cyan") if works else screen.paint(doing, dim=True))]


def _doing(lane: Lane, now: int, left: int = 10_000) -> str:
    if lane.text:
        return _tail(lane.text, left, 1)[-1]
    if lane.work:
        more = f" and {count(len(lane.work) - 1, 'more call')}" if len(lane.work) > 1 else ""
        return work_words(next(iter(lane.work.values())), now, left - len(more)) + more
    return timed(lane.doing or "begins", lane.since, now, left)


def _cut(text: str, screen: Screen) -> str:
    return shorten(text, screen.width - 1)


def _tail(text: str, width: int, most: int) -> list[str]:
    """The end of a text, in lines of that width."""
    found: list[str] = []
    for line in plain_text(text[-width * (most + 1) :]).split("\n"):
        found += _wrapped(one_line(line), width)
    while found and not found[-1]:
        found.pop()
    return found[-most:] or [""]


def _wrapped(line: str, width: int) -> list[str]:
    if cells(line) <= width:
        return [line]
    if line.isascii():
        return [line[at : at + width] for at in range(0, len(line), width)]
    found, used = [""], 0
    for char in line:
        wide = cells(char)
        if used + wide > width:
            found.append("")
            used = 0
        found[-1] += char
        used += wide
    return found
