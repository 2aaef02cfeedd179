"""One Job of a test: begun in a folder of its own, driven, answered, and judged."""

from __future__ import annotations

import asyncio
import os
import re
import stat
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from perstack.config.expert_tests import WrittenTest
from perstack.config.settings import Overrides
from perstack.core.base import Fact
from perstack.core.definitions import Project
from perstack.core.job import Cost, JobSummary, cost_of
from perstack.core.judging import JobFacts, Unread, judge
from perstack.core.policy.calls import PolicyCall
from perstack.core.statuses import JobStatus
from perstack.core.usage import NO_USAGE, Usage
from perstack.dataclass import dataclass
from perstack.engine.who import this_user
from perstack.errors import NotFound, PerstackError
from perstack.host import Host
from perstack.ports.environment import Environment
from perstack.testing.experts.folders import copy_folder, remove_folder
from perstack.testing.experts.models import model_of

PROJECT_VARIABLE = "PERSTACK_PROJECT"
"""Names the folder of the definition file to the command of a test."""

_MOST_READ = 8 << 20
"""Bytes of a file that is judged."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What all tests are run with."""

    project: Project
    env: Environment
    room: Path
    """A folder for nothing else: each Job has one of its own in it."""
    overrides: Overrides = Overrides()
    """For tests that ask the real model."""


class Attempt(Fact):
    """What became of one Job of a test."""

    number: int
    """From 1."""
    reasons: tuple[str, ...] = ()
    """Why it is not what is expected; nothing if it is."""
    status: JobStatus | None = None
    """None if the Job did not begin."""
    steps: int = 0
    usage: Usage = NO_USAGE
    cost_usd: Cost | None = None
    unpriced_tokens: int = 0
    milliseconds: int = 0
    job: str = ""
    """Its id; empty if it was not kept."""
    folder: str = ""
    """Where it was kept: the workspace in `workspace`, the storage in `state`."""

    @property
    def passed(self) -> bool:
        """Whether it is what is expected."""
        return not self.reasons

    @property
    def storage(self) -> str:
        """The address of the storage that has the Job."""
        return storage_in(Path(self.folder)) if self.folder else ""


def storage_in(folder: Path) -> str:
    """The address of the storage of an attempt, by its folder."""
    return f"file:{folder / 'state'}"


async def attempt(written: WrittenTest, number: int, bench: Bench) -> Attempt:
    """Run a test once. What it wrote is kept if it failed. Cancelling interrupts the Job, and removes what it wrote."""
    name = f"{slug(written.title)}-{number}"
    folder = bench.room / name
    began = time.monotonic()
    tried, keeps = Attempt(number=number), False
    try:
        tried = _attempt(number, await judged(written, bench, folder, name))
        keeps = not tried.passed
    except (PerstackError, OSError) as error:
        tried = Attempt(number=number, reasons=(f"it could not be run: {error}",))
    finally:
        if not keeps:
            await asyncio.to_thread(remove_folder, folder)
    took = round((time.monotonic() - began) * 1000)
    kept = {"job": tried.job, "folder": str(folder)} if keeps else {"job": "", "folder": ""}
    return tried.model_copy(update={"milliseconds": took, **kept})


@dataclass(frozen=True, slots=True)
class Judged:
    """A Job that was driven as a test says, and judged."""

    reasons: tuple[str, ...]
    job: JobSummary | None = None
    """None if none was begun."""
    facts: JobFacts | None = None


async def judged(written: WrittenTest, bench: Bench, folder: Path, job_id: str) -> Judged:
    """Drive a test's Job in a folder that is not there yet. Raises PerstackError and OSError if it cannot begin."""
    test = written.test
    await asyncio.to_thread(_prepare, folder, written.workspace)
    played = model_of(written, bench.overrides)
    host = Host(
        apart(bench.project),
        workspace=folder / "workspace",
        storage=storage_in(folder),
        env=without_key(bench.project, played.env(bench.env)),
        overrides=played.overrides,
        plugins=played.plugins,
    )
    async with host:
        late = await _driven(host, written, job_id)
        try:
            job = await host.job(job_id)
        except NotFound:
            return Judged((late or "it could not be run: no Job was begun",))
        if late:
            return Judged((late,), job)
        failed = ""
        if test.expect.command is not None:
            failed = await host.experts.test_command(
                written.expert,
                test.expect.command,
                job.text or "",
                timeout=test.timeout,
                variables={PROJECT_VARIABLE: str(written.folder)},
            )
        facts = facts_of(job, await host.jobs.calls(job.id))
        files = await asyncio.to_thread(contents, host.workspace, test.expect.files)
        facts = replace(facts, files=files, command_failed=failed)
    return Judged(judge(test.expect, facts), job, facts)


def _attempt(number: int, found: Judged) -> Attempt:
    job = found.job
    if job is None:
        return Attempt(number=number, reasons=found.reasons)
    return Attempt(
        number=number,
        reasons=found.reasons,
        status=job.status,
        steps=job.total_steps,
        usage=job.usage,
        cost_usd=cost_of(job.usage, job.unpriced_tokens),
        unpriced_tokens=job.unpriced_tokens,
        job=job.id,
    )


async def _driven(host: Host, written: WrittenTest, job_id: str) -> str:
    """Drive the Job, and answer what it asks. Why it was cut short; empty if it was not."""
    test = written.test
    try:
        async with asyncio.timeout(test.timeout / 1000):
            job = await host.run(written.expert, test.query, job_id=job_id)
            for number, text in enumerate(test.answers, 1):
                if job.asking is None or job.status != "stoppedByInteractiveTool":
                    break
                try:
                    job = await host.answer(text, question_id=job.asking.id, by=this_user("test"), drive=True)
                except PerstackError as error:
                    return f"answer {number} was not taken: {error}"
    except TimeoutError:
        return f"it was stopped after its timeout of {test.timeout} ms"
    return ""


def facts_of(job: JobSummary, calls: tuple[PolicyCall, ...]) -> JobFacts:
    """What a Job came to, without its files."""
    return JobFacts(
        status=job.status,
        result=job.text or "",
        because=job.error or job.exceeded or job.asks or "",
        steps=job.total_steps,
        cost="unknown" if job.unpriced_tokens else cost_of(job.usage, 0),
        calls=calls,
    )


def contents(workspace: Path, paths: Iterable[str]) -> Mapping[str, str | Unread]:
    """What stands in files of a workspace, which a model may have made whatever it likes."""
    return {path: _content(workspace, path) for path in paths}


def _content(workspace: Path, path: str) -> str | Unread:
    try:
        real = (workspace / path).resolve(strict=True)
        if not real.is_relative_to(workspace.resolve()):
            return Unread("leads out of the workspace")
        handle = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return Unread("is no file")
            with open(handle, "rb", closefd=False) as file:
                data = file.read(_MOST_READ + 1)
        finally:
            os.close(handle)
    except FileNotFoundError:
        return Unread("is missing")
    except (OSError, RuntimeError, ValueError) as error:
        return Unread(f"cannot be read: {getattr(error, 'strerror', None) or error}".casefold())
    return (
        Unread(f"is larger than {_MOST_READ >> 20} MiB") if len(data) > _MOST_READ else data.decode("utf-8", "replace")
    )


def apart(project: Project) -> Project:
    """The project without what reaches beyond a test: nothing of its Jobs is sent to the anchor, and what tools may
    write besides the workspace they may only read."""
    update: dict[str, object] = {"audit": None, "retention": None, "workspace": None}
    sandbox = project.sandbox
    if sandbox is not None and sandbox.writable:
        readable = (*sandbox.readable, *sandbox.writable)
        update["sandbox"] = sandbox.model_copy(update={"writable": (), "readable": readable})
    return project.model_copy(update=update)


def without_key(project: Project, env: Environment) -> Environment:
    """Without the key that signs heads, which no tool may see."""
    key = None if project.audit is None else project.audit.signing_key
    return env if key is None or not key.startswith("env:") else env.without(key.removeprefix("env:"))


def _prepare(folder: Path, fixture: Path | None) -> None:
    folder.mkdir()
    if fixture is None:
        (folder / "workspace").mkdir()
    else:
        copy_folder(fixture, folder / "workspace")


def slug(title: str) -> str:
    """A title as a part of an id and of a folder's name, which no other title has."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", title).strip("-")[:60]
    return f"{words or 'test'}-{sha256(title.encode()).hexdigest()[:6]}"
