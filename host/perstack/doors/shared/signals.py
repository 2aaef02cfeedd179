"""Handling of the signals that ask a command to stop, suspend or continue."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import NoReturn

from perstack.doors.shared.output_stream import hurry_output

INTERRUPTED = 130
_ECHO_S = 0.1  # a second signal within it counts as the first: `timeout` and nested shells send each twice


def exit_now() -> NoReturn:
    """End the process at once, without cleaning up."""
    os._exit(INTERRUPTED)


@contextmanager
def handle_stop_signals(
    first: Callable[[], object],
    again: Callable[[], object] = exit_now,
    *,
    interrupt: Callable[[], object] | None = None,
) -> Generator[None]:
    """Within the block, call `first` at the first stop signal and `again` at each later one.

    Stop signals are SIGINT, SIGTERM, and SIGHUP of a closed terminal unless it is ignored already, as by `nohup`. If
    `interrupt` is given, it is called at each SIGINT instead. Call it only in a coroutine.
    """
    loop = asyncio.get_running_loop()
    first_at: float | None = None

    def stop() -> None:
        nonlocal first_at
        if first_at is None:
            first_at = loop.time()
            hurry_output()
            first()
        elif loop.time() - first_at > _ECHO_S:
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


def on_suspended(callback: Callable[[], object]) -> None:
    """Call `callback` at Ctrl-Z or SIGTSTP instead of suspending, from now on. Call it only in a coroutine."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGTSTP, callback)


def on_continued(callback: Callable[[], object]) -> None:
    """Call `callback` each time the process continues after Ctrl-Z, as the screen may have changed.

    Only in a coroutine.
    """
    asyncio.get_running_loop().add_signal_handler(signal.SIGCONT, callback)


@contextmanager
def cancel_on_stop_signal() -> Generator[None]:
    """Cancel the block at the first stop signal, so that it can clean up; end the process at the second."""
    task = asyncio.current_task()

    def on_first_signal() -> None:
        if task is None:
            exit_now()
        task.cancel()

    with handle_stop_signals(on_first_signal), suppress(asyncio.CancelledError):
        yield
