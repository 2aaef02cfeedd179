"""One attempt of a test: a Job in its own folder that is driven, answered and judged."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from perstack.core.base.records import Record
from perstack.core.base.usage import NO_USAGE, Cost, Usage, cost_of
from perstack.core.definitions.job_status import JobStatus
from perstack.core.definitions.project import Project
from perstack.core.definitions.settings import Overrides
from perstack.core.jobs.summary import JobSummary
from perstack.core.permissions.policy_calls import PolicyCall
from perstack.dataclass import dataclass
from perstack.errors import NotFound, PerstackError, UsageError
from perstack.expert_tests.written_tests import WrittenTest
from perstack.host import Host
from perstack.ports.environment import Environment
from perstack.recordings.play import HowToRun
from perstack.system.files import read_regular, system_reason
from perstack.system.plugin_modules import EXTRA_MODULES
from perstack.system.user import this_user
from perstack.testing.experts.results import JobFacts, UnreadableFile, interval, judge
from perstack.testing.recorded import read_recording, recorded
from perstack.testing.scripted import Script, ScriptedProvider, ScriptLike, load_script

# Temporary folders.

MAX_COPIED_BYTES = 64 << 20
MAX_COPIED_FILES = 20_000


def copy_folder(folder: Path, to: Path) -> None:
    """Copy a folder. Raises UsageError if it is too large, or a link leads out: writes would change other files."""
    bytes_left, count = MAX_COPIED_BYTES, 0
    root = folder.resolve()
    for base, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(base, name)
            status = path.lstat()
            count += 1
            bytes_left -= status.st_size if stat.S_ISREG(status.st_mode) else 0
            if bytes_left < 0 or count > MAX_COPIED_FILES:
                limit = f"{MAX_COPIED_BYTES >> 20} MiB or {MAX_COPIED_FILES:,} files"
                text = f"{folder} has more than {limit}, too much to copy for each Job: give the test a smaller one"
                raise UsageError(text)
            if stat.S_ISLNK(status.st_mode):
                target = path.readlink()
                if target.is_absolute() or not path.resolve().is_relative_to(root):
                    raise UsageError(f"{path} is a link that leads out of {folder}: replace it with a file")
            elif not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
                raise UsageError(f"{path} is neither a file nor a folder: remove it")
    shutil.copytree(folder, to, symlinks=True)


def remove_folder(folder: Path) -> None:
    """Remove a folder as far as possible, restoring permissions that a model may have removed."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        for base, folders, _ in os.walk(folder):
            for name in folders:
                if not (path := Path(base, name)).is_symlink():
                    path.chmod(0o700)
        shutil.rmtree(folder, ignore_errors=True)


# The model of a test: a script, a recording, or the real one.

_SCRIPTED = "perstack.testing.plugin"
_MAX_SCRIPT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class TestModel:
    """Host options that select the model."""

    overrides: Overrides
    plugins: tuple[object, ...] = ()
    hides: tuple[str, ...] = field(default=())
    """Modules to remove from PERSTACK_PLUGINS because `plugins` replaces them."""

    def env(self, env: Environment) -> Environment:
        """Return the environment for such a Host."""
        modules = [name.strip() for name in env.get(EXTRA_MODULES, "").split(",")]
        if not any(name in self.hides for name in modules):
            return env
        remaining = ",".join(name for name in modules if name not in self.hides)
        return env.with_variables({**env, EXTRA_MODULES: remaining})


def model_of(written: WrittenTest, overrides: Overrides) -> TestModel:
    """Return the model of a test; `overrides` are for the real model. Raises UsageError for an unusable file."""
    if written.model is None:
        return TestModel(overrides)
    return play_file(written.model, written.test.live)


def play_file(path: Path, live: Iterable[str] = ()) -> TestModel:
    """Return the options to play a script or a recording. With `live`, these tools really run. Raises UsageError."""
    script = _read_script(path)
    if script is not None:
        return play_script(script)
    tools: dict[str, HowToRun] = dict.fromkeys(live, "live")
    return TestModel(recorded(path, tools=tools or None))


def play_script(script: ScriptLike) -> TestModel:
    """Return the options to play a script for every Expert."""
    return TestModel(Overrides(provider="scripted"), (ScriptedProvider(script),), (_SCRIPTED,))


def check_models(tests: Iterable[WrittenTest]) -> None:
    """Raise UsageError for the first script or recording that cannot be used."""
    for written in tests:
        if written.model is not None:
            _read_script(written.model)


def _read_script(path: Path) -> Script | None:
    try:
        status = path.stat()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {system_reason(error)}") from error
    return _parse_script(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=64)
def _parse_script(path: Path, changed: int, size: int) -> Script | None:
    """Parse a file once for many Jobs. `changed` is its modification time in ns, part of the cache key."""
    if size > _MAX_SCRIPT_BYTES:
        raise UsageError(f"{path} is larger than {_MAX_SCRIPT_BYTES >> 20} MiB")
    try:
        data = read_regular(path, _MAX_SCRIPT_BYTES)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {system_reason(error)}") from error
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is neither a script nor a recording: {error}") from None
    if isinstance(content, dict) and "format" in content:
        read_recording(path)
        return None
    return load_script(path)


# environment variable that names the definition file's folder for a test's command
PROJECT_VARIABLE = "PERSTACK_PROJECT"

_MAX_READ_BYTES = 8 << 20  # maximum bytes of a file that an expectation reads


@dataclass(frozen=True, slots=True)
class Bench:
    """Settings shared by all tests of a run."""

    project: Project
    env: Environment
    room: Path  # an empty folder in which each Job gets a folder of its own
    overrides: Overrides = Overrides()  # overrides for tests with the real model


class Attempt(Record):
    """Result of one Job of a test."""

    number: int  # number of the attempt, from 1
    reasons: tuple[str, ...] = ()  # deviations from the expectation; empty if it passed
    status: JobStatus | None = None  # status of the Job; None if it did not begin
    steps: int = 0
    usage: Usage = NO_USAGE
    cost_usd: Cost | None = None
    unpriced_tokens: int = 0
    milliseconds: int = 0
    job: str = ""  # Job id; empty if the Job was not kept
    folder: str = ""  # folder of a kept Job: the workspace in `workspace`, the storage in `state`

    @property
    def passed(self) -> bool:
        """True if the Job met the expectation."""
        return not self.reasons

    @property
    def storage(self) -> str:
        """Address of the storage that has the Job; empty if it was not kept."""
        return storage_in(Path(self.folder)) if self.folder else ""


def storage_in(folder: Path) -> str:
    """Return the address of the storage in an attempt's folder."""
    return f"file:{folder / 'state'}"


async def attempt(written: WrittenTest, number: int, bench: Bench) -> Attempt:
    """Run a test once. Its files are kept if it failed, and removed if it is cancelled."""
    name = f"{slug(written.title)}-{number}"
    folder = bench.room / name
    start_s = time.monotonic()
    result, keeps_files = Attempt(number=number), False
    try:
        result = _make_attempt(number, await drive_and_judge(written, bench, folder, name))
        keeps_files = not result.passed
    except (PerstackError, OSError) as error:
        result = Attempt(number=number, reasons=(f"it could not be run: {error}",))
    finally:
        if not keeps_files:
            await asyncio.to_thread(remove_folder, folder)
    milliseconds = round((time.monotonic() - start_s) * 1000)
    location = {"job": result.job, "folder": str(folder)} if keeps_files else {"job": "", "folder": ""}
    return result.model_copy(update={"milliseconds": milliseconds, **location})


@dataclass(frozen=True, slots=True)
class JudgedJob:
    """A Job that was driven and judged."""

    reasons: tuple[str, ...]
    summary: JobSummary | None = None  # summary of the Job; None if none began
    facts: JobFacts | None = None


async def drive_and_judge(written: WrittenTest, bench: Bench, folder: Path, job_id: str) -> JudgedJob:
    """Drive a test's Job in a new folder, and judge it. Raises PerstackError and OSError if it cannot begin."""
    test = written.test
    await asyncio.to_thread(_prepare, folder, written.workspace)
    model = model_of(written, bench.overrides)
    host = Host(
        without_effects(bench.project),
        workspace=folder / "workspace",
        storage=storage_in(folder),
        env=without_signing_key(bench.project, model.env(bench.env)),
        overrides=model.overrides,
        plugins=model.plugins,
    )
    async with host:
        problem = await _drive_and_answer(host, written, job_id)
        try:
            summary = await host.job(job_id)
        except NotFound:
            return JudgedJob((problem or "it could not be run: no Job was started",))
        if problem:
            return JudgedJob((problem,), summary)
        failed = ""
        if test.expect.command is not None:
            failed = await host.experts.test_command(
                written.expert,
                test.expect.command,
                summary.text or "",
                timeout_ms=test.timeout,
                variables={PROJECT_VARIABLE: str(written.folder)},
            )
        facts = facts_of(summary, await host.audit.calls(summary.id))
        files = await asyncio.to_thread(contents, host.workspace, test.expect.files)
        facts = replace(facts, files=files, command_failed=failed)
    return JudgedJob(judge(test.expect, facts), summary, facts)


def _make_attempt(number: int, judged: JudgedJob) -> Attempt:
    summary = judged.summary
    if summary is None:
        return Attempt(number=number, reasons=judged.reasons)
    return Attempt(
        number=number,
        reasons=judged.reasons,
        status=summary.status,
        steps=summary.total_steps,
        usage=summary.usage,
        cost_usd=cost_of(summary.usage, summary.unpriced_tokens),
        unpriced_tokens=summary.unpriced_tokens,
        job=summary.id,
    )


async def _drive_and_answer(host: Host, written: WrittenTest, job_id: str) -> str:
    """Drive the Job and answer its questions. Return why it was cut short; empty if it was not."""
    test = written.test
    try:
        async with asyncio.timeout(test.timeout / 1000):
            summary = await host.run(written.expert, test.query, job_id=job_id)
            for number, text in enumerate(test.answers, 1):
                if summary.asking is None or summary.status != "stoppedByInteractiveTool":
                    break
                try:
                    summary = await host.answer(text, question_id=summary.asking.id, by=this_user("test"), drive=True)
                except PerstackError as error:
                    return f"answer {number} was not accepted: {error}"
    except TimeoutError:
        return f"it was stopped after its timeout of {test.timeout} ms"
    return ""


def facts_of(summary: JobSummary, calls: tuple[PolicyCall, ...]) -> JobFacts:
    """Return the facts of a Job that are judged, except its files."""
    return JobFacts(
        status=summary.status,
        result=summary.text or "",
        because=summary.error or summary.exceeded or summary.asks or "",
        steps=summary.total_steps,
        cost="unknown" if summary.unpriced_tokens else cost_of(summary.usage, 0),
        calls=calls,
    )


def contents(workspace: Path, paths: Iterable[str]) -> Mapping[str, str | UnreadableFile]:
    """Return the contents of files in a workspace, and follow no link that a model may have created out of it."""
    return {path: _read_content(workspace, path) for path in paths}


def _read_content(workspace: Path, path: str) -> str | UnreadableFile:
    try:
        real = (workspace / path).resolve(strict=True)
        if not real.is_relative_to(workspace.resolve()):
            return UnreadableFile("leads out of the workspace")
        handle = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return UnreadableFile("is not a file")
            with open(handle, "rb", closefd=False) as file:
                data = file.read(_MAX_READ_BYTES + 1)
        finally:
            os.close(handle)
    except FileNotFoundError:
        return UnreadableFile("is missing")
    except (OSError, RuntimeError, ValueError) as error:
        return UnreadableFile(f"cannot be read: {system_reason(error)}")
    return (
        UnreadableFile(f"is larger than {_MAX_READ_BYTES >> 20} MiB")
        if len(data) > _MAX_READ_BYTES
        else data.decode("utf-8", "replace")
    )


def without_effects(project: Project) -> Project:
    """Return the project without effects beyond the test: no anchors, and no writes outside the workspace."""
    update: dict[str, object] = {"audit": None, "retention": None, "workspace": None}
    sandbox = project.sandbox
    if sandbox is not None and sandbox.writable:
        readable = (*sandbox.readable, *sandbox.writable)
        update["sandbox"] = sandbox.model_copy(update={"writable": (), "readable": readable})
    return project.model_copy(update=update)


def without_signing_key(project: Project, env: Environment) -> Environment:
    """Return the environment without the key that signs heads, which no tool may see."""
    key = None if project.audit is None else project.audit.signing_key
    return env if key is None or not key.startswith("env:") else env.without(key.removeprefix("env:"))


def _prepare(folder: Path, fixture: Path | None) -> None:
    folder.mkdir()
    if fixture is None:
        (folder / "workspace").mkdir()
    else:
        copy_folder(fixture, folder / "workspace")


def slug(title: str) -> str:
    """Return a title as a unique name for ids and folders: letters, digits and hyphens, and a digest."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", title).strip("-")[:60]
    return f"{words or 'test'}-{sha256(title.encode()).hexdigest()[:6]}"


# Run the Jobs of many tests, a few at a time, and count their results.

PARALLEL_JOBS = 4
_ROUNDING = 1e-9
_MAX_KEPT_JOBS = 10  # maximum number of failed Jobs kept per test


@dataclass(slots=True)
class ExpertTestOutcome:
    """Results of a test so far."""

    written: WrittenTest
    planned: int
    attempts: list[Attempt] = field(default_factory=list[Attempt])

    @property
    def passed(self) -> int:
        """Number of Jobs that met the expectation."""
        return sum(result.passed for result in self.attempts)

    @property
    def is_whole(self) -> bool:
        """True if all its Jobs were run."""
        return len(self.attempts) == self.planned

    @property
    def is_good(self) -> bool:
        """True if enough Jobs met the expectation."""
        return self.is_whole and self.passed >= self.written.test.pass_rate * self.planned - _ROUNDING

    @property
    def interval(self) -> tuple[float, float]:
        """Confidence interval (95 %) of its pass rate."""
        return interval(self.passed, len(self.attempts))

    @property
    def usage(self) -> Usage:
        """Token usage of all its Jobs."""
        return sum((result.usage for result in self.attempts), NO_USAGE)

    @property
    def unpriced_tokens(self) -> int:
        """Tokens in `usage` whose price is unknown."""
        return sum(result.unpriced_tokens for result in self.attempts)

    @property
    def cost(self) -> Cost | None:
        """Cost of all its Jobs."""
        return cost_of(self.usage, self.unpriced_tokens)


async def run_tests(
    outcomes: Sequence[ExpertTestOutcome],
    bench: Bench,
    at_once: int = PARALLEL_JOBS,
    on_done: Callable[[ExpertTestOutcome], None] = lambda outcome: None,
) -> None:
    """Run all planned Jobs and add their results; `on_done` is called with each completed test."""
    planned = _planned_attempts(outcomes)

    async def work() -> None:
        for outcome, number in planned:
            result = await attempt(outcome.written, number, bench)
            outcome.attempts.append(await _drop_files(result, outcome))
            if outcome.is_whole:
                outcome.attempts.sort(key=lambda result: result.number)
                on_done(outcome)

    async with asyncio.TaskGroup() as workers:
        for _ in range(min(at_once, sum(outcome.planned for outcome in outcomes))):
            workers.create_task(work())


async def _drop_files(result: Attempt, outcome: ExpertTestOutcome) -> Attempt:
    """Return the attempt; remove its files if enough failed Jobs of the test are kept already."""
    if not result.folder or sum(bool(earlier.folder) for earlier in outcome.attempts) < _MAX_KEPT_JOBS:
        return result
    await asyncio.to_thread(remove_folder, Path(result.folder))
    return result.model_copy(update={"job": "", "folder": ""})


def _planned_attempts(outcomes: Sequence[ExpertTestOutcome]) -> Iterator[tuple[ExpertTestOutcome, int]]:
    for outcome in outcomes:
        for number in range(1, outcome.planned + 1):
            yield outcome, number
