"""Directory tools and file information."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime

from pydantic import JsonValue

from perstack.core.base.records import JsonObject
from perstack.core.files.file_names import Parts
from perstack.errors import SkillError
from perstack_base.files import identity, kind_of, printable, status_at
from perstack_base.tools import boolean, text
from perstack_base.workspace import OpenWorkspace, ResolvedPath

_MAX_DEPTH = 200  # maximum depth in levels; each level holds one handle

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def check_tree(path: ResolvedPath, destination: ResolvedPath | None = None) -> None:
    """Raise SkillError if anything below a directory is off limits: a tree is moved or deleted as a whole."""
    protected = path.workspace.protected_identities()
    status = path.status()
    if status is None or not stat.S_ISDIR(status.st_mode):
        return
    with ExitStack() as stack:
        top = os.open(path.name, _OPEN, dir_fd=path.directory)
        stack.callback(os.close, top)
        if destination is not None:
            destination.workspace.check_way(destination.parts, destination.shown)
            destination.refuse_removal()
        for way, identity in _walk(top, (), 0):
            shown = path.workspace.display_path((*path.parts, *way))
            path.workspace.check_way((*path.parts, *way), shown)
            if destination is not None:
                target = (*destination.parts, *way)
                destination.workspace.check_way(target, destination.workspace.display_path(target))
            if identity in protected:
                raise SkillError(f"{shown} is off limits to tools, and so are the folders above it; use another path")


def _walk(directory: int, way: Parts, depth: int) -> Iterator[tuple[Parts, tuple[int, int]]]:
    device = os.fstat(directory).st_dev
    with os.scandir(directory) as entries:
        children = [(entry.name, entry.inode(), entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, inode, is_directory in children:
        yield (*way, name), (device, inode)
        if not is_directory:
            continue
        if depth == _MAX_DEPTH:
            raise SkillError(f"{printable('/'.join((*way, name)))} is more than {_MAX_DEPTH} levels deep; use exec")
        handle = os.open(name, _OPEN, dir_fd=directory)
        try:
            yield from _walk(handle, (*way, name), depth + 1)
        finally:
            os.close(handle)


MAX_ENTRIES = 500  # maximum number of entries per listing

_UNITS = ("B", "KB", "MB", "GB", "TB")


def list_directory(workspace: OpenWorkspace, args: JsonObject) -> JsonObject:
    with workspace.directory(text(args, "path") or ".") as (handle, place):
        home = place.workspace
        hidden = home.state_identities()
        with os.scandir(handle) as entries:
            names = sorted((not entry.is_dir(follow_symlinks=False), entry.name) for entry in entries)
        items: list[JsonValue] = []
        for _, name in names[: MAX_ENTRIES + 1]:
            status = status_at(name, handle)
            way = (*place.parts, name)
            is_hidden = home.is_state(way) or home.is_project_state(handle, name)
            if status is not None and identity(status) not in hidden and not is_hidden:
                items.append(_item(name, home.display_path(way), status))
    result: JsonObject = {"path": place.shown, "items": items[:MAX_ENTRIES]}
    if len(names) > MAX_ENTRIES + 1:
        result["notice"] = f"The first {MAX_ENTRIES} of {len(names)}; for the others use exec, such as find or ls."
    return result


def create_directory(workspace: OpenWorkspace, args: JsonObject) -> JsonObject:
    with workspace.place(text(args, "path"), create=True) as place:
        status = place.status()
        if status is None:
            os.mkdir(place.name, dir_fd=place.directory)
        elif not stat.S_ISDIR(status.st_mode):
            raise SkillError(f"{place.shown} exists and is not a directory; use another path")
        return {"path": place.shown}


def delete_directory(workspace: OpenWorkspace, args: JsonObject) -> JsonObject:
    with workspace.place(text(args, "path"), follow=False, change=True) as place:
        place.refuse_removal()
        status = place.status()
        if status is not None and not stat.S_ISDIR(status.st_mode):
            raise SkillError(f"{place.shown} is not a directory; use deleteFile")
        if boolean(args, "recursive", False):
            if status is not None:
                check_tree(place)
            shutil.rmtree(place.name, dir_fd=place.directory)
        else:
            os.rmdir(place.name, dir_fd=place.directory)
        return {"path": place.shown}


def get_file_info(workspace: OpenWorkspace, args: JsonObject) -> JsonObject:
    """Run `getFileInfo`. A missing file is an answer, not an error."""
    with workspace.place(text(args, "path")) as place:
        status = place.status()
        if status is None:
            return {"exists": False, "path": place.shown}
        return _info(place, status)


def _info(path: ResolvedPath, status: os.stat_result) -> JsonObject:
    import mimetypes

    is_file = stat.S_ISREG(status.st_mode)
    absolute = path.path
    return {
        "exists": True,
        "path": path.shown,
        "absolutePath": printable(str(absolute)),
        "name": printable(absolute.name),
        "directory": printable(str(absolute.parent)),
        "extension": printable(absolute.suffix) or None if is_file else None,
        "type": kind_of(status.st_mode),
        "mimeType": mimetypes.guess_type(absolute.name)[0] if is_file else None,
        "size": status.st_size,
        "sizeFormatted": _readable(status.st_size),
        "created": _time_text(_birth_time(status)),
        "modified": _time_text(status.st_mtime),
        "accessed": _time_text(status.st_atime),
        "permissions": {
            "readable": _is_allowed(path, os.R_OK),
            "writable": _is_allowed(path, os.W_OK) and path.may_change,
            "executable": _is_allowed(path, os.X_OK),
        },
    }


def _item(name: str, path: str, status: os.stat_result) -> JsonObject:
    return {
        "name": printable(name),
        "path": path,
        "type": kind_of(status.st_mode),
        "size": status.st_size,
        "modified": _time_text(status.st_mtime),
    }


def _is_allowed(path: ResolvedPath, mode: int) -> bool:
    return os.access(path.name, mode, dir_fd=path.directory)


def _birth_time(status: os.stat_result) -> float:
    created = getattr(status, "st_birthtime", None)
    return created if isinstance(created, float) else min(status.st_ctime, status.st_mtime)


def _time_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _readable(size: int) -> str:
    amount, unit = float(size), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.2f} {_UNITS[unit]}"
