"""Jobs recorded by earlier versions open, verify and replay in this version.

A history is the log of each Run of one Job, one file a Run, as the filesystem storage wrote it. New ones are added by
copying `perstack/jobs/JOB/runs/RUN/events.jsonl` to `tests/histories/RUN.jsonl`, and the Job's blobs to
`tests/histories/blobs`; old ones are never changed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hosts import wait_for

from perstack.core.base.chain import open_line
from perstack.core.base.ids import job_of_run
from perstack.core.definitions.project import Project
from perstack.host import Host
from perstack.ports.storage import RunRef

HISTORIES = Path(__file__).parents[2] / "histories"
JOBS = sorted({job_of_run(path.stem) for path in HISTORIES.glob("*.jsonl")})
WITH_DIGESTS = {"requests", "approvals"}
"""Jobs recorded since events have digests of requests."""


@pytest.mark.parametrize("job_id", JOBS)
@pytest.mark.parametrize("storage", ["file:perstack", "sqlite:perstack/state.db"])
def test_a_recorded_job_opens_verifies_and_replays(job_id: str, storage: str, tmp_path: Path) -> None:
    host = Host(Project(), workspace=tmp_path, storage=storage, env={})

    async def check() -> None:
        await host.storage.create_job(job_id)
        for blob in (HISTORIES / "blobs").iterdir():
            await host.storage.put_blob(job_id, blob.read_bytes())
        for path in HISTORIES.glob(f"{job_id}-*.jsonl"):
            await append_as_recorded(host, RunRef(job_id, path.stem), path.read_bytes().splitlines())
        assert (await host.audit.verify(job_id)).findings == ()
        replayed = await host.audit.replay(job_id)
        assert replayed.findings == ()
        assert (replayed.checked.requests > 0, replayed.is_complete) == ((job_id in WITH_DIGESTS),) * 2
        loaded = await host.jobs.load(job_id)
        assert len(loaded.runs) == len(list(HISTORIES.glob(f"{job_id}-*.jsonl")))
        assert (await host.job(job_id)).lifecycle == "completed"
        await host.close()

    wait_for(asyncio.wait_for(check(), 30))


async def append_as_recorded(host: Host, ref: RunRef, lines: list[bytes]) -> None:
    """Repeat the recorded appends, each with its original number of lines."""
    done = 0
    while done < len(lines):
        size = open_line(lines[done]).batch
        await host.storage.append(ref, done, lines[done : done + size])
        done += size


def test_there_are_histories() -> None:
    assert len(JOBS) >= 4
