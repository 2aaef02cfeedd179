"""A small file that its user alone may read."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from perstack.ports.durable import sync


def replace_private_file(path: Path, content: bytes) -> None:
    """All of it or nothing, and what is there survives power loss; its folder has to be there. Raises OSError."""
    handle, name = tempfile.mkstemp(dir=path.parent)  # which only the user may read
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            sync(file.fileno())
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
