"""The table of all actions by key, from which the bindings, the help and the palette are generated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Action(NamedTuple):
    """An action that the user can perform."""

    name: str  # the action is performed by `StartApp.action_NAME`
    title: str
    text: str
    key: str = ""  # the key in Textual's notation; empty for an action that is only in the palette
    key_label: str = ""


ACTIONS: tuple[Action, ...] = (
    Action("help", "Help", "Show every key and what it does.", "f1", "F1"),
    Action("history", "History", "Show past Jobs and their checkpoints, to open one or branch from it.", "f2", "F2"),
    Action("inbox", "Inbox", "Show every open question, of all Jobs and tasks.", "f3", "F3"),
    Action("model", "Model", "Choose the model of this tab's next Runs; /model NAME sets it at once.", "f4", "F4"),
    Action("new_tab", "New Job", "Choose an Expert in a new tab.", "ctrl+t", "Ctrl+T"),
    Action("next_tab", "Next tab", "Show the next Job.", "f6", "F6"),
    Action("previous_tab", "Previous tab", "Show the previous Job.", "shift+f6", "Shift+F6"),
    Action(
        "close_tab",
        "Close the tab",
        "Close the tab of a Job that is not at work; the Job stays in the History.",
        "f8",
        "F8",
    ),
    Action(
        "interrupt", "Interrupt", "Stop the running Job; the stop is recorded, and Enter resumes it.", "escape", "Esc"
    ),
    Action("fold", "Fold all", "Show more, or less, of all results and delegates.", "ctrl+o", "Ctrl+O"),
    Action("find", "Find", "Search the Job, including folded items; again: the next match.", "ctrl+f", "Ctrl+F"),
    Action("agree", "Use the changed definition", "Agree to what the changed perstack.toml executes.", "f9", "F9"),
    Action("resume", "Resume", "Continue a Job that is stopped; Enter does the same."),
    Action("copy_result", "Copy the result", "Copy the Expert's last text to the clipboard."),
    Action("copy_id", "Copy the Job's id", "Copy the id, for commands on the command line."),
    Action("light", "Light or dark", "Switch between dark and light colours."),
    Action("quit", "Quit", "Leave; asks first while Jobs are at work.", "ctrl+q", "Ctrl+Q"),
)

HISTORY_ACTIONS: tuple[Action, ...] = (
    Action("open_job", "Open the Job", "Show the Job in a tab, to resume it, answer it, or ask for more.", "o", "o"),
    Action("branch", "Branch", "Type a new query, which starts a branch at the checkpoint.", "b", "b"),
    Action(
        "branch_with_files", "Branch with the files", "The same, with the files as they were at that step.", "f", "f"
    ),
    Action("answer_again", "Answer again", "Give another answer to the question there, in a branch.", "a", "a"),
    Action("rewind", "Rewind the files", "Restore the files to the checkpoint; you see the changes first.", "r", "r"),
    Action("files", "Files changed", "Show the file changes of the Job, the Run or the step, line by line.", "d", "d"),
    Action("mark", "Mark", "Mark a checkpoint: d at another one compares the files at both.", "m", "m"),
    Action("copy", "Copy the id", "Copy the id of the checkpoint, the Run or the Job.", "y", "y"),
    Action("commands", "Command lines", "List the commands that do the same; Enter copies one.", "k", "k"),
    Action("export", "Export", "Write the Job, or the checkpoint, to a file.", "x", "x"),
)
"""Actions on a Job, a Run or a checkpoint in the History; the screens there define `action_NAME`."""

OTHER_KEYS: tuple[tuple[str, str], ...] = (
    ("Enter", "Send the text; without a text, resume a stopped Job."),
    ("Ctrl+J", "A new line."),
    ("Up, Down", "In the first or last line: earlier texts."),
    ("@", "Name a file of the workspace; Tab completes it."),
    ("PgUp, PgDn", "Scroll; Ctrl+End, or sending a text, goes to the end and stays there."),
    ("Tab", "Move to the transcript and back: Up and Down choose there, Enter folds."),
    ("Ctrl+P", "Every action, by its name."),
    (
        "y, a, 1, e, n",
        "At an approval: y runs the call, a or a number approves always, e edits it first, n denies it.",
    ),
)
"""Keys that are not actions of the whole program."""


def bindings_of(actions: Iterable[Action]) -> list[tuple[str, str, str]]:
    """Return the bindings of the actions with a key, in Textual's form."""
    return [(action.key, action.name, action.title) for action in actions if action.key]


# Commands of the linear mode; the help is generated from this table.


class SlashCommand(NamedTuple):
    """A command that begins with a slash."""

    name: str  # the command is performed by `PlainProgram._perform`
    arguments: str
    text: str


COMMANDS: tuple[SlashCommand, ...] = (
    SlashCommand("help", "", "Show these lines."),
    SlashCommand("new", "", "Choose an Expert for another Job; running Jobs continue."),
    SlashCommand("jobs", "", "List the open Jobs."),
    SlashCommand("job", "NUMBER", "Show another open Job."),
    SlashCommand("history", "[WORDS]", "List past Jobs, newest first; with words, only Jobs that contain them."),
    SlashCommand("inbox", "", "List every open question, of all Jobs and tasks."),
    SlashCommand("open", "NUMBER or ID", "Open a Job of the last list, or by its id."),
    SlashCommand("checkpoints", "", "List the checkpoints of this Job."),
    SlashCommand("branch", "NUMBER", "Start a branch at that checkpoint with the next query."),
    SlashCommand("again", "NUMBER", "Answer the question of that checkpoint differently with the next line."),
    SlashCommand(
        "model", "[NAME]", "Use this model for the next Runs of this Job; without a name, list the known ones."
    ),
    SlashCommand("resume", "[LIMIT]", "Continue a stopped Job; Enter does the same."),
    SlashCommand("status", "", "Show the Job's state; while it is at work, Enter does the same."),
    SlashCommand("more", "", "Show the full text of the line that was cut last."),
    SlashCommand("agree", "", "Agree to what the changed perstack.toml executes."),
    SlashCommand("quit", "", "Leave; asks first while Jobs are at work. Ctrl-D does the same."),
)

HINTS: tuple[str, ...] = (
    "A line is sent when it ends. A line that ends with \\ continues in the next.",
    "A text that begins with a slash is typed with two slashes.",
    "Ctrl-C interrupts the running Job, and this is recorded.",
)
