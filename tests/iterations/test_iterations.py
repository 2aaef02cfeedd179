"""Iterations in Python: when a process dies at any moment, only the iteration in progress is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hosts import Bench, expert, sampled, until_it_crashes, wait_for

from perstack.core.definitions.experts import Iterate
from perstack.core.runs.events import Event
from perstack.engine.context.audit_trail import NO_AUDIT
from perstack.errors import UsageError
from perstack.iterations.series_driver import SeriesLog
from perstack.iterations.state import SeriesState, StartSeries, StoredSeriesEvent
from perstack.ports.hooks import hookimpl
from perstack.ports.storage import RunRef, Storage, StorageFactory
from perstack.testing.crashing_storage import Crash, CrashingStorage, CrashPoint, crash_points
from perstack.testing.in_memory_storage import InMemoryStorage, InMemoryStore
from perstack.testing.scripted import text, tool

SCORES = (1, 4, 2, 5, 3)
SCRIPT = {"[[solo]]": [text("made", usage=(10, 1))]}


MEASURE = """set -- 1 4 2 5 3; shift $((PERSTACK_ITERATION-1)); echo "{\\"score\\": $1}" """


def solo(measure: str = MEASURE, **keys):
    return expert("solo", iterate=Iterate(evaluator=measure, **keys))


class Crashing(CrashingStorage, StorageFactory):
    """A storage that counts the appends to all its spaces, and the plugin that opens it."""

    scheme = "crashing"

    def open(self, location: str, workspace: Path, **options: object) -> Storage:
        return self

    @hookimpl
    def perstack_storages(self) -> Sequence[StorageFactory]:
        return [self]

    def space(self, name: str) -> Storage:
        return _Space(self, super().space(name))


class _Space(CrashingStorage):
    def __init__(self, parent: Crashing, space: Storage) -> None:
        super().__init__(space)
        self._whole = parent

    async def append(self, run: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        parent = self._whole
        parent.appends += 1
        if parent._reached("before"):
            raise Crash("before")
        await self.storage.append(run, expected_seq, records)
        if parent._reached("after"):
            raise Crash("after")


@dataclass
class Life:
    """Observations of one process."""

    found: int = 0
    """Number of finished iterations when the process began."""
    told: int = 0
    """Number of finished iterations when the process ended, as reported to it."""
    appends: int = 0
    end: SeriesState | None = None


async def live(workspace: Path, store: InMemoryStore, point: CrashPoint | None) -> Life:
    """Run one process, which starts or continues the series, and crashes at the point."""
    life, storage = Life(), Crashing(InMemoryStorage(store), point)

    def on_fact(fact: StoredSeriesEvent, state: SeriesState, line: bytes) -> None:
        life.told = len(state.done)

    async with Bench(workspace, "crashing:").host(SCRIPT, solo(), plugins=(storage,)) as host:
        begun = (await host.iterations.list()).series
        life.found = begun[0].done if begun else 0
        with until_it_crashes():
            if not begun:
                await host.iterations.begin("solo", "go", series_id="it", on_fact=on_fact)
            elif begun[0].status != "completed":
                await host.iterations.resume("it", on_fact=on_fact)
            life.end = await host.iterations.get("it")
    life.appends = storage.appends
    return life


@pytest.mark.sweep
def test_crashed_at_every_append_of_five_loops_it_has_the_same_best_and_loses_no_iteration(tmp_path: Path) -> None:
    whole = wait_for(live(tmp_path, InMemoryStore(), None))
    assert whole.end is not None
    assert [iteration.score for iteration in whole.end.iterations] == list(SCORES)
    assert whole.appends >= 5 * 4
    for point in sampled(crash_points(whole.appends)):
        store = InMemoryStore()
        crashed = wait_for(live(tmp_path, store, point))
        store.leases.clear()  # a lease is free when its holder dies
        after = wait_for(live(tmp_path, store, None))
        end = after.end
        assert end is not None, point
        assert after.found >= crashed.told, point
        assert (end.status, end.best_iteration, end.finish_reason) == ("completed", 4, "iterationsUsed"), point
        assert [iteration.score for iteration in end.iterations] == list(SCORES), point
        assert [iteration.job_id for iteration in end.iterations] == [f"it-i{n}" for n in (1, 2, 3, 4, 5)], point
        assert len(store.jobs) == 5, point
        assert all(iteration.usage.total_tokens == 11 for iteration in end.iterations), point


def test_cancelling_is_recorded_as_a_pause(bench: Bench) -> None:
    async def work() -> SeriesState:
        host = bench.host(SCRIPT, solo("sleep 300"))
        started = asyncio.Event()
        running = asyncio.create_task(
            host.iterations.begin(
                "solo",
                "go",
                series_id="it",
                on_fact=lambda fact, state, line: started.set() if fact.type == "finishArtefact" else None,
            )
        )
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return await host.iterations.get("it")

    state = wait_for(work())
    assert (state.status, state.message, state.current_artefact) == ("paused", "interrupted", "made")


def test_a_log_that_does_not_say_the_definition_takes_todays_and_keeps_it(bench: Bench) -> None:
    async def work() -> None:
        storage = bench.host([]).storage
        log = SeriesLog(storage, NO_AUDIT)
        await log.reserve("it")
        settings = Iterate(evaluator=MEASURE, max_iterations=1)
        await log.append(
            "it", None, [StartSeries(series_id="it", timestamp=1, expert_key="solo", query="go", iterate=settings)]
        )
        first = await bench.host(SCRIPT, solo(), model="one").iterations.resume("it")
        assert (first.status, first.definition.experts[0].instruction) == ("completed", solo().instruction)
        changed = solo().model_copy(update={"instruction": "Something else."})
        last = await bench.host(SCRIPT, changed).iterations.resume("it", more=1)
        assert (last.status, last.definition) == ("completed", first.definition)

    wait_for(work())


def test_iterations_go_on_though_perstack_toml_has_no_such_expert_any_more(bench: Bench) -> None:
    async def work() -> None:
        await bench.host(SCRIPT, solo(max_iterations=1)).iterations.begin("solo", "go", series_id="it")
        gone = bench.host(SCRIPT, expert("other"))
        assert (await gone.iterations.resume("it", more=1)).status == "completed"
        with pytest.raises(UsageError, match="no Expert 'solo'"):
            await gone.iterations.resume("it", more=1, current=True)

    wait_for(work())


def test_a_series_stops_after_its_step_though_the_definition_was_replaced_while_it_is_driven(bench: Bench) -> None:
    script = {"[[solo]]": [tool("todo", {"newTodos": ["t"]}), text("made")]}
    host = bench.host(script, solo(max_iterations=1))
    stops: list[bool] = []

    def on_event(event: Event, _: bytes) -> None:
        if event.type == "finishGeneration" and not stops:
            host.use(host.project)
            stops.append(host.iterations.stop_after_step("it"))

    series = wait_for(host.iterations.begin("solo", "go", series_id="it", on_event=on_event))
    assert stops == [True]
    assert (series.status, series.message) == ("paused", "interrupted")


def test_a_series_as_python_sees_it(bench: Bench) -> None:
    async def work() -> SeriesState:
        host = bench.host(SCRIPT, solo(max_iterations=2))
        begun = await host.iterations.begin("solo", "go", max_iterations=1, target=9)
        with pytest.raises(UsageError, match="has used its 1 iterations"):
            await host.iterations.resume(begun.id)
        return await host.iterations.resume(begun.id, more=1)

    series = wait_for(work())
    assert (series.user_input, series.best_iteration, series.settings.target) == ("go", 2, 9)
    assert series.best is not None
    assert (series.best.score, series.best.metrics, series.best.artefact) == (4, {"score": 4}, "made")
    assert series.best.finished_at is not None
