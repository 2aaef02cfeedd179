"""The tools `diff` and `rewind`: changes of files by Jobs, and their reversal, which needs the user's consent."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from perstack.core.base.records import Fact, falsy
from perstack.core.base.text import plain_text
from perstack.core.files.text_diff import FileDiff
from perstack.core.files.tree_diff import ChangeKind, KeptWhy
from perstack.doors.mcp.elicitation import AgreementForm, asks_by_returning, can_ask
from perstack.doors.mcp.notifications import caller
from perstack.doors.mcp.project import ClientCall, Outcome
from perstack.doors.mcp.views import result
from perstack.doors.operations.declaration import Arguments
from perstack.doors.operations.views import view_of
from perstack.doors.shared.file_changes import file_rows, patch_bytes, stat_words
from perstack.engine.jobs.rewind import Rewind
from perstack.errors import UsageError

_MAX_PATCH_CHARS = 60_000  # maximum characters of a patch in a result
_MAX_LISTED_FILES = 500  # maximum files listed in a result
_MAX_ASKED_FILES = 30  # maximum files listed in the question to the user
_FORM = AgreementForm("rewind", "Change these files")


class DiffArguments(Arguments):
    """Of `diff`."""

    job: Annotated[str, Field(description="The Job's id.")]
    what: str | None = Field(
        default=None,
        description="A step's number; a checkpoint, for the step that it ends; or FIRST..LAST, from the files of one"
        " checkpoint to those of another, or with nothing after the dots to those of now. By default the whole Job.",
    )
    run: str | None = Field(default=None, description="Only what this Run did, its delegates apart.")


class RewindArguments(Arguments):
    """Of `rewind`."""

    job: Annotated[str, Field(description="The Job's id.")]
    checkpoint: str = Field(description="The checkpoint whose files are wanted.")
    only: tuple[str, ...] = Field(default=(), description="Globs of the paths that are wanted; by default all.")


class ChangedFile(Fact):
    """A file that differs."""

    path: str
    kind: ChangeKind
    added: int | None = Field(default=None, description="Lines; absent for what is no text.")
    removed: int | None = None


class FilesView(Fact):
    """What was done to files."""

    job: str
    of: str = Field(description="What it is of: a Job, a Run, a step, or from where to where.")
    files: tuple[ChangedFile, ...]
    more: int = Field(default=0, exclude_if=falsy, description="How many files there are besides.")


class KeptFile(Fact):
    """A path that a rewind leaves alone."""

    path: str
    why: KeptWhy


class RewindView(Fact):
    """What a rewind has changed, or would have."""

    job: str
    checkpoint: str
    done: bool = Field(description="Whether the files are those of the checkpoint now.")
    files: tuple[ChangedFile, ...]
    kept: tuple[KeptFile, ...] = Field(default=(), exclude_if=falsy, description="What was left alone.")
    undo: str | None = Field(default=None, description="The checkpoint that takes it back.")


async def show_diff(call: ClientCall, args: DiffArguments) -> Outcome:
    """Return the changes of files as a patch."""
    found = await call.host.files.diff(args.job, args.what, run_id=args.run)
    text = plain_text(patch_bytes(found.files).decode("utf-8", "backslashreplace"))
    if len(text) > _MAX_PATCH_CHARS:
        text = f"{text[:_MAX_PATCH_CHARS]}\n… ({len(text):,} characters: ask for one step)"
    view = FilesView(
        job=found.job_id, of=found.of, files=_changed(found.files), more=max(0, len(found.files) - _MAX_LISTED_FILES)
    )
    return result(view, f"{found.of}: {stat_words(found.files)}", text, *call.notes)


async def rewind(call: ClientCall, args: RewindArguments) -> Outcome:
    """Restore files to a checkpoint after the user has agreed to exactly this plan."""
    files = call.host.files
    before = _FORM.returned(call.params)
    plan = await files.plan_rewind(args.job, args.checkpoint, only=args.only)
    if not plan.files:
        return result(_view(plan, done=True), f"The files are those of {args.checkpoint} already.", *call.notes)
    if before is None:
        if not can_ask(call.context):
            raise UsageError(
                "only a person can agree to a rewind, and this client cannot ask one; a person can do it with"
                f" `perstack rewind {args.job} {args.checkpoint}`"
            )
        if asks_by_returning(call.context):
            return _FORM.ask_by_result(_question(plan), plan.digest)
        before = plan.digest, await _FORM.ask_now(call.context, _question(plan))
    digest, is_agreed = before
    if not is_agreed:
        return result(_view(plan, done=False), "Nothing is changed: the person did not agree.", *call.notes)
    done = await files.rewind(args.job, args.checkpoint, only=args.only, expected=digest, by=caller(call.context))
    words = f"The files are those of {args.checkpoint}: {stat_words(done.files)}. To undo it, rewind to {done.undo}."
    return result(_view(done, done=True), words, *call.notes)


def _question(plan: Rewind) -> str:
    rows = [f"{change} {path} {lines}" for change, path, lines in file_rows(plan.files)]
    more = [f"… and {len(rows) - _MAX_ASKED_FILES:,} more"] if len(rows) > _MAX_ASKED_FILES else []
    head = f"Make the files in {plan.workspace} what they were at {plan.checkpoint_id}? This changes:"
    return plain_text("\n".join([head, *rows[:_MAX_ASKED_FILES], *more]))


def _view(plan: Rewind, *, done: bool) -> RewindView:
    return RewindView(
        job=plan.job_id,
        checkpoint=plan.checkpoint_id,
        done=done,
        files=_changed(plan.files),
        kept=tuple(view_of(KeptFile, one) for one in plan.kept[:_MAX_LISTED_FILES]),
        undo=plan.undo,
    )


def _changed(files: tuple[FileDiff, ...]) -> tuple[ChangedFile, ...]:
    return tuple(view_of(ChangedFile, file) for file in files[:_MAX_LISTED_FILES])
