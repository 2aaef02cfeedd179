"""docs/provider-matrix.md: its table is what the rows of the conformance suite return. Run it to write the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import provider_capabilities  # noqa: F401 - registers its rows
import refused_media  # noqa: F401 - registers its rows
import refused_requests  # noqa: F401 - registers its rows
import reply_situations  # noqa: F401 - registers its rows
import tool_situations  # noqa: F401 - registers its rows
from provider_suite import CAPABILITIES, WIRES
from wire import Wire

PAGE = Path(__file__).parents[3] / "docs" / "provider-matrix.md"
_HEAD, _TAIL = "<!-- matrix -->\n", "<!-- end of matrix -->\n"


def table(wires: Sequence[Wire] = WIRES) -> str:
    """Return the matrix, by running every check."""
    lines = [["", *(wire.title for wire in wires)]]
    lines += [[title, *(check(wire) for wire in wires)] for title, check in CAPABILITIES.items()]
    lines.insert(1, ["---"] * (len(wires) + 1))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def write() -> None:
    """Write the matrix into its page."""
    before, rest = PAGE.read_text().split(_HEAD)
    PAGE.write_text(before + _HEAD + table() + _TAIL + rest.split(_TAIL)[1])


if __name__ == "__main__":
    write()
