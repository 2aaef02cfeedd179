"""The linear user interface on a Host, with typed lines and bounded waits for output."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from perstack.doors.shared.screen import Screen, StyledText, sanitized
from perstack.host import Host
from perstack_tui.plain.program import PlainProgram

SECONDS = 20


class Person:
    """A user who types lines and reads the output below them."""

    def __init__(self, host: Host) -> None:
        self.lines: list[str] = []
        self.dropped = 0
        self.program = PlainProgram(host, None, self._put, screen=lambda: Screen(80, False), discard=self._discard)

    def _put(self, *parts: str | StyledText) -> None:
        self.lines.append(sanitized(parts).rstrip())

    def _discard(self) -> None:
        self.dropped += 1

    async def types(self, line: str, *sees: str) -> str:
        """Type a line, wait until all of these words have appeared after it, and return the output."""
        self.lines.clear()
        await self.program.on_line(line)
        return await self.sees(*sees)

    async def repeat_until(self, action: Callable[[], Awaitable[str]], word: str) -> None:
        """Repeat an action until its output has this word."""
        async with asyncio.timeout(SECONDS):
            while word not in await action():
                await asyncio.sleep(0.01)  # a poll, bounded above

    async def sees(self, *words: str) -> str:
        try:
            async with asyncio.timeout(SECONDS):
                while not all(word in "\n".join(self.lines) for word in words):
                    await asyncio.sleep(0.01)  # a poll, bounded above
        except TimeoutError:
            raise AssertionError(f"waited without success for {words} in:\n" + "\n".join(self.lines)) from None
        return "\n".join(self.lines)


@asynccontextmanager
async def begin_person(host: Host, **options: str) -> AsyncGenerator[Person]:
    person = Person(host)
    person.program.begin(**options)
    try:
        yield person
    finally:
        await person.program.leave()
