"""The terminal program on a Host, with keys and bounded waits for the screen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from textual import events
from textual.pilot import Pilot

from perstack.host import Host
from perstack_tui.app import StartApp

SECONDS = 20


class Screen:
    """The screen and the keyboard of a user."""

    def __init__(self, app: StartApp, pilot: Pilot[int]) -> None:
        self.app = app
        self._pilot = pilot

    def text(self) -> str:
        """Return the content of the screen, line by line."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text.rstrip() for strip in strips)

    async def press(self, *keys: str) -> None:
        await self._pilot.press(*keys)

    async def type(self, text: str) -> None:
        """Type a text, character by character."""
        await self._pilot.press(*({" ": "space", "\n": "ctrl+j"}.get(char, char) for char in text))

    async def paste(self, text: str) -> None:
        """Paste a text at the cursor, as a terminal does."""
        self.app.post_message(events.Paste(text))
        await self._pilot.pause()

    async def resized(self, width: int, height: int) -> None:
        """Resize the terminal."""
        await self._pilot.resize_terminal(width, height)

    async def sees(self, *words: str) -> str:
        """Wait, with a timeout, until all of these words are on the screen together."""
        return await self.wait_until(lambda text: all(word in text for word in words), f"{words}")

    async def sees_no(self, word: str) -> str:
        """Wait until a word is not on the screen."""
        return await self.wait_until(lambda text: word not in text, f"no {word}")

    async def looks_into(self, job_id: str) -> None:
        """Open the checkpoints of this Job, which must be selected in the History."""
        await self.press("f2")
        await self.sees(f"({job_id})")
        await self.press("tab")

    async def pictured(
        self, plain: Callable[[str], str], wanted: str | None, said: Callable[[str], str]
    ) -> tuple[str, str]:
        """Return the screen's text and picture, once the picture is `wanted` or has long been unchanged."""
        found, same = "", 0
        while same < 10 and said(found) != wanted:
            await self._pilot.pause(0.1)  # the duration of a frame
            now = plain(self.app.export_screenshot(title="perstack start"))
            found, same = now, same + 1 if said(now) == said(found) else 0  # a cursor may blink
        return self.text(), found

    async def wait_until(self, holds: Callable[[str], bool], what: str) -> str:
        try:
            async with asyncio.timeout(SECONDS):
                while not holds(self.text()):
                    await self._pilot.pause(0.02)  # a poll of the screen, bounded above
        except TimeoutError:
            raise AssertionError(f"waited in vain for {what} on:\n{self.text()}") from None
        return self.text()


@asynccontextmanager
async def run_app(
    host: Host, *, size: tuple[int, int] = (80, 24), app: StartApp | None = None, notices: bool = False, **options
) -> AsyncGenerator[Screen]:
    """Run the program on a Host without a terminal. At the end nothing is left running.

    With `notices`, temporary notifications are visible too.
    """
    app = app or StartApp(host, **options)
    async with app.run_test(size=size, notifications=notices) as pilot:
        try:
            yield Screen(app, pilot)
        finally:
            for session in app.sessions:
                session.interrupt()
            await asyncio.gather(*(session.wait_until_idle() for session in app.sessions))


def at_once(screen: Screen, *keys: str) -> None:
    """Send keys faster than the program handles them, as from a paste or over a slow line."""
    for key in keys:
        screen.app.post_message(events.Key(key, key if len(key) == 1 else None))
