"""Tables of docs/providers.md that are printed from rows of the code, each between two comments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "providers.md"


def lines(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of a table with its head."""
    columns = [*columns]
    return [f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows)]


@dataclass(frozen=True)
class PrintedTable:
    """One table of the page, between `<!-- NAME -->` and `<!-- end of NAME -->`."""

    name: str
    table: Callable[[], str]

    def write(self) -> None:
        """Write the table into its page."""
        before, _, after = self._split_page()
        PAGE.write_text(f"{before}{self._head}{self.table()}{self._tail}{after}")

    def printed(self) -> str:
        """Return the table as it stands on the page."""
        return self._split_page()[1]

    @property
    def _head(self) -> str:
        return f"<!-- {self.name} -->\n"

    @property
    def _tail(self) -> str:
        return f"<!-- end of {self.name} -->\n"

    def _split_page(self) -> tuple[str, str, str]:
        before, rest = PAGE.read_text().split(self._head)
        table, after = rest.split(self._tail)
        return before, table, after
