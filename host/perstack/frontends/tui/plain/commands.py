"""The commands of the linear mode: one table, of which the help is made."""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """What a line that begins with a slash does."""

    name: str
    """`PlainProgram.do_NAME` does it."""
    takes: str
    text: str


COMMANDS: tuple[Command, ...] = (
    Command("help", "", "Show these lines."),
    Command("new", "", "Choose an Expert for another Job; what is at work continues."),
    Command("jobs", "", "List the Jobs that are open here."),
    Command("job", "NUMBER", "Show another of them."),
    Command("history", "[WORDS]", "List past Jobs, newest first; with words, those that have them."),
    Command("inbox", "", "List every open question, of all Jobs and tasks."),
    Command("open", "NUMBER or ID", "Open a Job of the last list, or by its id."),
    Command("checkpoints", "", "List the checkpoints of this Job."),
    Command("branch", "NUMBER", "The next query begins a branch at that checkpoint."),
    Command("again", "NUMBER", "The next line is another answer to the question of that checkpoint."),
    Command("resume", "[LIMIT]", "Continue what is stopped; Enter does the same."),
    Command("status", "", "Say how the Job stands; while it is at work, Enter does the same."),
    Command("more", "", "Show the whole of the line that was cut last."),
    Command("agree", "", "Agree to what a changed perstack.toml executes."),
    Command("quit", "", "Leave; asks first while Jobs are at work. Ctrl-D does the same."),
)

OTHERS: tuple[str, ...] = (
    "A line is sent when it ends. One that ends with \\ continues in the next.",
    "A text that begins with a slash is typed with two.",
    "Ctrl-C interrupts what is at work, which is recorded.",
)
