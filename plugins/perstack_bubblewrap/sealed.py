"""Data for a program that is being started, as files in memory that it inherits: on no disk, and in no command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from perstack.errors import UsageError


@contextmanager
def sealed(*contents: bytes) -> Generator[tuple[int, ...]]:
    """A descriptor for each, at its beginning, while the block runs."""
    if sys.platform != "linux":
        raise UsageError("the runtime bubblewrap needs Linux: use another runtime")
    with ExitStack() as held:
        found: list[int] = []
        for data in contents:
            handle = os.memfd_create("perstack")
            held.callback(os.close, handle)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(handle, rest) :]
            os.lseek(handle, 0, os.SEEK_SET)
            found.append(handle)
        yield tuple(found)
