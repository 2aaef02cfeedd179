"""Programs of npm for tests, installed once into a cache of the user's."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest


def installed(cache: str, packages: Sequence[str], commands: Sequence[str]) -> Path:
    """The folder of commands of some packages; the test is skipped, with the reason, if they cannot be had."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(f"npm is not there, so {', '.join(packages)} cannot be had")
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perstack-tests" / cache
    bin_folder = folder / "node_modules" / ".bin"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        # two workers of one test run would write the same files
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all((bin_folder / name).exists() for name in commands):
            _install(npm, folder, packages)
    return bin_folder


def _install(npm: str, folder: Path, packages: Sequence[str]) -> None:
    command = [npm, "install", "--prefix", str(folder), "--no-fund", "--no-audit", "--silent", *packages]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not install {', '.join(packages)} in time")
    if done.returncode != 0:
        pytest.skip(f"npm cannot install {', '.join(packages)}: {done.stderr.strip()[-300:]}")
