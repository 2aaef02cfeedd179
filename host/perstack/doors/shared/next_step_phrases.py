"""Phrases for next steps, one table for each door, and the command lines that show a Job, Run or checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from shlex import quote
from typing import NamedTuple

from perstack.core.base.text import one_line
from perstack.next_steps import Act, Decide, GiveAnswer, NextStep, Resume, phrase

# A step without a phrase in a door's table, or with an empty one, is phrased by `perstack.next_steps.in_words`.

_AT_A_TERMINAL: Mapping[str, str] = {
    "WriteDefinition": "write one with `perstack init`",
    "LogIn": "log in with `perstack login {skill_name}`",
    "Trust": "agree to it with `perstack trust`",
    "Trust folder": "agree to it with `perstack trust` in {folder}",
    "Trust is_state": "see what waits there and agree to it with `perstack trust --state`",
    "Trust is_state storage": "see what waits there and agree to it with `perstack trust --state --storage {storage}`",
}

# Next steps as prompts of an ACP session.

ACP: Mapping[str, str] = {
    **_AT_A_TERMINAL,
    "GiveAnswer": "answer in the next prompt",
    "Resume job": "continue with a new prompt",
    "Continue": "continue with a new prompt",
    "Start": "continue with a new prompt",
}


# Next steps as commands.

COMMANDS: Mapping[str, str] = {
    "GiveAnswer": 'perstack answer {id} "ANSWER"',
    "GiveAnswer is_approval": "perstack answer {id}",
    "GiveAnswer is_approval is_shown": "perstack answer {id} yes|always|no",
    "Resume": "perstack resume {id}",
    "Resume task": "perstack task resume {id}",
    "TryAgain": "perstack task retry {task_id}",
    "ResumeWithoutDependencies": "perstack task resume {task_id}",
    "Continue": "perstack run EXPERT QUERY --continue-job {job_id}",
    "Continue expert_key": "perstack run {expert_key} QUERY --continue-job {job_id}",
    "Start": "perstack run EXPERT QUERY",
    "Start job_id": "perstack run EXPERT QUERY --job-id {job_id}",
    "WriteDefinition": "perstack init",
    "Install": "perstack install",
    "LogIn": "perstack login {skill_name}",
    "Trust": "perstack trust",
    "Trust is_state": "perstack trust --state",
    "Trust is_state storage": "perstack trust --state --storage {storage}",
}
_DECISIONS: Mapping[Act, str] = {
    "answer": "perstack answer {id} {value}",
    "answer_task": "perstack task answer {id} {value}",
    "close": "perstack cancel {id} --final",
    "continue": "perstack run {value} QUERY --continue-job {id}",
    "delete_task": "perstack task delete {id}",
    "drop_text": "perstack tell {id} --drop {value}",
    "resume": "perstack resume {id}",
    "resume_task": "perstack task resume {id}",
    "rewind": "perstack rewind {id} {value}",
    "tell": "perstack tell {id} {value}",
}


def decision_command(step: Decide) -> str:
    """Return the command by which a person makes a decision, as it can be pasted into a shell."""
    command = _DECISIONS[step.act].format(id=quote(step.id), value=quote(step.value))
    options = (f"--{name.replace('_', '-')} {quote(value)}" for name, value in step.options)
    return one_line(" ".join((command, *options)))


_LIMITS = {
    name: f"--{name.replace('_', '-')} {value}"
    for name, value in (
        ("max_cost", "X"),
        ("max_steps", "N"),
        ("max_time", "MS"),
        ("max_tokens", "N"),
        ("max_tool_calls", "N"),
        ("total_cost", "X"),
        ("total_tokens", "N"),
    )
}
_QUESTIONS = "--type stopRunByInteractiveTool` shows where something was"
CLI: Mapping[str, str] = {
    "GiveAnswer": "answer with: {command}",
    "GiveAnswer is_approval": "see the whole call and decide it with: {command}",
    "GiveAnswer is_approval is_shown": "answer with: {command}",
    "AnswerEarlier": "answer an earlier question with --resume-from",
    "Resume": "continue with: {command}",
    "TryAgain": "{command}",
    "ResumeWithoutDependencies": "{command} continues without them",
    "Continue": "continue with a new query: {command}",
    "Start": "start one with `{command}`",
    "Start job_id": "start it again with `{command}`",
    "Inspect log": "`perstack log` shows them",
    "Inspect log job_id": "`perstack log --job {job_id}` shows them",
    "Inspect questions": f"`perstack log {_QUESTIONS}",
    "Inspect questions job_id": f"`perstack log --job {{job_id}} {_QUESTIONS}",
    "Inspect tasks": "`perstack task list` lists them",
    "Inspect series": "`perstack iterations` lists them",
    "Inspect schedules": "`perstack schedules` lists them",
    "Inspect inbox": "`perstack inbox` lists what is open",
    "Inspect plugins": "`perstack plugins` lists those installed",
    "Inspect providers": "`perstack models` lists the providers, `perstack login --provider NAME` keeps a key",
    "Inspect damage": "`perstack verify` says why",
    "Inspect damage job_id": "`perstack verify {job_id}` says why",
    "SetOption": "name one with --{option}",
    **{f"SetOption {name}": f"give more with {limit}" for name, limit in _LIMITS.items()},
    "SetOption env_file": "name the file with --env-path",
    "SetOption job_id": "choose another --job-id",
    "SetOption max_iterations": "add some with --max-iterations N",
    "SetOption storage": "name the place with --storage",
    "SetOption target": "give a better one with --target X",
    "SetOption workspaces": "start workers with --workspaces, or where the files are",
    "WriteDefinition": "write one with `{command}`",
    "Install": "run {command}",
    "LogIn": "{command}",
    "Trust": "agree to it with `{command}`",
    "Trust folder": "agree to it with `{command}` in its folder",
    "Trust is_state": "see what waits there, and agree to it, with `{command}`",
    "Decide": "decide it with {command}",
}


def command(step: NextStep) -> str:
    """Return the step's command; for a step without a command its phrase for any door."""
    if isinstance(step, Decide):
        return decision_command(step)
    text = phrase(step, COMMANDS)
    return f"{text} {_LIMITS[step.needs]}" if isinstance(step, Resume) and step.needs in _LIMITS else text


# Decisions that a program may not make.

_BY_A_PERSON: Mapping[str, str] = {"Decide": "a person can do it with `{command}`"}

# Next steps as tools of the MCP server; where there is no tool, the user acts at a terminal.

MCP: Mapping[str, str] = {
    "GiveAnswer": f"have a person answer with the tool answer (job {{id}}), or with: {COMMANDS['GiveAnswer']}",
    "GiveAnswer is_approval": f"a person approves or denies the call with: {COMMANDS['GiveAnswer is_approval']}",
    "Resume job": "resume it with resume_job {id}",
    "Resume job needs": "a person raises the limit: perstack resume {id} --{needed} N",
    "Resume job needs max_cost": "a person is asked for a higher limit: resume_job {id} with maxCost",
    "Resume job needs max_steps": "a person is asked for a higher limit: resume_job {id} with maxSteps",
    "Resume task": "continue it: task_resume {id}",
    "TryAgain": "try it again: task_retry {task_id}",
    "ResumeWithoutDependencies": "task_resume {task_id} continues without them",
    "Continue": "continue with a new query: continue_job {job_id}",
    "Start": "call the tool of an Expert",
    "Inspect tasks": "task_list lists them",
    "Inspect inbox": "the tool inbox lists what is open",
    "WriteDefinition": "a person must run `perstack init`",
    "Install": "a person must run `perstack install`",
    "LogIn": "a person must run `perstack login {skill_name}`",
    "Trust": "a person agrees with `perstack trust`",
    "Trust folder": "a person agrees with `perstack trust` in {folder}",
    "Trust is_state": "a person sees what waits there, and agrees, with `perstack trust --state`",
    "Trust is_state storage": (
        "a person sees what waits there, and agrees, with `perstack trust --state --storage {storage}`"
    ),
    **_BY_A_PERSON,
}


# Next steps of tasks as HTTP requests.

BASE = "/v1/execution"

HTTP: Mapping[str, str] = {
    "Resume task": f"POST {BASE}/{{id}}/resume",
    "TryAgain": f"POST {BASE}/{{task_id}}/retry",
    "ResumeWithoutDependencies": f"POST {BASE}/{{task_id}}/resume continues without them",
    "Inspect tasks": f"GET {BASE} lists them",
    **_BY_A_PERSON,
}


# Next steps as keys of the terminal program, and as commands of its linear mode.

TUI: Mapping[str, str] = {
    **_AT_A_TERMINAL,
    "GiveAnswer": "answer below, or from the Inbox (F3)",
    "AnswerEarlier": "answer an earlier question from the History (F2)",
    "Resume job": "Enter resumes",
    "Resume job needs": "",  # empty: the phrase for any door
    "Resume job needs max_cost": "type a higher limit in dollars, and Enter resumes",
    "Resume job needs max_steps": "type a higher number of steps, and Enter resumes",
    "Continue": "continue with a new query",
    "Start": "start a new Job (Ctrl+T)",
    "Inspect log": "the History (F2) shows them",
    "Inspect questions": "the History (F2) shows them",
    "Inspect inbox": "the Inbox (F3) lists what is open",
    "Inspect plugins": "`perstack plugins` lists those installed",
    "Inspect providers": "`perstack models` lists the providers, `perstack login --provider NAME` keeps a key",
}
LINEAR_TUI: Mapping[str, str] = {
    **TUI,
    "GiveAnswer": "answer here, or from /inbox",
    "AnswerEarlier": "answer an earlier question from /checkpoints",
    "Start": "start a new Job with /new",
    "Inspect log": "/checkpoints shows them",
    "Inspect questions": "/checkpoints shows them",
    "Inspect inbox": "/inbox lists what is open",
}


# The phrase of a step for the users of each door.


def _of_door(phrases: Mapping[str, str]) -> Callable[[NextStep], str]:
    def phrase_of(step: NextStep) -> str:
        needed = step.needs or "" if isinstance(step, Resume) else ""
        return phrase(step, phrases, command=command(step), needed=needed.replace("_", "-"))

    return phrase_of


acp_phrase = _of_door(ACP)
cli_phrase = _of_door(CLI)
http_phrase = _of_door(HTTP)
mcp_phrase = _of_door(MCP)
plain_phrase = _of_door(LINEAR_TUI)
tui_phrase = _of_door(TUI)


def as_sentence(step: NextStep) -> str:
    """Return the MCP phrase as a sentence."""
    text = mcp_phrase(step)
    return f"{text[0].upper()}{text[1:]}."


class CommandLine(NamedTuple):
    """A command and what it does."""

    text: str
    what: str


def of_job(job_id: str, expert: str, location_options: str = "", *, step: NextStep | None) -> list[CommandLine]:
    """Return the commands for a Job. `step` is its next step; None if it cannot continue now, such as while it runs.

    `location_options` holds the options that locate the project; they are appended to each command.
    """
    job = quote(job_id)
    run = f"perstack run {_expert_or_placeholder(expert)} QUERY --continue-job {job}{location_options}"
    continues = [] if step is None else [CommandLine(run, "its next Run")]
    if isinstance(step, Resume):
        continues.append(CommandLine(f"{command(step)}{location_options}", "continue what was stopped"))
    if isinstance(step, GiveAnswer):
        continues.append(
            CommandLine(f"perstack answer {quote(step.id)} ANSWER{location_options}", "answer what it asks")
        )
    return [
        CommandLine(f"perstack start --job {job}{location_options}", "the Job, in a tab"),
        *continues,
        CommandLine(f"perstack log {job}{location_options}", "its events"),
        CommandLine(f"perstack log {job} --tree{location_options}", "its Runs, as a tree"),
        CommandLine(f"perstack diff {job}{location_options}", "what it did to files"),
        CommandLine(f"perstack export {job} --format jsonl --to FILE{location_options}", "its events, in a file"),
    ]


def of_run(run_id: str, location_options: str = "") -> list[CommandLine]:
    """Return the commands that show a Run."""
    run = quote(run_id)
    return [
        CommandLine(f"perstack log --run {run}{location_options}", "its events"),
        CommandLine(f"perstack log --run {run} --messages{location_options}", "the messages at its end"),
        CommandLine(f"perstack diff --run {run}{location_options}", "what it did to files"),
    ]


def of_checkpoint(
    job_id: str,
    checkpoint_id: str,
    expert: str,
    location_options: str = "",
    *,
    begins_branch: bool = True,
    asked: str | None = None,
    marked: str | None = None,
) -> list[CommandLine]:
    """Return the commands for a checkpoint.

    Without `begins_branch` (a delegate's, a closed Job's) none starts a branch.

    `asked` is the checkpoint at which the step's question can be answered again, `marked` a checkpoint to compare with.
    """
    job, checkpoint = quote(job_id), quote(checkpoint_id)
    branch = f"perstack run {_expert_or_placeholder(expert)} QUERY --continue-job {job} --resume-from {checkpoint}"
    comparison = (
        []
        if marked is None
        else [CommandLine(_diff_between(job_id, marked, checkpoint_id, location_options), "from there")]
    )
    again = f"perstack resume {job} --resume-from {quote(asked or checkpoint_id)} -i ANSWER{location_options}"
    branches = (
        CommandLine(f"{branch}{location_options}", "a branch with a new query"),
        CommandLine(f"{branch} --with-files{location_options}", "the same, with the files of that step"),
        *([] if asked is None else [CommandLine(again, "another answer, in a branch")]),
    )
    return [
        CommandLine(
            f"perstack log --checkpoint {checkpoint} --messages{location_options}",
            "the messages as the model sees them",
        ),
        CommandLine(
            f"perstack log --checkpoint {checkpoint} --new{location_options}", "the messages that are new in this step"
        ),
        CommandLine(
            f"perstack log --checkpoint {checkpoint} --json{location_options} > FILE", "the checkpoint, in a file"
        ),
        *(branches if begins_branch else ()),
        CommandLine(f"perstack diff {job} {checkpoint}{location_options}", "what the step did to files"),
        *comparison,
        CommandLine(_diff_between(job_id, checkpoint_id, "", location_options), "what changed from there until now"),
        CommandLine(rewind(job_id, checkpoint_id, location_options), "the files of that step"),
    ]


def rewind(job_id: str, checkpoint_id: str, location_options: str = "") -> str:
    """Return the command that rewinds the files to a checkpoint."""
    return f"perstack rewind {quote(job_id)} {quote(checkpoint_id)}{location_options}"


def _diff_between(job_id: str, first: str, last: str, location_options: str = "") -> str:
    """Return the command that compares the files of two checkpoints; an empty id means the current files."""
    return f"perstack diff {quote(job_id)} {quote(f'{first}..{last}')}{location_options}"


def _expert_or_placeholder(expert: str) -> str:
    return quote(expert) if expert else "EXPERT"
