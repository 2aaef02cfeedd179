"""How the Job that is shown stands, as lines."""

from __future__ import annotations

from perstack.frontends.shared.live_words import timed, todos_words, totals, work_words
from perstack.frontends.tui.session import Session
from perstack.frontends.tui.view.standing import STATES

_WIDEST = 200


def at_work(session: Session, now: int) -> list[str]:
    """How it stands, what each of its Runs does and for how long, its todos, and what all of it has cost."""
    live = session.transcript.live
    found = [STATES[session.state]]
    for lane in live.lanes.values():
        works = [work_words(work, now, _WIDEST) for work in lane.work.values()]
        doing = "the model writes" if lane.text else timed(lane.doing or "begins", lane.since, now, _WIDEST)
        found += [f"{lane.label}: {one}" for one in works or [doing]]
    first = next(iter(live.lanes.values()), None) or live.latest
    if first is not None and first.todos:
        found.append(todos_words(first))
    if live.steps:
        found.append(", ".join(totals(live, now if session.is_busy else live.began or now)))
    return found
