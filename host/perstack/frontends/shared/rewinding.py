"""A rewind as people are shown it, besides the files themselves."""

from __future__ import annotations

from collections.abc import Iterator

from perstack.core.plain import one_line, visible_text
from perstack.engine.rewinding.rewinder import Rewind
from perstack.frontends.shared.patch import KEPT

_SHOWN = 10
_DEFINITIONS = ("perstack.toml", "perstack.lock")


def definition_warnings(plan: Rewind) -> Iterator[str]:
    """A line for each file that says what Experts may do."""
    for file in plan.files:
        if file.path.rpartition("/")[2] in _DEFINITIONS:
            yield f"{visible_text(file.path)}: Experts and rules become those of then"


def kept_lines(plan: Rewind) -> Iterator[str]:
    """What is left alone, and why; of many some."""
    for one in plan.kept[:_SHOWN]:
        yield f"{visible_text(one.path)} {KEPT[one.why]}"
    if len(plan.kept) > _SHOWN:
        yield f"… and {len(plan.kept) - _SHOWN:,} more stay"


def nothing_to_rewind(plan: Rewind) -> str:
    """What is said where the files are those of then."""
    return f"{one_line(plan.workspace)} is as it was at {plan.checkpoint_id}: there is nothing to rewind"
