"""Concurrency helpers: work that must not be left half done, blocking calls in threads, and tasks."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, TypeVar, cast

from perstack.dataclass import dataclass
from perstack.errors import UsageError

if TYPE_CHECKING:
    from pydantic import JsonValue

    from perstack.core.schemas.json_schema import Checker, Violation

# Errors inside exception groups, of which messages for people name only the first.


def leaf_errors(error: BaseException) -> list[BaseException]:
    """Return the exceptions in a group and its nested groups."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for part in cast("BaseExceptionGroup[BaseException]", error).exceptions for leaf in leaf_errors(part)]


# Blocking calls that cannot be cancelled, such as a read from a network disk that went away.

_T = TypeVar("_T")


async def in_daemon_thread(work: Callable[[], _T], name: str) -> _T:
    """Run `work` as `asyncio.to_thread` does, but let the process exit while it blocks. `name` is the thread's name."""
    future: Future[_T] = Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised where it is awaited
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await asyncio.wrap_future(future)


async def shield_until_done(work: Coroutine[Any, Any, _T]) -> _T:
    """Await work that must not be left half done. A cancellation is raised afterwards, unless the work fails."""
    task = asyncio.ensure_future(work)
    cancelled = await wait_despite_cancellation(task)
    if cancelled is not None and (task.cancelled() or task.exception() is None):
        raise cancelled
    return task.result()


async def wait_despite_cancellation(
    task: asyncio.Task[_T], on_cancel: Callable[[], object] = lambda: None
) -> asyncio.CancelledError | None:
    """Wait for a task, calling `on_cancel` at each cancellation; return the last, which the caller must raise."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
            on_cancel()
    return cancelled


# Work in a separate task, for callers whose task may have other work. Python ends the event loop when a task raises
# SystemExit or KeyboardInterrupt, before other tasks could record anything: use `leave_own_task` in a callback.


@dataclass(slots=True)
class _SeparateTask:
    """The task of one `in_own_task`, and the error that it leaves with."""

    task: asyncio.Task[Any] | None = None
    exit: BaseException | None = None  # error that the caller raises once the task has ended


_OWN_TASK: ContextVar[_SeparateTask | None] = ContextVar("own_task", default=None)


async def in_own_task(work: Coroutine[Any, Any, _T]) -> _T:
    """Run the work in a separate task and return its result. If the caller is cancelled, so is the work.

    An error of the work takes precedence over the cancellation: a record that could not be written must be reported.
    Raises CancelledError if the work was cancelled, by this caller or another, and the error that `leave_own_task` got.
    """
    separate_task, context = _SeparateTask(), copy_context()
    context.run(_OWN_TASK.set, separate_task)
    separate_task.task = task = asyncio.create_task(work, context=context)
    cancelled = await wait_despite_cancellation(task, task.cancel)
    if separate_task.exit is not None and (task.cancelled() or task.exception() is None):
        raise separate_task.exit
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result


def leave_own_task(error: BaseException) -> bool:
    """Cancel the work of `in_own_task` that runs this code, and raise `error` in its caller.

    Return False if this code does not run under `in_own_task`.
    """
    separate_task = _OWN_TASK.get()
    if separate_task is None or separate_task.task is None or not separate_task.task.cancel():
        return False
    separate_task.exit = separate_task.exit or error
    return True


class HeldExit(Exception):
    """Carrier of a SystemExit or KeyboardInterrupt out of a task, to the code that reads its result."""

    def __init__(self, exit: BaseException) -> None:
        """Keep the exception for `held_result`."""
        super().__init__(type(exit).__name__)
        self.exit = exit


async def hold_exit(work: Coroutine[Any, Any, _T]) -> _T:
    """Await the work of a whole task. Raises HeldExit in place of SystemExit and KeyboardInterrupt."""
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:
        raise HeldExit(error) from error


def held_result(task: asyncio.Task[_T]) -> _T:
    """Return the result of a task of `hold_exit` that has ended. Raises its error, or the exit that it held."""
    try:
        return task.result()
    except HeldExit as held:
        raise held.exit from None


def run_to_end(work: Callable[[], Coroutine[Any, Any, _T]], name: str) -> _T:
    """Run the work in a new event loop. Raises UsageError inside a running one, where `name` must be awaited.

    Ctrl-C cancels the work, and raises KeyboardInterrupt when it has ended.
    """
    is_inside = True
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        is_inside = False
    if is_inside:
        raise UsageError(f"{name}_sync cannot be called inside a running event loop: write `await {name}(…)`")
    return asyncio.run(work())  # outside of the `except` block, which would become the context of each error


# The speed of a storage's medium.

_SLOW_FROM_S = 0.001  # mean seconds of a slow operation; switching threads costs about a tenth

_LATEST_WEIGHT = 0.3  # weight of the latest measurement


class LatencyMonitor:
    """Moving average of operations' duration: slow ones run in a thread, so that Runs do not wait for others' syncs."""

    def __init__(self) -> None:
        """Assume a fast medium until operations are measured."""
        self._mean = 0.0

    @property
    def is_slow(self) -> bool:
        """True if the next operation should run in a thread."""
        return self._mean > _SLOW_FROM_S

    @contextmanager
    def measure(self) -> Generator[None]:
        """Measure the operation in the block."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(time.perf_counter() - began)

    def add(self, seconds: float) -> None:
        """Add the duration of one operation, in seconds."""
        self._mean += _LATEST_WEIGHT * (seconds - self._mean)


# Background tasks.

_CANCEL_INTERVAL_S = 0.5  # seconds until a task is cancelled again: Python 3.11's `wait_for` can lose a cancellation


async def cancel_and_wait(task: asyncio.Task[None] | None) -> None:
    """Cancel a task and wait for its end. Do nothing for None and for a task of another event loop."""
    if task is None or task.get_loop() is not asyncio.get_running_loop():
        return
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_CANCEL_INTERVAL_S)


async def violation_of(checker: Checker, value: JsonValue) -> Violation | None:
    """Return how a value violates a schema, or None. A check that would take many seconds counts as a violation."""
    from perstack.core.schemas.json_schema import FULL_STEPS, QUICK_STEPS, Meter

    violation = checker.violation(value, Meter(QUICK_STEPS))
    if violation is None or not violation.is_unfinished:
        return violation
    return await asyncio.to_thread(checker.violation, value, Meter(FULL_STEPS))
