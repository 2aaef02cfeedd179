"""Phrases for next steps, one function for each door, and the command lines that show a Job, Run or checkpoint."""

from __future__ import annotations

from shlex import quote
from typing import NamedTuple, TypeAlias, assert_never

from perstack.next_steps import (
    AnswerEarlier,
    Continue,
    GiveAnswer,
    Inspect,
    Install,
    Kind,
    Listing,
    LogIn,
    NextStep,
    Option,
    Resume,
    ResumeWithoutDependencies,
    SetOption,
    Start,
    Trust,
    TryAgain,
    WriteDefinition,
    in_words,
)

# Next steps as prompts of an ACP session.


def acp_phrase(step: NextStep) -> str:
    """Return the step as the user of an editor performs it."""
    match step:
        case GiveAnswer():
            return "answer in the next prompt"
        case Continue() | Resume(kind="job") | Start():
            return "continue with a new prompt"
        case WriteDefinition():
            return "write one with `perstack init`"
        case LogIn():
            return f"log in by `perstack login {step.skill_name}`"
        case Trust():
            return f"agree to it by `perstack trust`{'' if step.folder is None else f' in {step.folder}'}"
        case (
            AnswerEarlier() | Resume() | TryAgain() | ResumeWithoutDependencies() | Inspect() | SetOption() | Install()
        ):
            return in_words(step)
        case _:
            assert_never(step)


Command: TypeAlias = (
    GiveAnswer
    | Resume
    | TryAgain
    | ResumeWithoutDependencies
    | Continue
    | Start
    | WriteDefinition
    | Install
    | LogIn
    | Trust
)

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
    "storage": "name the place with --storage",
    "target": "give a better one with --target X",
    "total_cost": "give more with --total-cost X",
    "total_tokens": "give more with --total-tokens N",
    "workspaces": "start workers with --workspaces, or where the files are",
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


def cli_phrase(step: NextStep) -> str:  # noqa: C901 - one case for each step
    """Return the step for the command line, with its command."""
    match step:
        case GiveAnswer():
            return f"answer with: {command(step)}"
        case Resume():
            return f"continue with: {command(step)}"
        case Continue():
            return f"continue with a new query: {command(step)}"
        case Start():
            return f"{'start one' if step.job_id is None else 'begin it again'} with `{command(step)}`"
        case WriteDefinition():
            return f"write one with `{command(step)}`"
        case Install():
            return f"run {command(step)}"
        case LogIn():
            return command(step)
        case Trust():
            return f"agree to it with `{command(step)}`{'' if step.folder is None else ' in its folder'}"
        case ResumeWithoutDependencies():
            return f"{command(step)} continues without"
        case TryAgain():
            return command(step)
        case AnswerEarlier():
            return "answer an earlier question with --resume-from"
        case Inspect():
            return _look(step)
        case SetOption():
            return _OPTIONS[step.option]
        case _:
            assert_never(step)


def command(step: Command) -> str:  # noqa: C901 - one case for each step
    """Return the step's command."""
    match step:
        case GiveAnswer():
            return f"perstack answer {step.id} {'yes|always|no' if step.is_approval else _ANSWER}"
        case Resume():
            return f"{_RESUME[step.kind]} {step.id}{'' if step.needs is None else _NEEDED[step.needs]}"
        case TryAgain():
            return f"perstack task retry {step.task_id}"
        case ResumeWithoutDependencies():
            return f"perstack task resume {step.task_id}"
        case Continue():
            return f"perstack run {step.expert_key or 'EXPERT'} QUERY --continue-job {step.job_id}"
        case Start():
            return f"perstack run EXPERT QUERY{'' if step.job_id is None else f' --job-id {step.job_id}'}"
        case WriteDefinition():
            return "perstack init"
        case Install():
            return "perstack install"
        case LogIn():
            return f"perstack login {step.skill_name}"
        case Trust():
            return "perstack trust"
        case _:
            assert_never(step)


def _look(step: Inspect) -> str:
    job = "" if step.job_id is None else f" {step.job_id}" if step.listing == "damage" else f" --job {step.job_id}"
    return _LISTS[step.listing].format(job=job)


# Next steps as tools of the MCP server; where there is no tool, the user acts at a terminal.

_MCP_LISTS: dict[Listing, str] = {
    "tasks": "task_list shows what there is",
    "inbox": "the tool inbox lists what is open",
}


def mcp_phrase(step: NextStep) -> str:  # noqa: C901 - one case for each step
    """Return the step for a model."""
    match step:
        case GiveAnswer():
            if step.is_approval:
                return f"a person approves the call, or not, by: perstack answer {step.id} yes|always|no"
            command = f'perstack answer {step.id} "ANSWER"'
            return f"give a person's answer with the tool answer (job {step.id}), or by: {command}"
        case Resume(kind="job"):
            return _with_limit(step.id, step.needs) if step.needs else f"resume it where it was: resume_job {step.id}"
        case Resume(kind="task"):
            return f"continue it: task_resume {step.id}"
        case TryAgain():
            return f"try it again: task_retry {step.task_id}"
        case ResumeWithoutDependencies():
            return f"task_resume {step.task_id} continues without"
        case Continue():
            return f"continue with a new query: continue_job {step.job_id}"
        case Start():
            return "call the tool of an Expert"
        case Inspect():
            return _MCP_LISTS.get(step.listing, in_words(step))
        case WriteDefinition():
            return "a person has to run `perstack init`"
        case Install():
            return "a person has to run `perstack install`"
        case LogIn():
            return f"a person has to run `perstack login {step.skill_name}`"
        case Trust():
            return f"a person agrees by `perstack trust`{'' if step.folder is None else f' in {step.folder}'}"
        case AnswerEarlier() | SetOption() | Resume():
            return in_words(step)
        case _:
            assert_never(step)


def _with_limit(job_id: str, needs: Option) -> str:
    if needs in ("max_steps", "max_cost"):
        argument = "maxSteps" if needs == "max_steps" else "maxCost"
        return f"continue with a higher limit: resume_job {job_id} with {argument}"
    return f"a person gives it more: perstack resume {job_id} --{needs.replace('_', '-')} N"


def as_sentence(step: NextStep) -> str:
    """Return the MCP phrase as a sentence."""
    words = mcp_phrase(step)
    return f"{words[0].upper()}{words[1:]}."


# Next steps of tasks as HTTP requests.

BASE = "/v1/execution"


def http_phrase(step: NextStep) -> str:
    """Return the step with its request, if there is one."""
    match step:
        case Resume(kind="task"):
            return f"POST {BASE}/{step.id}/resume"
        case TryAgain():
            return f"POST {BASE}/{step.task_id}/retry"
        case ResumeWithoutDependencies():
            return f"POST {BASE}/{step.task_id}/resume continues without"
        case Inspect(listing="tasks"):
            return f"GET {BASE} lists what there is"
        case (
            GiveAnswer()
            | AnswerEarlier()
            | Resume()
            | Continue()
            | Start()
            | Inspect()
            | SetOption()
            | WriteDefinition()
            | Install()
            | LogIn()
            | Trust()
        ):
            return in_words(step)
        case _:
            assert_never(step)


# Next steps as keys of the terminal program.


def tui_phrase(step: NextStep) -> str:  # noqa: C901 - one case for each step
    """Return the step as the user of the terminal program performs it."""
    match step:
        case GiveAnswer():
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
        case WriteDefinition():
            return "write one by `perstack init`"
        case LogIn():
            return f"log in by `perstack login {step.skill_name}`"
        case Trust():
            return f"agree to it by `perstack trust`{'' if step.folder is None else f' in {step.folder}'}"
        case AnswerEarlier():
            return "answer an earlier question from the History (F2)"
        case Inspect(listing="providers"):
            return "`perstack models` lists every way"
        case Inspect(listing="plugins"):
            return "`perstack plugins` lists what there is"
        case Inspect(listing="inbox"):
            return "the Inbox (F3) lists what is open"
        case Inspect(listing="log" | "questions"):
            return "the History (F2) shows them"
        case Resume() | TryAgain() | ResumeWithoutDependencies() | Inspect() | SetOption() | Install():
            return in_words(step)
        case _:
            assert_never(step)


def said_plainly(step: NextStep) -> str:
    """Return the step for the linear mode, which has commands instead of keys."""
    match step:
        case GiveAnswer():
            return "answer here, or from /inbox"
        case Start():
            return "start a new Job with /new"
        case AnswerEarlier():
            return "answer an earlier question from /checkpoints"
        case Inspect(listing="inbox"):
            return "/inbox lists what is open"
        case Inspect(listing="log" | "questions"):
            return "/checkpoints shows them"
        case _:
            return tui_phrase(step)


class CommandLine(NamedTuple):
    """A command and what it does."""

    text: str
    what: str


def of_job(job_id: str, expert: str, given: str = "") -> list[CommandLine]:
    """Return the commands for a Job. `given` holds the options that locate the project, appended to each."""
    job = quote(job_id)
    return [
        CommandLine(f"perstack start --job {job}{given}", "the Job, in a tab"),
        CommandLine(f"perstack run {_named(expert)} QUERY --continue-job {job}{given}", "its next Run"),
        CommandLine(f"perstack resume {job}{given}", "continue what was stopped"),
        CommandLine(f"perstack log {job}{given}", "its events"),
        CommandLine(f"perstack log {job} --tree{given}", "its Runs, as a tree"),
        CommandLine(f"perstack diff {job}{given}", "what it did to files"),
        CommandLine(f"perstack export {job} --format jsonl --output FILE{given}", "its events, in a file"),
    ]


def of_run(run_id: str, given: str = "") -> list[CommandLine]:
    """Return the commands that show a Run."""
    run = quote(run_id)
    return [
        CommandLine(f"perstack log --run {run}{given}", "its events"),
        CommandLine(f"perstack log --run {run} --messages{given}", "the messages at its end"),
        CommandLine(f"perstack diff --run {run}{given}", "what it did to files"),
    ]


def of_checkpoint(
    job_id: str, checkpoint_id: str, expert: str, given: str = "", *, asks: bool = False, marked: str | None = None
) -> list[CommandLine]:
    """Return the commands for a checkpoint. `asks` adds answering again; `marked` is another one to compare with."""
    job, place = quote(job_id), quote(checkpoint_id)
    branch = f"perstack run {_named(expert)} QUERY --continue-job {job} --resume-from {place}"
    compared = (
        [] if marked is None else [CommandLine(_diff_between(job_id, marked, checkpoint_id, given), "from there")]
    )
    again = CommandLine(f"perstack resume {job} --resume-from {place} -i ANSWER{given}", "another answer, in a branch")
    return [
        CommandLine(f"perstack log --checkpoint {place} --messages{given}", "the messages as the model sees them"),
        CommandLine(f"perstack log --checkpoint {place} --new{given}", "those that are new in this step"),
        CommandLine(f"perstack log --checkpoint {place} --json{given} > FILE", "the checkpoint, in a file"),
        CommandLine(f"{branch}{given}", "a branch with a new query"),
        CommandLine(f"{branch} --with-files{given}", "the same, with the files of then"),
        *([again] if asks else []),
        CommandLine(f"perstack diff {job} {place}{given}", "what the step did to files"),
        *compared,
        CommandLine(_diff_between(job_id, checkpoint_id, "", given), "what changed from there until now"),
        CommandLine(rewind(job_id, checkpoint_id, given), "the files of then"),
    ]


def rewind(job_id: str, checkpoint_id: str, given: str = "") -> str:
    """Return the command that rewinds the files to a checkpoint."""
    return f"perstack rewind {quote(job_id)} {quote(checkpoint_id)}{given}"


def _diff_between(job_id: str, first: str, last: str, given: str = "") -> str:
    """Return the command that compares the files of two checkpoints; an empty id means the current files."""
    return f"perstack diff {quote(job_id)} {quote(f'{first}..{last}')}{given}"


def _named(expert: str) -> str:
    return quote(expert) if expert else "EXPERT"
