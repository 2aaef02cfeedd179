"""The commands `perstack jobs`, `cost`, `delete` and `prune`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from functools import wraps
from typing import Literal, NoReturn, assert_never

import click

from perstack.core.base.records import JsonObject
from perstack.core.base.text import count
from perstack.core.base.usage import Cost, ModelShare, Usage, cost_of, cost_text
from perstack.core.definitions.job_status import TYPED_STATUS
from perstack.core.jobs.job_choice import JobChoice, parse_labels
from perstack.core.jobs.removal import expired_jobs, removable_jobs
from perstack.core.jobs.summary import JobSummary, RunSummary
from perstack.dataclass import dataclass
from perstack.doors.cli.options import HostOptions, json_option, place_options, take_option
from perstack.doors.cli.param_types import SINCE, SPAN
from perstack.doors.cli.terminal import agree_to_delete, print_out, report_deleted, table, write_json, write_json_line
from perstack.doors.shared.screen import Screen
from perstack.doors.shared.status_phrases import models_of, status_of
from perstack.doors.shared.text import age_text, local_time
from perstack.errors import UsageError
from perstack.host import Host
from perstack.support.storage import pages
from perstack.system.clock import SYSTEM

GroupBy = Literal["expert", "model", "day", "label"]
NO_KEY = "-"  # key for Jobs without a label, and for a model that an older job.json does not name


@dataclass(frozen=True, slots=True)
class GroupCost:
    """The costs of a group of Runs."""

    key: str
    runs: int = 0
    usage: Usage = field(default_factory=Usage)
    unpriced_tokens: int = 0

    @property
    def cost(self) -> Cost | None:
        """The cost, or `unknown`; None if nothing was used."""
        return cost_of(self.usage, self.unpriced_tokens)

    def plus(self, share: ModelShare) -> GroupCost:
        """Return the sum with one more Run, or a part of one."""
        unpriced = share.unpriced_tokens
        if share.usage.cost_usd is None:
            unpriced = share.usage.total_tokens  # an older job.json has no number
        return GroupCost(self.key, self.runs + 1, self.usage + share.usage, self.unpriced_tokens + unpriced)

    def to_json(self) -> JsonObject:
        """Return the JSON for programs; `costUsd` is a number or `unknown`."""
        return {
            "key": self.key,
            "runs": self.runs,
            "inputTokens": self.usage.input_tokens,
            "outputTokens": self.usage.output_tokens,
            "totalTokens": self.usage.total_tokens,
            "costUsd": 0 if self.cost is None else self.cost,
            "unpricedTokens": self.unpriced_tokens,
        }


def costs_by(
    jobs: Iterable[JobSummary], by: GroupBy, *, since: int, day_of: Callable[[int], str]
) -> tuple[list[GroupCost], GroupCost]:
    """Return the costs by group, highest first (days in order), and the total, of Runs started since then."""
    by_key: dict[str, GroupCost] = {}
    total = GroupCost("total")
    for summary in jobs:
        for run_summary in summary.runs:
            if run_summary.started_at < since:
                continue
            run_share = ModelShare(usage=run_summary.usage, unpriced_tokens=run_summary.unpriced_tokens)
            total = total.plus(run_share)
            for key in _group_keys(summary, run_summary, by, day_of):
                share = run_summary.by_model.get(key, run_share) if by == "model" else run_share
                by_key[key] = by_key.get(key, GroupCost(key)).plus(share)
    rows = list(by_key.values())
    if by == "day":
        return sorted(rows, key=lambda group: group.key), total
    return sorted(rows, key=lambda group: (-(group.usage.cost_usd or 0), -group.usage.total_tokens, group.key)), total


def _group_keys(summary: JobSummary, run_summary: RunSummary, by: GroupBy, day_of: Callable[[int], str]) -> list[str]:
    match by:
        case "expert":
            return [run_summary.expert_key or NO_KEY]
        case "model":
            return [*run_summary.by_model] or [run_summary.model or NO_KEY]
        case "day":
            return [day_of(run_summary.started_at)]
        case "label":
            return [f"{name}={value}" for name, value in summary.labels.items()] or [NO_KEY]
        case _:
            assert_never(by)


_GROUPINGS: dict[str, GroupBy] = {"expert": "expert", "model": "model", "day": "day", "label": "label"}


@click.command("cost")
@click.option(
    "--by", type=click.Choice(tuple(_GROUPINGS)), default="expert", show_default=True, help="How to group the costs."
)
@click.option(
    "--since",
    type=SINCE,
    metavar="WHEN",
    help="Only Runs that began since a date, 2026-11-30, or in a period: 7d, 24h, 30m.",
)
@json_option("Print a JSON object.")
@place_options
def cost_command(by: str, since: int | None, as_json: bool, options: HostOptions) -> None:
    """Add up the costs of all Jobs.

    A cost counts the tokens whose price was known when they were used. It is `unknown` if no price was known, and a
    lower bound if some were not.
    """
    jobs = options.look(_all_jobs)
    rows, total = costs_by(jobs, _GROUPINGS[by], since=since or 0, day_of=lambda at: f"{local_time(at):%Y-%m-%d}")
    if as_json:
        document = {"by": by, "since": since or 0, "rows": [row.to_json() for row in rows], "total": total.to_json()}
        write_json(document)
    elif not rows:
        print_out("nothing was spent" + ("" if since is None else f" since {local_time(since):%Y-%m-%d %H:%M}"))
    else:
        _print_costs(by, rows, total)


def _print_costs(by: str, rows: list[GroupCost], total: GroupCost) -> None:
    # a Job with several labels is in several rows, so these may add up to more than the total
    cells = [
        (group.key, f"{group.runs:,}", f"{group.usage.input_tokens:,}", f"{group.usage.output_tokens:,}", _cost(group))
        for group in (*rows, total)
    ]
    table(Screen.of_stdout(), (by, "Runs", "sent", "generated", "cost"), cells, right=(1, 2, 3, 4))


def _cost(group: GroupCost) -> str:
    return cost_text(group.usage, group.unpriced_tokens) or "$0"


# Options that select Jobs.


def _selection_options(command: Callable[..., None]) -> Callable[..., None]:
    @wraps(command)
    def gather(
        *, status: tuple[str, ...], expert: tuple[str, ...], since: int | None, label: tuple[str, ...], **others: object
    ) -> None:
        choice = JobChoice.of((TYPED_STATUS[word] for word in status), expert, parse_labels(label), since)
        command(choice=choice, **others)

    return _kind_options(
        click.option("--since", type=SINCE, metavar="TIME", help="Only Jobs with events in this period: 30d, 12h.")(
            gather
        )
    )


def _kind_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--label", multiple=True, metavar="KEY=VALUE", help="Only Jobs with this label; repeatable."),
        click.option("--expert", multiple=True, metavar="NAME", help="Only Jobs of this Expert; repeatable."),
        click.option(
            "--status",
            multiple=True,
            type=click.Choice(list(TYPED_STATUS)),
            help="Only Jobs in this status; repeatable.",
        ),
    ):
        command = option(command)
    return command


_PAGE_SIZE = 20
_FIRST_PAGE_SIZE = 200
_LATER_PAGE_SIZE = 10_000  # each page reads the times of all Jobs, so the rest is fetched at once
_MAX_PAGE = 500


@click.command("jobs")
@json_option("Print each Job's summary as a line of JSON.")
@take_option(_PAGE_SIZE, "Maximum number; the newest first.")
@click.option("--offset", type=click.IntRange(min=0), default=0, metavar="N", help="Skip the newest N.")
@_selection_options
@click.option("--all", "everything", is_flag=True, help="List all Jobs, regardless of --take.")
@click.option("--wide", is_flag=True, help="Also show the model of each Job.")
@place_options
def jobs_command(
    as_json: bool, take: int, offset: int, everything: bool, wide: bool, choice: JobChoice, options: HostOptions
) -> None:
    """List Jobs, the most recently written first, with the questions of those that wait for an answer."""
    jobs, has_more = options.look(lambda host: _read_page(host, None if everything else take, offset, choice))
    if as_json:
        for job in jobs:
            write_json_line(job.to_json())
        return
    screen = Screen.of_stdout()
    if not jobs:
        print_out("no Jobs" + _empty_reason(offset, choice))
        return
    _show_jobs(screen, jobs, wide=wide)
    if has_more:
        text = f"there are more: see the next with --offset {offset + len(jobs)}, or all with --all"
        print_out(screen.styled(text, dim=True))


def _empty_reason(offset: int, choice: JobChoice) -> str:
    if offset:
        return " beyond these"
    if choice == JobChoice.of(labels=dict(choice.labels)) and choice.labels:
        return f" with {' and '.join(f'{key}={value}' for key, value in choice.labels)}"
    if choice != JobChoice():
        return " like that"
    return " yet; start one with: perstack run EXPERT QUERY"


async def _read_page(host: Host, take: int | None, offset: int, choice: JobChoice) -> tuple[list[JobSummary], bool]:
    limit = _FIRST_PAGE_SIZE if take is None or choice != JobChoice() else offset + take + 1
    jobs: list[JobSummary] = []
    async for page in pages(
        lambda after: host.jobs.list(limit=limit if after is None else _LATER_PAGE_SIZE, after=after)
    ):
        jobs += filter(choice.matches, page.jobs)
        if take is not None and len(jobs) > offset + take:
            break
    end = len(jobs) if take is None else offset + take
    return jobs[offset:end], len(jobs) > end


def _show_jobs(screen: Screen, jobs: Sequence[JobSummary], *, wide: bool = False) -> None:
    now = SYSTEM.now()
    rows = [
        (
            summary.id,
            summary.expert_key or "?",
            *((models_of(summary),) if wide else ()),
            status_of(summary),
            f"{summary.total_steps:,}",
            f"{summary.usage.total_tokens:,}",
            cost_text(summary.usage, summary.unpriced_tokens).removeprefix("cost ") or "-",
            age_text(summary.updated_at, now) if summary.updated_at else "?",
            _describe(summary),
        )
        for summary in jobs
    ]
    shift = int(wide)
    headings = ("Job", "Expert", *(("model",) if wide else ()), "status", "steps", "tokens", "cost", "when", "query")
    drops = [1 if column == 1 else column + shift for column in (4, 3, 6, 1, 5, 2)]
    table(screen, headings, rows, right=(3 + shift, 4 + shift, 5 + shift), drops=drops)
    waiting = sum(summary.question is not None for summary in jobs)
    if waiting:
        text = f'{count(waiting, "Job")} waiting; answer with: perstack answer JOB "ANSWER"'
        print_out(screen.styled(text, dim=True))


def _describe(summary: JobSummary) -> str:
    if summary.question is not None:
        return f"question: {summary.asks}"
    return f"error: {summary.error}" if summary.status == "stoppedByError" and summary.error else summary.query


# perstack delete, and the removal of selected Jobs


@click.command("delete")
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Delete without confirmation.")
@json_option("Print the deleted and the kept Jobs as a JSON object.")
@place_options
def delete_command(jobs: tuple[str, ...], yes: bool, as_json: bool, options: HostOptions) -> None:
    """Delete JOBs permanently, with their logs, checkpoints and blobs.

    On a terminal it asks for confirmation; elsewhere --yes is required. A Job that is being driven is kept, and the
    exit status is 1. The last heads of a deleted Job are sent to the anchor, with a note that it was removed.
    """

    async def look(host: Host) -> list[JobSummary]:
        ids = dict.fromkeys([await host.jobs.complete_id(job) for job in jobs])
        return [await host.jobs.row_to_delete(job) for job in ids]

    _remove(options, options.look(look), is_sure=yes, as_json=as_json)


def _remove(options: HostOptions, jobs: Sequence[JobSummary], *, is_sure: bool, as_json: bool) -> NoReturn:
    """Delete the Jobs after confirmation, report it, and exit. Raises UsageError if nobody can be asked."""
    if jobs and not is_sure:
        see = "see them with --dry-run or `perstack jobs`"
        agree_to_delete(jobs, "Job", see, lambda listed: _show_jobs(Screen.of_stdout(), listed))

    async def delete_all(host: Host) -> dict[str, str | None]:
        return {job_id: error async for job_id, error in host.jobs.delete_each(summary.id for summary in jobs)}

    report_deleted(options.change(delete_all), "Job", had_any=bool(jobs), as_json=as_json)


# perstack prune


@click.command("prune")
@click.option("--older-than", type=SPAN, metavar="TIME", help=("Only Jobs without events for this time, such as 30d."))
@click.option("--keep-last", type=click.IntRange(min=0), metavar="N", help="Keep the newest N Jobs of each Expert.")
@_kind_options
@click.option("--include-waiting", is_flag=True, help="Also Jobs that wait for an answer.")
@click.option("--dry-run", is_flag=True, help="Only list the Jobs that would be deleted.")
@click.option("--yes", is_flag=True, help="Delete without confirmation.")
@json_option("Print JSON as `delete` does; with --dry-run each Job's summary as a line.")
@place_options
def prune_command(
    older_than: int | None,
    keep_last: int | None,
    status: tuple[str, ...],
    expert: tuple[str, ...],
    label: tuple[str, ...],
    include_waiting: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    options: HostOptions,
) -> None:
    """Delete the Jobs that match all conditions; without conditions, those that `[retention]` does not keep.

    A running Job is never deleted, nor one with damaged logs. On a terminal it asks for confirmation; elsewhere --yes
    is required.
    """
    now = SYSTEM.now()
    cutoff = None if older_than is None else now - older_than
    choice = JobChoice.of((TYPED_STATUS[word] for word in status), expert, parse_labels(label), before=cutoff)
    if choice != JobChoice() or keep_last is not None:
        jobs = removable_jobs(
            options.look(_all_jobs), choice, keep_last=keep_last or 0, include_waiting=include_waiting
        )
    else:
        retention = options.project(required=False).retention
        if retention is None or include_waiting:
            raise UsageError(
                "say which Jobs to delete: --older-than 30d, --keep-last 10, or [retention] in perstack.toml"
            )
        jobs = expired_jobs(options.look(_all_jobs), retention, now)
    if not dry_run:
        _remove(options, jobs, is_sure=yes, as_json=as_json)
    elif as_json:
        for job in jobs:
            write_json_line(job.to_json())
    elif jobs:
        _show_jobs(Screen.of_stdout(), jobs)
    else:
        print_out("no such Jobs")


async def _all_jobs(host: Host) -> list[JobSummary]:
    return [
        summary
        async for page in pages(lambda after: host.jobs.list(limit=_MAX_PAGE, after=after))
        for summary in page.jobs
    ]
