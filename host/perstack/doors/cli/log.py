"""The command `perstack log`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click
from pydantic_core import from_json, to_json

from perstack.core.base.ids import check_id, check_job_id, is_place, job_of_run, place_of
from perstack.core.base.records import JsonObject
from perstack.core.base.text import count, one_line
from perstack.core.base.usage import cost_text
from perstack.core.jobs.checkpoints import Checkpoint
from perstack.core.jobs.summary import PlacedRun
from perstack.core.messages.messages import AnyMessage
from perstack.core.runs.events import StoredEvent
from perstack.core.runs.log_rows import run_label
from perstack.dataclass import dataclass
from perstack.doors.cli import log_print, log_selection
from perstack.doors.cli.driving import outcome_line
from perstack.doors.cli.live import LiveView, RowPrinter
from perstack.doors.cli.options import HostOptions, json_option, place_options
from perstack.doors.cli.terminal import print_out, table, write_bytes, write_json_line
from perstack.doors.shared.activity import JobActivity
from perstack.doors.shared.checkpoint_view import MessagesDiff, facts_of, new_messages, parts_of, status_of_checkpoint
from perstack.doors.shared.log_view import branches, entries_of, in_order, origin_text, places_in
from perstack.doors.shared.screen import Screen
from perstack.doors.shared.status_phrases import run_status_of
from perstack.doors.shared.text import local_time
from perstack.engine.log.event_log import StoredLine
from perstack.engine.log.run_log import RunLog
from perstack.errors import NotFound, UsageError
from perstack.host import Host

# Checkpoints and their messages, for people.


def _print_checkpoint(screen: Screen, checkpoint: Checkpoint) -> None:
    title = f"Checkpoint {checkpoint.id}"
    label = run_label(checkpoint.expert.key, checkpoint.run_id)
    print_out(screen.styled(title, bold=True), f"  {label}  {status_of_checkpoint(checkpoint)}")
    for name, text in facts_of(checkpoint):
        print_out("  ", screen.styled(f"{name:<9}", dim=True), "  ", screen.fit(text, 13))


def _print_messages(screen: Screen, messages: Sequence[AnyMessage]) -> None:
    for message in messages:
        for title, text in parts_of(message):
            print_out("\n", screen.styled(f"── {title} ──", bold=True))
            print_out(text)


def _print_new_messages(screen: Screen, diff: MessagesDiff) -> None:
    print_out("  ", screen.styled(f"{'since':<9}", dim=True), f"  {diff.since or 'the beginning'}")
    if diff.gone:
        print_out("\n", screen.styled(f"{count(len(diff.gone), 'message')} no longer seen:", dim=True))
        _print_messages(screen, diff.gone)
        print_out("\n", screen.styled(f"{count(len(diff.new), 'new message')}:", dim=True))
    _print_messages(screen, diff.new)


_PAGE_SIZE = 100


@dataclass(frozen=True, slots=True)
class _Request:
    """Options of `perstack log`, by the names of its parameters. `event_filter` has the options that select events."""

    event_filter: log_selection.EventFilter
    job: str | None
    job_id: str | None
    run_id: str | None
    checkpoint_id: str | None
    messages: bool
    new: bool
    context: int
    summary: bool
    as_json: bool
    pretty: bool
    full: bool
    take: int | None
    offset: int
    follow: bool
    tree: bool
    standing: bool

    @property
    def shows_state(self) -> bool:
        """True if a checkpoint is shown instead of events."""
        return self.messages or self.new or self.checkpoint_id is not None

    @property
    def selects_events(self) -> bool:
        """True if an option selects_events events."""
        return not self.event_filter.is_empty or bool(self.context) or self.summary

    def check(self) -> None:
        """Raise UsageError for options that do not go together."""
        if self.new and self.messages:
            raise UsageError("--new and --messages are two views of a checkpoint: leave one of them out")
        if self.job is not None and self.job_id is not None:
            raise UsageError("JOB and --job both name the Job: leave one of them out")
        if self.shows_state and self.selects_events:
            raise UsageError(
                "--step, --type, --filter, --errors, --tools, --delegations, --context and --summary select events: "
                "leave them out when showing a checkpoint"
            )
        if self.follow and (self.shows_state or self.offset or self.context or self.summary):
            raise UsageError(
                "--follow shows new events: leave out --messages, --new, --checkpoint, --offset, --context and "
                "--summary"
            )
        if self.tree:
            self._check_tree()
        if self.standing and any(
            (self.selects_events, self.shows_state, self.follow, self.tree, self._limits_rows, self.full)
        ):
            raise UsageError("--standing lists what people told the Job: leave out all options but --run and --json")

    def _check_tree(self) -> None:
        if self.selects_events or self._limits_rows:
            raise UsageError("--tree shows the Runs of a Job: leave out the options that select events")
        if self.shows_state or self.run_id or self.follow:
            raise UsageError("--tree shows the Runs of a Job: leave out --run, --checkpoint, --messages and --follow")

    @property
    def _limits_rows(self) -> bool:
        return self.take is not None or bool(self.offset)


@click.command("log")
@click.argument("job", required=False)
@click.option("--job", "job_id", metavar="ID", help="The Job; by default the latest.")
@click.option("--run", "run_id", metavar="ID", help="Only this Run, such as JOB-1.")
@click.option(
    "--checkpoint", "checkpoint_id", metavar="ID", help=("Show the state at this checkpoint instead of events.")
)
@click.option(
    "--messages",
    is_flag=True,
    help=("Show the messages of --checkpoint; by default of the latest checkpoint of the Coordinator, or of --run."),
)
@click.option(
    "--new", "new", is_flag=True, help="Only the messages that the step of --checkpoint, or the latest, added."
)
@click.option("--step", "steps", metavar="STEPS", help='Only these steps of each Run: 5, ">5", "<5", ">=5" or 1-10.')
@click.option("--type", "types", multiple=True, metavar="TYPE[,TYPE]", help="Only events of these types.")
@click.option(
    "--filter",
    "expression",
    metavar="EXPR",
    help="""Only events that fit, as '.type == "callTools" && .stepNumber > 5'.""",
)
@click.option(
    "--errors",
    is_flag=True,
    help="Only errors: failed Runs, failed calls, missing skills, retries, refused requests.",
)
@click.option("--tools", is_flag=True, help="Only tool calls and their results.")
@click.option("--delegations", is_flag=True, help="Only delegations and their results.")
@click.option(
    "--context", type=click.IntRange(min=0), default=0, metavar="N", help="Also the N events before and after each."
)
@click.option("--summary", is_flag=True, help="Count the events instead of showing them.")
@json_option("Print the stored lines unchanged; a checkpoint as a JSON object.")
@click.option("--pretty", is_flag=True, help="Print JSON, indented.")
@click.option("-v", "--verbose", "full", is_flag=True, help="Print full texts, and all types of events.")
@click.option(
    "--take",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Maximum number of events, the newest; 0 for all. Default: {_PAGE_SIZE}, and all with --json or --messages.",
)
@click.option("--offset", type=click.IntRange(min=0), default=0, metavar="N", help="Skip the newest N.")
@click.option("-f", "--follow", is_flag=True, help="Keep printing new events until the Job stops.")
@click.option(
    "--tree", is_flag=True, help=("Show the tree of Runs instead of events: delegates, continuations and branches.")
)
@click.option(
    "--standing",
    is_flag=True,
    help="List what people told the Coordinator, or --run, with ids and authors. It is never summarised away.",
)
@place_options
def log_command(
    types: tuple[str, ...],
    errors: bool,
    tools: bool,
    delegations: bool,
    steps: str | None,
    expression: str | None,
    options: HostOptions,
    **typed: Any,
) -> None:
    """Show the events of JOB, by default the most recently written Job.

    Prints a summary, then the events of all its Runs in order of time.

    Filters for types of events add up (--tools --errors shows both), and --step and --filter restrict them. If a log
    is damaged, the readable part is shown, the damage is reported on stderr, and the exit status is 1.
    """
    kinds = log_selection.parse_types(types), errors, tools, delegations
    event_filter = log_selection.EventFilter(
        *kinds, log_selection.parse_steps(steps), log_selection.parse_condition(expression)
    )
    request = _Request(event_filter, **typed)
    request.check()
    request = replace(request, job_id=request.job or request.job_id, as_json=request.as_json or request.pretty)
    sys.exit(options.look(lambda host: _show(host, request)))


async def _show(host: Host, log_request: _Request) -> int:
    if log_request.standing:
        from perstack.doors.cli.resume import show_standing  # imported late: it imports what drives Jobs

        return await show_standing(host, log_request.job_id, log_request.run_id, as_json=log_request.as_json)
    log_request = await _resolve_request(host, log_request)
    if log_request.new:
        return await _show_new(host, log_request)
    if log_request.shows_state:
        return await _show_state(host, log_request)
    if log_request.tree:
        return await _show_tree(host, log_request)
    if log_request.follow:
        return await _follow(host, log_request)
    if log_request.summary:
        return await _show_counts(host, log_request)
    return await _show_events(host, log_request)


async def _resolve_request(host: Host, typed: _Request) -> _Request:
    """Return the request with full ids, and the Job they belong to; None for the latest. Raises UsageError."""
    job_id = await host.jobs.complete_id(typed.job_id)
    run_id = await host.jobs.complete_id(typed.run_id)
    checkpoint_id = await host.jobs.complete_id(typed.checkpoint_id)
    if run_id is not None:
        check_id(run_id, "run")
    if checkpoint_id is not None:
        check_id(checkpoint_id, "checkpoint")
    if job_id is not None:
        check_job_id(job_id)
    elif run_id is not None:
        job_id = job_of_run(run_id)
    elif checkpoint_id is not None and is_place(checkpoint_id):
        job_id = place_of(checkpoint_id)[0]
    return replace(typed, job_id=job_id, run_id=run_id, checkpoint_id=checkpoint_id)


async def _show_events(
    host: Host, log_request: _Request, rows: RowPrinter | None = None, logs: Sequence[RunLog] | None = None
) -> int:
    if log_request.as_json:
        return _write_lines(await host.jobs.logs(log_request.job_id, run_id=log_request.run_id), log_request)
    summary = await host.job(log_request.job_id)
    logs = await host.jobs.logs(summary.id, run_id=log_request.run_id) if logs is None else logs
    every = in_order(logs)
    matching = log_selection.select(every, log_request.event_filter)
    entries = log_selection.visible_events(matching, log_request.event_filter, log_request.full)
    take = _PAGE_SIZE if log_request.take is None else log_request.take
    visible = log_selection.last_items(entries, take, log_request.offset)
    screen = Screen.of_stdout()
    log_print.print_summary(screen, summary)
    if visible:
        print_out()
    marks = await log_print.marks_of(host, logs)
    matching_count = len(visible)
    if log_request.context and not log_request.event_filter.is_empty:
        marks = {**marks, **{(entry.log.run_id, entry.place): ">" for entry in visible}}
        visible = log_selection.add_context(visible, every, log_request.context, log_request.full)
    log_print.print_events(
        rows or RowPrinter(screen, full=log_request.full),
        visible,
        every,
        log_request.event_filter,
        log_request.full,
        marks,
    )
    _print_remaining(screen, len(entries), matching_count, log_request.offset)
    return int(log_print.print_damage(logs))


async def _show_tree(host: Host, log_request: _Request) -> int:
    summary = await host.job(log_request.job_id)
    tree = await host.jobs.tree(summary.id)
    if log_request.as_json:
        _write_tree(tree, log_request.pretty)
        return 0
    screen = Screen.of_stdout()
    log_print.print_summary(screen, summary)
    print_out()
    _print_tree(screen, tree)
    return 0


async def _follow(host: Host, log_request: _Request) -> int:
    summary = await host.job(log_request.job_id)
    logs = await host.jobs.logs(summary.id, run_id=log_request.run_id)
    follower = _LogFollower(logs, log_request)
    if log_request.as_json:
        _write_lines(logs, log_request)
    else:
        await _show_events(host, replace(log_request, job_id=summary.id), follower.rows, logs)
    await follower.follow_until_stopped(host, summary.id)
    return int(log_print.print_damage(await host.jobs.logs(summary.id, run_id=log_request.run_id)))


def _write_lines(logs: Sequence[RunLog], log_request: _Request) -> int:
    every = in_order(logs)
    entries = log_selection.last_items(
        log_selection.select(every, log_request.event_filter), log_request.take or 0, log_request.offset
    )
    if log_request.context:
        entries = log_selection.add_context(entries, every, log_request.context, True)
    write_bytes(b"".join(_json_line(entry.line, log_request.pretty) + b"\n" for entry in entries))
    return int(log_print.print_damage(logs))


def _json_line(line: bytes, pretty: bool) -> bytes:
    """Return a line of JSON, indented if `pretty`; a damaged line is returned unchanged."""
    try:
        return to_json(from_json(line), indent=2) if pretty else line
    except ValueError:
        return line


def _encoded(value: JsonObject, pretty: bool) -> bytes:
    return _json_line(json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace"), pretty)


async def _show_counts(host: Host, log_request: _Request) -> int:
    summary = await host.job(log_request.job_id)
    logs = await host.jobs.logs(summary.id, run_id=log_request.run_id)
    entries = log_selection.select(in_order(logs), log_request.event_filter)
    entries = log_selection.last_items(entries, log_request.take or 0, log_request.offset)
    counts = log_selection.counts_of(entries)
    if log_request.as_json:
        document: JsonObject = {"job": json.loads(summary.to_json()), "summary": counts}
        write_json_line(_encoded(document, log_request.pretty))
    else:
        screen = Screen.of_stdout()
        log_print.print_summary(screen, summary)
        print_out()
        log_print.print_counts(screen, counts)
    return int(log_print.print_damage(logs))


def _print_remaining(screen: Screen, total: int, shown_count: int, offset: int) -> None:
    earlier = total - offset - shown_count
    if earlier > 0:
        text = f"{count(earlier, 'earlier event')}: see more with --offset {offset + shown_count}, or all with --take 0"
        print_out(screen.styled(text, dim=True))
    elif not shown_count:
        print_out(screen.styled("no such events", dim=True))


async def _show_state(host: Host, log_request: _Request) -> int:
    checkpoint, logs = await _checkpoint(host, log_request)
    if log_request.take or log_request.offset:
        messages = log_selection.last_items(checkpoint.messages, log_request.take or 0, log_request.offset)
        checkpoint = checkpoint.model_copy(update={"messages": tuple(messages)})
    if log_request.as_json:
        write_json_line(_json_line(checkpoint.to_json(), log_request.pretty))
    else:
        screen = Screen.of_stdout()
        _print_checkpoint(screen, checkpoint)
        if log_request.messages:
            _print_messages(screen, checkpoint.messages)
    return int(log_print.print_damage(logs))


async def _show_new(host: Host, log_request: _Request) -> int:
    checkpoint, logs = await _checkpoint(host, log_request)
    diff = await new_messages(host, checkpoint)
    if log_request.as_json:
        write_json_line(_encoded(_as_json(checkpoint, diff), log_request.pretty))
    else:
        screen = Screen.of_stdout()
        _print_checkpoint(screen, checkpoint)
        _print_new_messages(screen, diff)
    return int(log_print.print_damage(logs))


def _as_json(checkpoint: Checkpoint, diff: MessagesDiff) -> JsonObject:
    removed, added = ([json.loads(message.to_json()) for message in messages] for messages in (diff.gone, diff.new))
    return {"checkpoint": checkpoint.id, "since": diff.since, "gone": removed, "new": added}


async def _checkpoint(host: Host, log_request: _Request) -> tuple[Checkpoint, Sequence[RunLog]]:
    job_id, checkpoint_id = log_request.job_id, log_request.checkpoint_id
    logs: Sequence[RunLog] = ()
    if checkpoint_id is None:
        summary = await host.job(job_id)
        job_id = summary.id
        logs = await host.jobs.logs(job_id, run_id=log_request.run_id or summary.coordinator_run_id)
        checkpoint_id = _latest_checkpoint(logs[0])
    return await host.jobs.checkpoint(checkpoint_id, job_id=job_id), logs


def _latest_checkpoint(log: RunLog) -> str:
    """Return the id of a Run's last checkpoint. Raises NotFound without one."""
    places = [place for place in places_in(log) if place.type != "startRewind"]
    if not places:
        raise NotFound(f"{log.run_id} has no checkpoint yet: its first step has not ended")
    return places[-1].id


# perstack log --tree: the Runs of a Job, each below the Run that started it or that it continues

MAX_SHOWN_RUNS = 1000  # maximum Runs shown to people


def _print_tree(screen: Screen, tree: Sequence[PlacedRun]) -> None:
    visible = tree[:MAX_SHOWN_RUNS]
    rows = [
        (
            placed.run.id,
            placed.run.expert_key or "?",
            run_status_of(placed.run),
            f"{placed.run.steps:,}",
            f"{placed.run.usage.total_tokens:,}",
            cost_text(placed.run.usage, placed.run.unpriced_tokens).removeprefix("cost ") or "-",
            f"{local_time(placed.run.started_at):%Y-%m-%d %H:%M:%S}" if placed.run.started_at else "?",
            origin_text(placed),
        )
        for placed in visible
    ]
    headings = ("Run", "Expert", "status", "steps", "tokens", "cost", "began", "how")
    table(screen, headings, rows, right=(3, 4, 5), drops=(4, 6, 1, 3, 5, 2), before=branches(visible))
    if len(tree) > MAX_SHOWN_RUNS:
        print_out(screen.styled(f"and {count(len(tree) - MAX_SHOWN_RUNS, 'more Run')}: see all with --json", dim=True))


def _write_tree(tree: Sequence[PlacedRun], pretty: bool) -> None:
    for placed in tree:
        write_json_line(_json_line(placed.to_json(), pretty))


# perstack log --follow: events of a Job that another process drives, until it stops


class _LogFollower:
    def __init__(self, logs: Sequence[RunLog], log_request: _Request) -> None:
        self.rows = RowPrinter(Screen.of_stdout(), full=log_request.full)
        self._logs = {log.run_id: RunLog(log.run_id, list(log.lines)) for log in logs}
        self._known = {log.run_id: len(log.lines) for log in logs}
        self._request = log_request

    async def follow_until_stopped(self, host: Host, job_id: str) -> None:
        request = self._request
        view = None if request.as_json else LiveView(rows=self.rows, state=JobActivity(full=request.full))
        try:
            async for line in host.jobs.watch(job_id, queued=True):
                has_rows = self._take_line(line)
                if view is not None:
                    view.show_event(line.event, has_rows=has_rows)
                elif has_rows:
                    write_json_line(_json_line(line.line, request.pretty))
        finally:
            if view is not None:
                view.pause()
        if view is not None:
            summary = await host.job(job_id)
            if summary.status == "completed":
                print_out()
                print_out(summary.text or "")
            print_out(one_line(outcome_line(summary)))

    def _take_line(self, line: StoredLine[StoredEvent]) -> bool:
        """Keep a line for entries that later lines complete, and return whether it is shown."""
        run_id, event_filter = line.event.run_id, self._request.event_filter
        if line.seq <= self._known.get(run_id, 0) or self._request.run_id not in (None, run_id):
            return False
        log = self._logs.setdefault(run_id, RunLog(run_id, []))
        log.lines.append(line.line)
        if event_filter.is_empty:
            return True
        entry = entries_of(log)[-1]
        every = [entry for run_log in self._logs.values() for entry in entries_of(run_log)]
        return entry in log_selection.select(every if event_filter.delegations else [entry], event_filter)
