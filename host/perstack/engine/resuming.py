"""Whether a stopped Run may be resumed, and why it goes on."""

from __future__ import annotations

from collections.abc import Mapping

from perstack.core.events import ResumeReason, Settlement
from perstack.core.run import Run
from perstack.engine.read import UnsettledCall
from perstack.errors import UsageError


def resume_reason(job_id: str, run: Run) -> ResumeReason:
    """Why a Run goes on. Raises UsageError, with what to do instead, if it cannot."""
    match run.status:
        case "completed":
            raise UsageError(
                f"Job {job_id} is completed; go on with a new query: perstack run {run.start.expert_key} QUERY"
                f" --continue-job {job_id}"
            )
        case "stoppedByInteractiveTool":
            raise UsageError(f"Job {job_id} waits for an answer; give it: perstack answer {job_id} ANSWER")
        case "running" | "stoppedByDelegate":
            return "crash"
        case "stoppedByInterrupt":
            return "interrupt"
        case "stoppedByMaxSteps":
            return "maxSteps"
        case "stoppedByError":
            return "error"


def check_settled(calls: tuple[UnsettledCall, ...], settled: Mapping[str, Settlement]) -> None:
    """Raises UsageError for a settlement of a call that is not open."""
    known = {name for call in calls for name in (call.key, call.call_id)}
    for name in settled:
        if name not in known:
            names = ", ".join(call.key for call in calls) or "none"
            raise UsageError(f"--settle {name}: no such open call; there are: {names}")
