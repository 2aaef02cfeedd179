"""`perstack rewind`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from perstack.core.ids import is_place, place_of
from perstack.core.plain import one_line
from perstack.engine.rewinding.rewinder import Rewind
from perstack.engine.who import this_user
from perstack.errors import UsageError
from perstack.frontends.cli.confirm import confirm
from perstack.frontends.cli.diff import show_files
from perstack.frontends.cli.options import PlaceOptions, place_options
from perstack.frontends.cli.terminal import Screen, data, err, out
from perstack.frontends.shared.command_lines import rewind
from perstack.frontends.shared.patch import file_rows, stat_json, stat_words
from perstack.frontends.shared.rewinding import definition_warnings, kept_lines, nothing_to_rewind
from perstack.host import Host


@click.command("rewind")
@click.argument("job")
@click.argument("checkpoint", required=False)
@click.option("--only", multiple=True, metavar="GLOB", help="Only these paths, such as 'src/**'; may be given again.")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@click.option("--yes", is_flag=True, help="Rewind without asking.")
@click.option("--json", "as_json", is_flag=True, help="What changes or has changed, as one JSON object.")
@place_options
def rewind_command(
    job: str,
    checkpoint: str | None,
    only: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    as_json: bool,
    config: str | None,
    workspace: str | None,
    storage: str | None,
) -> None:
    """Make the files of the workspace what they were at CHECKPOINT of JOB: all of it, or, if anything fails, nothing.

    What is there now is recorded first, and the command that undoes it is printed. Files that the snapshots do not
    know (ignored, private, too large) stay. On a terminal you are asked first; elsewhere --yes is needed. While a Job
    is driven in the workspace, nothing is rewound.
    """
    place = PlaceOptions(config, workspace, storage)
    if as_json and not (yes or dry_run):
        raise UsageError("--json asks nothing: add --yes, or --dry-run to only look")

    async def look() -> Rewind:
        async with place.writer() as host:
            job_id, place_id = await _places(host, job, checkpoint)
            return await host.jobs.plan_rewind(job_id, place_id, only=only, elsewhere=workspace is not None)

    plan = asyncio.run(look())
    if not as_json:
        _show(plan)
    if dry_run or not plan.files:
        if as_json:
            data(json.dumps(_as_json(plan), ensure_ascii=False))
        elif plan.files:
            err("dry run: nothing is changed")
        return
    if not yes:
        ask_rewind(plan)
    done = asyncio.run(_rewound(place, plan, only, elsewhere=workspace is not None))
    if as_json:
        data(json.dumps(_as_json(done), ensure_ascii=False))
    else:
        for line in undo_lines(done, place):
            out(line)


def ask_rewind(plan: Rewind) -> None:
    """Go on if a person says yes; end otherwise. Raises UsageError if there is nobody to ask."""
    if not sys.stdin.isatty():
        raise UsageError(f"files would be changed ({stat_words(plan.files)}): add --yes to change them")
    if not confirm(f"Change these files in {one_line(plan.workspace)}?"):
        out("nothing is changed")
        sys.exit(1)


def undo_lines(done: Rewind, place: PlaceOptions) -> tuple[str, ...]:
    """What was done, and the command that undoes it; none if nothing was."""
    if done.undo is None:
        return ()
    undo = rewind(done.job_id, done.undo, place.given)
    return (f"rewound, {stat_words(done.files)}; to undo it:", f"  {undo}")


def plan_lines(plan: Rewind) -> list[str]:
    """What a rewind changes, a line for each file."""
    return [f"{change}  {path}  {lines}" for change, path, lines in file_rows(plan.files)]


def show_plan(plan: Rewind) -> None:
    """What a rewind changes, and what it leaves alone."""
    screen = Screen.of_stdout()
    show_files(screen, plan.files)
    for line in definition_warnings(plan):
        out(screen.paint(line, fg="yellow"))
    _show_kept(screen, plan)


def _show(plan: Rewind) -> None:
    if not plan.files:
        err(nothing_to_rewind(plan))
        _show_kept(Screen.of_stderr(), plan)
        return
    show_plan(plan)


def _show_kept(screen: Screen, plan: Rewind) -> None:
    for line in kept_lines(plan):
        out(screen.paint(line, dim=True))


async def _rewound(place: PlaceOptions, plan: Rewind, only: Sequence[str], *, elsewhere: bool) -> Rewind:
    async with place.writer() as host:
        return await host.jobs.rewind(
            plan.job_id,
            plan.checkpoint_id,
            only=only,
            expected=plan.digest,
            elsewhere=elsewhere,
            by=this_user("cli"),
        )


async def _places(host: Host, job: str, checkpoint: str | None) -> tuple[str, str]:
    """Whole ids. A checkpoint may stand alone: it says its Job."""
    job_id = await host.jobs.find(job)
    if checkpoint is None:
        if not is_place(job_id):
            raise UsageError(f"name the checkpoint of {job_id} too: `perstack log {job_id}` lists them")
        return place_of(job_id)[0], job_id
    return job_id, await host.jobs.find(checkpoint)


def _as_json(plan: Rewind) -> dict[str, object]:
    return {
        "job": plan.job_id,
        "checkpoint": plan.checkpoint_id,
        "workspace": str(Path(plan.workspace)),
        "files": [stat_json(file) for file in plan.files],
        "kept": [{"path": one.path, "why": one.why} for one in plan.kept],
        **({} if plan.undo is None else {"undo": plan.undo}),
    }
