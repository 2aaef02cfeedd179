"""The storage contract: appending and reading logs, also in random sequences."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from perstack.core.base.chain import EMPTY_LOG, Head, seal
from perstack.errors import Conflict, NotFound, StorageError, UsageError
from perstack.ports.storage import RunRef, Storage
from perstack.testing.storage_fixture import (
    RUN,
    ContractBase,
    MakeOpener,
    Opener,
    Writer,
    in_loop,
    new_writer,
    payload,
    text_of,
    wait_for,
)

# ruff: noqa: S101 - these are tests


class LogContract(ContractBase):
    """Promises 1, 3 and 4 without crashes or damage."""

    def test_a_reader_may_look_before_the_first_record(self, storage: Storage) -> None:
        assert wait_for(storage.read(RUN)) == []

    def test_a_reader_may_look_at_a_job_before_its_first_run(self, storage: Storage) -> None:
        wait_for(storage.create_job(RUN.job_id))
        assert wait_for(storage.read(RUN, after=3, limit=2)) == []

    @in_loop
    async def test_no_byte_and_no_order_of_a_history_changes(self, storage: Storage) -> None:
        writer = await new_writer(storage)
        await writer.append("first")
        await writer.append("second", "third")
        assert await storage.read(RUN) == writer.written
        assert [text_of(record) for record in writer.written] == ["first", "second", "third"]

    def test_a_history_outlives_its_process(self, opener: Opener) -> None:
        writer = wait_for(new_writer(opener()))
        wait_for(writer.append("a", "b"))
        assert wait_for(opener().read(RUN)) == writer.written

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "line\nbreak\r\n",
            "\u2028\u2029\x85",
            "\x00\x01",
            "日本語 ünï 🧪",
            '"quotes" and \\backslashes\\',
            "a" * 70_000,
        ],
        ids=["empty", "newlines", "unicode newlines", "control", "unicode", "quotes", "70 KB"],
    )
    def test_no_text_of_a_person_or_a_model_is_changed(self, opener: Opener, text: str) -> None:
        writer = wait_for(new_writer(opener()))
        wait_for(writer.append(text, text))
        wait_for(writer.append(text))
        assert [text_of(record) for record in wait_for(opener().read(RUN))] == [text] * 3

    def test_no_bytes_are_changed_that_are_not_utf8(self, opener: Opener) -> None:
        writer = wait_for(new_writer(opener()))
        wait_for(writer.append_payloads([b'{"raw":"\xff\xfe"}', b"{}"]))
        assert wait_for(opener().read(RUN)) == writer.written

    @in_loop
    async def test_no_big_result_is_cut_or_changed(self, opener: Opener) -> None:
        writer = await new_writer(opener())
        for _ in range(3):
            await writer.append("x" * 5_000_000, "small")
        reader = opener()
        assert await reader.read(RUN) == writer.written
        assert await reader.read(RUN, after=2, limit=1) == writer.written[2:3]

    @in_loop
    async def test_a_watcher_that_continues_after_a_place_misses_and_repeats_nothing(self, storage: Storage) -> None:
        writer = await _write_appends(storage, 5)
        for after in range(7):
            assert await storage.read(RUN, after=after) == writer.written[after:]

    @in_loop
    async def test_a_page_of_a_log_misses_and_repeats_nothing_wherever_it_ends(self, opener: Opener) -> None:
        writer = await _write_appends(opener(), 4)
        for after in range(10):
            for limit in range(10):
                expected = writer.written[after : after + limit]
                assert await opener.opened[0].read(RUN, after, limit) == expected
                assert await opener().read(RUN, after, limit) == expected

    @in_loop
    async def test_the_end_of_a_log_is_its_last_records_in_order(self, opener: Opener) -> None:
        storage = opener()
        await storage.create_job(RUN.job_id)
        assert await storage.end(RUN, 3) == []
        writer = await _write_appends(opener(), 7)
        for count in (1, 3, 7, 10):
            assert await storage.end(RUN, count) == writer.written[-count:]
        await writer.append("x" * 300_000)
        assert await storage.end(RUN, 2) == writer.written[-2:]

    @in_loop
    async def test_a_watcher_in_another_process_misses_nothing(self, opener: Opener) -> None:
        writer, reader = await new_writer(opener()), opener()
        for n in range(5):
            await writer.append(f"a{n}", f"b{n}")
            assert await reader.read(RUN, after=2 * n) == writer.written[-2:]
        assert await reader.read(RUN) == writer.written

    @in_loop
    async def test_an_append_of_nothing_changes_nothing(self, storage: Storage) -> None:
        writer = await _write_appends(storage, 1)
        await storage.append(RUN, writer.head.seq, [])
        assert await storage.read(RUN) == writer.written

    @in_loop
    async def test_no_record_ends_up_in_the_log_of_another_run(self, storage: Storage) -> None:
        refs = [RunRef(job, f"{job}-{n}") for job in ("a", "a-1", "b") for n in (1, 2, 11)]
        writers = [await new_writer(storage, ref) for ref in refs]
        for _ in range(2):
            for writer in writers:
                await writer.append(writer.ref.run_id, "more")
        for writer in writers:
            assert await storage.read(writer.ref) == writer.written

    @in_loop
    async def test_nothing_is_lost_with_more_runs_than_files_may_be_open(self, storage: Storage) -> None:
        await storage.create_job("wide")
        writers = [Writer(storage, RunRef("wide", f"wide-{n}")) for n in range(1, 151)]
        for _ in range(2):
            for writer in writers:
                await writer.append("x")
        for writer in writers:
            assert await storage.read(writer.ref) == writer.written

    @pytest.mark.parametrize("seq", [0, 1, 3, 100])
    @in_loop
    async def test_a_driver_that_does_not_know_the_end_of_a_log_cannot_write_to_it(
        self, storage: Storage, seq: int
    ) -> None:
        writer = await new_writer(storage)
        await writer.append("a", "b")
        records, _ = seal(Head(seq, writer.head.hash), [payload("late")])
        with pytest.raises(Conflict, match="2 records"):
            await storage.append(RUN, seq, records)
        assert await storage.read(RUN) == writer.written

    def test_no_log_begins_in_the_middle(self, storage: Storage) -> None:
        wait_for(storage.create_job(RUN.job_id))
        records, _ = seal(EMPTY_LOG, [payload("x")])
        with pytest.raises(Conflict):
            wait_for(storage.append(RUN, 1, records))

    @in_loop
    async def test_two_drivers_never_mix_their_histories(self, opener: Opener) -> None:
        first = await _write_appends(opener(), 2)
        second = first.again(opener())
        assert await second.storage.read(RUN) == first.written
        await first.append("mine")
        with pytest.raises(Conflict):
            await second.append("mine too")
        assert await opener().read(RUN) == first.written
        await first.append("and on")
        assert await second.storage.read(RUN) == first.written

    @in_loop
    async def test_a_driver_that_lost_can_continue_once_it_has_read(self, opener: Opener) -> None:
        first = await _write_appends(opener(), 1)
        second = first.again(opener())
        await first.append("one")
        with pytest.raises(Conflict):
            await second.append("two")
        second.head, second.written = first.head, list(first.written)
        await second.append("three")
        with pytest.raises(Conflict):
            await first.append("four")
        assert await first.storage.read(RUN) == second.written

    @in_loop
    async def test_no_run_begins_twice(self, opener: Opener) -> None:
        first, second = await new_writer(opener()), await new_writer(opener())
        await first.append("one")
        with pytest.raises(Conflict):
            await second.append("two")
        assert await second.storage.read(RUN) == first.written

    @in_loop
    async def test_no_record_of_another_history_of_the_same_length_gets_into_a_log(self, storage: Storage) -> None:
        writer = await _write_appends(storage, 1)
        _, other = seal(EMPTY_LOG, [payload(f"other {n}") for n in range(writer.head.seq)])
        records, _ = seal(other, [payload("more")])
        with pytest.raises(Conflict):
            await storage.append(RUN, other.seq, records)
        assert await storage.read(RUN) == writer.written

    @in_loop
    async def test_no_records_that_were_not_sealed_together_pass_as_one_append(self, storage: Storage) -> None:
        await storage.create_job(RUN.job_id)
        first_lines, head = seal(EMPTY_LOG, [payload("a")])
        second_lines, _ = seal(head, [payload("b")])
        with pytest.raises(StorageError):
            await storage.append(RUN, 0, [*first_lines, *second_lines])
        with pytest.raises(StorageError):
            await storage.append(RUN, 0, seal(EMPTY_LOG, [payload("a"), payload("b")])[0][:1])
        assert await storage.read(RUN) == []

    def test_no_run_makes_a_job_by_itself(self, storage: Storage) -> None:
        records, _ = seal(EMPTY_LOG, [payload("a")])
        with pytest.raises(NotFound):
            wait_for(storage.append(RunRef("nowhere", "nowhere-1"), 0, records))
        assert not wait_for(storage.has_job("nowhere"))

    @pytest.mark.parametrize("bad", ["..", "a/b", "", ".", "a\\b", "\0", "a" * 200, "a b"])
    @in_loop
    async def test_no_id_leads_out_of_the_store(self, storage: Storage, bad: str) -> None:
        records, _ = seal(EMPTY_LOG, [payload("a")])
        await storage.create_job("j")
        with pytest.raises(UsageError):
            await storage.create_job(bad)
        with pytest.raises(UsageError):
            await storage.append(RunRef("j", bad), 0, records)
        with pytest.raises(UsageError):
            await storage.read(RunRef("j", bad))
        with pytest.raises(UsageError):
            await storage.blob("j", bad)

    @in_loop
    async def test_closing_and_opening_again_loses_nothing(self, opener: Opener) -> None:
        writer = await new_writer(opener())
        for n in range(20):
            await writer.append(f"{n}")
            await writer.storage.close()
            writer = writer.again(opener())
        assert await writer.storage.read(RUN) == writer.written

    @in_loop
    async def test_a_cancelled_append_is_never_half_done_nor_done_later(self, opener: Opener) -> None:
        storage = opener()
        writer = await new_writer(storage)
        await writer.append("first")
        for turns in range(12):
            lines, head = seal(writer.head, [payload("a"), payload("b")])
            append = asyncio.create_task(storage.append(RUN, writer.head.seq, lines))
            for _ in range(turns):
                await asyncio.sleep(0)
            append.cancel()
            with suppress(asyncio.CancelledError):
                await append
            records = await storage.read(RUN)
            assert records in (writer.written, [*writer.written, *lines])
            if records != writer.written:
                writer = Writer(storage, RUN, head, records)
            await writer.append("next")
        assert await opener().read(RUN) == writer.written


async def _write_appends(storage: Storage, appends: int) -> Writer:
    writer = await new_writer(storage)
    for n in range(appends):
        await writer.append(*(f"{n}.{i}" for i in range(n % 3 + 1)))
    return writer


# Random sequences of operations, compared with a model of a few dictionaries.

# ruff: noqa: S101 - these are tests


_RUNS = [RunRef(job, f"{job}-{n}") for job in ("a", "b") for n in (1, 2)]
_TEXTS = st.lists(st.text(max_size=20), min_size=1, max_size=4)
_RUN = st.sampled_from(_RUNS)
_VIEW = st.integers(0, 1)


class StorageMachine(RuleBasedStateMachine):
    """Two processes that use one store. Each is closed and reopened from time to time."""

    make_opener: MakeOpener

    def __init__(self) -> None:
        """Open the store twice and create two Jobs."""
        super().__init__()
        self.opener = self.make_opener()
        self.views = [self.opener(), self.opener()]
        for job in ("a", "b"):
            wait_for(self.views[0].create_job(job))
        self.logs = {ref: Writer(self.views[0], ref) for ref in _RUNS}
        self.latest = ["b", "a"]
        self.summaries: dict[str, bytes] = {}

    def teardown(self) -> None:
        """Close the store of this example."""
        self.opener.close()

    @rule(ref=_RUN, view=_VIEW, texts=_TEXTS)
    def append(self, ref: RunRef, view: int, texts: list[str]) -> None:
        """Append records as a driver in either process."""
        self.logs[ref].storage = self.views[view]
        wait_for(self.logs[ref].append(*texts))

    @rule(ref=_RUN, view=_VIEW, off=st.integers(-3, 3).filter(bool))
    def append_at_a_stale_place(self, ref: RunRef, view: int, off: int) -> None:
        """Check that a driver with a stale or too high expectation is refused."""
        head = self.logs[ref].head
        seq = max(0, head.seq + off)
        if seq != head.seq:
            records, _ = seal(Head(seq, head.hash), [payload("stale")])
            with pytest.raises(Conflict):
                wait_for(self.views[view].append(ref, seq, records))

    @rule(ref=_RUN, view=_VIEW, after=st.integers(0, 12), limit=st.none() | st.integers(0, 6))
    def read(self, ref: RunRef, view: int, after: int, limit: int | None) -> None:
        """Check that any part of a log reads as written."""
        expected = self.logs[ref].written[after : None if limit is None else after + limit]
        assert wait_for(self.views[view].read(ref, after, limit)) == expected

    @rule(view=_VIEW)
    def reopen(self, view: int) -> None:
        """Replace a process by a new one."""
        self.views[view] = self.opener()

    @rule(view=_VIEW, job=st.sampled_from(["a", "b"]), summary=st.binary(max_size=30))
    def put_summary(self, view: int, job: str, summary: bytes) -> None:
        """Write a summary."""
        wait_for(self.views[view].put_summary(job, summary))
        self.summaries[job] = summary
        self.latest = [job, *(other for other in self.latest if other != job)]

    @precondition(lambda self: any(writer.written for writer in self.logs.values()))
    @rule(view=_VIEW)
    def list_runs(self, view: int) -> None:
        """Check that Runs are listed as soon as they have a record."""
        for job in ("a", "b"):
            expected = tuple(ref.run_id for ref in _RUNS if ref.job_id == job and self.logs[ref].written)
            assert wait_for(self.views[view].runs(job)).ids == expected

    @invariant()
    def what_was_written_is_there(self) -> None:
        """Check that both processes see equal summaries in one order."""
        for view in self.views:
            for job, summary in self.summaries.items():
                assert wait_for(view.summary(job)) == summary
            if len(self.summaries) == 2:
                assert list(wait_for(view.jobs()).ids) == self.latest


class ModelContract(ContractBase):
    """All promises, in any order of operations."""

    sequences = 25  # number of random sequences, which are the same in every test run

    def test_no_order_of_operations_breaks_a_promise(self, make_opener: MakeOpener) -> None:
        machine = type("Machine", (StorageMachine,), {"make_opener": staticmethod(make_opener)})
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=self.sequences,
                stateful_step_count=25,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
                derandomize=True,
            ),
        )
