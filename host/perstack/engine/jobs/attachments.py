"""Attachments of a query: where they come from, whether the model takes them, and where they are kept."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias, assert_never
from urllib.parse import unquote, urlsplit

from perstack.config.handles import NotOrdinary, TooLarge, opened, read_below, read_rest
from perstack.core.attachments import LARGEST, Attached, attached_of, check_together
from perstack.core.messages import ResultContent
from perstack.core.protected import folded, is_variables, matches_pattern, protected_by_name
from perstack.core.sandbox import is_below
from perstack.engine.blobs import JobBlobs
from perstack.engine.setup import Setup
from perstack.errors import UsageError
from perstack.ports.provider import takes_media
from perstack.ports.storage import Storage
from perstack.ports.toolkit.context import Blob

Attachable: TypeAlias = "Path | bytes | Blob"
"""A file that the caller may read, or bytes, with a name and a type that are not believed."""


async def attached(given: Sequence[Attachable]) -> tuple[Attached, ...]:
    """What was given, read. Raises UsageError for what cannot be read, or is not of a kind that models are sent."""
    if not given:
        return ()
    return await asyncio.to_thread(_attached, given)


def check_taken(setup: Setup, expert_key: str, found: Sequence[Attached]) -> None:
    """Raises UsageError, with the model and the provider, for what the Expert's model cannot be shown."""
    if all(one.media_type is None for one in found):
        return
    settings = setup.providers.settings(setup.project, setup.expert(expert_key), setup.overrides)
    provider = setup.providers.get(settings.provider)
    for one in found:
        if one.media_type is not None and not takes_media(provider, settings.model, one.media_type):
            raise UsageError(
                f"{one.name} cannot be attached: the model {settings.model} of provider"
                f" {settings.provider.provider_name} takes no {one.media_type}; attach another kind of file, or choose"
                " another model"
            )


async def keep(storage: Storage, job_id: str, found: Sequence[Attached]) -> tuple[ResultContent, ...]:
    """The parts of the query, whose bytes are on disk before anything names them."""
    blobs = JobBlobs(storage, job_id)
    for one in found:
        if one.media_type is not None:
            await blobs.put(one.data)
    return tuple(one.part for one in found)


async def in_workspace(setup: Setup, place: str) -> Blob:
    """A file of the workspace by its path, or by a `file:` address: for a caller who may not read all that we may.

    Raises UsageError for one outside, and for what tools keep off.
    """
    return await asyncio.to_thread(_in_workspace, setup, place)


def _attached(given: Sequence[Attachable]) -> tuple[Attached, ...]:
    found: list[Attached] = []
    for number, one in enumerate(given, start=1):
        match one:
            case bytes():
                found.append(attached_of(f"attachment {number}", one))
            case Blob():
                found.append(attached_of(one.name or f"attachment {number}", one.data))
            case Path():
                found.append(attached_of(one.name, _read(one)))
            case _:
                assert_never(one)
        check_together(found)
    return tuple(found)


def _read(path: Path) -> bytes:
    """A file that the caller names themselves: links are theirs."""
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with opened(path.name, folder, follow=True) as file:
                return read_rest(file, LARGEST)
        finally:
            os.close(folder)
    except OSError as error:
        raise UsageError(f"{path} cannot be attached: {_why(error)}") from None


def _in_workspace(setup: Setup, place: str) -> Blob:
    path = _path_of(place)
    top = Path(os.path.realpath(setup.workspace))
    real = Path(os.path.realpath(top / path)) if "\0" not in path else Path("/")
    if not real.is_relative_to(top):
        raise UsageError(f"{place} cannot be attached: it is outside the workspace")
    parts = real.relative_to(top).parts
    if _is_off_limits(setup, real, parts):
        raise UsageError(f"{place} cannot be attached: it is off limits to tools")
    try:
        return Blob(read_below(top, "/".join(parts), LARGEST), name=real.name)
    except OSError as error:
        raise UsageError(f"{place} cannot be attached: {_why(error)}") from None


def _path_of(place: str) -> str:
    address = urlsplit(place) if place.startswith("file:") else None
    if address is None:
        if "://" in place:
            raise UsageError(f"{place} cannot be attached: name a file in the workspace")
        return place
    if address.netloc not in ("", "localhost"):
        raise UsageError(f"{place} cannot be attached: it is a file of another machine")
    return unquote(address.path)


def _is_off_limits(setup: Setup, real: Path, parts: tuple[str, ...]) -> bool:
    """Whether file tools would keep off it: by its names, by where it is, and by which file it is."""
    context = setup.skill_context("")
    if protected_by_name(folded(parts)) is not None or any(map(is_variables, parts)):
        return True
    state = (setup.workspace / context.state_dir,) if context.state_dir else ()
    kept = [os.path.realpath(path) for path in (*state, *context.off_limits, *context.protected)]
    top = os.path.realpath(setup.workspace)
    if is_below(str(real), [path for path in kept if not is_below(top, (path,))]):
        return True
    if any(matches_pattern(real.parts, Path(pattern).parts) for pattern in context.protected_patterns):
        return True
    named = (*kept, *(os.path.join(setup.workspace, name) for name in (".env", ".env.local")))  # noqa: PTH118
    return any(_is_same(real, path) for path in named)


def _is_same(real: Path, path: str) -> bool:
    """Whether both are one file, under whatever names."""
    try:
        return real.samefile(path)
    except OSError:
        return False


def _why(error: OSError) -> str:
    match error:
        case TooLarge():
            return f"it has more than {LARGEST:,} bytes"
        case NotOrdinary():
            return "it is no ordinary file"
        case _:
            return (error.strerror or type(error).__name__).lower()
