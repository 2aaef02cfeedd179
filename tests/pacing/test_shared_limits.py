"""One queue for all users of an endpoint: its limits, its requests to wait, and its outages."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hosts import Seen, expert, project_of
from wire import KEY, Said
from wire_anthropic import ANTHROPIC

from perstack.core.definitions.models import ProviderLimits
from perstack.core.definitions.settings import Budget, Overrides, ProviderSetting
from perstack.errors import ProviderError
from perstack.host import Host
from perstack.pacing.endpoint_queue import ticket_for
from perstack.pacing.rate_limit import MAX_FAILURES
from perstack.testing.fake_endpoint import FakeEndpoint, PreparedReply, ReceivedRequest
from perstack.testing.scripted import ScriptedProvider

REPLY = ANTHROPIC.reply(Said("Here."))


class Limited:
    """A server that answers so many requests per second, and refuses others with a wait of one second."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.sent_away = 0
        self.answered: list[tuple[float, str]] = []
        """Time and query of each answered request."""
        self._bucket = float(rate)
        self._seen = 0.0

    def __call__(self, asked: ReceivedRequest) -> PreparedReply:
        now = time.monotonic()
        self._bucket = min(float(self.rate), self._bucket + (now - self._seen) * self.rate)
        self._seen = now
        if self._bucket < 1:
            self.sent_away += 1
            return ANTHROPIC.error_reply(429, "slow down", **{"retry-after": "1"})
        self._bucket -= 1
        self.answered.append((now, asked.body.decode().rpartition("query-")[2][:3]))
        return REPLY


def project(url: str, *, limits: ProviderLimits | None = None, **fields: Any) -> Any:
    setting = ProviderSetting(provider_name="anthropic", setting=ANTHROPIC.config(url).setting)
    definition = project_of(expert("a", model=ANTHROPIC.model, provider=setting, **fields))
    return definition.model_copy(update={"limits": () if limits is None else (limits,)})


def host(folder: Path, url: str, *, overrides: Overrides | None = None, **fields: Any) -> Host:
    folder.mkdir(exist_ok=True)
    return Host(
        project(url, **fields),
        workspace=folder,
        storage="file:state",
        env=ANTHROPIC.env,
        overrides=overrides or Overrides(),
    )


async def _all(folder: Path, url: str, runs: int, **fields: Any) -> tuple[list[Any], list[str]]:
    """Run Jobs of two Hosts concurrently. Return them, and their queries in the order in which they became ready."""
    ready: list[str] = []

    async def run(used: Host, query: str) -> Any:
        def watch(event: Any, line: bytes) -> None:
            if event.type == "startGeneration" and query[-3:] not in ready:
                ready.append(query[-3:])

        return await used.run("a", query, on_event=watch)

    async with host(folder / "one", url, **fields) as one, host(folder / "two", url, **fields) as two:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run((one, two)[n % 2], f"query-{n:03}")) for n in range(runs)]
        return [task.result() for task in tasks], ready


def displacement(order: list[str], answered: list[str]) -> int:
    """Return the greatest difference between the places of a query in both orders."""
    return max(abs(order.index(one) - place) for place, one in enumerate(answered))


def test_200_runs_behind_one_rate_limit_are_all_answered_in_their_order_at_that_rate(tmp_path: Path) -> None:
    runs, rate = 200, 10
    limited = Limited(rate)
    limits = ProviderLimits(name="anthropic", requests_per_minute=rate * 60)

    async def scenario() -> tuple[list[Any], list[str]]:
        async with FakeEndpoint(choose=limited) as endpoint, asyncio.timeout(110):
            return await _all(tmp_path, endpoint.url, runs, limits=limits)

    jobs, came = asyncio.run(scenario())
    assert [job.status for job in jobs] == ["completed"] * runs
    moments = [moment for moment, _ in limited.answered]
    rate_measured = (runs - 1) / (moments[-1] - moments[0])
    assert rate_measured <= rate * 1.05
    if rate_measured > rate * 0.9:  # else the machine is too busy to make that many, and what is sent comes in heaps
        assert rate_measured >= rate * 0.95
        assert limited.sent_away <= runs * 0.05, "but for what a busy machine has sent in a heap"
        # between the event that shows a Run's turn and the line there are some turns of the loop
        assert displacement(came, [query for _, query in limited.answered]) <= 32


def test_what_an_endpoint_sends_away_waits_in_order_and_no_run_fails(tmp_path: Path) -> None:
    runs, rate = 40, 15
    limited = Limited(rate)

    async def scenario() -> tuple[list[Any], list[str]]:
        async with FakeEndpoint(choose=limited) as endpoint, asyncio.timeout(100):
            return await _all(tmp_path, endpoint.url, runs)

    jobs, _ = asyncio.run(scenario())
    assert [job.status for job in jobs] == ["completed"] * runs
    assert 0 < limited.sent_away < runs, "after the first 429 nobody runs into another one for long"


def test_an_hour_that_one_job_is_asked_to_wait_stops_that_job_and_no_other(tmp_path: Path) -> None:
    replies = iter([ANTHROPIC.error_reply(429, "your quota is used up", **{"retry-after": "3600"})])

    async def scenario() -> list[Any]:
        async with FakeEndpoint(choose=lambda asked: next(replies, REPLY)) as endpoint, asyncio.timeout(60):
            used = host(tmp_path / "x", endpoint.url)
            async with used:
                return [await used.run("a", query) for query in ("first", "second")]

    first, second = asyncio.run(scenario())
    assert (first.status, first.pause_reason) == ("stoppedByInterrupt", "rate_limit")
    assert second.status == "completed"


def test_no_more_generate_at_once_than_are_allowed_over_all_hosts(tmp_path: Path) -> None:
    async def scenario() -> list[Any]:
        limits = ProviderLimits(name="anthropic", concurrency=1)
        async with FakeEndpoint(REPLY) as endpoint, asyncio.timeout(60):
            used = host(tmp_path / "x", endpoint.url, limits=limits)
            async with used, asyncio.TaskGroup() as group:
                tasks = [group.create_task(used.run("a", f"{n}")) for n in range(4)]
            assert endpoint.connections == 1, "one after the other"
            return [task.result() for task in tasks]

    jobs = asyncio.run(scenario())
    assert [job.status for job in jobs] == ["completed"] * 4


async def _line(answers: list[float], limits: ProviderLimits, runs: int) -> tuple[list[int], list[float]]:
    """Queue numbered attempts that take these seconds. Return the numbers and the times in order of admission."""
    provider = ScriptedProvider([])
    entered: list[int] = []
    moments: list[float] = []

    async def take_turn(number: int) -> None:
        with ticket_for(provider, "p", limits, lambda reason, ahead, seconds: None) as place:
            await place.wait_for_turn(1)
            entered.append(number)
            moments.append(asyncio.get_running_loop().time())
            await asyncio.sleep(answers[number % len(answers)])
            place.record_outcome(None)

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        for number in range(runs):
            group.create_task(take_turn(number))
    return entered, moments


def test_whoever_comes_first_is_let_in_first() -> None:
    for limits in (ProviderLimits(name="p", concurrency=3), ProviderLimits(name="p", requests_per_minute=60_000)):
        entered, _ = asyncio.run(_line([0.003, 0, 0.001], limits, 200))
        assert entered == list(range(200))


def test_200_tries_are_let_in_evenly_at_the_rate_that_is_allowed() -> None:
    entered, moments = asyncio.run(_line([0], ProviderLimits(name="p", requests_per_minute=50 * 60), 200))
    assert entered == list(range(200))
    assert 199 / (moments[-1] - moments[0]) <= 50 * 1.05


def test_one_that_is_sent_away_keeps_its_place_and_one_that_is_cancelled_holds_up_nobody() -> None:
    async def scenario() -> list[str]:
        provider, order = ScriptedProvider([]), list[str]()
        sent_away = ProviderError("slow down", status_code=429, is_retryable=True, retry_after=0.05)

        async def later(name: str) -> None:
            with ticket_for(provider, "p", ProviderLimits(name="p"), lambda reason, ahead, seconds: None) as place:
                await place.wait_for_turn(1)
                order.append(name)
                place.record_outcome(None)

        with ticket_for(provider, "p", ProviderLimits(name="p"), lambda reason, ahead, seconds: None) as first:
            await first.wait_for_turn(1)
            first.record_outcome(sent_away)
            async with asyncio.TaskGroup() as group:
                gone, _ = group.create_task(later("gone")), group.create_task(later("second"))
                await asyncio.sleep(0)
                gone.cancel()
                await asyncio.sleep(0.06)
                await first.wait_for_turn(1)
                order.append("first")
                first.record_outcome(None)
        return order

    assert asyncio.run(scenario()) == ["first", "second"]


def _down(url: str, folder: Path, **fields: Any) -> Host:
    return host(folder, url, overrides=Overrides(max_retries=0), **fields)


def test_after_failures_in_a_row_nothing_is_sent_and_the_error_and_a_notice_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> tuple[list[Any], int]:
        async with FakeEndpoint(ANTHROPIC.error_reply(503, "down for work")) as endpoint, asyncio.timeout(60):
            async with _down(endpoint.url, tmp_path / "x") as used:
                jobs = [await used.run("a", "q") for _ in range(MAX_FAILURES + 2)]
            return jobs, len(endpoint.asked)

    jobs, asked = asyncio.run(scenario())
    assert {job.status for job in jobs} == {"stoppedByError"}
    assert asked == MAX_FAILURES
    assert (jobs[MAX_FAILURES - 1].error or "").startswith("down for work (HTTP 503 from 127.0.0.1")
    assert f"anthropic has failed {MAX_FAILURES} times in a row, so nothing is sent there" in jobs[-1].error
    assert "the latest error: down for work" in jobs[-1].error
    assert capsys.readouterr().err.count("nothing is sent there for 30 s. The latest error: down for work") == 1


def test_whoever_waits_in_line_is_shown_it_and_is_cancelled_at_once_and_its_time_counts(tmp_path: Path) -> None:
    async def scenario() -> tuple[Seen, Any, float]:
        seen = Seen()
        hanging = PreparedReply((b'data: {"type": "ping"}\n\n',), ending="hang")
        limits = ProviderLimits(name="anthropic", concurrency=1)
        async with FakeEndpoint(hanging) as endpoint, asyncio.timeout(60), AsyncExitStack() as stack:
            used = host(tmp_path / "x", endpoint.url, limits=limits, budget=Budget(max_time=3_000))
            other = host(tmp_path / "y", endpoint.url, limits=limits)
            for one in (used, other):
                await stack.enter_async_context(one)
            first = asyncio.create_task(other.run("a", "q"))
            while not endpoint.asked:
                await asyncio.sleep(0.01)
            began = time.monotonic()
            job = await used.run("a", "q", on_event=seen)
            took = time.monotonic() - began
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            return seen, job, took

    seen, job, took = asyncio.run(scenario())
    assert (job.status, job.exceeded_budget) == ("stoppedByBudget", "maxTime")
    assert took < 30
    (shown,) = seen.of("waitForEndpoint")
    assert (shown.provider, shown.reason, shown.ahead) == ("anthropic", "concurrency", 0)


def test_endpoints_are_the_same_by_address_and_key_and_neither_is_in_what_names_them() -> None:
    def endpoint_id(url: str, key: str) -> str:
        return ANTHROPIC.provider(url, {"ANTHROPIC_API_KEY": key}).endpoint_id

    one = endpoint_id("https://a.example", KEY)
    assert one == endpoint_id("https://a.example", KEY)
    assert len({one, endpoint_id("https://b.example", KEY), endpoint_id("https://a.example", KEY + "2")}) == 3
    assert KEY not in one
    assert KEY[:8] not in one
