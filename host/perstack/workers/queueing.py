"""Interfaces of this package for the kernel: the queue, and the definitions that Jobs were queued with."""

from __future__ import annotations

from perstack.engine.context.host_context import ContextSource
from perstack.engine.jobs.reader import JobReader
from perstack.engine.jobs.runner import JobRunner
from perstack.workers.queue import DispatcherQueue
from perstack.workers.queued_definition import enqueue, load_queued_context
from perstack.workers.skill_bundles import check_bundle

__all__ = ["check_bundle", "enqueue", "job_queue", "load_queued_context"]


def job_queue(source: ContextSource, reader: JobReader, runner: JobRunner) -> DispatcherQueue:
    """Return the queue of the dispatcher of the context in force."""
    return DispatcherQueue(source, reader, runner)
