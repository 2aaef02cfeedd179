"""Workers on three machines, with all that may happen to them. `make cluster-test` is the long one."""

from __future__ import annotations

import asyncio
import secrets

import pytest
from cluster import endure
from cluster_harms import HARMS
from namespaces import there_are_namespaces


@pytest.mark.linux
@pytest.mark.timeout(400)
@pytest.mark.skipif(not there_are_namespaces(), reason="needs root, and leave to make network namespaces")
def test_every_job_is_done_once_though_workers_die_freeze_and_are_cut_off(capsys: pytest.CaptureFixture[str]) -> None:
    seed = secrets.randbelow(10**6)
    print(f"seed {seed}")
    counts, done = asyncio.run(endure(40, 3, 300, seed, pause=(0.5, 1.2), delay=1000))
    assert counts.jobs >= 40
    assert all(done[name] for name in HARMS)
    assert counts.taken_over > 0
    assert counts.told > 0
    assert counts.occurrences > 0
    with capsys.disabled():
        print(f"\n{len(HARMS)} harms, seed {seed}", *counts.table(), sep="\n")
