"""Every byte of a store changed, and each file cut there, one at a time: right, or an error that names the file."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import workload
from terminal import Terminal
from workload import spread

from perstack.audit.auditor import verify_any
from perstack.engine.jobs.reader import JobReader
from perstack.engine.plugins.registry import Plugins, load_plugins
from perstack.errors import PerstackError
from perstack.memory import ExecutionMemory
from perstack.ports.storage import Storage

SAMPLE, MOST = 120, 25_000
"""Places of each storage, in an ordinary run and in a thorough one; a store that has fewer bytes is tried whole."""
OPTIONS = ("--provider", "scripted")


@dataclass(frozen=True)
class Answers:
    """What a store says, or the errors that it says it with."""

    said: dict[str, object]
    errors: dict[str, PerstackError]


@pytest.fixture
def store(tmp_path: Path, storage: str) -> Path:
    """A Job that asks, another that is done, and a task; returns the folder that they are in."""
    terminal = Terminal(tmp_path)
    workload.asking(tmp_path, storage)
    for command in (
        ("run", "other", "go", "--job-id", "other", *OPTIONS),
        ("run", "small", "go", "--job-id", "small", *OPTIONS),
        ("task", "create", "t", "--description", "go", "--start"),
    ):
        assert terminal.call(*command).code in (0, 3)
    for entry in tmp_path.iterdir():
        if entry.name.endswith(("-shm", "-wal")):
            entry.unlink()
    return tmp_path / "perstack"


async def all_answers(storage: Storage) -> Answers:
    """Everything that a person may look at."""
    looking = JobReader(storage)
    memory = ExecutionMemory(storage)
    said, errors = dict[str, object](), dict[str, PerstackError]()

    async def ask(what: str, work: Callable[[], Awaitable[object]]) -> None:
        try:
            said[what] = await work()
        except PerstackError as error:
            errors[what] = error

    async def job(job_id: str) -> object:
        one = await looking.job(job_id)
        return (one.status, one.text, one.question, one.total_steps, one.usage.total_tokens, one.expert_key)

    async def folded(job_id: str) -> object:
        return {key: run.status for key, run in (await looking.load(job_id)).runs.items()}

    async def verified(job_id: str) -> object:
        return (await verify_any(storage, job_id)).ok

    async def job_statuses() -> object:
        return sorted((one.id, one.status) for one in (await looking.list()).jobs)

    async def task() -> object:
        one = await memory.get("t")
        return (one.status, one.description, one.version)

    try:
        await ask("jobs", job_statuses)
        for job_id in ("small", "other"):
            await ask(f"job {job_id}", partial(job, job_id))
            await ask(f"load {job_id}", partial(folded, job_id))
            await ask(f"verify {job_id}", partial(verified, job_id))
        await ask("task", task)
    finally:
        await storage.close()
    return Answers(said, errors)


def damages(path: Path, places: list[int], content: bytes) -> Iterator[tuple[str, bytes]]:
    for at in places:
        changed = bytearray(content)
        changed[at] ^= 1 << (at % 8)
        yield f"{path}: byte {at} changed", bytes(changed)
        yield f"{path}: cut at {at}", content[:at]


@pytest.mark.timeout(7200)
def test_a_damaged_store_answers_rightly_or_names_the_file_and_hurts_no_other_job(
    store: Path, storage: str, thorough: bool
) -> None:
    plugins = load_plugins()
    plain = _ask(plugins, storage, store)
    assert plain.errors == {}
    files = [path for path in sorted(store.rglob("*")) if path.is_file() and path.name != ".gitignore"]
    total = sum(path.stat().st_size for path in files)
    share = min(1.0, (MOST if thorough else SAMPLE) / total)
    tried = refused = 0
    for path in files:
        content = path.read_bytes()
        places = spread(len(content), max(2, round(len(content) * share))) if content else []
        for name, damaged in damages(path, [at - 1 for at in places], content):
            path.write_bytes(damaged)
            answers = _ask(plugins, storage, store)
            _check(name, path, plain, answers, shared=storage.startswith("sqlite"))
            tried, refused = tried + 1, refused + bool(answers.errors)
            _restore(path, content)
    print(f"{tried} damages of {len(files)} files of {total} bytes, {refused} refused, none unseen")
    assert refused
    assert _ask(plugins, storage, store) == plain


def _check(name: str, path: Path, plain: Answers, answers: Answers, *, shared: bool) -> None:
    for error in answers.errors.values():
        # of a log that is gone there may be no file left to name, but what it was of
        of_all = shared or path.name == "entries.jsonl"
        owners = ("small", "other", "t") if of_all else (path.parent.parent.parent.name,)
        words = [f"{what} {owner}" for what in ("Job", "task") for owner in owners]
        # of SQLite, an id may be what is damaged
        words += ["-1, event ", "is not a valid job id"] if shared else []
        assert any(one in str(error) for one in (path.name, *words)), (name, error)
        assert "\n" not in str(error), name
    if not shared and "/other/" not in str(path):
        assert {what: answers.said.get(what) for what in plain.said if "other" in what} == {
            what: plain.said[what] for what in plain.said if "other" in what
        }, (name, answers)
    for what, said in answers.said.items():
        if said != plain.said[what] and what.startswith(("job ", "load ")):
            _, _, job_id = what.partition(" ")
            assert answers.said.get(f"verify {job_id}") is not True, (name, what, said)


def _ask(plugins: Plugins, storage: str, store: Path) -> Answers:
    return asyncio.run(all_answers(plugins.open_storage(storage, store.parent)))


def _restore(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
