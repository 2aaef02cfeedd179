"""Cost of snapshots of a workspace of many files: the first, one without a change, and one with a small change.

python bench/snapshots.py [FILES…]        5000 and 50000 if none is given
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from perstack.core.definitions.project import SnapshotPolicy
from perstack.engine.plugins.registry import load_plugins
from perstack.snapshots.snapshots import WorkspaceSnapshots

_FILES_PER_FOLDER = 50
_IDLE_ROUNDS = 15
_SETTLING_S = 0.3
"""Seconds after which a newly written file is old enough to be recognised by its timestamps."""


def fill(workspace: Path, files: int) -> None:
    """Create `files` small files, 50 per folder, and one `.gitignore`."""
    (workspace / ".gitignore").write_text("*.o\nnode_modules/\n/build\n")
    for number in range(files):
        folder = workspace / f"d{number // _FILES_PER_FOLDER // 50}" / f"d{number // _FILES_PER_FOLDER}"
        if number % _FILES_PER_FOLDER == 0:
            folder.mkdir(parents=True)
        (folder / f"file{number}.py").write_text(f"value = {number}\n" * 40)


async def time_work(work: Callable[[], Awaitable[object]]) -> float:
    """Return the milliseconds that the work takes."""
    began = time.perf_counter()
    await work()
    return (time.perf_counter() - began) * 1000


async def measure(scheme: str, place: Path, files: int) -> None:
    """Print one line."""
    workspace = place / "workspace"
    workspace.mkdir()
    fill(workspace, files)
    storage = load_plugins((), {}).open_storage(f"{scheme}:{place / 'state'}{'.db' * (scheme == 'sqlite')}", place)
    for job in ("one", "two"):
        await storage.create_job(job)
    await asyncio.sleep(_SETTLING_S)
    policy = SnapshotPolicy()
    snapshots = WorkspaceSnapshots(storage, "one", workspace, ())
    first_ms = await time_work(lambda: snapshots.take(policy))
    idle_ms = [await time_work(lambda: snapshots.take(policy)) for _ in range(_IDLE_ROUNDS)]
    (workspace / "d0" / "d0" / "file1.py").write_text("value = 0\n")
    changed_ms = await time_work(lambda: snapshots.take(policy))
    other_job_ms = await time_work(lambda: WorkspaceSnapshots(storage, "two", workspace, ()).take(policy))
    print(
        f"{scheme:7} {files:6} files: first {first_ms:8.0f} ms, another Job's first {other_job_ms:8.0f} ms,"
        f" nothing changed {statistics.median(idle_ms):6.1f} ms (best {min(idle_ms):.1f}),"
        f" one file changed {changed_ms:6.1f} ms"
    )
    await storage.close()


def main() -> None:
    """Print a line for each number of files and each storage."""
    for files in map(int, sys.argv[1:] or ("5000", "50000")):
        for scheme in ("file", "sqlite"):
            with tempfile.TemporaryDirectory() as place:
                asyncio.run(measure(scheme, Path(place), files))


if __name__ == "__main__":
    main()
