"""What long logs, many Jobs and many viewers cost: bounds on what is read, not on time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from hosts import Bench, expert, wait_for
from long_jobs import LONG, long_job
from studio_server import serving_studio
from terminal import TEAM, Terminal, reply

from perstack.errors import NotFound
from perstack.host import Host
from perstack.ports.storage import RunRef
from perstack.system.clock import SYSTEM
from perstack.testing.scripted import text, tool, turn
from perstack_studio import access
from perstack_studio.job_states import JobStates
from perstack_studio.live import Feed, Feeds
from perstack_studio.places import last_events, search_place, seq_of_step
from perstack_studio.question_count import OpenQuestionCount, count_questions
from perstack_studio.run_lines import RunLines
from perstack_studio.views.conversation import WINDOW_EVENTS, window
from perstack_studio.views.inbox import read_inbox

STEPS = 400


@pytest.fixture
def host(bench: Bench) -> Host:
    """Return a Host with a Job of 400 steps, `long`."""
    wait_for(long_job(bench, STEPS))
    return bench.host([], LONG)


@pytest.fixture
def lines_read(host: Host, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of lines of each read of a log."""
    counts: list[int] = []
    original = host.storage.read

    async def counted(ref: RunRef, after: int = 0, limit: int | None = None) -> list[bytes]:
        lines = await original(ref, after, limit)
        counts.append(len(lines))
        return lines

    monkeypatch.setattr(host.storage, "read", counted, raising=False)
    return counts


def _served(host: Host) -> Any:
    definitions = SimpleNamespace(offers=lambda _: True, hides=lambda _: False)
    return SimpleNamespace(host=host, definitions=definitions, job=host.job)


def test_the_end_of_a_long_conversation_is_read_from_the_end(host: Host, lines_read: list[int]) -> None:
    summary = wait_for(host.job("long"))
    head = summary.runs[0].head_seq

    folded, first = wait_for(window(SimpleNamespace(host=host), "long", "long-1", head))  # type: ignore[arg-type]

    assert (folded.last_seq, first) == (head, head - WINDOW_EVENTS)
    assert not lines_read
    verified = wait_for(host.jobs.events("long-1", job_id="long", after=first))
    assert wait_for(last_events(host.storage, RunRef("long", "long-1"), head, WINDOW_EVENTS)) == verified


def test_a_place_that_is_not_near_the_end_is_read_as_a_window(host: Host, lines_read: list[int]) -> None:
    folded, first = wait_for(window(SimpleNamespace(host=host), "long", "long-1", 700))  # type: ignore[arg-type]

    assert (folded.last_seq, first) == (700, 300)
    assert lines_read == [WINDOW_EVENTS]


def test_a_step_is_found_by_few_reads(host: Host, lines_read: list[int]) -> None:
    ref = RunRef("long", "long-1")
    run_summary = wait_for(host.job("long")).runs[0]
    lines_read.clear()

    found = [wait_for(seq_of_step(host.storage, ref, run_summary, step)) for step in (1, 2, STEPS // 2, STEPS)]

    assert len(lines_read) <= 4 * 8
    assert max(lines_read) <= 8
    events = wait_for(host.jobs.events("long-1", job_id="long"))
    expected = [next(e.seq for e in events if e.event.step_number == step) for step in (1, 2, STEPS // 2, STEPS)]
    assert found == expected
    for step in (STEPS + 1, 10**30):
        assert wait_for(seq_of_step(host.storage, ref, run_summary, step)) is None


@pytest.mark.parametrize("first_probe", [1, 40, 70, 98, 99])
@pytest.mark.parametrize("place", [1, 2, 50, 97, 98, 99])
def test_a_place_is_found_from_any_first_probe(first_probe: int, place: int) -> None:
    async def step_at(seq: int) -> int | None:
        assert 0 < seq < 99
        return 1 if seq < place else 3 if seq < 90 else None

    assert asyncio.run(search_place(step_at, 2, first_probe, 99)) == place


def test_a_jump_reads_hardly_beyond_the_step(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    ref, run_summary, places = RunRef("long", "long-1"), wait_for(host.job("long")).runs[0], list[int]()
    original = host.storage.read

    async def noted(ref: RunRef, after: int = 0, limit: int | None = None) -> list[bytes]:
        places.append(after)
        return await original(ref, after, limit)

    monkeypatch.setattr(host.storage, "read", noted, raising=False)
    seq = wait_for(seq_of_step(host.storage, ref, run_summary, STEPS // 10))
    wait_for(RunLines(host.storage, ref, run_summary).step(STEPS // 10))

    assert seq is not None
    assert max(places) < seq + 50


def test_the_logs_of_a_long_job_are_verified_after_its_page_was_opened(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perstack_studio.places._VERIFIED_EVENTS", 300)
    monkeypatch.setattr("perstack_studio.places._VERIFICATION_DELAY_S", 0)
    places, original = list[int](), host.storage.read

    async def noted(ref: RunRef, after: int = 0, limit: int | None = None) -> list[bytes]:
        places.append(after)
        return await original(ref, after, limit)

    async def look() -> int:
        states = JobStates(_served(host))
        await states.rows(["long"])
        assert not states._verification._tasks, "a list has many Jobs"
        head = (await states.page_summary("long")).runs[0].head_seq
        monkeypatch.setattr(host.storage, "read", noted, raising=False)
        await asyncio.wait_for(_until(lambda: not states._verification._tasks), 20)
        await states.close()
        return head

    head = wait_for(look())

    assert places == [*range(299, head - 1, 300), head - 1]


def test_a_running_job_is_folded_once_and_then_only_what_is_new(bench: Bench) -> None:
    script = [turn(tool("think", {"thought": str(number)}), text="Again.") for number in range(30)]
    host = bench.host([*script, text("Done.")], expert("writer"))
    states = JobStates(_served(host))
    seen: list[tuple[int, int]] = []

    async def run() -> None:
        reading = asyncio.Event()

        def on_event(event: Any, line: bytes) -> None:
            reading.set()

        task = asyncio.create_task(host.run("writer", "Go", job_id="live", on_event=on_event))
        await reading.wait()
        while not task.done():
            with suppress(NotFound):  # before the first event is written
                current = await states.current("live")
                seen.append((current.total_steps, (await host.job("live")).total_steps))
            await asyncio.sleep(0)
        await task

    wait_for(run())

    assert seen
    assert all(current <= exact for current, exact in seen)
    assert wait_for(states.current("live")) == wait_for(host.job("live"))


def test_a_large_driven_job_is_shown_from_its_summary_and_keeps_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perstack_studio.job_states.MAX_DRIVEN_BYTES", 20_000)
    script = [turn(tool("think", {"thought": str(number)}), text="Again.") for number in range(60)]
    host = bench.host([*script, text("Done.")], expert("writer"))
    states = JobStates(_served(host))
    kept: list[int] = []

    async def run() -> None:
        reading = asyncio.Event()
        task = asyncio.create_task(host.run("writer", "Go", job_id="live", on_event=lambda *_: reading.set()))
        await reading.wait()
        while not task.done():
            with suppress(NotFound):  # before the first event is written
                await states.current("live")
            kept.append(sum(folded.size for folded in states._folded_jobs.values()))
            await asyncio.sleep(0)
        await task

    wait_for(run())

    assert 0 < max(kept) < 30_000
    assert kept[-1] == 0
    assert wait_for(states.current("live")) == wait_for(host.job("live"))


def test_an_inbox_folds_no_job_twice_and_takes_no_question_from_job_json(bench: Bench) -> None:
    steps = [turn(tool("think", {"thought": str(number)}), text="Again.") for number in range(120)]
    host = bench.host([*steps, turn(tool("askUser", {"question": "May I?"}))], expert("asks", ask=True), max_steps=0)
    served = _served(host)
    studio: Any = SimpleNamespace(host=host, served_project=served, states=JobStates(served))

    async def look() -> tuple[list[Any], list[int]]:
        asking = await host.run("asks", "Go", job_id="asks")
        assert asking.asking is not None
        stored = await host.storage.summary("asks")
        assert stored is not None
        await host.storage.put_summary("asks", stored.replace(b"May I?", b"Say y?"))
        counts, original = list[int](), host.storage.read

        async def counted(ref: RunRef, after: int = 0, limit: int | None = None) -> list[bytes]:
            lines = await original(ref, after, limit)
            counts[-1] += len(lines)
            return lines

        inboxes = list[Any]()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(host.storage, "read", counted, raising=False)
            for _ in range(2):
                counts.append(0)
                inboxes.append(await read_inbox(studio))
        assert inboxes[0] == await host.inbox()
        return inboxes, counts

    (first, second), (lines_at_first, lines_again) = wait_for(look())

    assert len(first) == 1
    assert second == first
    assert lines_at_first > 500
    assert lines_again <= 1


def test_questions_are_counted_now_and_then_rather_than_for_each_page(host: Host) -> None:
    counted: list[int] = []

    async def count() -> int:
        counted.append(len(counted))
        return len(counted)

    async def look() -> list[int | None]:
        questions = OpenQuestionCount(count)
        values = [await questions.value() for _ in range(100)]
        questions.invalidate()
        return [*values, await questions.value()]

    assert wait_for(look()) == [1] * 100 + [2]
    assert wait_for(count_questions(_served(host))) == 0


def test_a_count_that_takes_long_delays_no_page() -> None:
    async def look() -> list[int | None]:
        may_end = asyncio.Event()

        async def count() -> int:
            await may_end.wait()
            return 7

        questions = OpenQuestionCount(count)
        early = [await questions.value() for _ in range(50)]
        may_end.set()
        await asyncio.wait_for(_until(lambda: questions._count_task is None), 10)
        return [*early, await questions.value()]

    assert asyncio.run(look()) == [None] * 50 + [7]


async def _until(is_true: Callable[[], bool]) -> None:
    while not is_true():
        await asyncio.sleep(0)


def test_what_viewers_of_a_job_share_is_made_once_for_each_change() -> None:
    made: list[int] = []

    async def make() -> str:
        made.append(1)
        await asyncio.sleep(0)
        return str(len(made))

    async def watch() -> list[str]:
        feed = Feed()
        first = await asyncio.gather(*(feed.render_once(make) for _ in range(50)))
        feed.notify()
        return [*first, *await asyncio.gather(*(feed.render_once(make) for _ in range(50)))]

    assert asyncio.run(watch()) == ["1"] * 50 + ["2"] * 50


def test_a_job_at_rest_wakes_nobody(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perstack_studio.live._READ_INTERVAL_S", 0)

    async def follow() -> int:
        feeds, looks = Feeds(host), 0
        original = host.jobs.watch

        async def watched(*args: Any, **options: Any) -> Any:
            nonlocal looks
            async for line in original(*args, **options):
                yield line
            looks += 1

        monkeypatch.setattr(host.jobs, "watch", watched)
        with feeds.feed("long") as feed:
            await asyncio.wait_for(_until(lambda: looks > 5), 20)
            return feed.version

    assert wait_for(follow()) == 1  # once, when the first look is over


def test_a_stream_outlives_the_time_for_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    names = ("set_authenticated", "stop_deadline", "restart_deadline")
    connection = SimpleNamespace(**{name: (lambda name=name: calls.append(name)) for name in names})
    monkeypatch.setattr(access, "connection_of", lambda scope: connection)
    keys = access.StudioAccess("s" * 32, SYSTEM)
    cookie = f"{keys.cookie_name}={keys._sign('session', SYSTEM.now() + 60_000)}".encode()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        calls.append("answered")

    async def nothing(*_: Any) -> Any:
        return {"type": "http.request"}

    headers = [(b"host", b"localhost"), (b"cookie", cookie)]
    scope = {"type": "http", "method": "GET", "path": "/jobs/x/events", "headers": headers}
    asyncio.run(access.StudioAccessMiddleware(app, keys)(scope, nothing, nothing))

    assert calls == ["set_authenticated", "stop_deadline", "answered", "restart_deadline"]


def test_one_goes_to_a_step(terminal: Terminal) -> None:
    think = ("think", {"thought": "hm"})
    terminal.project(TEAM, lead=[*[reply(f"I see {number}.", think) for number in range(9)], reply("Done.")])
    assert terminal.run("run", "lead", "Go", "--provider", "scripted").code == 0
    with serving_studio(terminal) as server:
        visitor = server.visitor()
        job = next(terminal.jobs().iterdir()).name
        run = f"/jobs/{job}/runs/{job}-1"
        assert 'name="step"' in visitor.get(run)

        target = visitor.client.get(f"{run}?step=5").headers["Location"]

        entry = target.rpartition("#")[2]
        shown = visitor.get(target)
        assert f'id="{entry}"' in shown
        assert "I see 4." in shown[shown.index(f'id="{entry}"') :][:800]
        visitor.get(f"{run}?step=99", 404)
        visitor.get(f"{run}?step=x", 400)
