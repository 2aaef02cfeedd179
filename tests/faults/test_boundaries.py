"""Killed, or failed by the system, at each thing that it does to the disk, a Job goes on and ends as if nothing was."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import workload
from chaos.experiment import Assault, ExperimentSubject, Tally
from chaos.faults import FAULT_KINDS, Fault, FaultKind
from chaos.processes import Victims
from workload import spread

TRIALS = 3
"""Of each kind on each storage, spread over the boundaries, in an ordinary run of the tests."""
KILLS = 8
"""At random instants on each storage, in an ordinary run of the tests."""


@pytest.fixture
def assault(tmp_path: Path, victims: Victims, storage: str) -> Assault:
    template, room = tmp_path / "template", tmp_path / "room"
    template.mkdir()
    room.mkdir()
    workload.team(template, tmp_path, storage)
    return Assault(ExperimentSubject(template, "boss", "go", workload.env(tmp_path)), victims, room)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_a_job_ends_the_same_whichever_boundary_it_dies_or_fails_at(
    assault: Assault, kind: FaultKind, thorough: bool
) -> None:
    boundaries, tally = assault.plain().boundaries(kind), Tally()
    assert boundaries > 20
    for at in spread(boundaries, boundaries if thorough else TRIALS):
        tally.add(assault.disturbed(Fault(kind, at)))
    print(f"{kind}: {tally.trials} of {boundaries} boundaries, {tally.kills} kills, {tally.errors} errors")
    assert tally.kills + tally.errors > 0
    assert tally.findings == []


@pytest.mark.timeout(3600)
def test_a_job_ends_the_same_whenever_its_processes_are_killed(assault: Assault, thorough: bool) -> None:
    chance, tally = random.Random(1), Tally()
    longest = max(victim.seconds for victim in assault.plain().victims)
    while tally.kills < (120 if thorough else KILLS):
        tally.add(assault.kill_after(*(chance.uniform(0, longest) for _ in range(6))))
    print(f"random: {tally.trials} Jobs, {tally.kills} kills")
    assert tally.findings == []
