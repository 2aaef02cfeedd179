"""The AGENTS.md files of a workspace, from the top of its repository down to the workspace itself."""

from __future__ import annotations

import os
from pathlib import Path

from perstack.config.handles import NotOrdinary, TooLarge, read_below
from perstack.core.agents_md import AGENTS_FILE, AgentsMdFile, Unread, assembled
from perstack.core.protected import folded, protected_by_name

_LARGEST = 1 << 20
"""Bytes of one file."""
_MOST_FOLDERS = 64


def read_agents_md(workspace: Path) -> tuple[str, tuple[AgentsMdFile, ...]]:
    """What a model is shown of them, and what is recorded of each. Nothing that cannot be read is an error."""
    here = Path(os.path.realpath(workspace))
    top = next((folder for folder in (here, *here.parents) if os.path.lexists(folder / ".git")), here)
    folders = [here, *here.parents][: len(here.parts) - len(top.parts) + 1][:_MOST_FOLDERS]
    found = (_read(folder / AGENTS_FILE, top) for folder in reversed(folders))
    return assembled([one for one in found if one is not None])


def _read(file: Path, top: Path) -> tuple[str, bytes] | Unread | None:
    """A file, whose name may be a link to another within the project; None if there is none."""
    shown = file.relative_to(top).as_posix()
    real = Path(os.path.realpath(file))
    if not os.path.lexists(file):
        return None
    if not real.is_relative_to(top) or protected_by_name(folded(real.relative_to(top).parts)) is not None:
        return Unread(path=shown, problem="is a link that leads out of the project, or to what is off limits")
    try:
        return shown, read_below(top, real.relative_to(top).as_posix(), _LARGEST)
    except TooLarge:
        return Unread(path=shown, problem=f"has more than {_LARGEST >> 20} MiB")
    except NotOrdinary:
        return Unread(path=shown, problem="is no ordinary file")
    except OSError as error:
        return Unread(path=shown, problem=f"cannot be read ({error.strerror or type(error).__name__})")
