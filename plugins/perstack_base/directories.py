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
            destination.workspace.check_way(destination.parts, destination.display_path)
            destination.refuse_removal()
        for way, identity in _walk_tree(top, (), 0):
            display_path = path.workspace.display_path((*path.parts, *way))
            path.workspace.check_way((*path.parts, *way), display_path)
            if destination is not None:
                target = (*destination.parts, *way)
                destination.workspace.check_way(target, destination.workspace.display_path(target))
            if identity in protected:
                raise SkillError(
                    f"{display_path} is off limits to tools, and so are the folders above it; use another path"
                )


def _walk_tree(directory: int, way: Parts, depth: int) -> Iterator[tuple[Parts, tuple[int, int]]]:
    """Yield the path and identity of everything below a directory. Raises SkillError for a tree that is too deep."""
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
            yield from _walk_tree(handle, (*way, name), depth + 1)
        finally:
            os.close(handle)


MAX_ENTRIES = 500  # maximum number of entries per listing

_UNITS = ("B", "KB", "MB", "GB", "TB")


def list_directory(workspace: OpenWorkspace, args: JsonObject) -> JsonObject:
    """Run `listDirectory`: directories first, without the state."""
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
                items.append(_list_item(name, home.display_path(way), status))
    result: JsonObject = {"path": place.display_path, "items": items[:MAX_ENTRIES]}
    if len(names) > MAX_ENTRIES + 1:
        result["notice"] = f"The first {MAX_ENTRIES} of {len(names)}; for the others use exec, such as find or ls."
    return result


def create_directory(workspace: OpenWorkspace, args: JsonObject) -> JsonObject:
    with workspace.place(text(args, "path"), create=True) as place:
        status = place.status()
        if status is None:
            os.mkdir(place.name, dir_fd=place.directory)
        elif not stat.S_ISDIR(status.st_mode):
            raise SkillError(f"{place.display_path} exists and is not a directory; use another path")
        return {"path": place.display_path}


def delete_directory(workspace: OpenWorkspace, args: JsonObject) -> JsonObject:
    with workspace.place(text(args, "path"), follow=False, change=True) as place:
        place.refuse_removal()
        status = place.status()
        if status is not None and not stat.S_ISDIR(status.st_mode):
            raise SkillError(f"{place.display_path} is not a directory; use deleteFile")
        if boolean(args, "recursive", False):
            if status is not None:
                check_tree(place)
            shutil.rmtree(place.name, dir_fd=place.directory)
        else:
            os.rmdir(place.name, dir_fd=place.directory)
        return {"path": place.display_path}


def get_file_info(workspace: OpenWorkspace, args: JsonObject) -> JsonObject:
    """Run `getFileInfo`. A missing file is an answer, not an error."""
    with workspace.place(text(args, "path")) as place:
        status = place.status()
        if status is None:
            return {"exists": False, "path": place.display_path}
        return _describe_file(place, status)


def _describe_file(path: ResolvedPath, status: os.stat_result) -> JsonObject:
    """Return the properties of an existing file for `getFileInfo`."""
    import mimetypes

    is_file = stat.S_ISREG(status.st_mode)
    absolute = path.path
    return {
        "exists": True,
        "path": path.display_path,
        "absolutePath": printable(str(absolute)),
        "name": printable(absolute.name),
        "directory": printable(str(absolute.parent)),
        "extension": printable(absolute.suffix) or None if is_file else None,
        "type": kind_of(status.st_mode),
        "mimeType": mimetypes.guess_type(absolute.name)[0] if is_file else None,
        "size": status.st_size,
        "sizeFormatted": _format_size(status.st_size),
        "created": _format_time(_birth_time(status)),
        "modified": _format_time(status.st_mtime),
        "accessed": _format_time(status.st_atime),
        "permissions": {
            "readable": _is_allowed(path, os.R_OK),
            "writable": _is_allowed(path, os.W_OK) and path.may_change,
            "executable": _is_allowed(path, os.X_OK),
        },
    }


def _list_item(name: str, path: str, status: os.stat_result) -> JsonObject:
    return {
        "name": printable(name),
        "path": path,
        "type": kind_of(status.st_mode),
        "size": status.st_size,
        "modified": _format_time(status.st_mtime),
    }


def _is_allowed(path: ResolvedPath, mode: int) -> bool:
    return os.access(path.name, mode, dir_fd=path.directory)


def _birth_time(status: os.stat_result) -> float:
    created = getattr(status, "st_birthtime", None)
    return created if isinstance(created, float) else min(status.st_ctime, status.st_mtime)


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _format_size(size: int) -> str:
    amount, unit = float(size), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.2f} {_UNITS[unit]}"
