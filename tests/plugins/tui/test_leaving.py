"""Leaving while a Job is driven and its storage or model does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hosts import Bench, expert, wait_for
from terminal_app import run_app

from perstack.ports.storage import RunRef, Storage
from perstack.testing.crashing_storage import CrashingStorage
from perstack.testing.scripted import text

WRITER = expert("writer", description="Writes haiku")


class HeldStorage(CrashingStorage):
    """A storage whose server answers only while the event `answers` is set."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.answers = asyncio.Event()
        self.answers.set()

    async def append(self, run: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        await self.answers.wait()
        await super().append(run, expected_seq, records)


def test_while_it_waits_to_leave_it_says_so_and_nothing_else_is_begun(bench: Bench) -> None:
    async def person() -> None:
        held: list[HeldStorage] = []

        def hold(inner: Storage) -> Storage:
            held.append(HeldStorage(inner))
            return held[0]

        host = bench.host([text("Slow words", delay_ms=60_000)], WRITER, wrap=hold)
        async with run_app(host, expert="writer", query="A haiku") as screen:
            await screen.sees("Slow", "● at work")
            held[0].answers.clear()
            await screen.press("ctrl+q")
            await screen.sees("1 Job is at work", "keep waiting")
            await screen.press("i")
            await screen.sees("Interrupting and recording it; the program then exits.", "leave at once")
            await screen.press("escape", "w", "enter")
            await screen.sees("leave at once")
            assert screen.app.is_running
            held[0].answers.set()
            while screen.app.return_value is None:  # bounded by `wait_for`
                await asyncio.sleep(0.01)
        assert screen.app.return_value == 0

    wait_for(person())
