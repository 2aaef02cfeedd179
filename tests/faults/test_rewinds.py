"""Killed, or failed by the system, at each thing that it does to the disk, a rewind is made whole or not at all."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import warm
import workload
from chaos.faults import FAULT_KINDS, Fault, FaultKind
from chaos.processes import Victim, Victims
from folder_trees import Tree, tree
from hosts import agree_to_definition, agree_to_state
from terminal import reply
from workload import spread

TRIALS = 4
"""Of each kind on each storage, spread over the boundaries, in an ordinary run of the tests."""
RECORDED = """
storage = "{storage}"
workspace = {{ path = ".", snapshots = true }}
[experts.worker]
instruction = "You work alone."
permissions = {{ allow = ["exec"] }}
"""
FIRST = """
mkdir -p keep/deep gone empty turns
echo one > keep/a.txt; echo b > keep/deep/b.txt; echo gone > gone/x; echo f > turns/f; echo run > run.sh
chmod +x run.sh
ln -s keep/a.txt link; echo t > file-to-folder
"""
SECOND = """
echo two > keep/a.txt; rm keep/deep/b.txt; rm -r gone empty turns; echo turned > turns; chmod -x run.sh
rm link; ln -s /etc/passwd link; rm file-to-folder; mkdir -p file-to-folder/in; echo new > file-to-folder/in/new.txt
mkdir -p came/later; echo l > came/later/l.txt
"""


class Scene:
    """A workspace whose Job has two checkpoints, with its files as they are after it; put back for each trial."""

    def __init__(self, folder: Path, victims: Victims, storage: str) -> None:
        self.world = folder / "world"
        self.folder = self.world / "room"
        self._aside = folder
        self._copy = folder / "copy"
        self._env = {"XDG_STATE_HOME": str(self.world / "home")}  # faults are met there too: it has the journal
        self._victims = victims.with_env(self._env)
        self._storage = storage
        self.folder.mkdir(parents=True)
        (self.folder / "perstack.toml").write_text(RECORDED.format(storage=storage))
        agree_to_definition(self.folder, self._env)
        turns = [reply("", ("exec", {"command": "sh", "args": ["-c", one]}), usage=(9, 1)) for one in (FIRST, SECOND)]
        workload.script(folder, worker=[*turns, reply("done", usage=(9, 1))])
        done = self.call("run", "worker", "go", "--job-id", "j")
        assert done.code == 0, done.err
        steps = [json.loads(line) for line in self.call("log", "j", "--json", "--type", "finishStep").out.splitlines()]
        self.checkpoint = str(steps[0]["checkpointId"])
        shutil.copytree(self.folder, self._copy, symlinks=True)
        self.before = tree(self.folder)
        self.count = self.rewinds()
        assert self.count.code == 0, self.count.err
        self.after = tree(self.folder)
        assert self.after != self.before

    def begin(self) -> None:
        """As it was right after the Job."""
        shutil.rmtree(self.folder)
        shutil.copytree(self._copy, self.folder, symlinks=True)
        agree_to_state(self.folder, self._storage, self._env)

    @property
    def env(self) -> dict[str, str]:
        """The environment of its commands."""
        return {**workload.env(self.folder.parent.parent), **self._env}

    def looks(self) -> Victim:
        """Run a command that only reads: it repairs nothing."""
        files, of_rewind = self.files, self.rewind_files
        looked = self.call("jobs")
        assert (self.files, self.rewind_files) == (files, of_rewind)
        return looked

    def acts(self, fault: Fault | None = None) -> Victim:
        """Run a command that acts: it first repairs what is there, even if it then only shows a plan."""
        return self.call("rewind", "j", self.checkpoint, "--dry-run", fault=fault)

    def rewinds(self, fault: Fault | None = None) -> Victim:
        return self.call("rewind", "j", self.checkpoint, "--yes", fault=fault)

    def call(self, *argv: str, fault: Fault | None = None) -> Victim:
        return self._victims.run(self.folder, *argv, aside=self._aside / "aside", fault=fault, root=self.world)

    @property
    def files(self) -> Tree:
        return tree(self.folder)

    @property
    def rewind_files(self) -> list[Path]:
        """What a rewind has while it is under way."""
        journals = (self.world / "home" / "perstack").glob("rewinds/*.json")
        return [*self.folder.glob(".perstack-rewind*"), *journals]


@pytest.fixture
def scene(tmp_path: Path, victims: Victims, storage: str) -> Scene:
    return Scene(tmp_path, victims, storage)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_a_rewind_is_made_whole_or_not_at_all_wherever_it_dies_or_fails(
    scene: Scene, kind: FaultKind, thorough: bool
) -> None:
    boundaries, ends = scene.count.boundaries(kind), {"before": 0, "after": 0}
    assert boundaries > 20
    for at in spread(boundaries, boundaries if thorough else TRIALS):
        scene.begin()
        hit = scene.rewinds(Fault(kind, at))
        assert hit.was_killed or not hit.reached or kind not in ("kill", "torn")
        if kind not in ("kill", "torn"):
            assert scene.files in (scene.before, scene.after), f"{kind} at {at}: {hit.err}"
        looked = scene.looks()
        assert looked.code == 0, looked.err
        looked = scene.acts()
        assert looked.code == 0, looked.err
        assert scene.rewind_files == [], f"{kind} at {at}: {looked.err}"
        assert scene.files in (scene.before, scene.after), f"{kind} at {at}"
        ends["before" if scene.files == scene.before else "after"] += 1
        checked = scene.call("verify", "j")
        assert checked.code == 0, f"{kind} at {at}: {checked.out.decode()}"
        _is_recorded(scene)
        undone = scene.call("rewind", "j", _start(scene), "--yes") if scene.files == scene.after else hit
        assert scene.files == scene.before, f"{kind} at {at}: {undone.err}"
    print(f"{kind}: {boundaries} boundaries, {ends}")


def _is_recorded(scene: Scene) -> None:
    """The log says that files were rewound where they were, and nowhere else."""
    assert bool(scene.call("log", "j", "--json", "--type", "finishRewind").out) == (scene.files == scene.after)


def _start(scene: Scene) -> str:
    return str(json.loads(scene.call("log", "j", "--json", "--type", "startRewind").out.splitlines()[-1])["id"])


@pytest.mark.timeout(3600)
def test_whoever_finishes_a_rewind_may_be_killed_over_it_too(scene: Scene, thorough: bool) -> None:
    chance = random.Random(1)
    boundaries = scene.count.boundaries("kill")
    for _ in range(60 if thorough else 4):
        scene.begin()
        assert scene.rewinds(Fault("kill", chance.randrange(boundaries // 3, boundaries))).was_killed
        for _ in range(3):
            scene.acts(Fault("kill", chance.randrange(1, 20)))
        scene.acts()
        assert scene.rewind_files == []
        assert scene.files in (scene.before, scene.after)
        _is_recorded(scene)


@pytest.mark.timeout(600)
def test_no_job_begins_on_half_of_a_rewind(scene: Scene) -> None:
    boundaries = scene.count.boundaries("kill")
    for at in spread(boundaries, 4):
        scene.begin()
        assert scene.rewinds(Fault("kill", at)).was_killed
        began = scene.call("run", "worker", "again", "--job-id", "k", "--max-steps", "0")
        assert began.code in (0, 4), began.err
        assert scene.rewind_files == []
        assert scene.files in (scene.before, scene.after)


@pytest.mark.timeout(600)
def test_of_two_rewinds_at_once_each_is_whole_or_refused(scene: Scene) -> None:
    env = scene.env
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    for _ in range(3):
        scene.begin()
        rewind = ("rewind", "j", scene.checkpoint, "--yes")
        both = [warm.perstack(*rewind, cwd=scene.folder, env=env, text=True, **pipes) for _ in range(2)]
        errors = [one.communicate(timeout=60)[1] for one in both]
        assert 0 in {one.returncode for one in both}, errors
        assert all("Traceback" not in one for one in errors)
        assert scene.files == scene.after
        assert scene.rewind_files == []


@pytest.mark.timeout(600)
def test_a_hostile_process_beside_a_rewind_has_it_write_nowhere_else(scene: Scene, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.txt").write_text("mine\n")
    mine = tree(outside)
    over, chance = threading.Event(), random.Random(2)

    def attack() -> None:
        while not over.is_set():
            name = chance.choice(["keep", "gone", "turns", "came", "keep/deep", "file-to-folder", "link"])
            place = scene.folder / name
            try:
                if chance.random() < 0.5:
                    place.rename(scene.folder / f"moved-{chance.randrange(3)}")
                    place.symlink_to(outside)
                elif place.is_symlink():
                    place.unlink()
            except OSError:
                continue

    for _ in range(4):
        scene.begin()
        over.clear()
        with ThreadPoolExecutor(1) as pool:
            attacking = pool.submit(attack)
            for _ in range(3):
                hit = scene.rewinds()
                assert "Traceback" not in hit.err
            over.set()
            attacking.result(30)
        assert tree(outside) == mine
        scene.acts()
        assert scene.rewind_files == []
