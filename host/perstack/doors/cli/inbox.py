"""`perstack answer`."""

from __future__ import annotations

import asyncio
import os
import sys

import click

from perstack.core.ids import place_of
from perstack.core.job import JobSummary
from perstack.core.runs.resuming import check_not_closed
from perstack.engine.emit import OnEvent
from perstack.engine.inbox import InboxItem
from perstack.engine.who import this_user
from perstack.errors import NotFound, StorageError, UsageError
from perstack.frontends.cli.dispatching import drive_options
from perstack.frontends.cli.drive import drive
from perstack.frontends.cli.given import given_text
from perstack.frontends.cli.options import Setup, driving_options
from perstack.frontends.cli.output import Output, Showing, showing_options
from perstack.frontends.cli.terminal import err
from perstack.frontends.shared.approvals import is_refusal
from perstack.host import Host
from perstack.next_steps import Answer

_CALL_ID = "PERSTACK_CALL_ID"
"""What processes of tools are given."""


@click.command("answer")
@click.argument("ident", metavar="ID")
@click.argument("text")
@drive_options
@showing_options
@driving_options
def answer_command(
    ident: str, text: str, is_driven: bool, dispatcher: str | None, showing: Showing, setup: Setup
) -> None:
    """Answer ID, that of a question, Job or task which `perstack inbox` shows, with TEXT, and drive its Job on.

    A Job that was submitted, and every one where a dispatcher is named, is queued for a worker again.

    TEXT `-` is read from stdin. What a tool at work asks takes the one value it asks for, a JSON object, or `decline`.
    """
    said = given_text(text)
    setup = setup.dispatched(dispatcher)
    found = asyncio.run(_looked_up(setup.host(), ident, said))
    if found is None:
        err(f"task {ident}: answered; perstack task run-due lets it continue")
        return
    host = setup.host()

    lines = Output(showing)

    async def work(on_event: OnEvent) -> JobSummary:
        await lines.begin(lambda: host.job(place_of(found)[0]))
        return await host.answer(
            said, question_id=found, by=this_user("cli"), drive=is_driven or None, on_event=on_event
        )

    sys.exit(drive(host, work, lines))


async def _looked_up(host: Host, ident: str, said: str) -> str | None:
    """The id of a Job's question, which what is neither is taken for; None for a task, which has its answer now."""
    async with host:
        ident = await host.jobs.find(ident, ("job", "task"))
        item = next((one for one in await host.inbox() if ident in (one.id, one.job_id)), None)
        if item is not None and item.asking is not None:
            _check_approval(item, ident, said)
            return item.id
        if (item is None or item.task_id is None) and not await _is_task(host, ident):
            return await _question(host, ident)
        await host.memory.signed(this_user("cli")).answer(ident, said)
        return None


def _check_approval(item: InboxItem, ident: str, said: str) -> None:
    """Raises UsageError for an approval that names only its Job, where another call may wait by now, and for one that a
    tool of an Expert gives."""
    if item.asking is None or not item.asking.call_digest:
        return
    if os.environ.get(_CALL_ID) and not is_refusal(item.asking, said):
        raise UsageError(
            f"a tool cannot approve a call: {_CALL_ID} is set, so a tool runs this command; answer it in a terminal"
        )
    if ident != item.id:
        step = Answer(item.id, is_approval=True)
        raise UsageError(f"{item.asking.shown}: an approval must name the question that it answers", next_steps=(step,))


async def _question(host: Host, ident: str) -> str:
    """The id of a question that is not open. Raises UsageError that says what else it is, or is not."""
    try:
        job = await host.job(ident)
    except NotFound:
        try:
            place_of(ident)
        except UsageError:
            raise UsageError(f"no Job, task or question is {ident}; `perstack inbox` lists what is open") from None
        return ident
    if job.damaged:
        raise StorageError(job.error or f"Job {ident} does not read")
    check_not_closed(job)
    raise UsageError(f"Job {ident} asks nothing ({job.status}); `perstack inbox` lists what is open")


async def _is_task(host: Host, ident: str) -> bool:
    try:
        await host.memory.get(ident)
    except (NotFound, UsageError):
        return False
    return True
