"""Tools that change files.

A file is replaced by a rename: no reader sees a partial file, and a crash of the host leaves the old one. It is not
synced to disk, which would block other Runs for milliseconds.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress

from perstack.core.base.records import JsonObject
from perstack.core.files.file_names import is_state_folder
from perstack.core.files.text_edit import find_replacement
from perstack.errors import SkillError
from perstack_base.directories import check_tree
from perstack_base.reading import open_regular, refuse_git_head
from perstack_base.tools import text, utf8
from perstack_base.workspace import OpenWorkspace, ResolvedPath

_MAX_ECHO_CHARS = 200


def write_text_file(workspace: OpenWorkspace, args: JsonObject) -> JsonObject:
    data = utf8(args, "text")
    with workspace.place(text(args, "path"), create=True) as place:
        replace(place, data)
        return {"path": place.display_path, "text": echo(text(args, "text"))}


def append_text_file(workspace: OpenWorkspace, args: JsonObject) -> JsonObject:
    data = utf8(args, "text")
    with workspace.place(text(args, "path"), change=True) as place:
        if place.status() is None:
            raise SkillError(f"{place.display_path} does not exist; use writeTextFile to create it")
        with open_regular(place, os.O_WRONLY | os.O_APPEND) as file:
            file.write(data)
        return {"path": place.display_path, "text": echo(text(args, "text"))}


def delete_file(workspace: OpenWorkspace, args: JsonObject) -> JsonObject:
    with workspace.place(text(args, "path"), follow=False, change=True) as place:
        status = place.status()
        if place.is_workspace or (status is not None and stat.S_ISDIR(status.st_mode)):
            raise SkillError(f"{place.display_path} is a directory; use deleteDirectory")
        place.refuse_removal()
        os.unlink(place.name, dir_fd=place.directory)
        return {"path": place.display_path}


def move_file(workspace: OpenWorkspace, args: JsonObject) -> JsonObject:
    """Run `moveFile`. Raises SkillError if anything that moves, or its destination, is protected."""
    with workspace.place(text(args, "source"), follow=False, change=True) as source:
        source.refuse_removal()
        status = source.status()
        if status is None:
            raise SkillError(f"{source.display_path} does not exist; listDirectory shows what does")
        with workspace.place(text(args, "destination"), follow=False, create=True) as destination:
            if stat.S_ISDIR(status.st_mode):
                check_tree(source, destination)
            else:
                refuse_git_head(destination)
                _refuse_link_to_state(status, destination)
            _move_atomically(source, destination, is_directory=stat.S_ISDIR(status.st_mode))
        return {"source": source.display_path, "destination": destination.display_path}


def replace(path: ResolvedPath, data: bytes) -> None:
    """Replace a file's content atomically; its owner and mode are kept."""
    refuse_git_head(path)
    old = _check_replaceable(path)
    temporary = f".{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(temporary, flags, 0o666, dir_fd=path.directory)
    try:
        with os.fdopen(handle, "wb", buffering=0) as file:
            _write_all(file.fileno(), data)
            if old is not None:
                _keep_owner_and_mode(file.fileno(), old)
        os.rename(temporary, path.name, src_dir_fd=path.directory, dst_dir_fd=path.directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=path.directory)
        raise


def echo(text: str) -> str:
    """Return only the beginning of a text for a result: the call contains it already, and results cost tokens."""
    if len(text) <= _MAX_ECHO_CHARS:
        return text
    return f"{text[:_MAX_ECHO_CHARS]}… ({len(text)} characters)"


def _check_replaceable(path: ResolvedPath) -> os.stat_result | None:
    """Return the status of a file that may be overwritten; None if it does not exist. Raises SkillError."""
    status = path.status()
    if status is None:
        return None
    if stat.S_ISDIR(status.st_mode):
        raise SkillError(f"{path.display_path} is a directory; name a file in it")
    if not stat.S_ISREG(status.st_mode):
        raise SkillError(f"{path.display_path} is not a regular file; use another path")
    if not os.access(path.name, os.W_OK, dir_fd=path.directory):
        raise SkillError(f"{path.display_path} is read-only; use another path, or change its mode with exec chmod")
    return status


def _keep_owner_and_mode(handle: int, old: os.stat_result) -> None:
    with suppress(PermissionError):
        os.fchown(handle, old.st_uid, old.st_gid)
    os.fchmod(handle, stat.S_IMODE(old.st_mode))


def _write_all(handle: int, data: bytes) -> None:
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[os.write(handle, remaining) :]


def _move_atomically(source: ResolvedPath, destination: ResolvedPath, *, is_directory: bool) -> None:
    """Rename onto a placeholder that this creates: a plain rename would overwrite a file created in the meantime."""
    if destination.is_workspace or destination.status() is not None:
        raise SkillError(
            f"{destination.display_path} already exists; moveFile never overwrites: use another destination"
        )
    if is_directory and destination.path.is_relative_to(source.path):
        raise SkillError(f"{source.display_path} cannot be moved into itself; use a destination outside it")
    if is_directory:
        os.mkdir(destination.name, dir_fd=destination.directory)
    else:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        os.close(os.open(destination.name, flags, dir_fd=destination.directory))
    try:
        os.rename(source.name, destination.name, src_dir_fd=source.directory, dst_dir_fd=destination.directory)
    except OSError:
        _remove_placeholder(destination, is_directory=is_directory)
        raise


def _refuse_link_to_state(status: os.stat_result, destination: ResolvedPath) -> None:
    """Raise SkillError for a link that would get the name of a project's state directory: its target would be state."""
    if stat.S_ISLNK(status.st_mode) and is_state_folder(destination.name):
        raise SkillError(f"{destination.display_path} would be a link to the state of a project; use another name")


def _remove_placeholder(path: ResolvedPath, *, is_directory: bool) -> None:
    with suppress(OSError):
        if is_directory:
            os.rmdir(path.name, dir_fd=path.directory)
        else:
            os.unlink(path.name, dir_fd=path.directory)


MAX_EDITED_BYTES = 64 * 1024 * 1024  # maximum bytes of a file that can be edited


def edit_text_file(workspace: OpenWorkspace, args: JsonObject) -> JsonObject:
    old, new = utf8(args, "oldText"), utf8(args, "newText")
    with workspace.place(text(args, "path"), change=True) as place:
        with open_regular(place) as file:
            data = file.read(MAX_EDITED_BYTES + 1)
        if len(data) > MAX_EDITED_BYTES:
            raise SkillError(f"{place.display_path} is larger than {MAX_EDITED_BYTES} bytes; edit it with exec sed")
        change = find_replacement(data, old, new, place.display_path)
        replace(place, change.apply(data))
        texts: JsonObject = {name: echo(text(args, name)) for name in ("oldText", "newText")}
        return {"path": place.display_path, "from": data.count(b"\n", 0, change.offset), **texts}
