"""One step of a rewind, made or taken back. Each may be done again after a crash: what is done already, it leaves."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import assert_never

from perstack.core.snapshots.names import unspelled
from perstack.engine.rewinding.below import FOLDER, make_folder, parent_of, status_at
from perstack.engine.rewinding.journal import Step

_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)


def make(root: int, staging: int, step: Step) -> None:
    """Make a step. Raises OSError."""
    new, old = _names(step)
    if step.act == "remove" and status_at(staging, old) is not None:
        return
    try:
        _make(root, staging, step, new, old)
    except (FileNotFoundError, NotADirectoryError):
        if step.act not in ("remove", "rmdir"):
            raise
        # it is gone, and so may be the folder that it was in


def _make(root: int, staging: int, step: Step, new: bytes, old: bytes) -> None:
    with parent_of(root, unspelled(step.path)) as (folder, name):
        match step.act:
            case "remove":
                os.rename(name, old, src_dir_fd=folder, dst_dir_fd=staging)
            case "rmdir":
                _remove_folder(folder, name)
            case "mkdir":
                found = None if make_folder(folder, name) else status_at(folder, name)
                if found is not None and not stat.S_ISDIR(found.st_mode):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), step.path)
            case "put":
                if status_at(staging, new) is not None:
                    if step.replaces:
                        _keep(folder, name, staging, old)
                        os.rename(new, name, src_dir_fd=staging, dst_dir_fd=folder)
                    else:
                        _place(staging, new, folder, name)
            case _:
                assert_never(step.act)


def take_back(root: int, staging: int, step: Step) -> None:
    """Undo a step, if it was made. Raises OSError."""
    new, old = _names(step)
    try:
        with parent_of(root, unspelled(step.path)) as (folder, name):
            match step.act:
                case "remove":
                    if status_at(staging, old) is not None:
                        with suppress(FileExistsError):  # what somebody has put there meanwhile stays
                            _place(staging, old, folder, name)
                case "rmdir":
                    _make_again(folder, name, step.mode)
                case "mkdir":
                    _remove_folder(folder, name)
                case "put":
                    if not step.replaces:
                        _withdraw(staging, new, folder, name)
                    elif status_at(staging, old) is not None:
                        _exchange(staging, new, old, folder, name)
                case _:
                    assert_never(step.act)
    except (FileNotFoundError, NotADirectoryError):
        pass  # the folder that it would be in was not made, or has been taken back


def _names(step: Step) -> tuple[bytes, bytes]:
    return b"new-%d" % step.number, b"old-%d" % step.number


def _remove_folder(folder: int, name: bytes) -> None:
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError as error:
        # somebody has put something into it, or something else in its place: that is not ours to remove
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise


def _make_again(folder: int, name: bytes, mode: int) -> None:
    if not make_folder(folder, name):
        return
    handle = os.open(name, FOLDER, dir_fd=folder)
    try:
        os.fchmod(handle, mode)
    finally:
        os.close(handle)


def _keep(folder: int, name: bytes, staging: int, old: bytes) -> None:
    """What is there gets a second name in the staging folder, so that the place is never empty."""
    if status_at(staging, old) is not None:
        return
    try:
        os.link(name, old, src_dir_fd=folder, dst_dir_fd=staging, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        os.rename(name, old, src_dir_fd=folder, dst_dir_fd=staging)


def _place(source: int, name: bytes, target: int, at: bytes) -> None:
    """Move to a place where nothing is: what somebody has put there meanwhile stays. Raises FileExistsError."""
    try:
        os.link(name, at, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
    except FileExistsError:
        if not _is_same(source, name, target, at):
            raise
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        if status_at(target, at) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), at) from None
        os.rename(name, at, src_dir_fd=source, dst_dir_fd=target)
        return
    os.unlink(name, dir_fd=source)


def _withdraw(staging: int, new: bytes, folder: int, name: bytes) -> None:
    """Take away what was placed, if it was."""
    if status_at(folder, name) is None:
        return
    if status_at(staging, new) is None:
        os.rename(name, new, src_dir_fd=folder, dst_dir_fd=staging)
    elif _is_same(staging, new, folder, name):
        os.unlink(name, dir_fd=folder)


def _exchange(staging: int, new: bytes, old: bytes, folder: int, name: bytes) -> None:
    """What was there comes back, and what was put there is in readiness again."""
    if status_at(staging, new) is None:
        with suppress(FileNotFoundError):
            os.rename(name, new, src_dir_fd=folder, dst_dir_fd=staging)
    os.rename(old, name, src_dir_fd=staging, dst_dir_fd=folder)
    with suppress(FileNotFoundError):  # two names of one file stay both
        os.unlink(old, dir_fd=staging)


def _is_same(one: int, name: bytes, other: int, at: bytes) -> bool:
    first, second = status_at(one, name), status_at(other, at)
    return first is not None and second is not None and os.path.samestat(first, second)
