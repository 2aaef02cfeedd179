"""Killed where it writes, a Job runs what a person has approved of once, and nothing else, in a delegate too."""

from __future__ import annotations

from pathlib import Path

import pytest
import workload
from chaos.experiment import Assault, ExperimentSubject, Tally
from chaos.faults import FAULT_KINDS, Fault
from chaos.processes import Victims
from workload import spread

RULES = """
[permissions]
ask = ["appendTextFile(boss.txt)", "appendTextFile(leaf.txt)", "delegate/right"]
"""
TRIALS = 2
"""Of each kind, spread over the boundaries, in an ordinary run of the tests."""


@pytest.mark.timeout(3600)
def test_an_approved_call_is_run_once_whichever_boundary_its_job_dies_or_fails_at(
    tmp_path: Path, victims: Victims, thorough: bool
) -> None:
    template, room = tmp_path / "template", tmp_path / "room"
    template.mkdir()
    room.mkdir()
    workload.team(template, tmp_path, "file:perstack", RULES)
    assault = Assault(ExperimentSubject(template, "boss", "go", workload.env(tmp_path)), victims, room)
    plain, tally = assault.plain(), Tally()
    # the run, and the answers to three approvals and a question
    assert len(plain.victims) == 5
    for kind in FAULT_KINDS:
        boundaries = plain.boundaries(kind)
        for at in spread(boundaries, boundaries if thorough else TRIALS):
            tally.add(assault.disturbed(Fault(kind, at)))
    print(f"{tally.trials} Jobs, {tally.kills} kills, {tally.errors} errors")
    assert tally.kills + tally.errors > 0
    assert tally.findings == []
