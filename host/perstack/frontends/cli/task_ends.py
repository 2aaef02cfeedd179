"""`perstack task`: the ends that a task may come to."""

from __future__ import annotations

import click

from perstack.frontends.cli.given import given_answer, given_error
from perstack.frontends.cli.task_options import Tasks, task_options, version_option


@click.command("complete")
@click.argument("task_id", metavar="TASK")
@click.option("--result", metavar="RESULT", help="What came of it: words, JSON, @FILE, or -")
@version_option
@task_options
def complete(task_id: str, result: str | None, expected_version: int | None, tasks: Tasks) -> None:
    """Say that TASK is done, for good."""
    came = given_answer(result, "--result")
    tasks.show(lambda memory: memory.complete(task_id, came, expected_version=expected_version))


@click.command("fail")
@click.argument("task_id", metavar="TASK")
@click.argument("error")
@version_option
@task_options
def fail(task_id: str, error: str, expected_version: int | None, tasks: Tasks) -> None:
    """Say that something went wrong in TASK: in words, or as a JSON object with a `message`.

    It is failed, paused or retried, as it was created to be.
    """
    said = given_error(error, "ERROR")
    tasks.show(lambda memory: memory.fail(task_id, said, expected_version=expected_version))


@click.command("retry")
@click.argument("task_id", metavar="TASK")
@version_option
@task_options
def retry(task_id: str, expected_version: int | None, tasks: Tasks) -> None:
    """Try TASK, which has failed, again.

    It goes on from where it stood. That is allowed as often as it was created to be retried.
    """
    tasks.show(lambda memory: memory.retry(task_id, expected_version=expected_version))


@click.command("cancel")
@click.argument("task_id", metavar="TASK")
@click.option("--message", metavar="TEXT", help="Why it is given up.")
@version_option
@task_options
def cancel(task_id: str, message: str | None, expected_version: int | None, tasks: Tasks) -> None:
    """Give TASK up: it is failed, and may be resumed."""
    tasks.show(lambda memory: memory.cancel(task_id, message, expected_version=expected_version))


@click.command("archive")
@click.argument("task_id", metavar="TASK")
@version_option
@task_options
def archive(task_id: str, expected_version: int | None, tasks: Tasks) -> None:
    """Leave TASK, which has ended, out of lists."""
    tasks.show(lambda memory: memory.archive(task_id, expected_version=expected_version))


END_COMMANDS = (complete, fail, retry, cancel, archive)
