"""Compare the tools that a skill offers now with the definitions that were agreed to.

Agreed are the definitions in perstack.lock; without an entry there, those that the Job's logs say the model was offered
first, or that this process saw first. Every list of a skill is judged, so it does not matter when or how a definition
changed: before the Run, on another page, by a notification, after a reconnection or on another day.

- A changed tool is offered as it was agreed to, so that no new text reaches the model, and each call asks a person.
- A tool that the lock does not have is left out. Without a lock, new tools are agreed to by their first use.
- Instructions that have changed are not shown: the agreed ones are, where their text is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from perstack.core.base.records import JsonObject
from perstack.core.definitions.skills import ToolSpec
from perstack.core.definitions.tool_definitions import by_name, definition_diff, definition_digest, text_digest
from perstack.engine.plugins.trust_checks import INSTRUCTIONS, JudgedTool, JudgedToolset
from perstack.ports.skill import Toolset

_MAX_LISTED = 20  # tools that one notice lists at most
_CHANGED_IN_LOCK = "its definition is not the one of perstack.lock"
_CHANGED_IN_JOB = "its definition has changed since this Job first offered it"
_UNKNOWN_TEXT = "(The definition of this tool has changed since this Job first offered it. Each call asks a person.)"
_ANY_ARGUMENTS: JsonObject = {"type": "object", "properties": {}}


class AgreedTools:
    """Agreed definitions of one skill."""

    def __init__(self, toolset: Toolset, *, is_locked: bool) -> None:
        """Start with the toolset of perstack.lock, or with the first one that the skill offered."""
        self._specs = dict(by_name(toolset.specs))
        self._digests = {name: definition_digest(spec) for name, spec in self._specs.items()}
        self._instructions = toolset.instructions
        self._is_locked = is_locked

    def judge(self, skill: str, toolset: Toolset, recorded_digests: Mapping[str, str]) -> JudgedToolset:
        """Compare a list of the skill with the agreed definitions; `recorded_digests`: digests in the Job's logs."""
        if self._is_locked:
            recorded_digests = self._digests | {INSTRUCTIONS: text_digest(self._instructions)}
        current = by_name(toolset.specs)
        names = [*(name for name in self._specs if name in current), *(n for n in current if n not in self._specs)]
        judged = {name: self._judge(current[name], recorded_digests) for name in names}
        tools = tuple(tool for tool in judged.values() if tool is not None)
        instructions, has_other_instructions = self._instructions_for(toolset, recorded_digests)
        digests = {name: tool.definition for name, tool in judged.items() if tool is not None and not tool.changed}
        digests[INSTRUCTIONS] = recorded_digests.get(INSTRUCTIONS, text_digest(self._instructions))
        differences = list(self._differences(judged, current, has_other_instructions=has_other_instructions))
        return JudgedToolset(tools, instructions, digests, self._notice(skill, differences) if differences else "")

    def _judge(self, live: ToolSpec, recorded: Mapping[str, str]) -> JudgedTool | None:
        """Return the tool as it may be offered; None for a tool that the lock does not have."""
        digest, known = definition_digest(live), self._specs.get(live.name)
        if self._is_locked and known is None:
            return None
        if known is None:  # agreed to by its first use
            known = self._specs[live.name] = live
            self._digests[live.name] = digest
        agreed = recorded.get(live.name, self._digests[live.name])
        if digest == agreed:
            return JudgedTool(live, digest, is_locked=self._is_locked)
        old = known if self._digests[live.name] == agreed else None
        # without the agreed text the model sees a text of the host; the meaning of arguments stays, for deny rules
        offered = old or live.model_copy(update={"description": _UNKNOWN_TEXT, "input_schema": _ANY_ARGUMENTS})
        return JudgedTool(
            offered.model_copy(update={"effect": "sideEffect"}),
            digest,
            _CHANGED_IN_LOCK if self._is_locked else _CHANGED_IN_JOB,
            definition_diff(old, live),
        )

    def _instructions_for(self, live: Toolset, recorded: Mapping[str, str]) -> tuple[str, bool]:
        """Return the instructions to show, and whether the skill's present ones differ."""
        agreed = recorded.get(INSTRUCTIONS, text_digest(self._instructions))
        if text_digest(live.instructions) == agreed:
            return live.instructions, False
        return self._instructions if text_digest(self._instructions) == agreed else "", True

    def _differences(
        self, judged: Mapping[str, JudgedTool | None], current: Mapping[str, ToolSpec], *, has_other_instructions: bool
    ) -> Iterator[str]:
        lists = [
            ("missing", self._specs.keys() - current.keys() if self._is_locked else ()),
            ("new, left out", [name for name, tool in judged.items() if tool is None]),
            ("changed, each call asks", [name for name, tool in judged.items() if tool is not None and tool.changed]),
        ]
        yield from (f"{words}: {_list(sorted(names))}" for words, names in lists if names)
        if has_other_instructions:
            yield "its instructions changed, the new ones are not shown to the model"

    def _notice(self, skill: str, differences: list[str]) -> str:
        words = "; ".join(differences)
        if self._is_locked:
            return f"{out_of_date(skill)} ({words})"
        return f"skill {skill} has changed since this Job first used it ({words}); a new Job takes it as it is"


def _list(names: list[str]) -> str:
    more = f", and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more


def out_of_date(name: str) -> str:
    """Return the notice that perstack.lock is out of date for a skill."""
    return f"perstack.lock is out of date for skill {name}: install the skills again"
