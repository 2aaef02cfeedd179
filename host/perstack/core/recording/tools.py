"""Which tools are really run when a recording is played, and which give what they gave then."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal, cast

from pydantic import JsonValue

from perstack.dataclass import dataclass
from perstack.errors import UsageError

HowToRun = Literal["live", "recorded"]
ToolChoice = HowToRun | Mapping[str, HowToRun] | None
"""For all tools; or for each that a pattern names, `TOOL` or `SKILL/TOOL` with `*`; None: as `by_default` says."""

_WORDS: tuple[HowToRun, ...] = ("live", "recorded")


@dataclass(frozen=True, slots=True)
class ChosenTools:
    """What was chosen: of the patterns that name a tool, the first counts."""

    patterns: tuple[tuple[str, HowToRun], ...] = ()

    def is_live(self, skill: str, tool: str, *, changes_files: bool = False) -> bool:
        """Whether a tool is really run.

        Where nothing is chosen, those are that change files of the workspace, so that a test finds the files there.
        What a recording stands for is not run: models, servers, programs, and what only reads, whose files a test
        then needs not have.
        """
        for pattern, how in self.patterns:
            if fnmatchcase(f"{skill}/{tool}" if "/" in pattern else tool, pattern):
                return how == "live"
        return changes_files


BY_DEFAULT = ChosenTools()


def chosen_tools(choice: JsonValue | ToolChoice, where: str) -> ChosenTools:
    """What is written as `tools`; `where` names the place in errors. Raises UsageError."""
    if choice is None:
        return BY_DEFAULT
    written = choice if isinstance(choice, Mapping) else {"*": choice}
    for name, how in written.items():
        if how not in _WORDS:
            place = where if name == "*" else f"{where}.{name}"
            raise UsageError(f"{place} is {how!r}: use `live` or `recorded`, or a table of tools with either")
    return ChosenTools(tuple(cast("Mapping[str, HowToRun]", written).items()))
