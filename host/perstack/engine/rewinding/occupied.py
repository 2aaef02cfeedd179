"""Who is at work in a workspace: those who drive Jobs there, of which there may be many, or one who rewinds its files.

That is a lock of the operating system on the folder itself. It is free the moment its holder's process dies, and knows
nothing of storages: two of them may have Jobs in one workspace.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from perstack.engine.rewinding.below import open_root
from perstack.errors import Conflict


class Occupied(Conflict):
    """A Job is driven in the workspace, or another process rewinds its files."""


@contextmanager
def driven_in(workspace: Path) -> Generator[None]:
    """A Job is driven here. Raises Conflict while its files are being rewound."""
    with _held(workspace, fcntl.LOCK_SH, f"{workspace}: its files are being rewound by another process; wait for it"):
        yield


@contextmanager
def rewound_in(workspace: Path) -> Generator[None]:
    """The files are rewound here. Raises Occupied while a Job is driven here, or somebody else rewinds them."""
    with _held(workspace, fcntl.LOCK_EX, f"{workspace}: somebody is at work there"):
        yield


@contextmanager
def _held(workspace: Path, kind: int, otherwise: str) -> Generator[None]:
    try:
        handle = open_root(workspace)
    except OSError:
        yield  # whoever needs the folder says what is wrong with it
        return
    try:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Occupied(otherwise) from None
        except OSError:
            pass  # some file systems of other machines cannot lock a folder
        yield
    finally:
        os.close(handle)
