"""Completion values from the project and its local storage. Nothing that a definition names is started."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
from click.shell_completion import CompletionItem
from typing_extensions import override

if TYPE_CHECKING:
    from perstack.core.base.ids import OwnerKind
    from perstack.core.definitions.project import Project
    from perstack.engine.plugins.registry import Plugins
    from perstack.ports.storage import Storage

Kind = Literal[
    "expert", "job", "task", "series", "owner", "any job", "run", "checkpoint", "provider", "runtime", "file", "dir"
]

MAX_COMPARED_IDS = 5000  # maximum ids that are compared with the typed text
MAX_OFFERED = 50  # maximum values offered, the newest
_MAX_SUMMARY_BYTES = 1 << 20  # maximum bytes of a summary that is read for its description

_BY_METAVAR: dict[str, Kind] = {
    "JOB": "job",
    "TASK": "task",
    "EXPERT": "expert",
    "CHECKPOINT": "checkpoint",
    "FILE": "file",
    "PATH": "file",
    "DIR": "dir",
}
_BY_OPTION: dict[str, Kind] = {"--expert": "expert", "--provider": "provider", "--runtime": "runtime"}
_BY_COMMAND: dict[tuple[str, str], Kind | None] = {
    ("create", "task_id"): None,  # it does not exist yet
    ("log", "job_id"): "job",
    ("log", "run_id"): "run",
    ("log", "checkpoint_id"): "checkpoint",
    ("diff", "what"): "checkpoint",
    ("diff", "run_id"): "run",
    ("tell", "run_id"): "run",
    ("answer", "ident"): "owner",
    ("signal", "target"): "owner",
    ("resume", "typed"): "any job",
    ("report", "series_id"): "series",
    ("models", "provider"): "provider",
    ("test", "expert"): "expert",
}
_OWNERS: dict[Kind, tuple[OwnerKind, ...]] = {
    "job": ("job",),
    "task": ("task",),
    "series": ("iterations",),
    "owner": ("job", "task"),
    "any job": ("job", "iterations"),
}


def kind_of(command: str, param: click.Parameter) -> Kind | None:
    """Return the kind of name that a parameter takes; None if unknown."""
    key = (command, param.name or "")
    if key in _BY_COMMAND:
        return _BY_COMMAND[key]
    if isinstance(param.type, click.Choice):
        return None
    by_option: Kind | None = next((kind for name, kind in _BY_OPTION.items() if name in param.opts), None)
    word = param.metavar or (param.name or "").upper()
    by_metavar: Kind | None = _BY_METAVAR.get(word.strip("[]."))
    return by_option or by_metavar


class StoredName(click.ParamType[str]):
    """The type of a parameter that takes a name of some kind."""

    name = "name"

    def __init__(self, kind: Kind) -> None:
        self._kind: Kind = kind

    @override
    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        kind = self._kind
        if kind in ("file", "dir"):
            return [CompletionItem(incomplete, type=kind)]
        project = _TypedProject(ctx)
        if kind == "expert":
            values = project.experts()
        elif kind in ("provider", "runtime"):
            values = project.plugin_names(kind)
        else:
            import asyncio  # completing command names does not need it

            values = asyncio.run(project.stored_names(kind, incomplete))
        return [CompletionItem(value, help=text) for value, text in values if value.startswith(incomplete)]


class _TypedProject:
    def __init__(self, ctx: click.Context) -> None:
        from perstack.doors.cli.options import HostOptions

        self._params = dict(ctx.params)
        if ctx.args and isinstance(first := ctx.command.params[0], click.Argument):
            # click sets positional arguments aside before an option whose value is still missing
            self._params[first.name] = self._params.get(first.name) or ctx.args[0]
        config, workspace, storage = map(self._option, ("config", "workspace", "storage"))
        self._options = HostOptions(config, workspace, storage)
        self._place = self._options.find()

    def _option(self, name: str) -> str | None:
        value = self._params.get(name)
        # a shell passes the line as typed, with `~` unexpanded
        return str(Path(value).expanduser()) if isinstance(value, str) and value.startswith("~") else value

    def experts(self) -> Iterable[tuple[str, str]]:
        experts = self._project().experts
        return [(key, experts[key].description) for key in experts]

    def plugin_names(self, kind: Literal["provider", "runtime"]) -> Iterable[tuple[str, str]]:
        plugins = self._plugins()
        names = plugins.providers if kind == "provider" else plugins.runtimes
        return [(name, "") for name in sorted(names)]

    async def stored_names(self, kind: Kind, typed: str) -> Iterable[tuple[str, str]]:
        """Return stored names that begin with the typed text, newest first; empty if the storage is not local."""
        from perstack.parts import describe_waiting_work
        from perstack.state_guard.guarded_state import open_own_state

        storage = open_own_state(
            self._plugins(), self._project(), self._place, self._options.storage, os.environ, describe_waiting_work
        )
        if not storage.places:
            return ()
        try:
            if kind in ("run", "checkpoint"):
                return [(name, "") for name in await self._run_or_checkpoint_ids(storage, kind, typed)]
            return await _find_owners(storage, _OWNERS[kind], typed)
        finally:
            await storage.close()

    async def _run_or_checkpoint_ids(self, storage: Storage, kind: Kind, typed: str) -> Sequence[str]:
        from perstack.engine.jobs.id_resolution import nth_latest_job, resolve_id
        from perstack.engine.jobs.reader import JobReader

        typed_job = next(
            (value for name in _JOBS_ON_THE_LINE if isinstance(value := self._params.get(name), str)), None
        )
        ids = (await storage.jobs(limit=MAX_COMPARED_IDS)).ids
        job_in_prefix = max((job_id for job_id in ids if typed.startswith(f"{job_id}-")), key=len, default=None)
        job = await resolve_id(storage, typed_job) if typed_job else job_in_prefix or await nth_latest_job(storage, 0)
        if kind == "run":
            all_ids = (await storage.runs(job, limit=MAX_COMPARED_IDS)).ids
        else:
            all_ids = (await JobReader(storage).checkpoints(job, limit=MAX_COMPARED_IDS)).ids
        return [name for name in reversed(all_ids) if name.startswith(typed)][:MAX_OFFERED]

    def _project(self) -> Project:
        from perstack.core.definitions.project import Project
        from perstack.errors import DefinitionError

        try:
            return self._options.project(required=False)
        except DefinitionError:
            return Project()

    def _plugins(self) -> Plugins:
        from perstack.engine.plugins.registry import load_plugins

        return load_plugins((), os.environ)


_JOBS_ON_THE_LINE = ("continue_job", "job", "job_id", "typed")  # parameters that name the Job of Runs and checkpoints


async def _find_owners(storage: Storage, kinds: Sequence[OwnerKind], typed: str) -> list[tuple[str, str]]:
    from perstack.engine.jobs.id_resolution import nth_latest_job
    from perstack.engine.log.storage_access import space_of

    if typed.startswith("@"):
        ids = [
            await nth_latest_job(storage, number) for number in range(min(3, len((await storage.jobs(limit=3)).ids)))
        ]
        names = ["@last", *(f"@last~{number}" for number in range(1, 3))]
        return [(name, await _description_of(storage, "job", job_id)) for name, job_id in zip(names, ids, strict=False)]
    values: list[tuple[str, str]] = []
    for kind in kinds:
        space = space_of(storage, kind)
        page = await space.jobs(limit=MAX_COMPARED_IDS)
        matching = [owner_id for owner_id in page.ids if owner_id.startswith(typed) and not owner_id.startswith("-")]
        values += [(owner_id, await _description_of(space, kind, owner_id)) for owner_id in matching[:MAX_OFFERED]]
    return values


async def _description_of(storage: Storage, kind: OwnerKind, owner_id: str) -> str:
    from perstack.core.base.records import read_json

    with suppress(Exception):  # the id of a damaged Job is completed without a description
        summary = (await storage.entry(owner_id) or (0, b""))[1] if kind == "task" else await storage.summary(owner_id)
        facts = read_json(summary) if summary and len(summary) <= _MAX_SUMMARY_BYTES else None
        if isinstance(facts, dict):
            return " ".join(str(facts[name]) for name in _DESCRIBES[kind] if facts.get(name))
    return ""


_DESCRIBES: dict[OwnerKind, tuple[str, ...]] = {
    "job": ("expertKey", "query"),
    "task": ("status", "name"),
    "iterations": ("expertKey", "query"),
    "schedule": (),
}
