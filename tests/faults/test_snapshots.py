"""Killed, or failed by the system, wherever it writes, a Job has whole snapshots or none, and ends as without."""

from __future__ import annotations

from pathlib import Path

import pytest
import workload
from chaos.experiment import Assault, ExperimentSubject, Tally
from chaos.faults import FAULT_KINDS, Fault, FaultKind
from chaos.processes import Victims
from workload import spread

SOME: tuple[FaultKind, ...] = ("kill", "torn", "ENOSPC", "EMFILE")
"""The faults of an ordinary run of the tests."""


@pytest.mark.timeout(7200)
def test_snapshots_are_whole_or_not_there_wherever_a_job_dies_or_fails(
    tmp_path: Path, victims: Victims, storage: str, thorough: bool
) -> None:
    template, room = tmp_path / "template", tmp_path / "room"
    template.mkdir()
    room.mkdir()
    workload.team(template, tmp_path, storage)
    definition = template / "perstack.toml"
    definition.write_text("workspace = { snapshots = true }\n" + definition.read_text())
    for number in range(12):
        (template / f"file{number}.txt").write_text(f"{number}\n" * 100)
    assault = Assault(ExperimentSubject(template, "boss", "go", workload.env(tmp_path)), victims, room)
    stored = b"".join(victim.out for victim in assault.plain().victims)
    assert stored.count(b'"type":"recordSnapshot"') > 8
    for kind in FAULT_KINDS if thorough else SOME:
        boundaries, tally = assault.plain().boundaries(kind), Tally()
        for at in spread(boundaries, boundaries if thorough else 2):
            tally.add(assault.disturbed(Fault(kind, at)))
        print(f"{kind}: {tally.trials} of {boundaries} boundaries, {tally.kills} kills, {tally.errors} errors")
        assert tally.findings == []
