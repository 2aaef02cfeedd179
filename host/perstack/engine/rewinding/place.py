"""Where the journal of a rewind is: looked at whenever a Host is entered, so that this imports next to nothing."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from perstack.engine.trust import TrustStore
from perstack.ports.storage import LocalStorage, Storage


def journal_path(storage: Storage, workspace: Path) -> Path:
    """That of a workspace: beside what the storage keeps on this machine, or where that is nothing among what is the
    user's, and never in the workspace."""
    name = f"{sha256(os.path.realpath(os.fsencode(workspace))).hexdigest()[:32]}.json"
    if isinstance(storage, LocalStorage):
        programs = storage.programs
        return programs.with_name(programs.name.removesuffix("programs") + "rewinds") / name
    return TrustStore.of_user().folder.with_name("rewinds") / name


def lock_path(storage: Storage, workspace: Path) -> Path:
    """What whoever rewinds the workspace has locked."""
    return journal_path(storage, workspace).with_suffix(".lock")
