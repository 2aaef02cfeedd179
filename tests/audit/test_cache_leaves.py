"""Each leaf of each cache changed, removed, added, of another type, or there twice, one at a time: `verify` names it.

docs/security.md lists what is not covered. An ordinary run tries a sample that is spread over all leaves, and
PERSTACK_FAULTS=all each of them, on each storage.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hosts import STORAGES, Bench, expert, open_storage, wait_for
from workload import spread

from perstack.audit.auditor import verify_any
from perstack.core.definitions.experts import Iterate
from perstack.core.definitions.models import Price
from perstack.engine.log.storage_access import space_of
from perstack.ports.storage import RunRef, Storage
from perstack.testing.scripted import text, tool, turn

SAMPLE = 120  # changes of each storage in an ordinary run
THOROUGH = os.environ.get("PERSTACK_FAULTS") == "all"
EXPERTS = (
    expert("boss", delegates=("left", "right"), ask=True),
    expert("left"),
    expert("right"),
    expert("maker", iterate=Iterate(evaluator="echo '{\"score\": 1}'", max_iterations=1)),
    expert("shaped", output={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}),
)
SCRIPT = {
    "[[boss]]": [
        turn(tool("todo", {"newTodos": ["t"]}), usage=(10, 1)),
        turn(tool("left", {"query": "L"}), tool("right", {"query": "R"}), usage=(10, 1)),
        turn(tool("askUser", {"question": "sure?"}), usage=(10, 1)),
        text("all is done", usage=(10, 1)),
    ],
    "[[left]]": [turn(tool("think", {"thought": "hm"}), usage=(10, 1)), text("left", usage=(10, 1))],
    "[[right]]": [text("right", usage=(10, 1))],
    "[[maker]]": [text("made", usage=(10, 1))],
    "[[shaped]]": [text('{"a": 1}', usage=(10, 1))],
}
LIMITS: dict[str, Any] = {
    "prices": (Price(name="scripted/scripted", input=1, output=1),),
    "max_cost": 5.0,
    "max_tokens": 100_000,
    "max_time": 600_000,
    "max_tool_calls": 100,
}


@dataclass(frozen=True)
class Cache:
    """One cache: its place, its bytes, and how others take their place."""

    name: str
    owner: str
    data: bytes
    replace: Callable[[Storage, bytes], Any]


@pytest.fixture
def store(bench: Bench) -> Bench:
    """Return a store with Jobs that are completed, asking and closed, a task and a series."""

    async def work() -> None:
        async with bench.host(SCRIPT, *EXPERTS, **LIMITS) as host:
            await host.run("boss", "go", job_id="asking", labels={"team": "a"})
            await host.run("boss", "go", job_id="done", labels={"team": "a"})
            await host.answer("yes", job_id="done")
            await host.run("boss", "go", job_id="closed")
            await host.cancel("closed", final=True, reason="enough")
            await host.run("shaped", "go", job_id="shaped")
            await host.tasks.create("chore", state={"done": []}, start=True)
            await host.tasks.checkpoint("chore", {"done": ["a"]})
            await host.iterations.begin("maker", "again", series_id="series")
            reports = [report async for report in host.audit.verify_all()]
            assert [report.findings for report in reports] == [()] * len(reports)

    wait_for(work())
    return bench


async def caches_in(storage: Storage) -> list[Cache]:
    """Return every cache that is derived from a log."""
    found: list[Cache] = []
    for job_id in (await storage.jobs()).ids:
        data = await storage.summary(job_id)
        assert data is not None
        found.append(Cache("job.json", job_id, data, lambda to, new, job=job_id: to.put_summary(job, new)))
        for run_id in (await storage.runs(job_id)).ids if storage.keeps_copies else ():
            ref = RunRef(job_id, run_id)
            data = await storage.run_setting(ref)
            assert data is not None
            found.append(Cache("run-setting", job_id, data, lambda to, new, ref=ref: to.put_run_setting(ref, new)))
        for name in (await storage.checkpoints(job_id)).ids:
            data = await storage.checkpoint(job_id, name)
            assert data is not None
            write = lambda to, new, job=job_id, name=name: to.put_checkpoint(job, name, new)  # noqa: E731
            found.append(Cache("checkpoint", job_id, data, write))
    series = await space_of(storage, "iterations").summary("series")
    assert series is not None
    found.append(
        Cache("series", "series", series, lambda to, new: space_of(to, "iterations").put_summary("series", new))
    )
    entry = await space_of(storage, "task").entry("chore")
    assert entry is not None
    seq, data = entry
    found.append(Cache("entry", "chore", data, lambda to, new: space_of(to, "task").put_entry("chore", seq, new)))
    return found


def changes_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the whole document with one change each: of each leaf, object and list."""
    yield from (
        (f"{'.'.join(map(str, way))} {name}", changed) for way in ways(value) for name, changed in at(value, way)
    )


def ways(value: Any, way: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield way
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from ways(item, (*way, key))


def at(document: Any, way: tuple[str | int, ...]) -> Iterator[tuple[str, Any]]:
    def with_change(change: Callable[[Any, Any], None]) -> Any:
        place = changed = deepcopy(document)
        for key in way[:-1]:
            place = place[key]
        change(place, way[-1])
        return changed

    value = document
    for key in way:
        value = value[key]
    if way:
        yield "removed", with_change(lambda place, key: place.pop(key))
        yield "null", with_change(lambda place, key: place.__setitem__(key, None))
        for name, other in others(value):
            yield name, with_change(lambda place, key, other=other: place.__setitem__(key, other))
        if isinstance(way[-1], int):
            yield "twice", with_change(lambda place, key: place.insert(key, place[key]))
        else:
            yield "beside another", with_change(lambda place, key: place.__setitem__(f"{key}X", place[key]))
    elif isinstance(value, dict):
        yield "added", {**value, "later": None}


def others(value: Any) -> Iterator[tuple[str, Any]]:
    match value:
        case bool():
            yield from (("changed", not value), ("number", int(value)), ("text", str(value)))
        case int() | float():
            yield from (("changed", value * 100 + 1), ("text", str(value)), ("other number", -value - 1))
            yield "notation", float(value) if isinstance(value, int) else int(value) + 0.25
        case str():
            yield from (("changed", f"{value}x"), ("empty", "" if value else "x"), ("list", [value]))
        case list():
            yield from (("emptied", [] if value else [1]), ("longer", [*value, {}]), ("object", {}))
        case dict():
            yield from (("emptied", {} if value else {"x": 1}), ("added", {**value, "later": 1}), ("list", [value]))
        case _:
            yield "changed", "x"


def test_each_change_of_a_leaf_of_a_cache_is_found(store: Bench) -> None:
    async def work() -> tuple[int, list[str]]:
        storage = open_storage(store.storage, store.workspace)
        tried, missed = 0, list[str]()
        for cache in (caches := await caches_in(storage)):
            changes = list(changes_of(json.loads(cache.data)))
            places = range(len(changes)) if THOROUGH else [at - 1 for at in spread(len(changes), SAMPLE // len(caches))]
            for name, changed in (changes[place] for place in places):
                await cache.replace(storage, json.dumps(changed, separators=(",", ":"), ensure_ascii=False).encode())
                report = await verify_any(storage, cache.owner)
                is_lost = cache.name == "entry" and any(one.kind == "summary" for one in report.unchecked)
                missed += [] if report.findings or is_lost else [f"{cache.owner} {cache.name}: {name}"]
                tried += 1
            await cache.replace(storage, cache.data)
            assert (await verify_any(storage, cache.owner)).findings == ()
        await storage.close()
        return tried, missed

    tried, missed = wait_for(work(), 3_000 if THOROUGH else 60)
    print(f"{tried} changes of caches, {len(missed)} unseen")
    assert missed == []


def test_what_json_gives_to_one_reader_and_not_to_another_is_found(store: Bench) -> None:
    """Of two equal keys readers take the first or the last; a number may be written in several ways."""

    async def work() -> None:
        storage = open_storage(store.storage, store.workspace)
        data = await storage.summary("done") or b""
        for old, new in ((b'"maxCost":5.0', b'"maxCost":500.0,"maxCost":5.0'), (b'"maxCost":5.0', b'"maxCost":5')):
            assert old in data
            await storage.put_summary("done", data.replace(old, new))
            assert (await verify_any(storage, "done")).findings
        await storage.put_summary("done", json.dumps(json.loads(data), indent=1, sort_keys=True).encode())
        assert (await verify_any(storage, "done")).findings == ()
        await storage.close()

    wait_for(work())


def test_the_summary_of_a_job_that_was_killed_is_compared_at_the_ends_that_it_names(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "file:perstack")

    async def work() -> None:
        async with bench.host(SCRIPT, *EXPERTS, **LIMITS) as host:
            await host.run("boss", "go", job_id="job")
            asking = await host.storage.summary("job") or b""
            await host.answer("yes", job_id="job")
            running = json.loads(asking) | {"status": "running", "lifecycle": "running"}
            for changed, is_right in (
                (running, True),
                (running | {"budget": {**running["budget"], "maxCost": 500.0}}, False),
                (running | {"query": "other"}, False),
                (running | {"runs": running["runs"][1:]}, False),
                (running | {"status": "completed"}, False),
                (json.loads(asking), False),  # of before: nobody drives the Job, so it should have been written again
            ):
                await host.storage.put_summary("job", json.dumps(changed, separators=(",", ":")).encode())
                report = await host.audit.verify("job")
                assert (report.findings == ()) is is_right, (changed, report)
                assert not is_right or any("job.json was written while" in one.message for one in report.unchecked)

    wait_for(work())


@pytest.mark.parametrize("bench", STORAGES[:2], indirect=True)
def test_verify_writes_nothing(store: Bench) -> None:
    def contents() -> dict[str, tuple[int, bytes]]:
        if store.storage.startswith("sqlite"):
            with closing(sqlite3.connect(store.workspace / "perstack" / "state.db")) as database:
                return dict.fromkeys(database.iterdump(), (0, b""))
        files = (path for path in (store.workspace / "perstack").rglob("*") if path.is_file())
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    before = contents()

    async def work() -> None:
        storage = open_storage(store.storage, store.workspace)
        for owner in ("asking", "done", "closed", "shaped", "chore", "series"):
            assert (await verify_any(storage, owner)).ok
        await storage.close()

    wait_for(work())
    assert contents() == before
