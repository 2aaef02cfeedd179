"""AGENTS.md: what a project says to agents, in its public format. The file nearest to where one works counts most."""

from collections.abc import Sequence
from hashlib import sha256

from pydantic import Field

from perstack.core.base import Fact, falsy
from perstack.dataclass import dataclass

AGENTS_FILE = "AGENTS.md"

MOST_BYTES = 32 << 10
"""Of all of them together, some 8,000 tokens: they are sent with every request."""

_HEAD = (
    "What the project says to agents, in files called AGENTS.md. Where two of them differ, the later one counts, which"
    " is nearer to the working directory; the query counts before all of them."
)


class AgentsMdFile(Fact):
    """An AGENTS.md as a Run began with it."""

    path: str
    """Seen from the top of the project."""
    sha256: str
    """Of the whole file, in hex."""
    size: int
    """Bytes."""
    shown: int | None = Field(default=None, exclude_if=lambda value: value is None)
    """How many of them the model sees, if not all."""
    problem: str = Field(default="", exclude_if=falsy)
    """Why it sees none."""


@dataclass(frozen=True, slots=True)
class Unread:
    """An AGENTS.md that is there and was not read."""

    path: str
    problem: str


def assembled(found: Sequence[tuple[str, bytes] | Unread]) -> tuple[str, tuple[AgentsMdFile, ...]]:
    """The text for the model, and what is recorded of each file; they come with the nearest last.

    Of too much the nearest is kept: it says what is special here.
    """
    left, parts, records = MOST_BYTES, list[str](), list[AgentsMdFile]()
    for one in reversed(found):
        if isinstance(one, Unread):
            parts.append(f"{one.path} is not shown: it {one.problem}.")
            records.append(AgentsMdFile(path=one.path, sha256="", size=0, problem=one.problem))
            continue
        path, data = one
        kept = data[:left]
        left -= len(kept)
        is_cut = len(kept) < len(data)
        # a sign that is cut in two is left out
        text = kept.decode(errors="ignore" if is_cut else "replace").strip()
        cut = f"\n[Cut: {len(data) - len(kept):,} of {len(data):,} bytes are left out.]" if is_cut else ""
        if text or cut:
            parts.append(f"From {path}:\n{text}{cut}")
        digest = sha256(data).hexdigest()
        records.append(AgentsMdFile(path=path, sha256=digest, size=len(data), shown=len(kept) if is_cut else None))
    text = "\n\n".join((_HEAD, *reversed(parts))) if parts else ""
    return text, tuple(reversed(records))
