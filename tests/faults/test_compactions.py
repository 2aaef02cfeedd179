"""Killed, or failed by the system, wherever it writes, a Job that makes room in its context ends as if nothing was."""

from __future__ import annotations

from pathlib import Path

import pytest
import workload
from chaos.experiment import Assault, ExperimentSubject, Tally
from chaos.faults import FAULT_KINDS, Fault, FaultKind
from chaos.processes import Victims
from workload import spread

SOME: tuple[FaultKind, ...] = ("kill", "ENOSPC")
"""The faults of an ordinary run of the tests."""


@pytest.mark.timeout(3600)
def test_results_shrink_and_turns_are_summarised_once_wherever_a_job_dies_or_fails(
    tmp_path: Path, victims: Victims, storage: str, thorough: bool
) -> None:
    template, room = tmp_path / "template", tmp_path / "room"
    template.mkdir()
    room.mkdir()
    workload.small_window(template, tmp_path, storage)
    assault = Assault(ExperimentSubject(template, "boss", "go", workload.env(tmp_path)), victims, room)
    stored = b"".join(victim.out for victim in assault.plain().victims)
    assert stored.count(b'"type":"shrinkResults"') == stored.count(b'"type":"compactHistory"') == 2
    for kind in FAULT_KINDS if thorough else SOME:
        boundaries, tally = assault.plain().boundaries(kind), Tally()
        for at in spread(boundaries, boundaries if thorough else 3):
            tally.add(assault.disturbed(Fault(kind, at)))
        print(f"{kind}: {tally.trials} of {boundaries} boundaries, {tally.kills} kills, {tally.errors} errors")
        assert tally.findings == []
