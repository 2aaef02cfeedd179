"""`perstack worker`."""

from __future__ import annotations

import asyncio
import resource
import socket
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perstack.core.labels import parse_labels
from perstack.core.overrides import Overrides
from perstack.engine.slots import slots_for
from perstack.errors import PerstackError, UsageError
from perstack.frontends.cli.dispatching import dispatcher_of, dispatcher_option
from perstack.frontends.cli.options import PlaceOptions, Setup, place_options
from perstack.frontends.cli.spans import read_span
from perstack.frontends.cli.terminal import err
from perstack.frontends.shared.stopping import leave, on_stop_signals

if TYPE_CHECKING:
    from perstack.engine.workers.folders import JobFolders
    from perstack.engine.workers.news import News, Tell
    from perstack.engine.workers.worker import Worker, WorkerSettings
    from perstack.host import Host

_LONGEST_NAME = 64
_MOST_NAMED = 5
_PATIENCE = 15.0
"""Seconds, once the time to drain is over, for what is in hand to be recorded."""


@click.command("worker")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1000),
    metavar="N",
    default=8,
    show_default=True,
    help="Jobs at a time; those that wait for a person do not count.",
)
@click.option("--labels", metavar="K=V,...", help="Take only Jobs that have one of these labels.")
@click.option("--name", metavar="NAME", help="What it is called; by default this machine's name.")
@click.option(
    "--drain", metavar="TIME", default="30s", show_default=True, help="On SIGTERM: how long a step may take to end."
)
@click.option("--http", "address", metavar="HOST:PORT", help="Serve /healthz, and /metrics for Prometheus.")
@click.option(
    "--log",
    "form",
    type=click.Choice(("text", "json")),
    default="text",
    show_default=True,
    help="How stderr says what happens: lines for people, or JSON objects.",
)
@click.option(
    "--workspaces", metavar="DIR", help="Give each Job a folder of its own in this one, with its latest files."
)
@click.option("--env-path", multiple=True, metavar="FILE", help="A .env file to read; may be given again.")
@dispatcher_option
@place_options
def worker_command(
    concurrency: int,
    labels: str | None,
    name: str | None,
    drain: str,
    address: str | None,
    form: str,
    workspaces: str | None,
    env_path: tuple[str, ...],
    dispatcher: str | None,
    config: str | None,
    workspace: str | None,
    storage: str | None,
) -> None:
    """Drive Jobs that were submitted, until Ctrl-C or SIGTERM, and look after what is due.

    Any number of workers may share one dispatcher and one storage, on as many machines. When one dies, another takes
    over within ten seconds. SIGTERM lets the steps in hand end; a second signal ends the worker at once.
    """
    from perstack.engine.workers.worker import WorkerSettings

    settings = WorkerSettings(
        name=_name(name),
        concurrency=_possible(concurrency),
        labels=parse_labels(one.strip() for one in labels.split(",")) if labels is not None else {},
        drain=_seconds(drain),
    )
    place = PlaceOptions(config, workspace, storage, dispatcher=dispatcher)
    setup = Setup(place, Overrides(), env_path)
    asyncio.run(_work(setup.host(), settings, address, workspaces, as_json=form == "json"))


def _possible(concurrency: int) -> int:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = slots_for(files)
    if concurrency > most:
        raise UsageError(
            f"--concurrency {concurrency}: this process may open {files} files, which is enough for {most} Jobs:"
            " raise the limit (ulimit -n), or start more workers"
        )
    return concurrency


def _name(given: str | None) -> str:
    name = socket.gethostname() if given is None else given
    if not name.isprintable() or not 0 < len(name) <= _LONGEST_NAME or " " in name:
        raise UsageError(f"--name: use 1 to {_LONGEST_NAME} printable characters without spaces")
    return name


def _seconds(drain: str) -> float:
    return 0.0 if drain == "0" else (read_span(drain, "--drain") or 0) / 1000


async def _work(
    host: Host, settings: WorkerSettings, address: str | None, workspaces: str | None, *, as_json: bool
) -> None:
    from perstack.engine.workers.folders import JobFolders
    from perstack.engine.workers.worker import Worker
    from perstack.frontends.workers.log import json_line, text_line

    def tell(news: News) -> None:
        now = host.clock.now()
        err(json_line(news, worker.name, now) if as_json else text_line(news, now))

    folders = None if workspaces is None else JobFolders(host.jobs, Path(workspaces))
    served_by = host.jobs if folders is None else folders
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(host)
        dispatcher = dispatcher_of(host)
        worker = Worker(
            dispatcher,
            host.jobs,
            host.iterations,
            host.scheduler_of_worker,
            host.clock,
            settings,
            drive=lambda name: partial(served_by.serve, worker=name),
            tell=tell,
        )
        if address is not None:
            from perstack.frontends.shared.listening import Address
            from perstack.frontends.workers.http import app_of, served

            where = Address.parse(address)
            place = await stack.enter_async_context(served(app_of(worker, dispatcher, host.clock, where), where))
            if not as_json:
                err(f"figures at {place}/metrics")
        if folders is not None:
            looking = asyncio.create_task(_look_through(folders, tell))
            stack.callback(looking.cancel)
        await _until_it_left(worker, settings.drain)


async def _look_through(folders: JobFolders, tell: Tell) -> None:
    """Beside the work: an earlier worker may have left thousands."""
    from perstack.engine.workers.news import News, error_text

    try:
        strange = await folders.look_through()
    except PerstackError as error:
        tell(News(event="failed", level="warning", text=f"folders could not be looked through: {error_text(error)}"))
        return
    if strange:
        names = ", ".join(strange[:_MOST_NAMED]) + (" …" if len(strange) > _MOST_NAMED else "")
        words = f"{folders.root} has folders of Jobs that are not in the storage, which stay: {names}"
        tell(News(event="strange", level="warning", text=words, facts={"folders": list(strange)}))


async def _until_it_left(worker: Worker, drain: float) -> None:
    """The first signal lets it leave, the second ends the process; so does what does not end in time."""
    loop = asyncio.get_running_loop()

    def late() -> None:
        err("error: what was in hand did not end in time: another worker takes it over")
        leave()

    def first() -> None:
        worker.leave()
        loop.call_later(drain + _PATIENCE, late)

    with on_stop_signals(first):
        await worker.run()
