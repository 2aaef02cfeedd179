"""Redaction leaves no trace in any file, page, blob or cache, and reports the data that it cannot reach."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hosts import Bench, expert, wait_for
from stored_damage import kept_in

from perstack.core.base.ids import By
from perstack.core.definitions.skills import PluginSkill
from perstack.errors import Conflict, UsageError
from perstack.host import Host
from perstack.ports.storage import RunRef, Storage
from perstack.testing.crashing_storage import Crash
from perstack.testing.scripted import text, tool, turn
from perstack.toolkit import Blob, Toolkit

SECRET = "xyzzy-plugh-" * 40
ALICE = By(user="alice", door="cli")
LONG = f"{'a' * 30_000}{SECRET}{'b' * 30_000}"
TEAM = (expert("lead", delegates=("hand",)), expert("hand"))
SCRIPT = {
    "[[lead]]": [
        turn(tool("todo", {"newTodos": [SECRET]})),
        tool("hand", {"query": SECRET}),
        text(SECRET),
    ],
    "[[hand]]": [text(LONG)],
}


def a_job(bench: Bench) -> None:
    async def work() -> None:
        async with bench.host(SCRIPT, *TEAM) as host:
            assert (await host.run("lead", f"Find {SECRET}", job_id="job")).status == "completed"

    wait_for(work())


def holding(bench: Bench) -> list[str]:
    """Return the names of all data that contains the secret, in the workspace or on the storage's server."""
    stored = kept_in(bench.workspace, bench.storage)
    return sorted(name for name, data in stored if SECRET[:24].encode() in data)


async def events_with(host: Host, job_id: str = "job") -> list[str]:
    """Return the ids of events whose lines contain the secret."""
    return [
        f"{log.run_id}-{seq}"
        for log in await host.jobs.logs(job_id)
        for seq, line in enumerate(log.lines, 1)
        if SECRET.encode() in line
    ]


def test_no_byte_of_it_is_left_in_logs_caches_blobs_free_pages_or_beside_them(bench: Bench) -> None:
    a_job(bench)
    assert holding(bench)

    async def work() -> None:
        async with bench.host(SCRIPT, *TEAM) as host:
            blobs = set[str]()
            for event_id in await events_with(host):
                done = await host.audit.redact(event_id, reason="a secret", by=ALICE)
                blobs |= {*done.blobs}
            assert len(blobs) == 1, "the delegate's long result"
            assert holding(bench) == [], "while the storage is open"
            assert (await host.audit.verify("job")).findings == ()
            assert (await host.audit.replay("job")).ok
            assert (await host.job("job")).text == "[redacted]"

    wait_for(work())
    assert holding(bench) == []


def test_what_else_has_the_same_text_is_named_wherever_it_is(bench: Bench) -> None:
    a_job(bench)

    async def work() -> None:
        async with bench.host({"[[lead]]": [text("more")]}, *TEAM) as host:
            await host.run("lead", f"Other: {SECRET}", job_id="other")
            task = await host.tasks.create("t", name="t", agent_id="x", state={"note": [f"it is {SECRET}"]})
            query = next(line.event for line in await host.events("job-2") if line.event.type == "startRun")
            done = await host.audit.redact(query.id, ["query"], reason="a secret", by=ALICE)
            lines = {copy.rpartition("-")[0] for copy in done.copies if " " not in copy}
            assert lines == {"job-1", "job-2", "other-1"}
            assert any(copy.startswith(f"task {task.task_id}, event ") for copy in done.copies)
            report = await host.audit.verify("job")
            assert [redaction.copies for redaction in report.redactions] == [done.copies]
            assert set(done.copies) >= {one for one in await events_with(host) if one.startswith("job-1")}

    wait_for(work())


def test_a_job_that_was_redacted_and_closed_is_exported_without_it(bench: Bench) -> None:
    script = [tool("askUser", {"question": f"Is it {SECRET}?"})]

    async def work() -> None:
        async with bench.host(script, expert("a", ask=True)) as host:
            await host.run("a", "go", job_id="job")
            plain = await host.exports.export("perstack", "job")
            for event_id in await events_with(host):
                await host.audit.redact(event_id, reason="r", by=ALICE)
            await host.cancel("job", final=True, by=ALICE)
            exported = await host.exports.export("perstack", "job")
            assert any(SECRET.encode() in data for data in plain.values())
            assert not any(SECRET.encode() in data for data in exported.values())
            assert exported.keys() == plain.keys()

    wait_for(work())


def test_what_every_run_of_an_expert_has_is_no_copy_nor_is_a_short_text_within_others(bench: Bench) -> None:
    script = {"[[lead]]": [text("done with it")], "go": [text("done")]}

    async def work() -> None:
        async with bench.host(script, *TEAM) as host:
            for job in ("job", "other"):
                await host.run("lead", f"a query of Job {job}", job_id=job)
            await host.run("lead", "done", job_id="short")
            assert (await host.audit.redact("job-1-1", ["query"], reason="r", by=ALICE)).copies == ()
            assert (await host.audit.redact("short-1-1", ["query"], reason="r", by=ALICE)).copies == ()
            assert set((await host.audit.redact("other-1-1", ["instruction"], reason="r", by=ALICE)).copies) <= {
                "job-1-1",
                "short-1-1",
            }

    wait_for(work())


def test_what_was_attached_to_a_query_goes_with_it(bench: Bench) -> None:
    picture = Blob(b"\x89PNG\r\n\x1a\n" + SECRET.encode(), "image/png", "a.png")

    async def work() -> None:
        async with bench.host([text("seen"), text("more")], expert("a")) as host:
            assert (await host.run("a", "look", job_id="job", attachments=[picture])).status == "completed"
            assert holding(bench)
            done = await host.audit.redact("job-1-1", ["attachments"], reason="r", by=ALICE)
            assert len(done.blobs) == 1
            assert (await host.audit.verify("job")).findings == ()
            assert holding(bench) == []
            assert (await host.continue_job("a", "more", job_id="job")).status == "completed"

    wait_for(work())


def test_only_texts_are_taken_out_and_the_refusal_lists_them(bench: Bench) -> None:
    a_job(bench)

    async def work() -> None:
        async with bench.host(SCRIPT, *TEAM) as host:
            before = await host.jobs.logs("job")
            for wrong in ("id", "type", "seq", "runId", "nonsense"):
                with pytest.raises(UsageError, match=rf"^event job-1-1 \(startRun\) has no text in {wrong}; .*query"):
                    await host.audit.redact("job-1-1", ["query", wrong], reason="r", by=ALICE)
            assert await host.jobs.logs("job") == before

    wait_for(work())


def test_of_two_at_once_one_is_refused_and_the_other_whole(bench: Bench) -> None:
    a_job(bench)

    async def work() -> None:
        async with bench.host(SCRIPT, *TEAM) as one, bench.host(SCRIPT, *TEAM) as two:
            done = await asyncio.gather(
                one.audit.redact("job-1-1", reason="one", by=ALICE),
                two.audit.redact("job-1-1", reason="two", by=ALICE),
                return_exceptions=True,
            )
            assert {type(each) for each in done if isinstance(each, BaseException)} <= {Conflict}
            report = await one.audit.verify("job")
            assert (report.findings, len(report.redactions)) == ((), 1)

    wait_for(work())


WRITES = ("append", "redact", "remove_blob", "put_run_setting", "put_checkpoint", "put_summary", "erase_traces")


def dying(storage: Storage, at: int, *, after: bool) -> Callable[[], int]:
    """Make a storage crash before or after its n-th write. Return a function that returns the number of writes."""
    writes = 0

    def wrap(name: str, method: Any) -> None:
        async def write(*args: Any, **more: Any) -> Any:
            nonlocal writes
            writes += 1
            if writes > at or (writes == at and not after):
                raise Crash(name)
            done = await method(*args, **more)
            if writes == at:
                raise Crash(name)
            return done

        setattr(storage, name, write)

    for name in WRITES:
        if not hasattr(storage, name):
            continue  # an ability that this storage does without
        wrap(name, getattr(storage, name))
    return lambda: writes


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_kill_at_any_write_leaves_what_verify_names_and_the_same_call_finishes(bench: Bench, *, after: bool) -> None:
    a_job(bench)

    async def work() -> None:
        async with bench.host(SCRIPT, *TEAM) as host:
            every = [one for one in await events_with(host) if one.startswith("job-2")]
        end = every[-1]  # the delegate's result, which has a blob
        for at in range(1, 99):
            async with bench.host(SCRIPT, *TEAM) as host:
                made = dying(host.storage, at, after=after)
                try:
                    await host.audit.redact(end, reason="a secret", by=ALICE)
                except Crash:
                    pass
                else:
                    assert made() < at
                    break
            async with bench.host(SCRIPT, *TEAM) as host:
                lines = next(log.lines for log in await host.jobs.logs("job") if log.run_id == "job-2")
                begun = sum(b'"type":"redactEvent"' in line for line in lines)
                assert begun == (0 if at == 1 and not after else 1), "decided once, however often it is done again"
                gone = b'"redacted":true' in lines[int(end.rpartition("-")[2]) - 1]
                assert gone or not begun or (await host.audit.verify("job")).findings
                assert (await host.job("job")).status == "completed"
        else:
            raise AssertionError("it never came to its end")
        async with bench.host(SCRIPT, *TEAM) as host:
            for one in await events_with(host):
                await host.audit.redact(one, reason="a secret", by=ALICE)
            assert (await host.audit.verify("job")).findings == ()
        assert holding(bench) == []

    wait_for(work(), 90)


def test_a_blob_that_another_event_is_made_of_stays_and_goes_with_that(bench: Bench) -> None:
    kit = Toolkit("kit")

    @kit.tool(effect="readOnly")
    async def picture() -> Blob:
        """A picture."""
        return Blob(SECRET.encode(), "application/octet-stream")

    script = [tool("picture", {}), tool("picture", {}), text("seen")]

    async def work() -> None:
        one = expert("a").model_copy(update={"skills": (PluginSkill(name="kit", plugin="kit"),)})
        async with bench.host(script, one, plugins=(kit,)) as host:
            assert (await host.run("a", "look", job_id="job")).status == "completed"
            first, second = [
                line.event.id for line in await host.events("job-1") if line.event.type == "finishToolCall"
            ]
            done = await host.audit.redact(first, ["contents"], reason="r", by=ALICE)
            assert (done.blobs, second in done.copies) == ((), True)
            assert (await host.audit.verify("job")).findings == ()
            done = await host.audit.redact(second, ["contents"], reason="r", by=ALICE)
            assert len(done.blobs) == 1
            assert (await host.audit.verify("job")).findings == ()
            name = done.blobs[0]
            await host.storage.put_blob("job", SECRET.encode())
            assert any("is still there" in each.message for each in (await host.audit.verify("job")).findings)
            await host.audit.redact(second, reason="r", by=ALICE)
            assert (await host.audit.verify("job")).findings == ()
            lines = await host.storage.read(RunRef("job", "job-1"))
            assert name.encode() in lines[-1]

    wait_for(work())
    assert holding(bench) == []
