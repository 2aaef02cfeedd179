"""Files and folders in a workspace, held open while a sandbox is made of them.

A program that runs at the same time may put a link in the place of any of them. What is mounted by its name would then
be what the link leads to, anywhere on the machine; what is mounted by its handle is what was looked at.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import PurePosixPath

from perstack.core.sandbox import is_below
from perstack_bubblewrap.layout import View, inner

if sys.platform == "linux":
    _PLACE = os.O_PATH
else:  # where the runtime is refused
    _PLACE = os.O_RDONLY
_STEP = _PLACE | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def held_open(view: View) -> Generator[dict[str, int]]:
    """A handle for each path that is to be mounted upon itself; none for one that is gone or has become a link."""
    with ExitStack() as ends:
        found: dict[str, int] = {}
        for path in (*inner(view).changeable, *inner(view).fixed):
            root = next(root for root in view.writable if is_below(path, (root,)))
            handle = _opened(root, PurePosixPath(path).relative_to(root).parts)
            if handle is not None:
                ends.callback(os.close, handle)
                found[path] = handle
        yield found


def _opened(root: str, parts: tuple[str, ...]) -> int | None:
    """One step at a time, and none through a link."""
    try:
        handle = os.open(root, _PLACE | os.O_CLOEXEC)
    except OSError:
        return None
    for part in parts:
        try:
            below = os.open(part, _STEP, dir_fd=handle)
        except OSError:
            return None
        finally:
            os.close(handle)
        handle = below
        if stat.S_ISLNK(os.fstat(handle).st_mode):
            os.close(handle)
            return None
    return handle
