"""What may be typed now, in a few words."""

from __future__ import annotations

from perstack.frontends.tui.session import Session


def hint_of(session: Session, *, refuses: bool = False, stops: str = "Esc") -> str:
    """By how the Job stands. `refuses`: a text for a no is being typed; `stops` is the key that interrupts."""
    if session.resume_from is not None:
        return "another answer, in a branch" if session.answers_again else "a new query, in a branch"
    if session.asking is not None and session.asking.call_digest:
        return "why not? a text for the model; Enter alone: just no" if refuses else "y, a or n decides"
    step = session.resumption
    if step is not None and step.needs is not None:
        return "a higher limit, then Enter resumes; or a new query"
    key = session.expert_key
    return {
        "new": f"what should {key} do?" if key else "type to find an Expert; Enter chooses it",
        "running": "",
        "watching": f"another process drives it; {stops} stops looking",
        "asking": "your answer",
        "stopped": "Enter resumes; or type a new query",
        "completed": "a follow-up: the next Run of this Job",
    }[session.state]
