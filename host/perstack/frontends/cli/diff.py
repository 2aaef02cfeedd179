"""`perstack diff`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import click

from perstack.core.ids import is_place, number_of_run, place_of
from perstack.core.snapshots.file_diff import FileDiff
from perstack.engine.job_files import FilesDiff
from perstack.errors import UsageError
from perstack.frontends.cli.options import PlaceOptions, place_options
from perstack.frontends.cli.terminal import Painted, Screen, data, err, has_screen, out, stored, table
from perstack.frontends.shared.columns import GAP
from perstack.frontends.shared.patch import LineKind, file_rows, patch, patch_bytes, shown_line, stat_json, stat_words
from perstack.frontends.shared.words import cells
from perstack.host import Host

_NARROWEST = 20
_STYLES: dict[LineKind, dict[str, str | bool]] = {
    "file": {"bold": True},
    "hunk": {"fg": "cyan"},
    "+": {"fg": "green"},
    "-": {"fg": "red"},
    " ": {},
}


@click.command("diff")
@click.argument("job", required=False)
@click.argument("what", metavar="[STEP|CHECKPOINT[..CHECKPOINT]]", required=False)
@click.option("--run", "run_id", metavar="RUN", help="Only what this Run did, such as JOB-1; its delegates apart.")
@click.option("--stat", is_flag=True, help="Only which files, and how many lines.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object; with --stat without the lines.")
@place_options
def diff_command(
    job: str | None,
    what: str | None,
    run_id: str | None,
    stat: bool,
    as_json: bool,
    config: str | None,
    workspace: str | None,
    storage: str | None,
) -> None:
    """Show what JOB, by default the latest, did to files; or what one of its Runs or steps did.

    A number is a step of the latest Run, or of --run; a checkpoint is the step that it ends. `A..B` goes from the files
    of one checkpoint to those of another, `A..` to those that are there now. In a pipe this is a patch for `git apply`.

    It needs snapshots: `workspace = { path = ".", snapshots = true }` in perstack.toml.
    """
    host = PlaceOptions(config, workspace, storage).reader()

    async def look() -> FilesDiff:
        async with host:
            return await _diff(host, job, what, run_id)

    found = asyncio.run(look())
    if as_json:
        files = [stat_json(file) if stat else file.to_json() for file in found.files]
        data(json.dumps({"job": found.job_id, "of": found.of, "files": files}, ensure_ascii=False))
    elif stat:
        show_files(Screen.of_stdout(), found.files)
    elif has_screen():
        _show(Screen.of_stdout(), found.files)
    else:
        stored(patch_bytes(found.files))
    if not found.files and not as_json:
        err(f"{found.of}: no file was changed")


def show_files(screen: Screen, files: Sequence[FileDiff]) -> None:
    """Which files, how many lines of each, and what it comes to."""
    if not files:
        return
    rows = file_rows(files)
    others = max(cells(lines) for _, _, lines in rows) + len("removed") + 2 * GAP
    shown = [(change, _with_its_end(path, screen.width - others), lines) for change, path, lines in rows]
    table(screen, ("CHANGE", "FILE", "LINES"), shown, whole=(0,), texts=(1,), drops=())
    out(screen.paint(stat_words(files), dim=True))


def _with_its_end(path: str, width: int) -> str:
    """A path of at most so many cells: of a longer one the end, which is the file's name."""
    if cells(path) <= width or width < _NARROWEST:
        return path
    while cells(path) >= width:
        path = path[max(1, (cells(path) - width) // 2) :]
    return f"…{path}"


def _show(screen: Screen, files: Sequence[FileDiff]) -> None:
    for kind, line in patch(files):
        out(_painted(screen, kind, line))


def _painted(screen: Screen, kind: LineKind, line: bytes) -> Painted:
    return screen.paint(shown_line(kind, line), **_STYLES[kind])


async def _diff(host: Host, job: str | None, what: str | None, run_id: str | None) -> FilesDiff:
    """With whole ids. What names a place may stand where the Job does: the place says the Job."""
    job_id, run_id = await host.jobs.find(job), await host.jobs.find(run_id)
    if job_id is not None and what is None and is_place(job_id):
        job_id, what = place_of(job_id)[0], job_id
    elif job_id is not None and run_id is None and number_of_run(job_id):
        job_id, run_id = None, job_id
    if what is not None and not what.isdigit():
        ends = [await host.jobs.find(end.strip()) if end.strip() else "" for end in what.split("..", 1)]
        what = "..".join(ends)
    if what is not None and run_id is not None and not what.isdigit():
        raise UsageError("a checkpoint names its Run: leave --run out")
    return await host.jobs.diff(job_id, what, run_id=run_id)
