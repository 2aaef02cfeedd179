"""What may be done next, as keys of the terminal program."""

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


def said(step: NextStep) -> str:  # noqa: C901 - one case for each step
    """The step as the person at this program does it."""
    match step:
        case Answer():
            return "answer below, or from the Inbox (F3)"
        case Continue():
            return "continue with a new query"
        case Resume(kind="job", needs=None):
            return "Enter resumes"
        case Resume(kind="job", needs="max_steps"):
            return "type a higher number of steps, and Enter resumes"
        case Resume(kind="job", needs="max_cost"):
            return "type what the Job may cost in dollars, and Enter resumes"
        case Start():
            return "start a new Job (Ctrl+T)"
        case Begin():
            return "write one by `perstack init`"
        case LogIn():
            return f"log in by `perstack login {step.skill_name}`"
        case Trust():
            return f"agree to it by `perstack trust`{'' if step.folder is None else f' in {step.folder}'}"
        case AnswerAgain():
            return "answer an earlier question from the History (F2)"
        case Look(place="providers"):
            return "`perstack models` lists every way"
        case Look(place="plugins"):
            return "`perstack plugins` lists what there is"
        case Look(place="inbox"):
            return "the Inbox (F3) lists what is open"
        case Look(place="log" | "questions"):
            return "the History (F2) shows them"
        case Resume() | Retry() | GoOnWithout() | Look() | Give() | Install():
            return in_words(step)
        case _:
            assert_never(step)


def said_plainly(step: NextStep) -> str:
    """The same in the linear mode, which has commands in place of keys."""
    match step:
        case Answer():
            return "answer here, or from /inbox"
        case Start():
            return "start a new Job with /new"
        case AnswerAgain():
            return "answer an earlier question from /checkpoints"
        case Look(place="inbox"):
            return "/inbox lists what is open"
        case Look(place="log" | "questions"):
            return "/checkpoints shows them"
        case _:
            return said(step)
