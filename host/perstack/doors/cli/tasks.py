"""`perstack task`: the operations on tasks at a terminal, made of their table and of the words that are here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast, get_args

import click

from perstack.core.job import PauseReason
from perstack.core.shell import argv_of
from perstack.core.tasks.events import OnFailure, TaskConfig, WaitingFor
from perstack.core.tasks.state import TaskStatus
from perstack.core.tasks.table import OPERATIONS
from perstack.core.tasks.words import FirstStatus
from perstack.errors import UsageError
from perstack.frontends.cli.task_commands import Said, argument, command_of, option
from perstack.frontends.cli.task_delete import delete
from perstack.frontends.cli.task_options import ANSWER, ERROR, MOMENT, SPAN, STATE
from perstack.frontends.cli.task_run_due import run_due

_REASON = f"What it waits for: {', '.join(get_args(PauseReason))}; or a text, which puts it aside."
_AGENT = ("agent_id", "--agent", "--agent-id")
_OF_CONFIG = ("max_retries", "timeout", "on_failure", "checkpoint_interval")


def _created(given: Mapping[str, object]) -> dict[str, object]:
    """With the config of its options; without `--start` nothing is said of that."""
    config = TaskConfig.model_validate({name: given[name] for name in _OF_CONFIG if name in given})
    rest = {name: value for name, value in given.items() if name not in _OF_CONFIG and value is not False}
    return {**rest, "config": config}


def _paused(given: Mapping[str, object]) -> dict[str, object]:
    """With what is waited for outside. Raises UsageError for an option that is missing."""
    if "reason" not in given and not given.get("depends_on"):
        raise UsageError(f"--reason is missing: {_REASON}")
    if given.get("reason") == "scheduled_wait" and "resume_at" not in given:
        raise UsageError("--reason scheduled_wait needs --resume-at: when it is to continue, such as +5m")
    outside = {name: cast("str", given[name]) for name in ("waiting_for", "command") if name in given}
    rest = {name: value for name, value in given.items() if name not in ("waiting_for", "command")}
    if not outside:
        return rest
    waits = WaitingFor(what=outside.get("waiting_for", ""), command=argv_of(outside.get("command", "")))
    return {**rest, "waiting_for": waits}


SAID: dict[str, Said] = {
    "create": Said(
        "Create TASK, whose id is up to 128 of A-Z a-z 0-9 _ and -.",
        {
            "name": option("--name", metavar="TEXT", help="A short name."),
            "description": option("--description", metavar="TEXT", help="What is to be done."),
            "agent_id": option(*_AGENT, metavar="ID", help="Who works on it: an Expert, or any name."),
            "state": None,
            "checkpoint_data": None,
            "depends_on": None,
            "config": (
                option(
                    "--max-retries",
                    type=click.IntRange(min=0),
                    default=3,
                    show_default=True,
                    help="How often it is retried.",
                ),
                option("--timeout", type=SPAN, help="How long it may be silent while it runs, such as 30m."),
                option(
                    "--on-failure",
                    type=click.Choice(get_args(OnFailure)),
                    default="fail",
                    show_default=True,
                    help="What becomes of it when something goes wrong.",
                ),
                option("--checkpoint-interval", type=SPAN, help="How often it should make a checkpoint."),
            ),
            "start": option("--start", is_flag=True, help="Start it at once."),
            "status": option(
                "--status",
                type=click.Choice(get_args(FirstStatus)),
                help="What it is at first: `running` is the same as --start.",
            ),
        },
        gather=_created,
    ),
    "start": Said("Start TASK, which was only created."),
    "get": Said("Show TASK with its state."),
    "list": Said(
        "List tasks, the one written to last first. With --json: an object with `tasks`, and `next` if there are more.",
        {
            "status": option("--status", type=click.Choice(get_args(TaskStatus)), help="Only those of this status."),
            "reason": option(
                "--reason", type=click.Choice(get_args(PauseReason)), help="Only those paused for this reason."
            ),
            "agent_id": option(*_AGENT, metavar="ID", help="Only those of this agent."),
            "older_than": option("--older-than", type=SPAN, help="Only those not written to for so long, such as 2h."),
            "newer_than": option("--newer-than", type=SPAN, help="Only those written to within that time."),
            "archived": option("--archived", is_flag=True, help="The archived ones, in place of the others."),
            "limit": option(
                "limit",
                "--take",
                type=click.IntRange(min=1),
                metavar="N",
                default=50,
                show_default=True,
                help="How many at most.",
            ),
            "after": option("--after", metavar="CURSOR", help="Continue where another list ended."),
        },
    ),
    "checkpoint": Said(
        "Keep how far TASK is.",
        {
            "state": None,
            "name": option("--name", metavar="TEXT", help="A name to come back to."),
            "checkpoint_data": option(
                "--checkpoint-data",
                "--data",
                type=STATE,
                help="What else to keep, as a checkpoint: a JSON object, @FILE, or -",
            ),
            "data": (),
        },
    ),
    "checkpoints": Said(
        "List the checkpoints of TASK, the oldest first. With --json: one object a line, with its state."
    ),
    "pause": Said(
        "Let TASK wait. For an external dependency the token is shown that a webhook needs, this once.",
        {
            "reason": option("--reason", metavar="REASON", help=_REASON),
            "message": option("--message", metavar="TEXT", help="The same as a text for a person."),
            "state": None,
            "checkpoint_data": None,
            "depends_on": None,
            "resume_at": option(
                "--resume-at", type=MOMENT, help="When a scheduled wait or rate limit ends: +5m, 2026-11-22T08:00."
            ),
            "waiting_for": (
                option("--waiting-for", metavar="TEXT", help="With external_dependency: what has to come."),
                option(
                    "--command",
                    metavar="LINE",
                    help="With external_dependency: a line for `sh` that ends with 0 once it has come.",
                ),
            ),
        },
        gather=_paused,
    ),
    "answer": Said(
        "Give TASK what it waits for.\n\n"
        "ANSWER is text, JSON, @FILE, or - for stdin. The task continues when it is resumed.",
        {"value": argument("value", metavar="ANSWER", type=ANSWER)},
    ),
    "resume": Said(
        "Continue TASK, paused or failed.\n\nIt continues from where it stands, or from an earlier checkpoint.",
        {
            "checkpoint": option(
                "--checkpoint", metavar="ID", help="Go back to this checkpoint, by id or name; later ones are kept."
            ),
            "state": None,
            "value": option("value", "--answer", type=ANSWER, help="What it waited for: text, JSON, @FILE, or -"),
        },
    ),
    "complete": Said(
        "Say that TASK is done, for good.",
        {
            "result": option(
                "--result", metavar="RESULT", type=ANSWER, help="What came of it: text, JSON, @FILE, or -"
            ),
            "state": (),
        },
    ),
    "fail": Said(
        "Say that something went wrong in TASK: as text, or as a JSON object with a `message`.\n\n"
        "It is failed, paused or retried, as it was created to be.",
        {"error": argument("error", type=ERROR)},
    ),
    "retry": Said(
        "Try TASK, which has failed, again.\n\n"
        "It continues from where it stood. That is allowed as often as it was created to be retried."
    ),
    "cancel": Said(
        "Give TASK up: it is failed, and may be resumed.",
        {"message": option("--message", metavar="TEXT", help="Why it is given up.")},
    ),
    "archive": Said("Leave TASK, which has ended, out of lists."),
}
"""The words for each operation at a terminal; one without gets those of the table."""


class InOrder(click.Group):
    """Lists its commands as they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group("task", cls=InOrder, context_settings={"help_option_names": ["-h", "--help"]})
def task_command() -> None:
    """Keep tasks that agents pause and resume, from whichever process."""


_ORDER = list(SAID)

for _operation in sorted(OPERATIONS, key=lambda one: _ORDER.index(one.name) if one.name in SAID else len(SAID)):
    task_command.add_command(
        delete if _operation.name == delete.name else command_of(_operation, SAID.get(_operation.name))
    )
task_command.add_command(run_due)
