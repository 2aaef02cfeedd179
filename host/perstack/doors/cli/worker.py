"""The commands `perstack worker` and `perstack workers`."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from pydantic import JsonValue

from perstack.core.base.text import count, one_line
from perstack.core.definitions.project import Project
from perstack.core.jobs.job_choice import parse_labels
from perstack.doors.cli.options import (
    HostOptions,
    dispatcher_of,
    dispatcher_option,
    env_path_option,
    json_option,
    place_options,
)
from perstack.doors.cli.param_types import read_span
from perstack.doors.cli.terminal import print_err, print_out, table, write_json
from perstack.doors.shared.screen import Screen
from perstack.doors.shared.signals import exit_now, handle_stop_signals
from perstack.doors.shared.text import age_text, local_time
from perstack.engine.context.job_limit import slots_for
from perstack.errors import PerstackError, UsageError
from perstack.system.clock import SYSTEM
from perstack.workers.reports import WorkerReport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perstack.host import Host
    from perstack.ports.dispatcher import Load, WorkerInfo
    from perstack.workers.folders import WorkerFolders
    from perstack.workers.reports import Report
    from perstack.workers.worker import Worker, WorkerSettings


_MAX_NAME_CHARS = 64
_MAX_LISTED_FOLDERS = 5
_RECORDING_TIME_S = 15.0  # seconds after the drain time for running steps to be recorded


@click.command("worker")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1000),
    metavar="N",
    default=8,
    show_default=True,
    help="Maximum Jobs at a time, not counting those that wait for a person.",
)
@click.option("--labels", metavar="K=V,...", help="Only take Jobs with one of these labels.")
@click.option("--name", metavar="NAME", help="The name of the worker; by default that of the machine.")
@click.option(
    "--drain",
    metavar="TIME",
    default="30s",
    show_default=True,
    help=("On SIGTERM: maximum time to finish the current steps."),
)
@click.option(
    "--http", "address", metavar="HOST:PORT", help=("Serve /healthz, and /metrics for Prometheus, at this address.")
)
@click.option(
    "--log",
    "form",
    type=click.Choice(("text", "json")),
    default="text",
    show_default=True,
    help="The form of messages on stderr: text or JSON.",
)
@click.option(
    "--workspaces", metavar="DIR", help=("Work on each Job in its own subfolder of this folder, with its latest files.")
)
@env_path_option
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
    options: HostOptions,
) -> None:
    """Drive queued Jobs until Ctrl-C or SIGTERM, and start due tasks and schedules.

    Any number of workers, on any number of machines, may share a dispatcher and a storage. When one dies, another takes
    over within ten seconds. SIGTERM lets the current steps finish; a second signal ends the worker at once.
    """
    from perstack.workers.worker import WorkerSettings

    settings = WorkerSettings(
        name=_name(name),
        concurrency=_check_concurrency(concurrency),
        labels=parse_labels(label.strip() for label in labels.split(",")) if labels is not None else {},
        drain=_seconds(drain),
    )
    asyncio.run(_run_worker(_host(options), settings, address, workspaces, as_json=form == "json"))


def _host(options: HostOptions) -> Host:
    """Return the Host of a worker. Raises UsageError if the user has not agreed to what its definition names."""
    from perstack.trust.agreements import Agreement
    from perstack.trust.items import items_to_trust

    project = options.project(required=True)
    agreement = Agreement(project)
    named = {"storage": options.storage, "storageSetting": options.storage, "workers": options.dispatcher}
    items = (item for item in items_to_trust(project, agreement.own) if named.get(item.place) is None)
    agreement.check(items)
    return options.open_host(project, agreement=Agreement(Project()))


def _check_concurrency(concurrency: int) -> int:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    max_slots = slots_for(files)
    if concurrency > max_slots:
        raise UsageError(
            f"--concurrency {concurrency}: this process may open {files} files, which is enough for {max_slots} Jobs:"
            " raise the limit (ulimit -n), or start more workers"
        )
    return concurrency


def _name(typed_name: str | None) -> str:
    name = socket.gethostname() if typed_name is None else typed_name
    if not name.isprintable() or not 0 < len(name) <= _MAX_NAME_CHARS or " " in name:
        raise UsageError(f"--name: use 1 to {_MAX_NAME_CHARS} printable characters without spaces")
    return name


def _seconds(drain: str) -> float:
    return 0.0 if drain == "0" else read_span(drain, "--drain") / 1000


async def _run_worker(
    host: Host, settings: WorkerSettings, address: str | None, workspaces: str | None, *, as_json: bool
) -> None:
    from perstack.workers.folders import WorkerFolders
    from perstack.workers.worker import Worker

    def tell(news: WorkerReport) -> None:
        now = host.clock.now()
        print_err(json_line(news, worker.name, now) if as_json else text_line(news, now))

    folders = None if workspaces is None else WorkerFolders(host.jobs, Path(workspaces))
    served_by = host.job_server if folders is None else folders
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
            report=tell,
        )
        if address is not None:
            from perstack.doors.cli.worker_health import make_app, served
            from perstack.doors.shared.http_connections import ListenAddress

            listen = ListenAddress.parse(address)
            url = await stack.enter_async_context(served(make_app(worker, dispatcher, host.clock, listen), listen))
            if not as_json:
                print_err(f"metrics at {url}/metrics")
        if folders is not None:
            looking = asyncio.create_task(_check_folders(folders, tell))
            stack.callback(looking.cancel)
        await _run_until_stopped(worker, settings.drain)


async def _check_folders(folders: WorkerFolders, tell: Report) -> None:
    """Check the folders of earlier Jobs in the background: an earlier worker may have left thousands."""
    from perstack.workers.reports import WorkerReport, error_text

    try:
        unknown = await folders.remove_leftovers()
    except PerstackError as error:
        tell(
            WorkerReport(
                event="failed",
                level="warning",
                text=f"folders of earlier Jobs could not be checked: {error_text(error)}",
            )
        )
        return
    if unknown:
        names = ", ".join(unknown[:_MAX_LISTED_FOLDERS]) + (" …" if len(unknown) > _MAX_LISTED_FOLDERS else "")
        text = f"{folders.root} has folders of Jobs that are not in the storage; they are kept: {names}"
        tell(WorkerReport(event="strange", level="warning", text=text, facts={"folders": list(unknown)}))


async def _run_until_stopped(worker: Worker, drain_s: float) -> None:
    """Run the worker.

    The first signal stops it after the current steps; the second, or more than `drain_s`, ends the process.
    """
    loop = asyncio.get_running_loop()

    def end_process() -> None:
        print_err("error: the current steps did not end in time: another worker will take over their Jobs")
        exit_now()

    def stop_gently() -> None:
        worker.leave()
        loop.call_later(drain_s + _RECORDING_TIME_S, end_process)

    with handle_stop_signals(stop_gently):
        await worker.run()


@click.command("workers")
@json_option("Print each worker as a line of JSON.")
@dispatcher_option
@place_options
def workers_command(as_json: bool, options: HostOptions) -> None:
    """List the workers with their current Jobs and start times, and the number of waiting Jobs."""

    async def look(host: Host) -> tuple[Sequence[WorkerInfo], Load]:
        dispatcher = dispatcher_of(host)
        return await dispatcher.workers(), await dispatcher.load()

    workers, load = options.look(look)
    if as_json:
        for worker in workers:
            write_json(_as_json(worker))
        return
    if workers:
        _print(workers)
    else:
        print_out("no workers; start one with: perstack worker")
    _print_load(load)


def _print(workers: Sequence[WorkerInfo]) -> None:
    screen, now = Screen.of_stdout(), SYSTEM.now()
    rows = [
        (
            worker.name,
            f"{len(worker.jobs)}/{worker.concurrency}",
            age_text(worker.since, now),
            ", ".join(f"{key}={value}" for key, value in sorted(worker.labels.items())) or "-",
            " ".join(worker.jobs) or "-",
        )
        for worker in workers
    ]
    table(screen, ("worker", "busy", "since", "labels", "jobs"), rows, right=(1,), drops=(3, 2))


def _print_load(load: Load) -> None:
    oldest_words = f", the longest since {age_text(load.oldest, SYSTEM.now())}" if load.oldest is not None else ""
    print_out(f"{count(load.queued, 'Job')} queued{oldest_words}; {load.later} later; {load.running} at work")


def _as_json(worker: WorkerInfo) -> dict[str, object]:
    return {
        "name": worker.name,
        "since": worker.since,
        "seen": worker.seen,
        "labels": dict(worker.labels),
        "concurrency": worker.concurrency,
        "jobs": list(worker.jobs),
    }


# Log lines of a worker: text for people, or JSON objects for programs.


def text_line(news: WorkerReport, now: int) -> str:
    """Return the line for people; `now` is in milliseconds since 1970."""
    subject = "" if news.job is None else f"job {news.job} "
    level = "" if news.level == "info" else f"{news.level}: "
    return one_line(f"{local_time(now):%H:%M:%S} {level}{subject}{news.text}")


def json_line(news: WorkerReport, worker: str, now: int) -> str:
    """Return the JSON line: `time`, `level`, `event`, `worker`, `job` if there is one, `text`, and other facts."""
    moment = datetime.fromtimestamp(now / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    fields: dict[str, JsonValue] = {"time": moment, "level": news.level, "event": news.event, "worker": worker}
    if news.job is not None:
        fields["job"] = news.job
    facts = {key: value for key, value in news.facts.items() if key not in fields}
    return json.dumps({**fields, "text": one_line(news.text), **facts}, ensure_ascii=False)
