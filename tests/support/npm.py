"""npm programs for tests, installed once into the user's cache."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

_SERVERS = {
    "everything": "@modelcontextprotocol/server-everything@2026.8.31",
    "filesystem": "@modelcontextprotocol/server-filesystem@2026.8.31",
    "memory": "@modelcontextprotocol/server-memory@2026.8.31",
    "sequential-thinking": "@modelcontextprotocol/server-sequential-thinking@2026.8.31",
}


def mcp_servers() -> Path:
    """Return the command folder of third-party MCP servers, as `installed` does."""
    return installed("npm", tuple(_SERVERS.values()), [f"mcp-server-{name}" for name in _SERVERS])


def installed(name: str, packages: Sequence[str], commands: Sequence[str]) -> Path:
    """Return the command folder of npm packages; skip the test with the reason if they cannot be installed."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perstack-tests" / name
    problem = _find_problem(folder, tuple(packages), tuple(commands))
    if problem is not None:
        pytest.skip(problem)
    return folder / "node_modules" / ".bin"


@cache
def _find_problem(folder: Path, packages: tuple[str, ...], commands: tuple[str, ...]) -> str | None:
    """Return why they are unavailable, or None. Cached, since an unreachable registry is slow to fail."""
    npm = shutil.which("npm")
    if npm is None:
        return f"npm is not there, so {', '.join(packages)} cannot be had"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        # parallel test workers would write the same files
        fcntl.flock(lock, fcntl.LOCK_EX)
        if all((folder / "node_modules" / ".bin" / command).exists() for command in commands):
            return None
        return _install(npm, folder, packages)


def _install(npm: str, folder: Path, packages: Sequence[str]) -> str | None:
    patience = ("--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-timeout=30000")
    quiet = ("--no-fund", "--no-audit", "--loglevel=error")
    command = [npm, "install", "--prefix", str(folder), *quiet, *patience, *packages]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    except subprocess.TimeoutExpired:
        return f"npm did not install {', '.join(packages)} in time"
    if done.returncode != 0:
        message = " ".join(line.removeprefix("npm error").strip() for line in done.stderr.splitlines()[:3])
        return f"npm cannot install {', '.join(packages)}: {message}"
    return None
