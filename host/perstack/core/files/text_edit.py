"""Replace a piece of a file's text, by bytes, so that the rest of the file keeps its encoding."""

from __future__ import annotations

from perstack.dataclass import dataclass
from perstack.errors import SkillError

_CRLF = b"\r\n"
_LF = b"\n"


@dataclass(frozen=True, slots=True)
class Replacement:
    """A piece of a file that an edit replaces, in the file's own line endings."""

    offset: int  # of the piece, in bytes
    old: bytes
    new: bytes

    def apply(self, data: bytes) -> bytes:
        """Return the data with the piece replaced."""
        return data[: self.offset] + self.new + data[self.offset + len(self.old) :]


def find_replacement(data: bytes, old: bytes, new: bytes, name: str) -> Replacement:
    """Return the replacement of the only occurrence of `old`. Raises SkillError if there is not exactly one."""
    if not old:
        raise SkillError("oldText is empty; give the text to replace, or use appendTextFile to add to the end")
    if old == new:
        raise SkillError("oldText and newText are the same; nothing would change")
    text = next((form for form in _forms(old) if form in data), None)
    if text is None:
        raise SkillError(
            f"oldText does not occur in {name}; read the file and copy the text exactly, with its spaces and newlines"
        )
    if (start := data.find(text)) != data.rfind(text):
        lines = _line_numbers(data, text)
        raise SkillError(f"oldText occurs more than once in {name} (lines {lines}); give more of its surroundings")
    return Replacement(start, text, _with_endings(new, _line_ending(text, data)))


def _forms(old: bytes) -> tuple[bytes, ...]:
    """Return the text as given and with either line ending, since a model cannot see which one a file has."""
    plain = old.replace(_CRLF, _LF)
    return old, plain, plain.replace(_LF, _CRLF)


def _line_ending(text: bytes, data: bytes) -> bytes:
    sample = text if _LF in text else data
    return _CRLF if sample.count(_CRLF) * 2 > sample.count(_LF) else _LF


def _with_endings(new: bytes, ending: bytes) -> bytes:
    return new.replace(_CRLF, _LF).replace(_LF, ending)


def _line_numbers(data: bytes, text: bytes) -> str:
    line_numbers: list[str] = []
    position = data.find(text)
    while position >= 0 and len(line_numbers) < 5:
        line_numbers.append(str(data.count(_LF, 0, position)))
        position = data.find(text, position + 1)
    return ", ".join(line_numbers) + (" …" if position >= 0 else "")
