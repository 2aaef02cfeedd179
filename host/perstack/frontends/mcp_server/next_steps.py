"""What may be done next, as tools of this server; what it has no tool for, a person does at a terminal."""

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
    Listing,
    LogIn,
    Look,
    NextStep,
    Option,
    Resume,
    Retry,
    Start,
    Trust,
    in_words,
)

_LISTS: dict[Listing, str] = {
    "tasks": "task_list shows what there is",
    "inbox": "the tool inbox lists what is open",
}


def said(step: NextStep) -> str:  # noqa: C901 - one case for each step
    """The step as a model is told it."""
    match step:
        case Answer():
            if step.is_approval:
                return f"a person approves the call, or not, by: perstack answer {step.id} yes|always|no"
            command = f'perstack answer {step.id} "ANSWER"'
            return f"give a person's answer with the tool answer (job {step.id}), or by: {command}"
        case Resume(kind="job"):
            return _with_limit(step.id, step.needs) if step.needs else f"resume it where it was: resume_job {step.id}"
        case Resume(kind="task"):
            return f"continue it: task_resume {step.id}"
        case Retry():
            return f"try it again: task_retry {step.task_id}"
        case GoOnWithout():
            return f"task_resume {step.task_id} continues without"
        case Continue():
            return f"continue with a new query: continue_job {step.job_id}"
        case Start():
            return "call the tool of an Expert"
        case Look():
            return _LISTS.get(step.place, in_words(step))
        case Begin():
            return "a person has to run `perstack init`"
        case Install():
            return "a person has to run `perstack install`"
        case LogIn():
            return f"a person has to run `perstack login {step.skill_name}`"
        case Trust():
            return f"a person agrees by `perstack trust`{'' if step.folder is None else f' in {step.folder}'}"
        case AnswerAgain() | Give() | Resume():
            return in_words(step)
        case _:
            assert_never(step)


def _with_limit(job_id: str, needs: Option) -> str:
    if needs in ("max_steps", "max_cost"):
        argument = "maxSteps" if needs == "max_steps" else "maxCost"
        return f"continue with a higher limit: resume_job {job_id} with {argument}"
    return f"a person gives it more: perstack resume {job_id} --{needs.replace('_', '-')} N"


def as_sentence(step: NextStep) -> str:
    """The same, as a sentence of its own."""
    words = said(step)
    return f"{words[0].upper()}{words[1:]}."
