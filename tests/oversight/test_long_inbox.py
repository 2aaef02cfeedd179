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


OPEN, ASKING = 1_500, 3
LOST = "its logs are gone or empty"


def test_thousands_of_open_jobs_are_looked_through_in_no_time_and_lost_summaries_are_derived(bench: Bench) -> None:
    async def run() -> float:
        await bench.host([tool("readTextFile", {"path": "x"})], expert("a"), max_steps=1).run("a", "q", job_id="open")
        host = bench.host([tool("askUser", {"question": "Tea?"})], expert("a", ask=True))
        for number in range(ASKING):
            await host.run("a", "q", job_id=f"asking-{number}")
        at_rest, asks = await host.storage.summary("open"), await host.storage.summary("asking-0")
        assert at_rest is not None
        assert asks is not None
        for number in range(OPEN):
            await host.storage.create_job(f"job-{number}")
            await host.storage.put_summary(f"job-{number}", at_rest.replace(b'"open"', b'"job-%d"' % number))
        await host.storage.put_summary("asking-1", b'{"id": "job-0", "status": "completed"}')
        await host.storage.put_summary("asking-2", asks.replace(b"asking-0", b"asking-2").replace(b"Tea?", b"Coffee?"))
        await host.storage.put_summary("job-0", asks.replace(b"asking-0", b"job-0"))
        for number, broken in BROKEN_SUMMARIES.items():
            await host.storage.put_summary(f"job-{number}", broken)
        began = time.process_time()
        found = await host.inbox()
        spent = time.process_time() - began
        assert {item.job_id: item.text for item in found if LOST not in item.text} == {
            f"asking-{number}": "Tea?" for number in range(ASKING)
        }
        assert [item.job_id for item in found if LOST in item.text] == ["job-0"], "its summary claims a question"
        return spent

    spent = wait_for(run(), 100)
    # with one request per object, the test server takes most of this time
    assert spent < 0.25 or bench.storage.startswith("s3:"), "0.3 s for 5,000 on a machine that does nothing else"
