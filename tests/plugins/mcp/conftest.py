"""MCP servers, real and misbehaving ones. After each test none of their processes is left."""

from __future__ import annotations

import importlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from mcp_bed import MARK, Bed
from npm import mcp_servers
from terminal import trusting


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    # its second of imports is not part of any test's deadline
    importlib.import_module("perstack_mcp.client")
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    mark = uuid.uuid4().hex
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), MARK: mark}
    bed = Bed(workspace, env, mark)
    with trusting(workspace):
        yield bed
    assert bed.processes() == [], "nothing that a test started may be left"


@pytest.fixture(scope="session")
def npm_servers() -> Path:
    """The folder of commands of the npm servers, installed once."""
    return mcp_servers()
