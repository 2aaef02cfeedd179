"""The signals that ask a command to stop, after cleaning up, and the one that says it continues."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import NoReturn

INTERRUPTED = 130
"""The exit status of a process that was interrupted."""

_ECHO = 0.1
"""Seconds within which a second signal is the first one again: `timeout` sends two, and so do shells around shells."""


def leave() -> NoReturn:
    """End the process at once."""
    os._exit(INTERRUPTED)


@contextmanager
def on_stop_signals(
    first: Callable[[], object],
    again: Callable[[], object] = leave,
    *,
    interrupt: Callable[[], object] | None = None,
) -> Generator[None]:
    """Within the block, call `first` at the first signal that asks to stop, and `again` at each later one.

    They are SIGINT, SIGTERM, and the SIGHUP of a terminal that is closed, unless it is ignored already, as `nohup`
    does. Where Ctrl-C does not ask for that, `interrupt` is called at each SIGINT in their place. Only in a coroutine.
    """
    loop = asyncio.get_running_loop()
    since: float | None = None

    def stop() -> None:
        nonlocal since
        if since is None:
            since = loop.time()
            first()
        elif loop.time() - since > _ECHO:
            again()

    hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    signals = (signal.SIGINT, signal.SIGTERM, *hangup)
    for number in signals:
        loop.add_signal_handler(number, interrupt if interrupt and number == signal.SIGINT else stop)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def on_suspended(then: Callable[[], object]) -> None:
    """From now on, call `then` in place of being stopped by Ctrl-Z or a SIGTSTP. Only in a coroutine."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGTSTP, then)


def on_continued(then: Callable[[], object]) -> None:
    """From now on, call `then` when the process continues after Ctrl-Z: others have written to the terminal meanwhile.
    Only in a coroutine."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGCONT, then)


@contextmanager
def stopped_by_signals() -> Generator[None]:
    """The first of these signals ends the block, with all that it cleans up, and the second the process."""
    task = asyncio.current_task()

    def first() -> None:
        if task is None:
            leave()
        task.cancel()

    with on_stop_signals(first), suppress(asyncio.CancelledError):
        yield
