"""The commands `perstack diff` and `perstack rewind`, and files for `perstack run --with-files`."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import click

from perstack.core.base.ids import is_place, number_of_run, place_of
from perstack.core.base.text import one_line
from perstack.doors.cli.options import HostOptions, json_option, place_options, run_with
from perstack.doors.cli.terminal import confirm, has_screen, print_err, print_out, table, write_bytes, write_json
from perstack.doors.shared import file_changes
from perstack.doors.shared.next_step_phrases import rewind
from perstack.doors.shared.screen import Screen, StyledText
from perstack.doors.shared.text import GAP, cells
from perstack.errors import UsageError
from perstack.host import Host
from perstack.snapshots.job_files import FilesDiff
from perstack.snapshots.rewind import Rewind
from perstack.snapshots.tree_diff import FileDiff
from perstack.system.user import this_user

_T = TypeVar("_T")

_MIN_PATH_CELLS = 20
_STYLES: dict[file_changes.LineKind, dict[str, str | bool]] = {
    "file": {"bold": True},
    "hunk": {"fg": "cyan"},
    "+": {"fg": "green"},
    "-": {"fg": "red"},
    " ": {},
}


@click.command("diff")
@click.argument("job", required=False)
@click.argument("what", metavar="[STEP|CHECKPOINT[..CHECKPOINT]]", required=False)
@click.option(
    "--run", "run_id", metavar="RUN", help=("Only changes by this Run, such as JOB-1, without its delegates.")
)
@click.option("--stat", is_flag=True, help="Only file names and numbers of changed lines.")
@json_option("Print a JSON object; with --stat without the lines.")
@place_options
def diff_command(
    job: str | None, what: str | None, run_id: str | None, stat: bool, as_json: bool, options: HostOptions
) -> None:
    """Show the file changes of JOB, by default the latest, or of one of its Runs or steps.

    A number is a step of the latest Run, or of --run; a checkpoint is the step that it ends. `A..B` compares the files
    at two checkpoints, `A..` those at a checkpoint with the current files. In a pipe, print a patch for `git apply`.

    It needs snapshots: `workspace = { path = ".", snapshots = true }` in perstack.toml.
    """
    diff = options.look(lambda host: _diff(host, job, what, run_id))
    if as_json:
        files = [file_changes.stat_json(file) if stat else file.to_json() for file in diff.files]
        write_json({"job": diff.job_id, "of": diff.of, "files": files})
    elif stat:
        _show_files(Screen.of_stdout(), diff.files)
    elif has_screen():
        _show_diff(Screen.of_stdout(), diff.files)
    else:
        write_bytes(file_changes.patch_bytes(diff.files))
    if not diff.files and not as_json:
        print_err(f"{diff.of}: no file was changed")


def _show_files(screen: Screen, files: Sequence[FileDiff]) -> None:
    if not files:
        return
    rows = file_changes.file_rows(files)
    other_cells = max(cells(lines) for _, _, lines in rows) + len("removed") + 2 * GAP
    fitted_rows = [(change, _shorten_path(path, screen.width - other_cells), lines) for change, path, lines in rows]
    table(screen, ("CHANGE", "FILE", "LINES"), fitted_rows, whole=(0,), texts=(1,), drops=())
    print_out(screen.styled(file_changes.stat_words(files), dim=True))


def _shorten_path(path: str, width: int) -> str:
    if cells(path) <= width or width < _MIN_PATH_CELLS:
        return path
    while cells(path) >= width:
        path = path[max(1, (cells(path) - width) // 2) :]
    return f"…{path}"


def _show_diff(screen: Screen, files: Sequence[FileDiff]) -> None:
    for kind, line in file_changes.patch_lines(files):
        print_out(_style_line(screen, kind, line))


def _style_line(screen: Screen, kind: file_changes.LineKind, line: bytes) -> StyledText:
    return screen.styled(file_changes.display_line(kind, line), **_STYLES[kind])


async def _diff(host: Host, job: str | None, what: str | None, run_id: str | None) -> FilesDiff:
    """Return the diff for ids that may be abbreviated. A checkpoint or Run may be given in place of its Job."""
    job_id, run_id = await host.jobs.complete_id(job), await host.jobs.complete_id(run_id)
    if job_id is not None and what is None and is_place(job_id):
        job_id, what = place_of(job_id)[0], job_id
    elif job_id is not None and run_id is None and number_of_run(job_id):
        job_id, run_id = None, job_id
    if what is not None and not what.isdigit():
        checkpoint_ids = [
            await host.jobs.complete_id(end.strip()) if end.strip() else "" for end in what.split("..", 1)
        ]
        what = "..".join(checkpoint_ids)
    if what is not None and run_id is not None and not what.isdigit():
        raise UsageError("a checkpoint names its Run: leave --run out")
    return await host.files.diff(job_id, what, run_id=run_id)


@click.command("rewind")
@click.argument("job")
@click.argument("checkpoint", required=False)
@click.option("--only", multiple=True, metavar="GLOB", help="Only these paths, such as 'src/**'; repeatable.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@click.option("--keep-added", is_flag=True, help="Leave files that were added since, by the Job or by others.")
@click.option("--yes", is_flag=True, help="Rewind without confirmation.")
@json_option("Print the changes as a JSON object.")
@place_options
def rewind_command(
    job: str,
    checkpoint: str | None,
    only: tuple[str, ...],
    keep_added: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    options: HostOptions,
) -> None:
    """Restore the files of the workspace to CHECKPOINT of JOB: all of them or, after an error, none.

    The current files are recorded first, and the command that undoes the rewind is printed. Files that are not in
    snapshots (ignored, private, too large) stay. On a terminal it asks for confirmation; elsewhere --yes is required.
    No files are rewound while a Job is driven in the workspace.
    """
    if as_json and not (yes or dry_run):
        raise UsageError("--json does not ask for confirmation: add --yes, or --dry-run")

    elsewhere = options.workspace is not None

    async def look(host: Host) -> Rewind:
        job_id, place_id = await _full_ids(host, job, checkpoint)
        return await host.files.plan_rewind(job_id, place_id, only=only, keep_added=keep_added, elsewhere=elsewhere)

    plan = options.change(look)
    if not as_json:
        _show(plan)
    if dry_run or not plan.files:
        if as_json:
            write_json(_as_json(plan))
        elif plan.files:
            print_err("dry run: nothing is changed")
        return
    if not yes:
        _ask_rewind(plan)
    rewound = _rewind(options, plan, only, keep_added=keep_added, elsewhere=elsewhere)
    if as_json:
        write_json(_as_json(rewound))
    else:
        for line in _undo_lines(rewound, options):
            print_out(line)


def _ask_rewind(plan: Rewind) -> None:
    """Return if the user agrees; end the process otherwise. Raises UsageError if nobody can be asked."""
    if not sys.stdin.isatty():
        raise UsageError(f"files would be changed ({file_changes.stat_words(plan.files)}): add --yes to change them")
    if not confirm(f"Change these files in {one_line(plan.workspace)}?"):
        print_out("nothing is changed")
        sys.exit(1)


def _undo_lines(rewound: Rewind, options: HostOptions) -> tuple[str, ...]:
    if rewound.undo is None:
        return ()
    undo = rewind(rewound.job_id, rewound.undo, options.as_arguments)
    return (f"rewound, {file_changes.stat_words(rewound.files)}; to undo it:", f"  {undo}")


def _plan_lines(plan: Rewind) -> list[str]:
    return [f"{change}  {path}  {lines}" for change, path, lines in file_changes.file_rows(plan.files)]


def _show_plan(plan: Rewind) -> None:
    screen = Screen.of_stdout()
    _show_files(screen, plan.files)
    for line in (*file_changes.definition_warnings(plan), file_changes.removal_warning(plan)):
        if line:
            print_out(screen.styled(line, fg="yellow"))
    _show_kept(screen, plan)


def _show(plan: Rewind) -> None:
    if not plan.files:
        print_err(file_changes.nothing_to_rewind(plan))
        _show_kept(Screen.of_stderr(), plan)
        return
    _show_plan(plan)


def _show_kept(screen: Screen, plan: Rewind) -> None:
    for line in file_changes.kept_lines(plan):
        print_out(screen.styled(line, dim=True))


def _rewind(
    options: HostOptions,
    plan: Rewind,
    only: Sequence[str] = (),
    *,
    keep_added: bool = False,
    elsewhere: bool = False,
) -> Rewind:
    return options.change(
        lambda host: host.files.rewind(
            plan.job_id,
            plan.checkpoint_id,
            only=only,
            keep_added=keep_added,
            expected=plan.digest,
            elsewhere=elsewhere,
            by=this_user("cli"),
        )
    )


async def _full_ids(host: Host, job: str, checkpoint: str | None) -> tuple[str, str]:
    """Return the full ids of Job and checkpoint. A checkpoint alone is enough: its id names its Job."""
    job_id = await host.jobs.complete_id(job)
    if checkpoint is None:
        if not is_place(job_id):
            raise UsageError(f"name a checkpoint of {job_id} too: `perstack log {job_id}` lists them")
        return place_of(job_id)[0], job_id
    return job_id, await host.jobs.complete_id(checkpoint)


def _as_json(plan: Rewind) -> dict[str, object]:
    return {
        "job": plan.job_id,
        "checkpoint": plan.checkpoint_id,
        "workspace": str(Path(plan.workspace)),
        "files": [file_changes.stat_json(file) for file in plan.files],
        "kept": [{"path": kept_path.path, "why": kept_path.why} for kept_path in plan.kept],
        **({} if plan.undo is None else {"undo": plan.undo}),
    }


# perstack run --with-files: the files of a checkpoint, before a branch from it begins

_MAX_LISTED_FILES = 20


def files_of_checkpoint(options: HostOptions, expert: str, job: str, checkpoint: str, *, is_sure: bool) -> HostOptions:
    """Restore or write a checkpoint's files; return the branch's options. Raises UsageError, Conflict, StorageError."""
    if options.workspace is not None:
        return _write_to_new_folder(options, expert, job, checkpoint, Path(options.workspace))
    plan = _with_project_host(options, lambda host: _plan_rewind(host, expert, job, checkpoint))
    if plan.files:
        print_err(one_line(f"files of {plan.checkpoint_id} in {plan.workspace}:"))
        for line in _plan_lines(plan)[:_MAX_LISTED_FILES]:
            print_err(line)
        if len(plan.files) > _MAX_LISTED_FILES:
            print_err(f"… and {len(plan.files) - _MAX_LISTED_FILES:,} more")
        if not is_sure:
            _ask_rewind(plan)
        rewound = _rewind(options, plan)
        for line in _undo_lines(rewound, options):
            print_err(line)
    return options


def _write_to_new_folder(options: HostOptions, expert: str, job: str, checkpoint: str, folder: Path) -> HostOptions:
    options = replace(options, workspace=None)

    async def write(host: Host) -> None:
        host.experts.get(expert)
        job_id = await host.jobs.complete_id(job)
        await host.files.write_files(await host.jobs.complete_id(checkpoint), folder, job_id=job_id)

    _with_project_host(options, write)
    print_err(one_line(f"the files of {checkpoint} are in {folder}"))
    return replace(options, branch_folder=folder)


async def _plan_rewind(host: Host, expert: str, job: str, checkpoint: str) -> Rewind:
    host.experts.get(expert)
    return await host.files.plan_rewind(await host.jobs.complete_id(job), await host.jobs.complete_id(checkpoint))


def _with_project_host(options: HostOptions, work: Callable[[Host], Awaitable[_T]]) -> _T:
    """Return the result of `work`, called with a Host that has the Experts but no environment variables."""
    return run_with(options.host_of(options.project(required=True), env={}), work)
