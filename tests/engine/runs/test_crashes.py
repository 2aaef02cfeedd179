"""When a process dies at any moment, the Job continues from its logs: nothing is lost or repeated."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest
from approval_jobs import ME
from hosts import Bench, Seen, crashing, expert, sampled, until_it_crashes, wait_for
from toolkit_experts import with_kit

from perstack.core.base.ids import By
from perstack.core.jobs.summary import JobSummary
from perstack.core.messages.messages import text_of
from perstack.core.runs.events.files import StartRewind
from perstack.engine.log.run_session import RunSession
from perstack.errors import StorageError
from perstack.host import Host
from perstack.ports.storage import RunRef, Storage
from perstack.testing.crashing_storage import Crash, CrashingStorage, CrashPoint, crash_points
from perstack.testing.scripted import text, tool, turn
from perstack.toolkit import Toolkit

SCRIPT = {
    "[[boss]]": [
        turn(
            tool("todo", {"newTodos": ["t"]}),
            tool("appendTextFile", {"path": "log.txt", "text": "boss\n"}),
            usage=(10, 1),
        ),
        turn(
            tool("left", {"query": "L"}),
            tool("right", {"query": "R"}),
            tool("readTextFile", {"path": "log.txt"}),
            usage=(10, 1),
        ),
        turn(tool("askUser", {"question": "sure?"}), tool("todo", {"completedTodos": [0]}), usage=(10, 1)),
        turn(tool("attemptCompletion"), usage=(10, 1)),
        text("all is done", usage=(10, 1)),
    ],
    "[[left]]": [
        turn(tool("appendTextFile", {"path": "left.txt", "text": "left\n"}), usage=(10, 1)),
        turn(tool("leaf", {"query": "deep"}), usage=(10, 1)),
        text("left is done", usage=(10, 1)),
    ],
    "[[right]]": [
        turn(tool("appendTextFile", {"path": "right.txt", "text": "right\n"}), usage=(10, 1)),
        text("right is done", usage=(10, 1)),
    ],
    "[[leaf]]": [
        turn(tool("appendTextFile", {"path": "leaf.txt", "text": "leaf\n"}), usage=(10, 1)),
        text("leaf is done", usage=(10, 1)),
    ],
}
EXPERTS = (
    expert("boss", delegates=("left", "right"), ask=True),
    expert("left", delegates=("leaf",)),
    expert("right"),
    expert("leaf"),
)
STEPS, RUNS, FILES = 4 + 3 + 2 + 2, 4, ("log.txt", "left.txt", "right.txt", "leaf.txt")


async def live(
    bench: Bench, point: CrashPoint | None, storage_class: Callable[..., CrashingStorage] = CrashingStorage
) -> int:
    """Run one process, which starts or continues the Job and crashes at the point. Return the number of appends."""
    async with bench.host(SCRIPT, *EXPERTS, wrap=lambda inner: storage_class(inner, point)) as host:
        storage = host.storage
        assert isinstance(storage, CrashingStorage)
        with until_it_crashes():
            if not await storage.has_job("job"):
                job = await host.run("boss", "go", job_id="job")
            else:
                job = await host.job("job")
                job = await (host.answer("yes", job_id="job") if job.question else host.resume("job"))
            if job.question:
                job = await host.answer("yes", job_id="job")
            assert job.status == "completed"
        return storage.appends


async def outcome(bench: Bench) -> None:
    async with bench.host(SCRIPT, *EXPERTS) as host:
        job = await host.job("job")
        assert (job.status, job.text) == ("completed", "all is done")
        assert (job.total_steps, len(job.runs)) == (STEPS, RUNS)
        loaded = await host.jobs.load("job")
        generations = 0
        for run in job.runs:
            events = [line.event for line in await host.events(run.id)]
            generations += sum(event.type == "finishGeneration" for event in events)
            for event in events:
                if event.type == "finishToolCall" and event.tool_name == "appendTextFile":
                    path = {"boss": "log.txt"}.get(run.expert_key, f"{run.expert_key}.txt")
                    lines = (bench.workspace / path).read_text().splitlines()
                    assert len(lines) == 1 or (
                        event.is_error and "interrupted" in text_of(event.contents) and not lines
                    )
        assert job.usage.total_tokens == generations * 11 == loaded.usage.total_tokens
        assert (await host.audit.verify("job")).ok
        assert (await host.audit.replay("job")).ok


def number_of_appends(bench: Bench) -> int:
    return wait_for(live(bench, None))


@pytest.mark.sweep
@pytest.mark.timeout(600)
def test_a_job_that_crashes_at_any_append_goes_on_and_ends_the_same(tmp_path: Path, bench: Bench) -> None:
    appends = number_of_appends(bench.beside(_folder(tmp_path, "plain")))
    assert appends > 20
    for point in sampled(crash_points(appends), bench.storage.startswith("sqlite:")):
        one = bench.beside(_folder(tmp_path, f"{point.moment}-{point.append}"))
        wait_for(live(one, point))
        if not _has_run(one):
            continue
        for _ in range(3):
            if not _is_completed(one):
                wait_for(live(one, None))
        wait_for(outcome(one))


def test_a_job_that_crashes_again_and_again_still_ends_the_same(tmp_path: Path, bench: Bench) -> None:
    one = bench.beside(_folder(tmp_path, "often"))
    for _ in range(200):
        if _has_run(one) and _is_completed(one):
            break
        wait_for(live(one, CrashPoint("after", 10)))
    wait_for(outcome(one))


class _Powered(CrashingStorage):
    """A disk on which a power loss removes everything that was not synced."""

    synced: dict[Path, int]  # size of each log when it was last synced

    def __init__(self, storage: Storage, point: CrashPoint | None, synced: dict[Path, int]) -> None:
        super().__init__(storage, point)
        self.synced = synced

    def _note(self, run: RunRef) -> None:
        path = Path(self.location) / "jobs" / run.job_id / "runs" / run.run_id / "events.jsonl"
        self.synced[path] = path.stat().st_size

    async def append(self, run: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        await super().append(run, expected_seq, records)
        self._note(run)

    def append_now(self, run: RunRef, expected_seq: int, records: Sequence[bytes], *, synced: bool = True) -> bool:
        self.appends += 1
        if self._reached("before"):
            raise Crash(f"before append {self.appends}, to {run.run_id}")
        assert self.storage.append_now(run, expected_seq, records, synced=synced)
        if synced:
            self._note(run)
        if self._reached("after"):
            raise Crash(f"after append {self.appends}, to {run.run_id}")
        return True

    def sync_now(self, run: RunRef) -> None:
        super().sync_now(run)
        self._note(run)


@pytest.mark.sweep
@pytest.mark.timeout(600)
def test_a_power_loss_at_any_append_loses_no_more_than_what_was_not_synced(
    tmp_path: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not bench.storage.startswith("file:"):
        pytest.skip("only files are written without a sync")
    monkeypatch.setattr("perstack.system.concurrency._SLOW_FROM_S", 60)  # a slow disk would be written in threads
    lost = 0
    for point in sampled(crash_points(number_of_appends(bench.beside(_folder(tmp_path, "plain"))))):
        one = bench.beside(_folder(tmp_path, f"{point.moment}-{point.append}"))
        synced: dict[Path, int] = {}
        wait_for(live(one, point, lambda inner, at, synced=synced: _Powered(inner, at, synced)))
        for path, size in synced.items():
            lost += path.stat().st_size - size
            os.truncate(path, size)
        if not _has_run(one):
            continue
        for _ in range(3):
            if not _is_completed(one):
                wait_for(live(one, None))
        wait_for(outcome(one))
    assert lost > 0


class _FailingSync(CrashingStorage):
    """A disk whose syncs fail, except those made with an append."""

    def sync_now(self, run: RunRef) -> None:
        raise StorageError("the disk is failing")


@pytest.mark.parametrize("streams", [False, True], ids=["a slow model", "a model that streams at once"])
def test_a_sync_that_fails_while_the_model_works_ends_the_run_with_its_error(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, streams: bool
) -> None:
    if not bench.storage.startswith("file:"):
        pytest.skip("only files are written without a sync")
    monkeypatch.setattr("perstack.system.concurrency._SLOW_FROM_S", 60)  # a slow disk would be written in threads
    late = turn(text="end", delay_ms=0 if streams else 200)

    async def work() -> None:
        async with bench.host([tool("todo", {"newTodos": ["t"]}), late], expert("a"), wrap=_FailingSync) as host:
            with pytest.raises(StorageError, match="the disk is failing"):
                await host.run("a", "q", job_id="job")

    wait_for(work())


class _CountedSyncs(CrashingStorage):
    """A storage that counts the syncs made without an append."""

    syncs = 0

    def sync_now(self, run: RunRef) -> None:
        self.syncs += 1
        super().sync_now(run)


def test_a_late_sync_is_made_unless_a_flush_came_first_and_not_sooner_for_what_was_written_since(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not bench.storage.startswith("file:"):
        pytest.skip("only files are written without a sync")
    monkeypatch.setattr("perstack.system.concurrency._SLOW_FROM_S", 60)  # a slow disk would be written in threads

    async def work() -> None:
        host = bench.host([text("end")], expert("a"))
        await host.run("a", "q", job_id="job")
        loaded = await host.jobs.load("job")
        storage = _CountedSyncs(host.storage)
        session = RunSession.of(storage, loaded, loaded.runs["job-1"], lambda *_: None)

        def write(latest_sync_s: float) -> Awaitable[None]:
            monkeypatch.setattr("perstack.engine.log.run_session._SYNC_DELAY_S", latest_sync_s)
            session.add(StartRewind(**session.stamp(), by=ME, to_checkpoint="job-1-1", tree="0" * 64))
            return session.flush_soon()

        async def timers_have_fired() -> None:
            later = asyncio.Event()
            asyncio.get_running_loop().call_later(0.01, later.set)
            await later.wait()

        await write(0.001)
        await timers_have_fired()
        assert storage.syncs == 1
        await write(0.001)
        await session.flush()
        await write(60)
        await timers_have_fired()
        assert storage.syncs == 2
        session.show_written()
        assert storage.syncs == 3

    wait_for(work())


class _Watched(CrashingStorage):
    """A storage that notes final statuses in job.json that the log does not have yet."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.ahead: list[str] = []

    async def put_summary(self, job_id: str, summary: bytes) -> None:
        parsed = JobSummary.model_validate_json(summary)
        (run,) = parsed.runs
        log = [json.loads(line)["type"] for line in await self.storage.read(RunRef(job_id, run.id))]
        if parsed.status != "running" and "finishRun" not in log:
            self.ahead.append(parsed.status)
        await super().put_summary(job_id, summary)


def test_job_json_never_says_that_a_job_is_done_before_its_log_does(bench: Bench) -> None:
    async def run() -> list[str]:
        async with bench.host([text("end")], expert("a"), wrap=_Watched) as host:
            await host.run("a", "q", job_id="job")
            assert isinstance(host.storage, _Watched)
            return host.storage.ahead

    assert wait_for(run()) == []


class _FullOnce(CrashingStorage):
    """A disk that is full at one append and has room again afterwards."""

    full = True

    async def append(self, run: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        if self.full:
            self.full = False
            raise StorageError("the disk is full")
        await super().append(run, expected_seq, records)


def test_nothing_is_written_after_a_write_that_failed_and_each_flush_raises_the_first_error(bench: Bench) -> None:
    async def work() -> None:
        host = bench.host(SCRIPT, *EXPERTS)
        await host.run("boss", "q", job_id="job")
        loaded = await host.jobs.load("job")
        run = loaded.runs["job-1"]
        before = await host.jobs.logs("job")
        session = RunSession.of(_FullOnce(host.storage), loaded, run, lambda *_: None)
        session.add(StartRewind(**session.stamp(), by=ME, to_checkpoint="job-1-1", tree="0" * 64))
        with pytest.raises(StorageError) as first:
            await session.flush()
        session.add(StartRewind(**session.stamp(), by=ME, to_checkpoint="job-1-1", tree="0" * 64))
        with pytest.raises(StorageError) as second:
            await session.flush()
        assert second.value is first.value
        assert await host.jobs.logs("job") == before

    wait_for(work())


def test_a_finished_side_effect_is_not_repeated_when_the_process_dies_before_its_result_is_stored(bench: Bench) -> None:
    script = [tool("appendTextFile", {"path": "a.txt", "text": "once\n"}), text("end")]

    (bench.workspace / "a.txt").touch()

    async def crash() -> None:
        async with bench.host(script, expert("a"), wrap=crashing(CrashPoint("before", 4))) as host:
            with pytest.raises(Crash):
                await host.run("a", "q", job_id="job")

    wait_for(crash())
    assert (bench.workspace / "a.txt").read_text() == "once\n"
    host = bench.host(script, expert("a"))
    assert [call.tool_name for call in wait_for(host.jobs.unsettled("job"))] == ["appendTextFile"]
    seen = Seen()
    job = wait_for(host.resume("job", on_event=seen))
    assert job.status == "completed"
    assert (bench.workspace / "a.txt").read_text() == "once\n"
    told = seen.of("finishToolCall")[0]
    assert told.is_error
    assert "may have had its effect" in text_of(told.contents)


@pytest.mark.parametrize("effect", ["sideEffect", "readOnly"])
def test_a_result_is_on_disk_while_a_slower_call_of_the_same_reply_still_runs(
    bench: Bench, effect: Literal["sideEffect", "readOnly"]
) -> None:
    may_end, runs = asyncio.Event(), {"fast": 0, "slow": 0}
    kit = Toolkit("kit")

    async def fast() -> str:
        """Return at once."""
        runs["fast"] += 1
        return "fast result"

    async def slow() -> str:
        """Return when the test says so."""
        runs["slow"] += 1
        await may_end.wait()
        return "slow result"

    kit.tool(effect=effect)(fast)
    kit.tool(effect=effect)(slow)
    script = [turn(tool("fast"), tool("slow")), text("done")]

    async def results_on_disk(host: Host) -> int:
        return sum(line.event.type == "finishToolCall" for line in await host.events("job-1"))

    async def work() -> None:
        reader = bench.host([], with_kit(), plugins=(kit,))
        host = bench.host(script, with_kit(), plugins=(kit,), wrap=lambda inner: CrashingStorage(inner, None))
        assert isinstance(host.storage, CrashingStorage)
        drive = asyncio.create_task(host.run("a", "q", job_id="job"))
        while not runs["slow"] or await results_on_disk(reader) < 1:
            await asyncio.sleep(0.005)
        host.storage.point = CrashPoint("before", host.storage.appends + 1)  # the process dies before it writes again
        may_end.set()
        with until_it_crashes():
            await drive
        again = bench.host(script, with_kit(), plugins=(kit,))
        await again.resume("job")
        assert runs["fast"] == 1
        assert (await again.audit.verify("job")).ok

    wait_for(work(), 10)


@pytest.mark.parametrize(("word", "lines", "is_error"), [("retry", 2, False), ("done", 1, False), ("tell", 1, True)])
def test_a_person_can_settle_an_interrupted_call_by_hand(bench: Bench, word: str, lines: int, is_error: bool) -> None:
    script = [tool("appendTextFile", {"path": "a.txt", "text": "line\n"}), text("end")]

    (bench.workspace / "a.txt").touch()

    async def crash() -> None:
        async with bench.host(script, expert("a"), wrap=crashing(CrashPoint("before", 4))) as host:
            with pytest.raises(Crash):
                await host.run("a", "q", job_id="job")

    wait_for(crash())
    host = bench.host(script, expert("a"))
    (call,) = wait_for(host.jobs.unsettled("job"))
    seen = Seen()
    wait_for(host.resume("job", settle={call.key: word}, on_event=seen))
    assert (bench.workspace / "a.txt").read_text() == "line\n" * lines
    assert seen.of("finishToolCall")[0].is_error is is_error
    assert wait_for(host.audit.replay("job")).ok


@pytest.mark.parametrize(
    ("answer", "lines", "told"),
    [
        ("do it again", 2, '"path":"a.txt"'),
        ("it was done", 1, "a person has confirmed that it had its effect"),
        (
            "no: look first",
            1,
            "may have had its effect, in whole or in part: find out before you repeat it. The person",
        ),
        ("Ask me tomorrow.", 1, "The person says: Ask me tomorrow."),
    ],
)
def test_ask_asks_a_person_what_became_of_an_interrupted_call(bench: Bench, answer: str, lines: int, told: str) -> None:
    script = [tool("appendTextFile", {"path": "a.txt", "text": "line\n"}), text("end")]

    (bench.workspace / "a.txt").touch()

    async def crash() -> None:
        async with bench.host(script, expert("a"), wrap=crashing(CrashPoint("before", 4))) as host:
            with pytest.raises(Crash):
                await host.run("a", "q", job_id="job")

    wait_for(crash())
    (call,) = wait_for(bench.host(script, expert("a")).jobs.unsettled("job"))
    asked = wait_for(bench.host(script, expert("a")).resume("job", settle={call.key: "ask"}))
    assert (asked.status, asked.lifecycle) == ("stoppedByInteractiveTool", "paused")
    question = asked.asking
    assert question is not None
    assert question.text.startswith("appendTextFile began, and its process ended before it had a result.")
    assert question.args["call"] == {"path": "a.txt", "text": "line\n"}
    assert wait_for(bench.host(script, expert("a")).jobs.unsettled("job")) == (), "it is not settled without an answer"
    seen, host = Seen(), bench.host(script, expert("a"))
    done = wait_for(host.answer(answer, question_id=question.id, by=By(user="eve", door="test"), on_event=seen))
    assert done.status == "completed"
    assert (bench.workspace / "a.txt").read_text() == "line\n" * lines
    (settled,) = seen.of("settleCall")
    assert (settled.by.user, settled.by.door) == ("eve", "test")
    assert told in text_of(seen.of("finishToolCall")[0].contents)
    assert wait_for(host.audit.replay("job")).ok
    assert wait_for(host.audit.verify("job")).ok


@pytest.mark.parametrize("write", range(1, 6))
def test_a_question_about_an_interrupted_call_survives_a_kill_at_each_write(bench: Bench, write: int) -> None:
    script = [tool("appendTextFile", {"path": "a.txt", "text": "line\n"}), text("end")]

    (bench.workspace / "a.txt").touch()

    async def crash(point: CrashPoint, work) -> None:
        async with bench.host(script, expert("a"), wrap=crashing(point)) as host:
            with suppress(Crash):
                await work(host)

    wait_for(crash(CrashPoint("before", 4), lambda host: host.run("a", "q", job_id="job")))
    (call,) = wait_for(bench.host(script, expert("a")).jobs.unsettled("job"))
    wait_for(crash(CrashPoint("after", write), lambda host: host.resume("job", settle={call.key: "ask"})))
    host = bench.host(script, expert("a"))
    job = wait_for(host.job("job"))
    if job.asking is None:
        is_open = bool(wait_for(host.jobs.unsettled("job")))
        job = wait_for(host.resume("job", settle={call.key: "ask"} if is_open else {}))
    assert job.asking is not None
    assert wait_for(host.answer("it was done", question_id=job.asking.id)).status == "completed"
    assert (bench.workspace / "a.txt").read_text() == "line\n"


def test_cancelling_stops_every_run_of_the_tree_and_resume_brings_each_result_to_its_parent(bench: Bench) -> None:
    slow = turn(text="late", delay_ms=60_000)
    script = {
        "[[a]]": [turn(tool("b", {"query": "1"}), tool("c", {"query": "2"})), text("end")],
        "[[b]]": [slow],
        "[[c]]": [slow],
    }
    experts = (expert("a", delegates=("b", "c")), expert("b"), expert("c"))
    seen = Seen()

    async def cancelled() -> None:
        async with bench.host(script, *experts) as host:
            both = asyncio.Event()

            def watch(event, line: bytes) -> None:
                seen(event, line)
                if len([e for e in seen.of("startGeneration") if e.expert_key in "bc"]) == 2:
                    both.set()

            task = asyncio.ensure_future(host.run("a", "q", job_id="job", on_event=watch))
            async with asyncio.timeout(10):
                await both.wait()
            await host.cancel("job")
            assert task.cancelled()

    wait_for(cancelled())
    assert sorted(event.expert_key for event in seen.of("stopRunByInterrupt")) == ["a", "b", "c"]
    quick = {**script, "[[b]]": [text("B")], "[[c]]": [text("C")]}
    host = bench.host(quick, *experts)
    assert wait_for(host.job("job")).status == "stoppedByInterrupt"
    job = wait_for(host.resume("job"))
    assert (job.status, job.text, job.total_steps, len(job.runs)) == ("completed", "end", 4, 3)
    assert wait_for(host.audit.replay("job")).ok


def test_of_two_drivers_on_one_job_the_second_is_refused(bench: Bench) -> None:
    script = {"[[a]]": [turn(text="late", delay_ms=60_000)]}

    async def both() -> None:
        async with bench.host(script, expert("a")) as first, bench.host(script, expert("a")) as second:
            started = asyncio.Event()
            task = asyncio.ensure_future(first.run("a", "q", job_id="job", on_event=lambda event, line: started.set()))
            async with asyncio.timeout(10):
                await started.wait()
            with pytest.raises(Exception, match="pid"):
                await second.resume("job")
            assert (await second.job("job")).status == "running"
            await first.cancel("job")
            assert task.cancelled()

    wait_for(both())


def _folder(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    for file in FILES:
        (folder / file).touch()
    return folder


def _has_run(bench: Bench) -> bool:
    async def look() -> bool:
        async with bench.host(SCRIPT, *EXPERTS) as host:
            return bool(await host.storage.has_job("job")) and bool((await host.storage.runs("job")).ids)

    return wait_for(look())


def _is_completed(bench: Bench) -> bool:
    return wait_for(bench.host(SCRIPT, *EXPERTS).job("job")).status == "completed"
