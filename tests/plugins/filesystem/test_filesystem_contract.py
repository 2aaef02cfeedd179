"""The filesystem storage passes the whole contract."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from perstack.ports.storage import RunRef
from perstack.testing.storage_contract import Opener, StorageContract
from perstack_filesystem.plugin import perstack_storages


def opener_in(workspace: Path) -> Opener:
    """A store in a new directory."""
    root = workspace / secrets.token_hex(4)

    def log(run: RunRef) -> Path:
        return root / "jobs" / run.job_id / "runs" / run.run_id / "events.jsonl"

    def tear(run: RunRef, n_bytes: int) -> None:
        log(run).write_bytes(log(run).read_bytes()[: -n_bytes or None])

    def extend(run: RunRef, tail: bytes) -> None:
        log(run).write_bytes(log(run).read_bytes() + tail)

    def damage(run: RunRef, index: int) -> None:
        lines = log(run).read_bytes().split(b"\n")
        lines[index] = lines[index].replace(b'"text":"', b'"text":"X', 1)
        log(run).write_bytes(b"\n".join(lines))

    factory = perstack_storages()[0]
    address = ("perstack_filesystem.plugin", str(root))
    return Opener(lambda: factory.open(str(root), Path.cwd()), address, tear, extend, damage, shares_blobs=True)


class TestFilesystemStorage(StorageContract):
    @pytest.fixture
    def make_opener(self, tmp_path):
        return lambda: opener_in(tmp_path)


class TestFilesystemSpace(StorageContract):
    """A space of it keeps every promise too."""

    @pytest.fixture
    def make_opener(self, tmp_path):
        def make() -> Opener:
            whole = opener_in(tmp_path)
            return Opener(lambda: whole.open().space("kept"), shares_blobs=True)

        return make
