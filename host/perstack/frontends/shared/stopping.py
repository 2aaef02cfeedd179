"""The signals that ask a command to stop, after cleaning up."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Generator
from contextlib import contextmanager, suppress


def stop_signals() -> tuple[signal.Signals, ...]:
    """SIGINT, SIGTERM, and the SIGHUP of a terminal that is closed, unless it is ignored already, as `nohup` does."""
    hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hangup)


@contextmanager
def stopped_by_signals() -> Generator[None]:
    """The first of these signals ends the block, with all that it cleans up, and the second the process."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    is_stopping = False

    def stop() -> None:
        nonlocal is_stopping
        if is_stopping or task is None:
            os._exit(130)
        is_stopping = True
        task.cancel()

    signals = stop_signals()
    for number in signals:
        loop.add_signal_handler(number, stop)
    try:
        with suppress(asyncio.CancelledError):
            yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
