"""What may be typed now, in a few words."""

from __future__ import annotations

from perstack.core.plain import one_line
from perstack.frontends.tui.session import Session


def hint_of(session: Session, *, refuses: bool = False, stops: str = "Esc") -> str:
    """By how the Job stands. `refuses`: a text for a no is being typed; `stops` is the key that interrupts."""
    asking, place = session.open_question, session.resume_from
    if refuses:
        return f"why not? a text for the model; Enter alone: just no; {stops} goes back"
    if session.is_unread:
        return "it could not be read; Enter tries again"
    if place is not None:
        what = "a new query" if session.again is None else "another answer"
        return one_line(f"{what}, in a branch, from {place}; {stops} leaves it")
    if asking is not None and asking.call_digest:
        return "y, a or n decides"
    step = session.resumption
    if step is not None and step.needs is not None:
        return "a higher limit, then Enter resumes; or a new query"
    key = session.expert_key
    here = session.drives and session.state == "queued"
    looks = f"{stops} stops looking" if session.is_busy else f"Enter {'drives it here' if here else 'follows it'}"
    return {
        "new": f"what should {key} do?" if key else "type to find an Expert; Enter chooses it",
        "running": "",
        "reading": f"{stops} stops looking",
        "watching": f"another process drives it; {looks}",
        "queued": f"waits for a worker; {looks}",
        "asking": "your answer",
        "stopped": "Enter resumes; or type a new query",
        "completed": "a follow-up: the next Run of this Job",
    }[session.state]
