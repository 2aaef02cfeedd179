"""Wherever a request, or its answer, is cut off: nothing is lost, and nothing is done twice."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import get_args

import pytest
from cutting_proxy import Cutting, Way, cutting
from s3_server import BUCKET

from perstack.ports.storage import Storage
from perstack.testing.storage_fixture import JOB, RUN, new_writer, wait_for
from perstack_s3.plugin import S3Storages

PER_FAILURE = 10
LONGEST = 10
"""Seconds of one round, on a machine that does much else."""
EVERY = os.environ.get("PERSTACK_FAULTS") == "all"


@pytest.fixture(scope="module")
def cut(s3: str) -> Iterator[tuple[str, Cutting]]:
    with cutting(s3) as both:
        yield both


def wait_within(work: Coroutine[object, object, None], seconds: float) -> None:
    asyncio.run(asyncio.wait_for(work, seconds))


def open_storage(endpoint: str) -> Storage:
    location = f"//{BUCKET}/{secrets.token_hex(4)}"
    return S3Storages().open(location, Path.cwd(), setting={"endpoint": endpoint})


async def work(storage: Storage) -> None:
    """What a driver does, and what a list is made of."""
    writer = await new_writer(storage)
    async with storage.lease(JOB, "me"):
        for n in range(3):
            await writer.append(f"{n}", "and more")
        name = await storage.put_blob(JOB, b"a blob")
        await storage.put_summary(JOB, b"{}")
        await storage.put_entry(JOB, 6, b'{"x":1}', synced=True)
    await writer.append("without a lease")
    assert await storage.read(RUN) == writer.written
    assert (await storage.runs(JOB)).ids == (RUN.run_id,)
    assert await storage.blob(JOB, name) == b"a blob"
    assert await storage.summary(JOB) == b"{}"
    assert await storage.entries() == {JOB: b'{"x":1}'}
    assert await storage.lease_info(JOB) is None
    await storage.delete_job(JOB)
    assert (await storage.jobs()).ids == ()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("way", get_args(Way))
def test_every_call_succeeds_once_whichever_request_fails(cut: tuple[str, Cutting], way: Way) -> None:
    endpoint, state = cut
    state.fail(0, way)
    began = time.monotonic()
    wait_within(work(open_storage(endpoint)), 100)
    requests, failures, took = state.requests, 0, time.monotonic() - began
    for number in range(1, requests + 1, 1 if EVERY else 7):
        state.fail(number, way)
        began = time.monotonic()
        # what it takes undisturbed follows the machine, and a failure costs a try more
        wait_within(work(open_storage(endpoint)), PER_FAILURE + 5 * took)
        took = min(max(took, time.monotonic() - began), LONGEST)
        failures += 1
    print(f"{failures} of {requests} requests were {way}: every call succeeded, once")


def test_a_server_that_is_gone_is_an_error_of_one_line_within_a_bound(cut: tuple[str, Cutting]) -> None:
    with pytest.raises(Exception, match=r"s3://.*cannot be reached") as raised:
        wait_for(open_storage("http://127.0.0.1:9").has_job(JOB))
    assert "\n" not in str(raised.value)
