"""What may be done next, as prompts of a session."""

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


def said(step: NextStep) -> str:
    """The step as the person at the editor does it."""
    match step:
        case Answer():
            return "answer in the next prompt"
        case Continue() | Resume(kind="job") | Start():
            return "continue with a new prompt"
        case Begin():
            return "write one with `perstack init`"
        case LogIn():
            return f"log in by `perstack login {step.skill_name}`"
        case Trust():
            return f"agree to it by `perstack trust`{'' if step.folder is None else f' in {step.folder}'}"
        case AnswerAgain() | Resume() | Retry() | GoOnWithout() | Look() | Give() | Install():
            return in_words(step)
        case _:
            assert_never(step)
