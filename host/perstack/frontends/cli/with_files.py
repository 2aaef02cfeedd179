"""`perstack run --with-files`: the files of a checkpoint, before a branch from it begins."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from perstack.core.plain import one_line
from perstack.engine.rewinding.rewinder import Rewind
from perstack.engine.who import this_user
from perstack.frontends.cli.options import PlaceOptions, Setup
from perstack.frontends.cli.rewind import ask_rewind, plan_lines, undo_lines
from perstack.frontends.cli.terminal import err

_SHOWN = 20


def files_of_then(setup: Setup, expert: str, job: str, checkpoint: str, *, is_sure: bool) -> Setup:
    """The setup to drive the branch with, once the files are there; what is done is said on stderr.

    Ends the process if a person does not agree. Raises UsageError, Conflict and StorageError.
    """
    if setup.place.workspace is not None:
        return _in_new_folder(setup, expert, job, checkpoint, Path(setup.place.workspace))
    plan = asyncio.run(_planned(setup, expert, job, checkpoint))
    if plan.files:
        err(one_line(f"files of {plan.checkpoint_id} in {plan.workspace}:"))
        for line in plan_lines(plan)[:_SHOWN]:
            err(line)
        if len(plan.files) > _SHOWN:
            err(f"… and {len(plan.files) - _SHOWN:,} more")
        if not is_sure:
            ask_rewind(plan)
        done = asyncio.run(_rewound(setup.place, plan))
        for line in undo_lines(done, setup.place):
            err(line)
    return setup


def _in_new_folder(setup: Setup, expert: str, job: str, checkpoint: str, folder: Path) -> Setup:
    place = replace(setup.place, workspace=None)

    async def write() -> None:
        async with place.host(place.project(required=True), env={}) as host:
            host.experts.get(expert)
            job_id = await host.jobs.find(job)
            await host.jobs.write_files(await host.jobs.find(checkpoint), folder, job_id=job_id)

    asyncio.run(write())
    err(one_line(f"the files of {checkpoint} are in {folder}"))
    return replace(setup, place=replace(place, into=folder))


async def _planned(setup: Setup, expert: str, job: str, checkpoint: str) -> Rewind:
    async with setup.place.host(setup.place.project(required=True), env={}) as host:
        host.experts.get(expert)
        return await host.jobs.plan_rewind(await host.jobs.find(job), await host.jobs.find(checkpoint))


async def _rewound(place: PlaceOptions, plan: Rewind) -> Rewind:
    async with place.writer() as host:
        by = this_user("cli")
        return await host.jobs.rewind(plan.job_id, plan.checkpoint_id, expected=plan.digest, by=by)
