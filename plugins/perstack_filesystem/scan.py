"""Which records a log file holds, and where its good part ends.

A log is lines sealed by `core.chain`. What is not whole is read by these rules:

- Bytes after the last newline that are not a whole record are a torn tail: a write that a crash cut short (or the NUL
  bytes that a filesystem leaves in its place). Whole records of the same append before them belong to the tail too.
- A whole last record that only lacks its newline counts.
- A line with its newline that does not verify is damage, wherever it stands.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

from perstack.core.chain import EMPTY_LOG, BrokenSeal, Head, check
from perstack.errors import Damaged

ReadAt = Callable[[int, int], bytes]
"""At most so many bytes from an offset; none at the end of the file."""

_FIRST_READ = 1 << 16
_LONGEST_READ = 1 << 26


class Scan:
    """What is known of a log so far: its verified records from the first on."""

    def __init__(self) -> None:
        self.head: Head = EMPTY_LOG
        self.ends: array[int] = array("Q")
        """For each record the offset after its newline."""
        self.lacks_newline = False
        """The last record's newline is missing in the file."""
        self._batch: list[bytes] = []
        self._batch_head = EMPTY_LOG
        self._missing = 0

    @property
    def seq(self) -> int:
        """How many records are known."""
        return len(self.ends)

    @property
    def end(self) -> int:
        """The offset after the last known record and its newline."""
        return self.ends[-1] if self.ends else 0

    @property
    def size(self) -> int:
        """How long the file is if nothing follows the last known record."""
        return self.end - self.lacks_newline

    def advance(self, read_at: ReadAt, place: str, want: int | None = None) -> list[bytes]:
        """Verify on until the log ends or `want` records are known; returns those found now.

        Records of one append become known together. Raises Damaged (`place` names the file in it) if a damaged line
        comes before `want`; the records before it are known then.
        """
        found: list[bytes] = []
        self.lacks_newline = False
        self._batch, self._batch_head, self._missing = [], self.head, 0
        rest, length = b"", _LONGEST_READ if want is None else _FIRST_READ
        offset = self.end
        while want is None or self.seq < want:
            data = read_at(length, offset)
            if not data:
                found += self._last_line(rest)
                break
            offset, length = offset + len(data), min(length * 4, _LONGEST_READ)
            lines = (rest + data).split(b"\n") if rest else data.split(b"\n")
            rest = lines.pop()
            try:
                for line in lines:
                    self._take(line, found)
            except BrokenSeal as broken:
                found += self._give_up()
                if want is None or self.seq < want:
                    raise self._damaged(place, broken) from broken
        return found

    def grown(self, records: list[bytes], head: Head) -> None:
        """Note records that were just written after the last known one."""
        end = self.end
        for record in records:
            end += len(record) + 1
            self.ends.append(end)
        self.head = head
        self.lacks_newline = False

    def _take(self, line: bytes, found: list[bytes]) -> None:
        sealed, self._batch_head = check(self._batch_head, line)
        if self._missing == 0:
            self._missing = sealed.batch
        self._missing -= 1
        self._batch.append(line)
        if self._missing == 0:
            found += self._batch
            self._commit()

    def _commit(self) -> None:
        self.grown(self._batch, self._batch_head)
        self._batch = []

    def _last_line(self, rest: bytes) -> list[bytes]:
        """The end of the file: a whole record without its newline counts, everything else unfinished does not."""
        found: list[bytes] = []
        if rest:
            try:
                self._take(rest, found)
            except BrokenSeal:
                return []
            self.lacks_newline = bool(found)
        return found

    def _give_up(self) -> list[bytes]:
        # a damaged line is not a torn tail, so the good ones before it count though their append is not whole
        batch = self._batch
        self._commit()
        return batch

    def _damaged(self, place: str, broken: BrokenSeal) -> Damaged:
        return Damaged(
            f"{place}, line {self.seq + 1}, byte {self.end}: {broken}; records before it that can be read: {self.seq}. "
            "Put the file back from a copy, or delete it from that line on to continue from there",
            readable=self.seq,
        )
