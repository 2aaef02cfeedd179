"""What snapshots cost: a workspace of many files, recorded first, again when nothing has changed, and when little has.

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
from perstack.engine.files.snapshots import WorkspaceSnapshots
from perstack.engine.plugins.registry import load_plugins

_PER_FOLDER = 50
_IDLE = 15
_SETTLING = 0.3
"""Seconds after which a file that was just written is old enough to be known by its times."""


def fill(workspace: Path, files: int) -> None:
    """As many small files, 50 in a folder, and one `.gitignore`."""
    (workspace / ".gitignore").write_text("*.o\nnode_modules/\n/build\n")
    for number in range(files):
        folder = workspace / f"d{number // _PER_FOLDER // 50}" / f"d{number // _PER_FOLDER}"
        if number % _PER_FOLDER == 0:
            folder.mkdir(parents=True)
        (folder / f"file{number}.py").write_text(f"value = {number}\n" * 40)


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds."""
    begin = time.perf_counter()
    await work()
    return (time.perf_counter() - begin) * 1000


async def measure(scheme: str, place: Path, files: int) -> None:
    """Print one line."""
    workspace = place / "workspace"
    workspace.mkdir()
    fill(workspace, files)
    storage = load_plugins((), {}).open_storage(f"{scheme}:{place / 'state'}{'.db' * (scheme == 'sqlite')}", place)
    for job in ("one", "two"):
        await storage.create_job(job)
    await asyncio.sleep(_SETTLING)
    policy = SnapshotPolicy()
    snapshots = WorkspaceSnapshots(storage, "one", workspace, ())
    first = await timed(lambda: snapshots.take(policy))
    idle = [await timed(lambda: snapshots.take(policy)) for _ in range(_IDLE)]
    (workspace / "d0" / "d0" / "file1.py").write_text("value = 0\n")
    little = await timed(lambda: snapshots.take(policy))
    other = await timed(lambda: WorkspaceSnapshots(storage, "two", workspace, ()).take(policy))
    print(
        f"{scheme:7} {files:6} files: first {first:8.0f} ms, another Job's first {other:8.0f} ms,"
        f" nothing changed {statistics.median(idle):6.1f} ms (best {min(idle):.1f}), one file changed {little:6.1f} ms"
    )
    await storage.close()


def main() -> None:
    """For each number of files, on each storage."""
    for files in map(int, sys.argv[1:] or ("5000", "50000")):
        for scheme in ("file", "sqlite"):
            with tempfile.TemporaryDirectory() as place:
                asyncio.run(measure(scheme, Path(place), files))


if __name__ == "__main__":
    main()
