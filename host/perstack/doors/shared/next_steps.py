"""What may be done next, as commands of this command line."""

from __future__ import annotations

from typing import TypeAlias, assert_never

from perstack.next_steps import (
    Answer,
    AnswerAgain,
    Begin,
    Continue,
    Give,
    GoOnWithout,
    Install,
    Kind,
    Listing,
    LogIn,
    Look,
    NextStep,
    Option,
    Resume,
    Retry,
    Start,
    Trust,
)

Command: TypeAlias = Answer | Resume | Retry | GoOnWithout | Continue | Start | Begin | Install | LogIn | Trust
"""What is done by one command."""

_OPTIONS: dict[Option, str] = {
    "config": "name one with --config",
    "dispatcher": "name one with --dispatcher",
    "env_file": "name the file with --env-path",
    "expert": "name one with --expert",
    "job_id": "choose another --job-id",
    "max_cost": "give more with --max-cost X",
    "max_iterations": "add some with --max-iterations N",
    "max_steps": "give more with --max-steps N",
    "max_time": "give more with --max-time MS",
    "max_tokens": "give more with --max-tokens N",
    "max_tool_calls": "give more with --max-tool-calls N",
    "model": "name one with --model",
    "target": "give a better one with --target X",
    "total_cost": "give more with --total-cost X",
    "total_tokens": "give more with --total-tokens N",
}
_ANSWER = '"ANSWER"'
_NEEDED: dict[Option, str] = {
    "max_cost": " --max-cost X",
    "max_steps": " --max-steps N",
    "max_time": " --max-time MS",
    "max_tokens": " --max-tokens N",
    "max_tool_calls": " --max-tool-calls N",
    "total_cost": " --total-cost X",
    "total_tokens": " --total-tokens N",
}
_RESUME: dict[Kind, str] = {"job": "perstack resume", "task": "perstack task resume", "series": "perstack resume"}
_LISTS: dict[Listing, str] = {
    "log": "`perstack log{job}` shows them",
    "questions": "`perstack log{job} --type stopRunByInteractiveTool` shows where something was",
    "tasks": "`perstack task list` shows what there is",
    "series": "`perstack iterations` lists them",
    "schedules": "`perstack schedules` lists them",
    "inbox": "`perstack inbox` lists what is open",
    "plugins": "`perstack plugins` lists what there is",
    "providers": "`perstack models` lists every way",
    "damage": "`perstack verify{job}` says why",
}


def said(step: NextStep) -> str:  # noqa: C901 - one case for each step
    """The step as a person is told it, with its command."""
    match step:
        case Answer():
            return f"answer with: {command(step)}"
        case Resume():
            return f"continue with: {command(step)}"
        case Continue():
            return f"continue with a new query: {command(step)}"
        case Start():
            return f"{'start one' if step.job_id is None else 'begin it again'} with `{command(step)}`"
        case Begin():
            return f"write one with `{command(step)}`"
        case Install():
            return f"run {command(step)}"
        case LogIn():
            return command(step)
        case Trust():
            return f"agree to it with `{command(step)}`{'' if step.folder is None else ' in its folder'}"
        case GoOnWithout():
            return f"{command(step)} continues without"
        case Retry():
            return command(step)
        case AnswerAgain():
            return "answer an earlier question with --resume-from"
        case Look():
            return _look(step)
        case Give():
            return _OPTIONS[step.option]
        case _:
            assert_never(step)


def command(step: Command) -> str:  # noqa: C901 - one case for each step
    """The command alone."""
    match step:
        case Answer():
            return f"perstack answer {step.id} {'yes|always|no' if step.is_approval else _ANSWER}"
        case Resume():
            return f"{_RESUME[step.kind]} {step.id}{'' if step.needs is None else _NEEDED[step.needs]}"
        case Retry():
            return f"perstack task retry {step.task_id}"
        case GoOnWithout():
            return f"perstack task resume {step.task_id}"
        case Continue():
            return f"perstack run {step.expert_key or 'EXPERT'} QUERY --continue-job {step.job_id}"
        case Start():
            return f"perstack run EXPERT QUERY{'' if step.job_id is None else f' --job-id {step.job_id}'}"
        case Begin():
            return "perstack init"
        case Install():
            return "perstack install"
        case LogIn():
            return f"perstack login {step.skill_name}"
        case Trust():
            return "perstack trust"
        case _:
            assert_never(step)


def _look(step: Look) -> str:
    job = "" if step.job_id is None else f" {step.job_id}" if step.place == "damage" else f" --job {step.job_id}"
    return _LISTS[step.place].format(job=job)
