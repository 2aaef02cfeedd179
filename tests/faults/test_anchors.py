"""Killed, or failed by the system, at each write between a stop and its record in the anchor, nothing is lost of it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
import workload
from chaos.faults import FAULT_KINDS, Fault, FaultKind
from chaos.processes import Victim, Victims
from hosts import agree_to_definition, agree_to_state
from workload import spread

from perstack.audit.verification_report import Report
from perstack.errors import NotFound
from perstack.host import Host

SOME: tuple[FaultKind, ...] = ("kill",)
"""The fault of an ordinary run of the tests."""
LAST, EACH = 36, 4
"""Of the last boundaries of a process, those around and after its stop, how many are tried in an ordinary run."""
SCRIPTED = ("--provider", "scripted")

SAID = ("lines of the anchor", "the deletion was cut short")
"""What may be said: half a line of a write that was cut short stays, and so does a task whose removal was."""

PAUSE = ("task", "pause", "t", "--reason", "human_input", "--message", "What now?")


@dataclass(frozen=True)
class Scene:
    """What is done undisturbed, and what is killed then."""

    of: str
    victim: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()


SCENES = {
    "job": Scene("job", ("run", "worker", "go", "--job-id", "job", *SCRIPTED)),
    "series": Scene("it", ("iterate", "worker", "make it", "--id", "it", *SCRIPTED)),
    "task": Scene("t", ("task", "answer", "t", "go on"), (("task", "create", "t", "--start"), PAUSE)),
    "removal": Scene("t", ("task", "delete", "t"), (("task", "create", "t"),)),
}


@dataclass
class Stage:
    """A folder for each trial, with an anchor that is counted as the state is."""

    scene: Scene
    template: Path
    room: Path
    victims: Victims
    numbers: Iterator[int]

    def prepare(self) -> None:
        agree_to_definition(self.template)
        for words in self.scene.before:
            assert self.victims.run(self.template, *words, aside=self.room / "before").code == 0

    def disturbed(self, fault: Fault | None) -> tuple[Path, Victim]:
        """What a process left that met the fault."""
        folder = self.room / f"{next(self.numbers)}"
        shutil.copytree(self.template, folder)
        agree_to_definition(folder)
        agree_to_state(folder)
        aside = folder.with_name(f"{folder.name}-aside")
        victim = self.victims.run(folder, *self.scene.victim, aside=aside, fault=fault)
        assert "Traceback" not in victim.err, (fault, victim.err)
        return folder, victim

    def reports(self, folder: Path) -> tuple[Report | None, list[Report]]:
        """What a next process, which works on something else, leaves to be found: of the one, and of all."""
        aside = folder.with_name(f"{folder.name}-aside")
        words = ("run", "worker", "go", "--job-id", "next", *SCRIPTED)
        following = self.victims.run(folder, *words, aside=aside)
        assert (following.code, following.err) == (0, "")
        return asyncio.run(self._reports(folder))

    async def _reports(self, folder: Path) -> tuple[Report | None, list[Report]]:
        env = workload.env(self.room.parent)
        async with Host.open(config=folder / "perstack.toml", workspace=folder, env=env) as host:
            every = [report async for report in host.audit.verify_all()]
            try:
                return await host.audit.verify(self.scene.of), every
            except NotFound:
                return None, every


@pytest.fixture(params=list(SCENES))
def stage(request: pytest.FixtureRequest, tmp_path: Path, victims: Victims, storage: str) -> Stage:
    template, room = tmp_path / "template", tmp_path / "room"
    template.mkdir()
    room.mkdir()
    workload.worker(template, tmp_path, storage)
    with (template / "perstack.toml").open("a") as file:
        file.write('[audit]\nanchor = "file:away/heads.jsonl"\n')
    stage = Stage(SCENES[request.param], template, room, victims, count())
    stage.prepare()
    return stage


@pytest.mark.timeout(3600)
def test_the_next_process_sends_what_was_left_wherever_one_died_or_failed(stage: Stage, thorough: bool) -> None:
    plain = stage.disturbed(None)[1]
    for kind in FAULT_KINDS if thorough else SOME:
        boundaries, hits = plain.boundaries(kind), 0
        last = range(max(2, boundaries - LAST), boundaries + 1, EACH)
        for at in spread(boundaries, boundaries) if thorough else (1, *last):
            folder, victim = stage.disturbed(Fault(kind, at))
            hits += victim.reached
            report, every = stage.reports(folder)
            assert [one for each in every for one in each.findings] == [], (kind, at)
            left = [one for one in report.unchecked if one.kind == "anchor"] if report is not None else []
            assert [one.message for one in left if not any(words in one.message for words in SAID)] == [], (kind, at)
            if report is not None and not victim.was_killed and victim.code == 0:
                assert report.checked.heads > 1
            shutil.rmtree(folder)
            shutil.rmtree(folder.with_name(f"{folder.name}-aside"))
        print(f"{stage.scene.of} {kind}: {hits} of {boundaries} boundaries")
        assert hits
