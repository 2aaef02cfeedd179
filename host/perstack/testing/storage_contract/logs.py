"""The storage contract: appending and reading."""
# ruff: noqa: S101 - these are tests

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from perstack.core.chain import EMPTY_LOG, Head, seal
from perstack.errors import Conflict, NotFound, StorageError, UsageError
from perstack.ports.storage import ReadsEnds, RunRef, Storage
from perstack.testing.contract_base import ContractBase
from perstack.testing.opener import RUN, Opener, Writer, new_writer, payload, text_of, wait_for


class LogContract(ContractBase):
    """Promises 1, 3 and 4 while nothing goes wrong."""

    def test_a_reader_may_look_before_the_first_record(self, storage: Storage) -> None:
        assert wait_for(storage.read(RUN)) == []

    def test_a_reader_may_look_at_a_job_before_its_first_run(self, storage: Storage) -> None:
        wait_for(storage.create_job(RUN.job_id))
        assert wait_for(storage.read(RUN, after=3, limit=2)) == []

    def test_no_byte_and_no_order_of_a_history_changes(self, storage: Storage) -> None:
        async def work() -> None:
            writer = await new_writer(storage)
            await writer.append("first")
            await writer.append("second", "third")
            assert await storage.read(RUN) == writer.written
            assert [text_of(record) for record in writer.written] == ["first", "second", "third"]

        wait_for(work())

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

    def test_no_big_result_is_cut_or_changed(self, opener: Opener) -> None:
        async def work() -> None:
            writer = await new_writer(opener())
            for _ in range(3):
                await writer.append("x" * 5_000_000, "small")
            reader = opener()
            assert await reader.read(RUN) == writer.written
            assert await reader.read(RUN, after=2, limit=1) == writer.written[2:3]

        wait_for(work())

    def test_a_watcher_that_continues_after_a_place_misses_and_repeats_nothing(self, storage: Storage) -> None:
        async def work() -> None:
            writer = await _written(storage, 5)
            for after in range(7):
                assert await storage.read(RUN, after=after) == writer.written[after:]

        wait_for(work())

    def test_a_page_of_a_log_misses_and_repeats_nothing_wherever_it_ends(self, opener: Opener) -> None:
        async def work() -> None:
            writer = await _written(opener(), 4)
            for after in range(10):
                for limit in range(10):
                    expected = writer.written[after : after + limit]
                    assert await opener.opened[0].read(RUN, after, limit) == expected
                    assert await opener().read(RUN, after, limit) == expected

        wait_for(work())

    def test_the_end_of_a_log_is_its_last_records_in_order(self, opener: Opener) -> None:
        async def work() -> None:
            storage = opener()
            if not isinstance(storage, ReadsEnds):
                pytest.skip("this storage reads a log from its beginning")
            await storage.create_job(RUN.job_id)
            assert await storage.end(RUN, 3) == []
            writer = await _written(opener(), 7)
            for count in (1, 3, 7, 10):
                assert await storage.end(RUN, count) == writer.written[-count:]
            await writer.append("x" * 300_000)
            assert await storage.end(RUN, 2) == writer.written[-2:]

        wait_for(work())

    def test_a_watcher_in_another_process_misses_nothing(self, opener: Opener) -> None:
        async def work() -> None:
            writer, reader = await new_writer(opener()), opener()
            for n in range(5):
                await writer.append(f"a{n}", f"b{n}")
                assert await reader.read(RUN, after=2 * n) == writer.written[-2:]
            assert await reader.read(RUN) == writer.written

        wait_for(work())

    def test_an_append_of_nothing_changes_nothing(self, storage: Storage) -> None:
        async def work() -> None:
            writer = await _written(storage, 1)
            await storage.append(RUN, writer.head.seq, [])
            assert await storage.read(RUN) == writer.written

        wait_for(work())

    def test_no_record_ends_up_in_the_log_of_another_run(self, storage: Storage) -> None:
        async def work() -> None:
            refs = [RunRef(job, f"{job}-{n}") for job in ("a", "a-1", "b") for n in (1, 2, 11)]
            writers = [await new_writer(storage, ref) for ref in refs]
            for _ in range(2):
                for writer in writers:
                    await writer.append(writer.run.run_id, "more")
            for writer in writers:
                assert await storage.read(writer.run) == writer.written

        wait_for(work())

    def test_nothing_is_lost_with_more_runs_than_files_may_be_open(self, storage: Storage) -> None:
        async def work() -> None:
            await storage.create_job("wide")
            writers = [Writer(storage, RunRef("wide", f"wide-{n}")) for n in range(1, 151)]
            for _ in range(2):
                for writer in writers:
                    await writer.append("x")
            for writer in writers:
                assert await storage.read(writer.run) == writer.written

        wait_for(work())

    @pytest.mark.parametrize("seq", [0, 1, 3, 100])
    def test_a_driver_that_does_not_know_the_end_of_a_log_cannot_write_to_it(self, storage: Storage, seq: int) -> None:
        async def work() -> None:
            writer = await new_writer(storage)
            await writer.append("a", "b")
            records, _ = seal(Head(seq, writer.head.hash), [payload("late")])
            with pytest.raises(Conflict, match="2 records"):
                await storage.append(RUN, seq, records)
            assert await storage.read(RUN) == writer.written

        wait_for(work())

    def test_no_log_begins_in_the_middle(self, storage: Storage) -> None:
        wait_for(storage.create_job(RUN.job_id))
        records, _ = seal(EMPTY_LOG, [payload("x")])
        with pytest.raises(Conflict):
            wait_for(storage.append(RUN, 1, records))

    def test_two_drivers_never_mix_their_histories(self, opener: Opener) -> None:
        async def work() -> None:
            first = await _written(opener(), 2)
            second = first.again(opener())
            assert await second.storage.read(RUN) == first.written
            await first.append("mine")
            with pytest.raises(Conflict):
                await second.append("mine too")
            assert await opener().read(RUN) == first.written
            await first.append("and on")
            assert await second.storage.read(RUN) == first.written

        wait_for(work())

    def test_a_driver_that_lost_can_continue_once_it_has_read(self, opener: Opener) -> None:
        async def work() -> None:
            first = await _written(opener(), 1)
            second = first.again(opener())
            await first.append("one")
            with pytest.raises(Conflict):
                await second.append("two")
            second.head, second.written = first.head, list(first.written)
            await second.append("three")
            with pytest.raises(Conflict):
                await first.append("four")
            assert await first.storage.read(RUN) == second.written

        wait_for(work())

    def test_no_run_begins_twice(self, opener: Opener) -> None:
        async def work() -> None:
            first, second = await new_writer(opener()), await new_writer(opener())
            await first.append("one")
            with pytest.raises(Conflict):
                await second.append("two")
            assert await second.storage.read(RUN) == first.written

        wait_for(work())

    def test_no_record_of_another_history_of_the_same_length_gets_into_a_log(self, storage: Storage) -> None:
        async def work() -> None:
            writer = await _written(storage, 1)
            _, other = seal(EMPTY_LOG, [payload(f"other {n}") for n in range(writer.head.seq)])
            records, _ = seal(other, [payload("more")])
            with pytest.raises(Conflict):
                await storage.append(RUN, other.seq, records)
            assert await storage.read(RUN) == writer.written

        wait_for(work())

    def test_no_records_that_were_not_sealed_together_pass_as_one_append(self, storage: Storage) -> None:
        async def work() -> None:
            await storage.create_job(RUN.job_id)
            one, head = seal(EMPTY_LOG, [payload("a")])
            two, _ = seal(head, [payload("b")])
            with pytest.raises(StorageError):
                await storage.append(RUN, 0, [*one, *two])
            with pytest.raises(StorageError):
                await storage.append(RUN, 0, seal(EMPTY_LOG, [payload("a"), payload("b")])[0][:1])
            assert await storage.read(RUN) == []

        wait_for(work())

    def test_no_run_makes_a_job_by_itself(self, storage: Storage) -> None:
        records, _ = seal(EMPTY_LOG, [payload("a")])
        with pytest.raises(NotFound):
            wait_for(storage.append(RunRef("nowhere", "nowhere-1"), 0, records))
        assert not wait_for(storage.has_job("nowhere"))

    @pytest.mark.parametrize("bad", ["..", "a/b", "", ".", "a\\b", "\0", "a" * 200, "a b"])
    def test_no_id_leads_out_of_the_store(self, storage: Storage, bad: str) -> None:
        async def work() -> None:
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

        wait_for(work())

    def test_closing_and_opening_again_loses_nothing(self, opener: Opener) -> None:
        async def work() -> None:
            writer = await new_writer(opener())
            for n in range(20):
                await writer.append(f"{n}")
                await writer.storage.close()
                writer = writer.again(opener())
            assert await writer.storage.read(RUN) == writer.written

        wait_for(work())

    def test_a_cancelled_append_is_never_half_done_nor_done_later(self, opener: Opener) -> None:
        async def work() -> None:
            storage = opener()
            writer = await new_writer(storage)
            await writer.append("first")
            for turns in range(12):
                lines, head = seal(writer.head, [payload("a"), payload("b")])
                writing = asyncio.create_task(storage.append(RUN, writer.head.seq, lines))
                for _ in range(turns):
                    await asyncio.sleep(0)
                writing.cancel()
                with suppress(asyncio.CancelledError):
                    await writing
                found = await storage.read(RUN)
                assert found in (writer.written, [*writer.written, *lines])
                if found != writer.written:
                    writer = Writer(storage, RUN, head, found)
                await writer.append("next")
            assert await opener().read(RUN) == writer.written

        wait_for(work())


async def _written(storage: Storage, appends: int) -> Writer:
    """A log of some appends, of one, two, three and again one record."""
    writer = await new_writer(storage)
    for n in range(appends):
        await writer.append(*(f"{n}.{i}" for i in range(n % 3 + 1)))
    return writer
