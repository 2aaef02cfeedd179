"""`perstack answer`."""

from __future__ import annotations

import sys

import click

from perstack.core.job import JobSummary
from perstack.engine.emit import OnEvent
from perstack.frontends.cli.drive import drive
from perstack.frontends.cli.options import Setup, driving_options
from perstack.host import Host


@click.command("answer")
@click.argument("question")
@click.argument("text")
@click.option("--stream", is_flag=True, help="Also show text and reasoning as they come.")
@driving_options
def answer_command(question: str, text: str, stream: bool, setup: Setup) -> None:
    """Answer QUESTION, an id that `perstack inbox` shows or a Job's, with TEXT, and drive its Job on.

    TEXT `-` is read from stdin. What a tool at work asks takes the one value it asks for, a JSON object, or `decline`.
    """
    said = sys.stdin.read() if text == "-" else text
    host = setup.host()

    async def work(on_event: OnEvent) -> JobSummary:
        return await host.answer(said, question_id=await _question_id(host, question), on_event=on_event)

    sys.exit(drive(host, work, stream=stream))


async def _question_id(host: Host, named: str) -> str:
    """The open question of a Job; what is no Job with one is taken for a question's own id."""
    return next((item.id for item in await host.inbox() if item.job_id == named), named)
