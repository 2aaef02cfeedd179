"""Read files of the workspace for an outside program or model: only files that tools may read."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from perstack.core.definitions.sandbox import is_below
from perstack.core.files.file_names import fold_case, is_variables, matches_pattern, protected_by_name
from perstack.errors import UsageError
from perstack.media.attachments import MAX_PDF_BYTES
from perstack.system.files import read_below, system_reason
from perstack.system.project_states import is_state_of_project
from perstack.toolkit.context import Blob

if TYPE_CHECKING:
    from perstack.core.runs.open_questions import OpenQuestion
    from perstack.engine.context.host_setup import HostSetup
    from perstack.host import Host


async def read_workspace_file(host: Host, location: str) -> Blob:
    """Read a file of the workspace, by path or `file:` address, for a caller who may read no other files.

    Raises UsageError for a file that does not exist, is outside, or is off limits to tools.
    """
    return await asyncio.to_thread(_read_in_workspace, host.jobs.source.setup, location)


async def workspace_for_diff(host: Host, question: OpenQuestion) -> Path | None:
    """Return the workspace in which a person may see the file that a call would change.

    None if the file is off limits to tools: a person who answers from outside may read no more than tools.
    """
    context, path = host.jobs.source.setup, question.args.get("path")
    if isinstance(path, str) and await asyncio.to_thread(_is_hidden, context, path):
        return None
    return context.workspace


def _read_in_workspace(setup: HostSetup, location: str) -> Blob:
    real, parts = _locate(setup, _path_of(location))
    if parts is None:
        raise UsageError(f"{location} cannot be attached: it is outside the workspace")
    if _is_off_limits(setup, real, parts):
        raise UsageError(f"{location} cannot be attached: it is off limits to tools")
    try:
        top = Path(os.path.realpath(setup.workspace))
        return Blob(read_below(top, "/".join(parts), MAX_PDF_BYTES), name=real.name)
    except OSError as error:
        reason = system_reason(error)
        raise UsageError(f"{location} cannot be attached: {reason}") from None


def _is_hidden(setup: HostSetup, path: str) -> bool:
    """Return whether a path names a file of the workspace that is off limits to tools."""
    real, parts = _locate(setup, path)
    return parts is not None and _is_off_limits(setup, real, parts)


def _locate(setup: HostSetup, path: str) -> tuple[Path, tuple[str, ...] | None]:
    """Return the file that a path leads to, and its parts below the workspace; None for a file outside of it."""
    top = Path(os.path.realpath(setup.workspace))
    real = Path(os.path.realpath(top / path)) if "\0" not in path else Path("/")
    return real, real.relative_to(top).parts if real.is_relative_to(top) else None


def _path_of(location: str) -> str:
    address = urlsplit(location) if location.startswith("file:") else None
    if address is None:
        if "://" in location:
            raise UsageError(f"{location} cannot be attached: name a file in the workspace")
        return location
    if address.netloc not in ("", "localhost"):
        raise UsageError(f"{location} cannot be attached: it is a file of another machine")
    return unquote(address.path)


def _is_off_limits(setup: HostSetup, real: Path, parts: tuple[str, ...]) -> bool:
    protection = setup.protection
    if protected_by_name(fold_case(parts)) is not None or any(map(is_variables, parts)):
        return True
    protected_paths = [os.path.realpath(path) for path in (*protection.hidden, *protection.definitions)]
    top = os.path.realpath(setup.workspace)
    if is_below(str(real), [path for path in protected_paths if not is_below(top, (path,))]):
        return True
    if is_state_of_project(str(real)):
        return True
    if any(matches_pattern(real.parts, Path(pattern).parts) for pattern in setup.project.includes):
        return True
    hidden_paths = (*protected_paths, *(os.path.join(setup.workspace, name) for name in (".env", ".env.local")))  # noqa: PTH118
    return any(_is_same_file(real, path) for path in hidden_paths)


def _is_same_file(real: Path, path: str) -> bool:
    try:
        return real.samefile(path)
    except OSError:
        return False
