"""Workers on three machines, with all that may happen to them. `make cluster-test` is the long one."""

from __future__ import annotations

import asyncio
import secrets

import pytest
from cluster import endure
from namespaces import there_are_namespaces


@pytest.mark.linux
@pytest.mark.timeout(150)
@pytest.mark.skipif(not there_are_namespaces(), reason="needs root, and leave to make network namespaces")
def test_every_job_is_done_once_though_workers_die_freeze_and_are_cut_off(capsys: pytest.CaptureFixture[str]) -> None:
    seed = secrets.randbelow(10**6)
    print(f"seed {seed}")
    counts, done = asyncio.run(endure(jobs=30, workers=3, seconds=100, seed=seed))
    assert counts.jobs == 30
    assert sum(done.values()) > 0
    with capsys.disabled():
        print(f"\n{counts} ({dict(done)}, seed {seed})")
