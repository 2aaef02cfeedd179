"""Servers of either era, each asked for its own only once."""

from __future__ import annotations

import sys
from pathlib import Path

from hosts import wait_for
from mcp_bed import Bed, words

from perstack.core.definitions.skills import McpStdioSkill
from perstack_mcp.server_interface import ServerProtocols

STATELESS = Path(__file__).parent / "servers" / "stateless.py"


def _skill() -> McpStdioSkill:
    return McpStdioSkill(name="new", command=sys.executable, args=(str(STATELESS),), timeout=9_000)


async def _era(bed: Bed) -> str:
    async with bed.session(_skill()) as session:
        assert [spec.name for spec in (await session.tools()).specs] == ["era"], "the broken one is left out"
        return words(await bed.call(session, "era"))


def test_a_server_of_the_stateless_era_is_spoken_to_in_it_and_remembered(bed: Bed) -> None:
    assert wait_for(_era(bed)) == "2026-07-28"
    assert bed.shown.count("refused the handshake") == 1
    assert wait_for(_era(bed)) == "2026-07-28"
    assert bed.shown.count("refused the handshake") == 1, "known by now, it is not asked again"


def test_a_server_that_takes_the_handshake_is_not_remembered(bed: Bed) -> None:
    async def run() -> None:
        async with bed.session(bed.misbehaving(timeout=20_000)) as session:
            await session.tools()

    wait_for(run())
    assert not (Path(bed.env["HOME"]) / ".cache").exists()


def test_a_cache_that_is_damaged_or_cannot_be_written_is_only_forgotten(tmp_path: Path) -> None:
    eras = ServerProtocols(tmp_path / "file.json")
    (tmp_path / "file.json").write_text("{ torn")
    assert not eras.is_stateless(["a"])
    eras.remember_stateless(["a"])
    assert eras.is_stateless(["a"])
    assert not eras.is_stateless(["a", "b"])
    (tmp_path / "no-folder").write_text("")
    ServerProtocols(tmp_path / "no-folder" / "file.json").remember_stateless(["a"])


def test_the_cache_holds_no_arguments_which_may_be_secrets(tmp_path: Path) -> None:
    ServerProtocols(tmp_path / "file.json").remember_stateless(["server", "--token=s3cret"])
    assert "s3cret" not in (tmp_path / "file.json").read_text()
