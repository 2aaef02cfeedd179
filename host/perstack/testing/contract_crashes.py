"""The storage contract: torn tails and damage."""
# ruff: noqa: S101 - these are tests

from __future__ import annotations

import pytest

from perstack.core.chain import Head, open_line
from perstack.errors import Conflict, Damaged
from perstack.ports.storage import RunRef
from perstack.testing.contract_base import ContractBase
from perstack.testing.opener import JOB, RUN, Opener, Writer, new_writer, text_of, wait_for

NO_TAIL = "this storage has no tail that a crash could tear: its appends are the medium's own transactions"
NO_DAMAGE = "this storage's records cannot be reached from outside"


class CrashContract(ContractBase):
    """Promises 1 and 3 when something goes wrong."""

    def test_a_crash_at_any_byte_loses_no_earlier_append_and_shows_no_half_one(self, opener: Opener) -> None:
        async def work(torn: int) -> int:
            """In a Run of its own, tear so many bytes off, look, go on; returns how long the last append was."""
            assert opener.tear is not None
            writer = await new_writer(opener.opened[0], RunRef(JOB, f"{JOB}-{torn + 1}"))
            before = await writer.append("before")
            last = await writer.append("eins", "zwei ß")
            length = sum(len(record) + 1 for record in last)
            opener.tear(writer.run, min(torn, length))
            reader = opener.open()
            read = await reader.read(writer.run)
            assert read in (before, writer.written), f"half an append is seen after {torn} bytes were torn off"
            assert read == before or torn <= 1, f"{torn} bytes were torn off and none is missed"
            assert await reader.read(writer.run, after=1) == read[1:]
            again = Writer(reader, writer.run, _head_of(read), read)
            await again.append("on", "and on")
            assert await writer.storage.read(writer.run) == again.written
            await reader.close()
            return length

        _needs(opener.tear, NO_TAIL)
        opener()
        torn, length = 0, 1
        while torn <= length:
            length = wait_for(work(torn))
            torn += 1

    def test_a_crash_within_the_first_append_leaves_a_run_that_can_begin(self, opener: Opener) -> None:
        async def work() -> None:
            assert opener.tear is not None
            writer = await new_writer(opener())
            first = await writer.append("one", "two")
            opener.tear(RUN, len(first[-1]) + 1)
            assert await opener().read(RUN) == []
            anew = Writer(opener(), RUN)
            await anew.append("again")
            assert await opener().read(RUN) == anew.written

        _needs(opener.tear, NO_TAIL)
        wait_for(work())

    @pytest.mark.parametrize("tail", [b"\0", b"\0" * 4096, b'{"type":"te', b'{"type":"te\0\0\0\0', b"garbage"])
    def test_what_a_crash_leaves_behind_the_last_record_harms_nothing(self, opener: Opener, tail: bytes) -> None:
        async def work() -> None:
            assert opener.extend is not None
            writer = await _three_appends(opener)
            opener.extend(RUN, tail)
            later = writer.again(opener())
            assert await later.storage.read(RUN) == writer.written
            assert await writer.storage.read(RUN, after=1) == writer.written[1:]
            await later.append("on")
            assert await opener().read(RUN) == later.written
            assert await writer.storage.read(RUN) == later.written

        _needs(opener.extend, NO_TAIL)
        wait_for(work())

    def test_a_driver_whose_log_was_cut_behind_its_back_cannot_hide_the_gap(self, opener: Opener) -> None:
        async def work() -> None:
            assert opener.tear is not None
            writer = await _three_appends(opener)
            opener.tear(RUN, 5)
            # its records are gone, so what it would add does not follow what is there
            with pytest.raises(Conflict):
                await writer.append("more")

        _needs(opener.tear, NO_TAIL)
        wait_for(work())

    @pytest.mark.parametrize("index", [0, 1, 2, 4, 5])
    def test_no_damage_passes_as_history_and_all_before_it_stays_readable(self, opener: Opener, index: int) -> None:
        async def work() -> None:
            assert opener.damage is not None
            writer = await _three_appends(opener)
            opener.damage(RUN, index)
            reader = opener()
            with pytest.raises(Damaged) as raised:
                await reader.read(RUN)
            assert raised.value.readable == index
            assert f"{index + 1}" in str(raised.value)
            assert reader.location in str(raised.value)
            assert await reader.read(RUN, limit=index) == writer.written[:index]
            assert await opener().read(RUN, limit=index) == writer.written[:index]

        _needs(opener.damage, NO_DAMAGE)
        wait_for(work())

    def test_a_changed_last_record_is_not_dropped_as_if_a_crash_had_torn_it(self, opener: Opener) -> None:
        async def work() -> None:
            assert opener.damage is not None
            writer = await _three_appends(opener)
            opener.damage(RUN, len(writer.written) - 1)
            with pytest.raises(Damaged) as raised:
                await opener().read(RUN)
            assert raised.value.readable == len(writer.written) - 1

        _needs(opener.damage, NO_DAMAGE)
        wait_for(work())

    def test_damage_of_one_run_spares_every_other(self, opener: Opener) -> None:
        async def work() -> None:
            assert opener.damage is not None
            await _three_appends(opener)
            other = Writer(opener(), RunRef(RUN.job_id, f"{RUN.job_id}-2"))
            await other.append("a", "b")
            opener.damage(RUN, 0)
            assert [text_of(record) for record in await opener().read(other.run)] == ["a", "b"]

        _needs(opener.damage, NO_DAMAGE)
        wait_for(work())


async def _three_appends(opener: Opener) -> Writer:
    """A log of 1 + 2 + 3 records, the texts of some not ASCII."""
    writer = await new_writer(opener())
    await writer.append("one")
    await writer.append("two", "drei ß")
    await writer.append("vier 四", "five", "6")
    return writer


def _head_of(records: list[bytes]) -> Head:
    return Head(len(records), open_line(records[-1]).hash)


def _needs(hook: object, reason: str) -> None:
    if hook is None:
        pytest.skip(reason)
