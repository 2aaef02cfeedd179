"""The time of day comes from the clock that a Host is given, and from nowhere else."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import Bench, Seen, expert, wait_for

import perstack
from perstack.core.definitions.experts import Iterate
from perstack.testing.scripted import fail, text, tool, turn

MOMENT = 4_102_444_800_123
"""2100-01-01T00:00:00.123Z."""
ROOT = Path(perstack.__file__).parent
ASKS = {
    "time": {"time", "time_ns", "localtime", "gmtime", "ctime", "clock_gettime", "clock_gettime_ns"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}
"""What tells the time of day, by what it is a part of."""


class Stopped:
    """A clock that stands still."""

    def now(self) -> int:
        return MOMENT


def test_what_a_host_records_and_shows_is_dated_by_its_clock(bench: Bench) -> None:
    script = [turn(tool("readTextFile", {"path": "nosuch"})), text("done")]
    host, seen = bench.host(script, expert("a"), clock=Stopped()), Seen()

    async def work() -> None:
        job = await host.run("a", "q", on_event=seen)
        assert {event.timestamp for event in seen.events} == {MOMENT}
        assert "2100-01-01T00:00:00Z" in seen.of("startRun")[0].instruction
        assert json.loads(await host.audit.receipt(job.id))["predicate"]["createdOn"] == "2100-01-01T00:00:00.123Z"

    wait_for(work())


def test_tasks_and_iterations_are_dated_by_it(bench: Bench) -> None:
    measured = expert("a", iterate=Iterate(evaluator="echo '{\"score\": 1}'", max_iterations=1))
    host = bench.host([text("done")], measured, clock=Stopped())
    facts: list[int] = []

    async def work() -> None:
        await host.tasks.create("t", start=True)
        await host.tasks.pause("t", "scheduled_wait", resume_at=MOMENT)
        (woken,) = await host.scheduler.once()
        assert woken.did == "resumed"
        await host.tasks.complete("t")
        assert {event.timestamp for event in await host.tasks.history("t")} == {MOMENT}
        await host.iterations.begin("a", "q", on_fact=lambda event, *_: facts.append(event.timestamp))
        assert set(facts) == {MOMENT}

    wait_for(work())


def test_a_pause_for_a_rate_ends_by_the_clock(bench: Bench) -> None:
    host = bench.host([fail(429, "come back", retry_after=3600)], expert("a"), clock=Stopped())
    assert wait_for(host.run("a", "q")).resume_at == MOMENT + 3_600_000


def test_jobs_and_iterations_of_one_moment_have_ids_of_their_own(bench: Bench) -> None:
    measured = expert("a", iterate=Iterate(evaluator="echo '{\"score\": 1}'", max_iterations=1))
    host = bench.host(lambda _: text("done"), measured, clock=Stopped())

    async def work() -> None:
        jobs = [(await host.run("a", "q")).id for _ in range(3)]
        series = [(await host.iterations.begin("a", "q")).id for _ in range(2)]
        assert len({*jobs, *series}) == 5

    wait_for(work())


def test_no_other_module_asks_the_system_for_the_time_of_day() -> None:
    asking = {str(path.relative_to(ROOT)): list(asked_for(ast.parse(path.read_text()))) for path in ROOT.rglob("*.py")}
    found = {name: places for name, places in asking.items() if places}
    assert found.keys() == {
        "http_providers/errors.py",  # how long a Retry-After that is a date is from now
        "system/clock.py",
    }, f"take a `Clock` instead: {found}"


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.time()",
        "import time as t\nt.time_ns()",
        "from time import time",
        "from datetime import datetime as d\nd.now()",
        "import datetime\ndatetime.datetime.utcnow()",
        "import datetime as d\nd.date.today()",
    ],
)
def test_asking_is_seen_under_any_name(source: str) -> None:
    assert list(asked_for(ast.parse(source)))


def asked_for(tree: ast.AST) -> Iterator[str]:
    """Each place in a module that asks for the time of day."""
    names = {name: name for name in ASKS}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {one.asname or one.name: one.name for one in node.names if one.name in ASKS}
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (f"line {node.lineno}: {one.name}" for one in node.names if one.name in ASKS["time"])
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = node.value
            whose = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
            if node.attr in ASKS.get(names.get(whose, whose), ()):
                yield f"line {node.lineno}: {whose}.{node.attr}"
