"""The trace of a recorded Job, in OTLP JSON. Unfinished spans, as in a running Job, are left out."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from perstack.host import Host
from perstack_otel.otlp_json import request_line
from perstack_otel.spans import RunSpans, TraceSpan

_MAX_SPANS_PER_LINE = 512  # as many as the SDK sends in one request
_EVENTS_PER_READ = 1_000


async def trace_of_job(host: Host, job_id: str) -> bytes:
    """Return the trace of a Job without content. Raises NotFound and StorageError, such as Damaged."""
    return await _trace(host, job_id, content=False)


async def trace_with_content_of_job(host: Host, job_id: str) -> bytes:
    """Return the trace of a Job with texts, arguments and results. Raises NotFound and StorageError."""
    return await _trace(host, job_id, content=True)


async def _trace(host: Host, job_id: str, *, content: bool) -> bytes:
    lines: list[bytes] = []
    spans: list[TraceSpan] = []
    for run in (await host.job(job_id)).runs:
        async with aclosing(spans_of_run(host, job_id, run.id, content=content)) as finished:
            async for span in finished:
                spans.append(span)
                if len(spans) == _MAX_SPANS_PER_LINE:
                    lines.append(request_line(spans))
                    spans = []
    if spans:
        lines.append(request_line(spans))
    return b"".join(lines)


async def spans_of_run(host: Host, job_id: str, run_id: str, *, content: bool = False) -> AsyncGenerator[TraceSpan]:
    """Yield the finished spans of a Run in the order of their ends."""
    fold, after = RunSpans(content=content), 0
    while lines := await host.jobs.events(run_id, job_id=job_id, after=after, limit=_EVENTS_PER_READ):
        for line in lines:
            for span in fold.apply(line.event, line.head.hash):
                yield span
        after += len(lines)
