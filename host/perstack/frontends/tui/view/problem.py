"""What is wrong with the definition, while the last good one stays in force."""

from __future__ import annotations

from pathlib import Path

from perstack.engine.live import Held
from perstack.frontends.tui.next_steps import said
from perstack.frontends.tui.view.spans import Line, Span, wrap
from perstack.next_steps import Note

_MOST = 8


def problem_lines(problem: Note | None, held: Held | None, folder: Path, width: int) -> list[Line]:
    """What is wrong, with its place as seen from the folder; of a change of what is executed, what it is and how a
    person agrees to it."""
    if held is not None:
        first, *others = held.question.splitlines()
        texts = [
            first.removeprefix("perstack: "),
            *others[:-1],
            "F9 uses it; until then the definition of before is used.",
        ]
    elif problem is not None:
        texts = problem.said(said).splitlines()
    else:
        return []
    lines = [line for text in texts for line in wrap(text.replace(f"{folder}/", ""), width)]
    if len(lines) > _MOST:
        lines = [*lines[: _MOST - 1], "… `perstack validate` says all of it"]
    return [(Span(line, "" if at else "warn"),) for at, line in enumerate(lines)]
