"""Which Runs are a worker's to take up, and why."""

from __future__ import annotations

from collections.abc import Mapping

from perstack.core.events import ResumeReason
from perstack.core.ids import number_of_run
from perstack.core.runs.state import Run
from perstack.core.runs.transitions import ACTIVE


def due_of(run: Run, now: int) -> ResumeReason | None:
    """Why a worker takes up a Run that nobody drives; None if there is nothing for one to do.

    What a person has stopped, or was stopped by a limit or an error, waits for a person.
    """
    if run.closed is not None:
        return None
    if run.status == "queued":
        return "queued"
    if run.status in ACTIVE:
        return "crash"
    is_pause = run.status == "stoppedByInterrupt" and run.waits_for_limit
    return "interrupt" if is_pause and (run.resume_at or 0) <= now else None


def is_wanted(run: Run, runs: Mapping[str, Run]) -> bool:
    """Whether the result of a delegate is awaited: each Run above it is at work, or waits for a worker, and the Job has
    not been continued in another Run since."""
    while run.start.delegated_by is not None:
        by = run.start.delegated_by
        above = runs.get(by.run_id)
        if above is None or above.closed is not None or above.status not in (*ACTIVE, "queued"):
            return False
        call = above.calls.get(by.tool_call_id)
        if call is None or call.result is not None:
            return False
        run = above
    number = number_of_run(run.id)
    return not any(one.is_coordinator and number_of_run(one.id) > number for one in runs.values())


def is_elsewhere(run: Run) -> bool:
    """Whether a worker of its own drives a delegate, or is to."""
    return not run.is_coordinator and run.queued is not None and (run.status in ACTIVE or run.status == "queued")


def grows_apart(run: Run, runs: Mapping[str, Run]) -> bool:
    """Whether a worker of its own may have written to a delegate's log after whoever drove the Job wrote last."""
    return is_elsewhere(run) or (not run.is_coordinator and run.queued is not None and is_wanted(run, runs))
