"""Attachments of a query: read them, check that the model takes them, and store them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from perstack.core.base.file_names import fold_case, is_variables, matches_pattern, protected_by_name
from perstack.core.definitions.sandbox import is_below
from perstack.core.messages.media import MAX_PDF_BYTES, Attached, check_together, read_attachment
from perstack.core.messages.messages import ResultContent
from perstack.engine.context.host_context import HostContext
from perstack.engine.log.storage import JobBlobs
from perstack.errors import UsageError
from perstack.ports.storage import Storage
from perstack.system.files import read_below, read_regular
from perstack.system.project_states import is_state_of_project
from perstack.toolkit.context import Blob

Attachable: TypeAlias = "str | Path | bytes | Blob"
"""A file that the caller may read, by its path, or bytes. The name and type of a Blob are not trusted."""


async def read_supported(host: HostContext, expert_key: str, attachments: Sequence[Attachable]) -> tuple[Attached, ...]:
    """Read attachments. Raises UsageError if one cannot be read, or the Expert's model does not take it."""
    attached = await asyncio.to_thread(_read_all, attachments)
    _check_supported(host, expert_key, attached)
    return attached


def _check_supported(host: HostContext, expert_key: str, attachments: Sequence[Attached]) -> None:
    if all(attachment.media_type is None for attachment in attachments):
        return
    settings = host.providers.settings(host.project, host.expert(expert_key), host.overrides)
    provider = host.providers.get(settings.provider)
    for attachment in attachments:
        if attachment.media_type is not None and not provider.takes(settings.model, attachment.media_type):
            raise UsageError(
                f"{attachment.name} cannot be attached: the model {settings.model} of provider"
                f" {settings.provider.provider_name} takes no {attachment.media_type}; attach another kind of file, or"
                " choose another model"
            )


async def store_attached(storage: Storage, job_id: str, attachments: Sequence[Attached]) -> tuple[ResultContent, ...]:
    """Store the bytes, before any event names them, and return the parts of the query."""
    blobs = JobBlobs(storage, job_id)
    for attachment in attachments:
        if attachment.media_type is not None:
            await blobs.put(attachment.data)
    return tuple(attachment.part for attachment in attachments)


async def read_workspace_file(host: HostContext, location: str) -> Blob:
    """Read a file of the workspace, by path or `file:` address."""
    return await asyncio.to_thread(_in_workspace, host, location)


def _read_all(attachments: Sequence[Attachable]) -> tuple[Attached, ...]:
    attached: list[Attached] = []
    for number, attachable in enumerate(attachments, start=1):
        match attachable:
            case bytes():
                attached.append(read_attachment(f"attachment {number}", attachable))
            case Blob():
                attached.append(read_attachment(attachable.name or f"attachment {number}", attachable.data))
            case str() | Path():
                attached.append(read_attachment(Path(attachable).name, _read(Path(attachable))))
            case _:
                kind = type(attachable).__name__
                raise UsageError(f"attachment {number} must be a path, bytes or a Blob, and is {kind}")
        check_together(attached)
    return tuple(attached)


def _read(path: Path) -> bytes:
    """Read a file that the caller names: its links are followed."""
    try:
        return read_regular(path, MAX_PDF_BYTES)
    except OSError as error:
        raise UsageError(f"{path} cannot be attached: {_reason(error)}") from None
    except ValueError:
        raise UsageError(f"{str(path)!r} cannot be attached: no file has such a name") from None


def _in_workspace(host: HostContext, location: str) -> Blob:
    real, parts = _located(host, _path_of(location))
    if parts is None:
        raise UsageError(f"{location} cannot be attached: it is outside the workspace")
    if _is_off_limits(host, real, parts):
        raise UsageError(f"{location} cannot be attached: it is off limits to tools")
    try:
        top = Path(os.path.realpath(host.workspace))
        return Blob(read_below(top, "/".join(parts), MAX_PDF_BYTES), name=real.name)
    except OSError as error:
        raise UsageError(f"{location} cannot be attached: {_reason(error)}") from None


def is_hidden(host: HostContext, path: str) -> bool:
    """Return whether a path names a file of the workspace that is off limits to tools."""
    real, parts = _located(host, path)
    return parts is not None and _is_off_limits(host, real, parts)


def _located(host: HostContext, path: str) -> tuple[Path, tuple[str, ...] | None]:
    """Return the file that a path leads to, and its parts below the workspace; None for a file outside of it."""
    top = Path(os.path.realpath(host.workspace))
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


def _is_off_limits(host: HostContext, real: Path, parts: tuple[str, ...]) -> bool:
    protection = host.protection
    if protected_by_name(fold_case(parts)) is not None or any(map(is_variables, parts)):
        return True
    protected_paths = [os.path.realpath(path) for path in (*protection.hidden, *protection.definitions)]
    top = os.path.realpath(host.workspace)
    if is_below(str(real), [path for path in protected_paths if not is_below(top, (path,))]):
        return True
    if is_state_of_project(str(real)):
        return True
    if any(matches_pattern(real.parts, Path(pattern).parts) for pattern in host.project.includes):
        return True
    hidden_paths = (*protected_paths, *(os.path.join(host.workspace, name) for name in (".env", ".env.local")))  # noqa: PTH118
    return any(_is_same(real, path) for path in hidden_paths)


def _is_same(real: Path, path: str) -> bool:
    try:
        return real.samefile(path)
    except OSError:
        return False


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()
