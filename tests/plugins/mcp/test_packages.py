"""Servers that are packages, fetched and started by npx and uvx, which ask nothing and leave nothing."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest
from hosts import wait_for
from mcp_bed import MISBEHAVING, Bed, words

from perstack.core.definitions.skills import McpStdioSkill

pytestmark = pytest.mark.timeout(350)  # the first time, packages are installed

PLENTY = 60_000


def test_npx_runs_a_package_of_npm(bed: Bed, npm_servers: Path) -> None:
    (bed.workspace / "node_modules").symlink_to(npm_servers.parent)
    (bed.workspace / "note.txt").write_text("inside")
    # what is in node_modules is not asked for anywhere
    bed.env["npm_config_registry"] = "http://127.0.0.1:9"
    skill = McpStdioSkill(
        name="files",
        package_name="@modelcontextprotocol/server-filesystem",
        args=(".",),
        required_env=("npm_config_registry",),
        timeout=PLENTY,
    )

    async def run() -> str:
        async with bed.session(skill) as session:
            return words(await bed.call(session, "read_text_file", path="note.txt"))

    assert wait_for(run(), 90) == "inside"


def _wheel(folder: Path) -> None:
    info = "perstack_test_server-1.0.dist-info"
    with zipfile.ZipFile(folder / "perstack_test_server-1.0-py3-none-any.whl", "w") as wheel:
        wheel.write(MISBEHAVING, "perstack_test_server.py")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: perstack-test-server\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        start = "[console_scripts]\nperstack-test-server = perstack_test_server:main\n"
        wheel.writestr(f"{info}/entry_points.txt", start)
        wheel.writestr(f"{info}/RECORD", "")


def test_uvx_runs_a_package_of_pypi(bed: Bed, tmp_path: Path) -> None:
    uvx = Path(sys.executable).with_name("uvx")
    if not uvx.exists():
        pytest.skip("uvx is not there: pip install uv")
    _wheel(tmp_path)
    settings = {
        "UV_OFFLINE": "1",
        "UV_FIND_LINKS": str(tmp_path),
        "UV_PYTHON": sys.executable,
        "UV_PYTHON_DOWNLOADS": "never",
    }
    bed.env.update(settings)
    skill = McpStdioSkill(
        name="packaged",
        command=str(uvx),
        package_name="perstack-test-server@1.0",
        args=("none",),
        required_env=tuple(settings),
        timeout=PLENTY,
    )

    async def run() -> str:
        async with bed.session(skill) as session:
            return words(await bed.call(session, "echo"))

    assert wait_for(run(), 90) == "here"


def test_a_package_that_cannot_be_had_is_told_in_the_words_of_its_installer(bed: Bed, tmp_path: Path) -> None:
    uvx = Path(sys.executable).with_name("uvx")
    if not uvx.exists():
        pytest.skip("uvx is not there: pip install uv")
    bed.env.update(UV_OFFLINE="1", UV_PYTHON=sys.executable)
    skill = McpStdioSkill(
        name="gone",
        command=str(uvx),
        package_name="perstack-test-server",
        required_env=("UV_OFFLINE", "UV_PYTHON"),
        timeout=PLENTY,
    )

    async def run() -> None:
        async with bed.session(skill) as session:
            await session.tools()

    with pytest.raises(Exception, match=r"could not be connected to.*exit code.*perstack-test-server was not found"):
        wait_for(run(), 90)
