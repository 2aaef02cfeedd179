"""A disk may fail after writing an event: the next process at the latest sends the anchor the written head."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hosts import OPENED, Bench, expert, open_storage, wait_for

from perstack.core.definitions.project import Audit, Project
from perstack.core.definitions.settings import Overrides
from perstack.errors import StorageError
from perstack.host import Host
from perstack.ports.storage import RunRef, Storage
from perstack.testing.crashing_storage import CrashingStorage
from perstack.testing.scripted import ScriptedProvider, text


class FailsAfter(CrashingStorage):
    """A storage that writes the third append and then reports an error."""

    async def append(self, run: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        await super().append(run, expected_seq, records)
        if self.appends == 3:
            raise StorageError(f"{run.run_id}: input/output error")


def anchored(bench: Bench, away: Path, storage: str | Storage) -> Host:
    provider = ScriptedProvider([text("Hello.")])
    host = Host(
        Project(experts={"a": expert("a")}, audit=Audit(anchor=f"file:{away}")),
        workspace=bench.workspace,
        storage=storage,
        env={"PATH": "/usr/bin:/bin"},
        overrides=Overrides(provider="scripted"),
        plugins=[provider],
    )
    OPENED.append(host)
    return host


def test_an_event_that_was_kept_though_its_write_failed_has_a_record_after_the_next_process(
    bench: Bench, tmp_path_factory: pytest.TempPathFactory
) -> None:
    away = tmp_path_factory.mktemp("away")

    async def work() -> None:
        failing = anchored(bench, away, FailsAfter(open_storage(bench.storage, bench.workspace)))
        with pytest.raises(StorageError):
            await failing.run("a", "q", job_id="job")
        following = anchored(bench, away, bench.storage)
        await following.run("a", "q", job_id="next")
        report = await following.audit.verify("job")
        assert report.findings == ()
        assert [one.message for one in report.unchecked if one.kind == "anchor"] == []

    wait_for(work())
