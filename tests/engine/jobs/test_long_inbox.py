"""An inbox over thousands of Jobs."""

from __future__ import annotations

import time

from hosts import Bench, expert, wait_for

from perstack.testing.scripted import tool

BROKEN_SUMMARIES = {
    7: b"[" * 100_000,
    8: b'{"id": "job-8", "status": 7}',
    9: b'{"id": "job-9"}',
    10: b'{"id": "job-10", "status": "stoppedByInteractiveTool", "asking": {"text": "Coffee?"}}',
    11: b'["id", "status"]',
    12: b'{"id": "job-12", "status": "stoppedByInteractiveTool", "asking": "\xff"}',
}
"""Unreadable summaries by Job number. These Jobs have no log to recompute their summary from."""


def test_thousands_of_open_jobs_are_looked_through_in_no_time_and_lost_summaries_are_derived(bench: Bench) -> None:
    async def run() -> float:
        host = bench.host([tool("askUser", {"question": "Tea?"})], expert("a", ask=True))
        await host.run("a", "q", job_id="job-0")
        await host.run("a", "q", job_id="other")
        written = await host.storage.summary("job-0")
        assert written is not None
        for number in range(1, 1_500):
            await host.storage.create_job(f"job-{number}")
            await host.storage.put_summary(f"job-{number}", written.replace(b"job-0", b"job-%d" % number))
        await host.storage.put_summary("other", b'{"id": "job-0", "status": "completed"}')
        for number, broken in BROKEN_SUMMARIES.items():
            await host.storage.put_summary(f"job-{number}", broken)
        began = time.process_time()
        found = await host.inbox()
        spent = time.process_time() - began
        assert {item.job_id for item in found} == {
            "other",
            *(f"job-{n}" for n in range(1_500) if n not in BROKEN_SUMMARIES),
        }
        assert {item.text for item in found} == {"Tea?"}
        return spent

    spent = wait_for(run(), 100)
    # with one request per object, the test server takes most of this time
    assert spent < 0.25 or bench.storage.startswith("s3:"), "0.3 s for 5,000 on a machine that does nothing else"
