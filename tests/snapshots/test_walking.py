"""A snapshot equals the folder's content after any edit, and contains nothing from outside the folder."""
# ruff: noqa: PTH101, PTH102, PTH104, PTH108, PTH110, PTH112, PTH114, PTH115, PTH116, PTH118, PTH208, PTH211 - of bytes

from __future__ import annotations

import asyncio
import os
import random
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from hosts import Bench, expert, open_storage, wait_for

from perstack.core.definitions.project import SnapshotPolicy
from perstack.ports.storage import Storage
from perstack.snapshots.ignore_rules import rules_at
from perstack.snapshots.snapshots import WorkspaceSnapshots
from perstack.snapshots.stored_trees import Trees
from perstack.snapshots.trees import Entry, File, Link, SkippedEntry, Subfolder, digest_of
from perstack.snapshots.workspace_walk import SnapshotUnavailable

MAX_BYTES = 5_000
NAMES = (b"a", b"b.txt", b"\xff\xfe", b"back\\slash", "größe".encode(), b"new\nline", b" ", b"-", b"c" * 200)


def walked(top: bytes) -> dict[bytes, Entry | None]:
    """Return the entries of a folder as read without handles or a cache; None for a folder."""
    entries: dict[bytes, Entry | None] = {}
    for folder, folders, files in os.walk(top):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            at, status = os.path.relpath(path, top), os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                entries[at] = Link(name, os.readlink(path))
            elif stat.S_ISDIR(status.st_mode):
                entries[at] = None
            elif not stat.S_ISREG(status.st_mode):
                entries[at] = SkippedEntry(name, "special")
            elif status.st_size > MAX_BYTES:
                entries[at] = SkippedEntry(name, "tooLarge")
            else:
                data = Path(os.fsdecode(path)).read_bytes()
                entries[at] = File(name, len(data), digest_of(data), bool(status.st_mode & stat.S_IXUSR))
    return entries


async def snapshot_entries(trees: Trees, tree: str) -> dict[bytes, Entry | None]:
    """Return the entries of a snapshot after reading each content; None for a folder."""
    entries: dict[bytes, Entry | None] = {}
    async for path, entry in trees.entries(tree):
        entries[path] = None if isinstance(entry, Subfolder) else entry
        if isinstance(entry, File):
            assert len(await trees.content(entry.digest)) == entry.size
    return entries


class Vandal:
    """Edits a folder at random."""

    def __init__(self, top: bytes, seed: int, outside: bytes) -> None:
        self.top = top
        self.chance = random.Random(seed)
        self.outside = outside
        self.acts: tuple[Callable[[], None], ...] = (
            self.write, self.write, self.overwrite, self.grow, self.folder, self.remove, self.move, self.link,
            self.mode, self.pipe, self.large, self.sly,
        )  # fmt: skip

    def place(self, *, new: bool) -> bytes:
        folders = [folder for folder, _, _ in os.walk(self.top)]
        folder = self.chance.choice(folders)
        there = os.listdir(folder)
        name = self.chance.choice(NAMES if new or not there else there)
        return os.path.join(folder, name)

    def act(self) -> None:
        """Try one edit; a failed one is ignored."""
        with suppress(OSError):
            self.chance.choice(self.acts)()

    def _put(self, data: bytes, flags: int) -> None:
        path = self.place(new=self.chance.random() < 0.5)
        if not stat.S_ISFIFO(os.lstat(path).st_mode if os.path.lexists(path) else 0):
            file = os.open(path, flags | os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW)
            os.write(file, data)
            os.close(file)

    def write(self) -> None:
        self._put(self.chance.randbytes(self.chance.randrange(60)), os.O_TRUNC)

    def overwrite(self) -> None:
        self._put(self.chance.randbytes(20), 0)

    def grow(self) -> None:
        self._put(b"more", os.O_APPEND)

    def large(self) -> None:
        self._put(b"x" * (MAX_BYTES + 1), 0)

    def sly(self) -> None:
        """Replace a file's content by other bytes of the same size, and restore its modification time."""
        path = self.place(new=False)
        if stat.S_ISREG(os.lstat(path).st_mode):
            was = os.stat(path)
            Path(os.fsdecode(path)).write_bytes(self.chance.randbytes(was.st_size))
            os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))

    def folder(self) -> None:
        os.mkdir(self.place(new=True))

    def remove(self) -> None:
        path = self.place(new=False)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)

    def move(self) -> None:
        os.rename(self.place(new=False), self.place(new=True))

    def link(self) -> None:
        path = self.place(new=True)
        if os.path.lexists(path):
            shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
        os.symlink(self.chance.choice((self.outside, b"..", b"nowhere", b"a")), path)

    def mode(self) -> None:
        path = self.place(new=False)
        if not os.path.islink(path) and not os.path.isdir(path):
            os.chmod(path, self.chance.choice((0o644, 0o755, 0o600)))

    def pipe(self) -> None:
        os.mkfifo(self.place(new=True))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("SECRET of somebody else")
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture(params=["file:state", "sqlite:state.db"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    (tmp_path / "store").mkdir()
    storage = open_storage(str(request.param), tmp_path / "store")
    wait_for(storage.create_job("job"))
    yield storage
    wait_for(storage.close())


@pytest.mark.parametrize("seed", range(3))
def test_after_any_edits_a_snapshot_is_what_another_walk_finds(folder: Path, storage: Storage, seed: int) -> None:
    top = os.fsencode(folder)
    vandal = Vandal(top, seed, os.fsencode(folder.parent / "outside"))

    async def work() -> None:
        take = partial(WorkspaceSnapshots(storage, "job", folder, ()).take, SnapshotPolicy(max_file_size=MAX_BYTES))
        for _ in range(15):
            for _ in range(vandal.chance.randrange(1, 12)):
                vandal.act()
            assert await snapshot_entries(Trees(storage, "job"), (await take()).tree) == walked(top)
        again = partial(WorkspaceSnapshots(storage, "job", folder, ()).take, SnapshotPolicy(max_file_size=MAX_BYTES))
        assert (await again()).tree == (await take()).tree

    wait_for(work())


def test_beside_a_hostile_process_every_snapshot_is_whole_and_has_nothing_from_outside(
    folder: Path, storage: Storage
) -> None:
    top, outside = os.fsencode(folder), os.fsencode(folder.parent / "outside")
    for _ in range(60):
        Vandal(top, 99, outside).act()
    program = [sys.executable, __file__, str(folder), str(folder.parent / "outside")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    hostile = subprocess.Popen(program, env=env, stdout=subprocess.PIPE)
    assert hostile.stdout is not None
    hostile.stdout.readline()

    async def work() -> None:
        take = partial(WorkspaceSnapshots(storage, "job", folder, ()).take, SnapshotPolicy(max_file_size=MAX_BYTES))
        trees, until = Trees(storage, "job"), time.monotonic() + 2
        takes = 0
        while time.monotonic() < until:
            taken = await asyncio.wait_for(take(), 20)
            found = await snapshot_entries(trees, taken.tree)
            takes += 1
            for entry in found.values():
                if isinstance(entry, File):
                    assert b"SECRET" not in await trees.content(entry.digest)
        assert takes > 3
        hostile.kill()
        hostile.wait()
        assert await snapshot_entries(trees, (await take()).tree) == walked(top)

    try:
        wait_for(work())
    finally:
        hostile.kill()
        hostile.wait()
        hostile.stdout.close()


def test_a_walk_that_was_cancelled_is_begun_anew_and_loses_nothing(folder: Path, storage: Storage) -> None:
    for number in range(3_000):
        (folder / str(number)).write_text(str(number))

    async def work() -> None:
        take = partial(WorkspaceSnapshots(storage, "job", folder, ()).take, SnapshotPolicy())
        for delay in (0.001, 0.01, 0.05):
            task = asyncio.create_task(take())
            await asyncio.sleep(delay)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert await snapshot_entries(Trees(storage, "job"), (await take()).tree) == walked(os.fsencode(folder))

    wait_for(work())


def test_what_has_not_changed_is_not_read_again(folder: Path, storage: Storage) -> None:
    for number in range(200):
        (folder / f"d{number % 7}").mkdir(exist_ok=True)
        (folder / f"d{number % 7}" / str(number)).write_text(str(number))
    opens: list[str] = []

    def watch(event: str, args: tuple[object, ...]) -> None:
        if watching and event == "open" and isinstance(args[0], bytes):
            opens.append(os.fsdecode(args[0]))

    watching: list[bool] = []
    sys.addaudithook(watch)

    async def work() -> None:
        take = partial(WorkspaceSnapshots(storage, "job", folder, ()).take, SnapshotPolicy())
        until = time.monotonic() + 10
        while True:  # once their times are old enough
            opens.clear()
            watching.append(True)
            first = await take()
            watching.clear()
            if not [name for name in opens if name.isdigit()] or time.monotonic() > until:
                break
        assert not [name for name in opens if name.isdigit()]
        (folder / "d3" / "3").write_text("other")
        watching.append(True)
        second = await take()
        watching.clear()
        assert [name for name in opens if name.isdigit()] == ["3"]
        assert first.tree != second.tree

    wait_for(work())


def test_what_is_never_recorded_is_not_even_under_another_name(folder: Path, storage: Storage) -> None:
    (folder / "kept").mkdir()
    (folder / "kept" / "state").write_text("of the host")
    (folder / "plain").write_text("plain")

    async def work() -> None:
        take = partial(WorkspaceSnapshots(storage, "job", folder, (folder / "kept",)).take, SnapshotPolicy())
        assert [*await snapshot_entries(Trees(storage, "job"), (await take()).tree)] == [b"plain"]
        again = partial(WorkspaceSnapshots(storage, "job", folder, (folder / "kept",)).take, SnapshotPolicy())
        os.link(folder / "kept" / "state", folder / "other")
        guarded = partial(
            WorkspaceSnapshots(storage, "job", folder, (folder / "kept", folder / "kept" / "state")).take,
            SnapshotPolicy(),
        )
        assert [*await snapshot_entries(Trees(storage, "job"), (await again()).tree)] == [b"other", b"plain"]
        assert [*await snapshot_entries(Trees(storage, "job"), (await guarded()).tree)] == [b"plain"]

    wait_for(work())


@pytest.mark.parametrize("name", ["sub/perstack", "a/b/perstack", "plain/perstack/jobs"])
def test_the_state_of_another_project_is_not_recorded(folder: Path, storage: Storage, name: str) -> None:
    state = folder / name
    state.mkdir(parents=True)
    (state / "job.json").write_text("of the host")

    async def work() -> None:
        take = partial(WorkspaceSnapshots(storage, "job", folder, ()).take, SnapshotPolicy())
        before = await snapshot_entries(Trees(storage, "job"), (await take()).tree)
        assert (os.fsencode(f"{name}/job.json") in before) == (not name.startswith("plain"))
        (state.parent / "perstack.toml").touch()
        after = await snapshot_entries(Trees(storage, "job"), (await take()).tree)
        assert os.fsencode(f"{name}/job.json") not in after
        assert os.fsencode(f"{state.parent.relative_to(folder)}/perstack.toml") in after

    wait_for(work())


def test_a_workspace_that_is_gone_cannot_be_taken_and_a_run_goes_on_without(bench: Bench, tmp_path: Path) -> None:
    storage = bench.host([], expert("a")).storage

    async def work() -> None:
        await storage.create_job("job")
        with pytest.raises(SnapshotUnavailable, match="no such file"):
            await WorkspaceSnapshots(storage, "job", tmp_path / "gone", ()).take(SnapshotPolicy())

    wait_for(work())


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("seed", range(3))
def test_what_is_ignored_is_what_git_ignores(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    parts = ("a", "b", "*", "**", "?", "a*", "*b", "[ab]", "[!a]", "\\a", "c.txt", "*.txt", "é", "\xff")

    def rule() -> str:
        path = "/".join(chance.choice(parts) for _ in range(chance.choice((1, 1, 1, 2, 2, 3))))
        return "!" * (chance.random() < 0.35) + "/" * (chance.random() < 0.25) + path + "/" * (chance.random() < 0.3)

    for number in range(12):
        top = tmp_path / str(number)
        subprocess.run(["git", "init", "-q", str(top)], check=True)
        folders = [os.fsencode(top)]
        for _ in range(12):
            path = os.path.join(chance.choice(folders), chance.choice((b"a", b"b", b"ab", b"c.txt", b"\xff", b"ba")))
            if not os.path.exists(path) and chance.random() < 0.5:
                os.mkdir(path)
                folders.append(path)
            elif not os.path.exists(path):
                Path(os.fsdecode(path)).touch()
        for each in folders:
            if each == folders[0] or chance.random() < 0.4:
                rules = "\n".join(rule() for _ in range(chance.randrange(1, 5)))
                (Path(os.fsdecode(each)) / ".gitignore").write_bytes(rules.encode("latin-1"))
        (top / ".git" / "info" / "exclude").write_bytes(rule().encode("latin-1"))
        listing = ["git", "ls-files", "-z", "--others", "--exclude-per-directory=.gitignore"]
        done = subprocess.run([*listing, "--exclude-from=.git/info/exclude"], cwd=top, capture_output=True, check=True)
        assert {*_not_ignored(os.fsencode(top))} == {*filter(None, done.stdout.split(b"\0"))}, folders


def _not_ignored(top: bytes) -> Iterator[bytes]:
    def text(path: bytes) -> bytes | None:
        place = Path(os.fsdecode(path))
        return place.read_bytes() if place.is_file() else None

    pending = [(b"", rules_at([(b"", text(top + b"/.gitignore"))], exclude=text(top + b"/.git/info/exclude")))]
    while pending:
        at, rules = pending.pop()
        for name in os.listdir(top + b"/" + at):
            path = at + name
            is_folder = os.path.isdir(top + b"/" + path)
            if name == b".git" or rules.ignores(name, is_folder=is_folder):
                continue
            if is_folder:
                pending.append((path + b"/", rules.for_subfolder(name, text(top + b"/" + path + b"/.gitignore"))))
            else:
                yield path


if __name__ == "__main__":
    vandal = Vandal(os.fsencode(sys.argv[1]), 7, os.fsencode(sys.argv[2]))
    print("at work", flush=True)
    while True:
        vandal.act()
