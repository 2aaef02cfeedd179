"""`perstack task`: tasks that agents pause and resume, from a terminal."""

from __future__ import annotations

from typing import get_args

import click

from perstack.core.job import PauseReason
from perstack.core.shell import argv_of
from perstack.core.task_events import OnFailure, TaskConfig, WaitingFor
from perstack.core.task_words import FirstStatus
from perstack.core.tasks import TaskStatus
from perstack.errors import UsageError
from perstack.frontends.cli.given import given_answer, given_object
from perstack.frontends.cli.task_delete import delete
from perstack.frontends.cli.task_ends import END_COMMANDS
from perstack.frontends.cli.task_options import (
    Tasks,
    depends_option,
    read_moment,
    read_span,
    show_all,
    task_options,
    text,
    version_option,
    when,
)
from perstack.frontends.cli.task_run_due import run_due
from perstack.frontends.cli.terminal import Screen, data, err, out, table

_STATE = "The whole state: a JSON object, @FILE, or - for stdin."
_DATA = "What else to keep, as a checkpoint: a JSON object, @FILE, or -"
_REASON = f"What it waits for: {', '.join(get_args(PauseReason))}; or in words, which put it aside."


class InOrder(click.Group):
    """Lists its commands as they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group("task", cls=InOrder, context_settings={"help_option_names": ["-h", "--help"]})
def task_command() -> None:
    """Keep tasks that agents pause and resume, from whichever process."""


@task_command.command("create")
@click.argument("task_id", metavar="TASK")
@click.option("--name", metavar="TEXT", help="What it is, in a few words.")
@click.option("--description", metavar="TEXT", default="", help="What is to be done.")
@click.option("--agent", "--agent-id", metavar="ID", default="", help="Who works on it: an Expert, or any name.")
@click.option("--state", metavar="JSON", help=_STATE)
@click.option("--checkpoint-data", metavar="JSON", help=_DATA)
@depends_option
@click.option(
    "--max-retries", type=click.IntRange(min=0), default=3, show_default=True, help="How often it is retried."
)
@click.option("--timeout", metavar="TIME", help="How long it may be silent while it runs, such as 30m.")
@click.option(
    "--on-failure",
    type=click.Choice(get_args(OnFailure)),
    default="fail",
    show_default=True,
    help="What becomes of it when something goes wrong.",
)
@click.option("--checkpoint-interval", metavar="TIME", help="How often it should make a checkpoint.")
@click.option("--start", is_flag=True, help="Start it at once.")
@click.option(
    "--status", type=click.Choice(get_args(FirstStatus)), help="What it is at first: `running` is the same as --start."
)
@task_options
def create(
    task_id: str,
    name: str | None,
    description: str,
    agent: str,
    state: str | None,
    checkpoint_data: str | None,
    depends_on: tuple[str, ...],
    max_retries: int,
    timeout: str | None,
    on_failure: OnFailure,
    checkpoint_interval: str | None,
    start: bool,
    status: FirstStatus | None,
    tasks: Tasks,
) -> None:
    """Create TASK, an id of up to 128 of A-Z a-z 0-9 _ -"""
    begin, data = given_object(state, "--state"), given_object(checkpoint_data, "--checkpoint-data")
    treated = TaskConfig(
        max_retries=max_retries,
        timeout=read_span(timeout, "--timeout"),
        on_failure=on_failure,
        checkpoint_interval=read_span(checkpoint_interval, "--checkpoint-interval"),
    )
    tasks.show(
        lambda memory: memory.create(
            task_id,
            name=name,
            description=description,
            agent_id=agent,
            state=begin,
            checkpoint_data=data,
            config=treated,
            depends_on=depends_on,
            status=status,
            start=True if start else None,
        ),
    )


@task_command.command("start")
@click.argument("task_id", metavar="TASK")
@version_option
@task_options
def start_task(task_id: str, expected_version: int | None, tasks: Tasks) -> None:
    """Start TASK, which was only created."""
    tasks.show(lambda memory: memory.start(task_id, expected_version=expected_version))


@task_command.command("get")
@click.argument("task_id", metavar="TASK")
@task_options
def get(task_id: str, tasks: Tasks) -> None:
    """Show TASK with its state."""
    tasks.show(lambda memory: memory.get(task_id))


@task_command.command("list")
@click.option("--status", type=click.Choice(get_args(TaskStatus)), help="Only those of this status.")
@click.option("--reason", type=click.Choice(get_args(PauseReason)), help="Only those paused for this reason.")
@click.option("--agent", "--agent-id", metavar="ID", help="Only those of this agent.")
@click.option("--older-than", metavar="TIME", help="Only those not written to for so long, such as 2h.")
@click.option("--newer-than", metavar="TIME", help="Only those written to within that time.")
@click.option("--archived", is_flag=True, help="The archived ones, in place of the others.")
@click.option(
    "--take", type=click.IntRange(min=1), metavar="N", default=50, show_default=True, help="How many at most."
)
@click.option("--after", metavar="CURSOR", help="Go on where another list ended.")
@task_options
def list_tasks(
    status: TaskStatus | None,
    reason: PauseReason | None,
    agent: str | None,
    older_than: str | None,
    newer_than: str | None,
    archived: bool,
    take: int,
    after: str | None,
    tasks: Tasks,
) -> None:
    """List tasks, the one written to last first. With --json: an object with `tasks`, and `next` if there are more."""
    older, newer = read_span(older_than, "--older-than"), read_span(newer_than, "--newer-than")
    page = tasks.do(
        lambda memory: memory.list(
            status=status,
            reason=reason,
            agent_id=agent,
            older_than=older,
            newer_than=newer,
            archived=archived,
            limit=take,
            after=after,
        ),
    )
    if tasks.as_json:
        data(page.to_json())
    elif not page.tasks:
        out("no such tasks")
    else:
        show_all(list(page.tasks))
        if page.next is not None:
            err(f"there are more: see them with --after {page.next}")


@task_command.command("checkpoint")
@click.argument("task_id", metavar="TASK")
@click.option("--state", metavar="JSON", help=_STATE)
@click.option("--name", metavar="TEXT", help="A name to come back to.")
@click.option("--checkpoint-data", "--data", "data", metavar="JSON", help=_DATA)
@version_option
@task_options
def checkpoint(
    task_id: str, state: str | None, name: str | None, data: str | None, expected_version: int | None, tasks: Tasks
) -> None:
    """Keep how far TASK is."""
    kept, notes = given_object(state, "--state"), given_object(data, "--checkpoint-data")
    tasks.show(
        lambda memory: memory.checkpoint(
            task_id, kept, name=name, checkpoint_data=notes, expected_version=expected_version
        ),
    )


@task_command.command("checkpoints")
@click.argument("task_id", metavar="TASK")
@task_options
def checkpoints(task_id: str, tasks: Tasks) -> None:
    """List the checkpoints of TASK, the oldest first. With --json: one object a line, with its state."""
    found = tasks.do(lambda memory: memory.list_checkpoints(task_id))
    if tasks.as_json:
        for one in found:
            data(one.to_json())
    elif not found:
        out("no checkpoint yet")
    else:
        rows = [(one.id, one.name or "", when(one.timestamp), text(one.state)) for one in found]
        table(Screen.of_stdout(), ("checkpoint", "name", "when", "state"), rows)


@task_command.command("pause")
@click.argument("task_id", metavar="TASK")
@click.option("--reason", metavar="REASON", help=_REASON)
@click.option("--message", metavar="TEXT", help="The same in words, for a person.")
@click.option("--state", metavar="JSON", help=_STATE)
@click.option("--checkpoint-data", metavar="JSON", help=_DATA)
@depends_option
@click.option("--resume-at", metavar="TIME", help="When a scheduled wait or rate limit ends: +5m, 2026-11-22T08:00.")
@click.option("--waiting-for", metavar="TEXT", help="With external_dependency: what has to come.")
@click.option(
    "--command", metavar="LINE", help="With external_dependency: a line for `sh` that ends with 0 once it has come."
)
@version_option
@task_options
def pause(
    task_id: str,
    reason: str | None,
    message: str | None,
    state: str | None,
    checkpoint_data: str | None,
    depends_on: tuple[str, ...],
    resume_at: str | None,
    waiting_for: str | None,
    command: str | None,
    expected_version: int | None,
    tasks: Tasks,
) -> None:
    """Let TASK wait. For an external dependency the token is shown that a webhook needs, this once."""
    kept, moment = given_object(state, "--state"), read_moment(resume_at, "--resume-at")
    data = given_object(checkpoint_data, "--checkpoint-data")
    if reason is None and not depends_on:
        raise UsageError(f"--reason is missing: {_REASON}")
    if reason == "scheduled_wait" and moment is None:
        raise UsageError("--reason scheduled_wait needs --resume-at: when it is to go on, such as +5m")
    outside = None
    if waiting_for is not None or command is not None:
        outside = WaitingFor(what=waiting_for or "", command=argv_of(command or ""))
    tasks.show(
        lambda memory: memory.pause(
            task_id,
            reason,
            message,
            state=kept,
            checkpoint_data=data,
            resume_at=moment,
            waiting_for=outside,
            depends_on=depends_on,
            expected_version=expected_version,
        ),
    )


@task_command.command("answer")
@click.argument("task_id", metavar="TASK")
@click.argument("value", metavar="ANSWER")
@version_option
@task_options
def answer(task_id: str, value: str, expected_version: int | None, tasks: Tasks) -> None:
    """Give TASK what it waits for.

    ANSWER is words, JSON, @FILE, or - for stdin. The task goes on when it is resumed.
    """
    said = given_answer(value, "ANSWER")
    tasks.show(lambda memory: memory.answer(task_id, said, expected_version=expected_version))


@task_command.command("resume")
@click.argument("task_id", metavar="TASK")
@click.option("--checkpoint", metavar="ID", help="Go back to this checkpoint, by id or name; later ones are kept.")
@click.option("--state", metavar="JSON", help=_STATE)
@click.option("--answer", metavar="ANSWER", help="What it waited for: words, JSON, @FILE, or -")
@version_option
@task_options
def resume(
    task_id: str,
    checkpoint: str | None,
    state: str | None,
    answer: str | None,
    expected_version: int | None,
    tasks: Tasks,
) -> None:
    """Go on with TASK, paused or failed.

    It goes on from where it stands, or from an earlier checkpoint.
    """
    kept, said = given_object(state, "--state"), given_answer(answer, "--answer")
    tasks.show(
        lambda memory: memory.resume(
            task_id, checkpoint=checkpoint, state=kept, value=said, expected_version=expected_version
        ),
    )


for _command in (*END_COMMANDS, delete, run_due):
    task_command.add_command(_command)
