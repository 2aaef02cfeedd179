"""MCP servers, real and misbehaving ones. After each test none of their processes is left."""

from __future__ import annotations

import fcntl
import importlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from mcp_bed import MARK, Bed

NPM = {
    "everything": "@modelcontextprotocol/server-everything@2026.8.31",
    "filesystem": "@modelcontextprotocol/server-filesystem@2026.8.31",
    "memory": "@modelcontextprotocol/server-memory@2026.8.31",
}


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    pytest.importorskip("mcp", reason="the MCP SDK is not there: pip install 'perstack[mcp]'")
    # its second of imports is no part of any test's deadline
    importlib.import_module("perstack_mcp.conversation")
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    mark = uuid.uuid4().hex
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), MARK: mark}
    bed = Bed(workspace, env, mark)
    yield bed
    assert bed.processes() == [], "nothing that a test started may be left"


@pytest.fixture(scope="session")
def npm_servers() -> Path:
    """The folder of commands of the npm servers, installed once."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not there: the MCP servers written in TypeScript are not tested")
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perstack-tests" / "npm"
    bin_folder = folder / "node_modules" / ".bin"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        # two workers of one test run would write the same files
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _installed(npm, folder, bin_folder)


def _installed(npm: str, folder: Path, bin_folder: Path) -> Path:
    if all((bin_folder / f"mcp-server-{name}").exists() for name in NPM):
        return bin_folder
    command = [npm, "install", "--prefix", str(folder), "--no-fund", "--no-audit", "--silent", *NPM.values()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    if done.returncode != 0:
        pytest.skip(f"npm cannot install the MCP servers: {done.stderr.strip()[-300:]}")
    return bin_folder
