"""What may be done next with tasks, as requests."""

from __future__ import annotations

from typing import assert_never

from perstack.next_steps import (
    Answer,
    AnswerAgain,
    Begin,
    Continue,
    Give,
    GoOnWithout,
    Install,
    LogIn,
    Look,
    NextStep,
    Resume,
    Retry,
    Start,
    Trust,
    in_words,
)

BASE = "/v1/execution"


def said(step: NextStep) -> str:
    """The step with its request, where there is one."""
    match step:
        case Resume(kind="task"):
            return f"POST {BASE}/{step.id}/resume"
        case Retry():
            return f"POST {BASE}/{step.task_id}/retry"
        case GoOnWithout():
            return f"POST {BASE}/{step.task_id}/resume continues without"
        case Look(place="tasks"):
            return f"GET {BASE} lists what there is"
        case (
            Answer()
            | AnswerAgain()
            | Resume()
            | Continue()
            | Start()
            | Look()
            | Give()
            | Begin()
            | Install()
            | LogIn()
            | Trust()
        ):
            return in_words(step)
        case _:
            assert_never(step)
