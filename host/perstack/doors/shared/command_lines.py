"""Command lines for what another door offers, with the ids of a Job, Run or checkpoint filled in."""

from __future__ import annotations

from shlex import quote
from typing import NamedTuple


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
