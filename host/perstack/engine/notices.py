"""Words to whoever reads the host's stderr."""

from __future__ import annotations

import sys

from perstack.core.plain import one_line


def notice(text: str) -> None:
    """One line on stderr. Nothing in it can move a terminal's cursor, whoever wrote it."""
    print(f"perstack: {one_line(text)}", file=sys.stderr, flush=True)  # noqa: T201
