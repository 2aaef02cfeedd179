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
    """The agreed tool definitions of one skill: from perstack.lock, or as the Job first offered them."""

    def __init__(self, toolset: Toolset, *, is_locked: bool) -> None:
        """Start with the toolset of perstack.lock, or with the first one that the skill offered."""
        self._specs = dict(by_name(toolset.specs))
        self._digests = {name: definition_digest(spec) for name, spec in self._specs.items()}
        self._instructions = toolset.instructions
        self._is_locked = is_locked

    def judge(self, skill: str, toolset: Toolset, recorded_digests: Mapping[str, str]) -> JudgedToolset:
        """Compare the tools of the skill now with the agreed ones. `recorded_digests` are those of the logs."""
        if self._is_locked:
            recorded_digests = self._digests | {INSTRUCTIONS: text_digest(self._instructions)}
        current = by_name(toolset.specs)
        names = [
            *(name for name in self._specs if name in current),
            *(name for name in current if name not in self._specs),
        ]
        judged_tools = {name: self._judge_tool(current[name], recorded_digests) for name in names}
        tools = tuple(tool for tool in judged_tools.values() if tool is not None)
        instructions, has_other_instructions = self._instructions_for(toolset, recorded_digests)
        digests = {
            name: tool.definition for name, tool in judged_tools.items() if tool is not None and not tool.changed
        }
        digests[INSTRUCTIONS] = recorded_digests.get(INSTRUCTIONS, text_digest(self._instructions))
        differences = list(self._differences(judged_tools, current, has_other_instructions=has_other_instructions))
        return JudgedToolset(
            tools, instructions, digests, self._build_notice(skill, differences) if differences else ""
        )

    def _judge_tool(self, live_spec: ToolSpec, recorded: Mapping[str, str]) -> JudgedTool | None:
        """Return the tool as it may be offered; None for a tool that the lock does not have."""
        digest, known_spec = definition_digest(live_spec), self._specs.get(live_spec.name)
        if self._is_locked and known_spec is None:
            return None
        if known_spec is None:  # without a lock, the first definition counts as agreed to
            known_spec = self._specs[live_spec.name] = live_spec
            self._digests[live_spec.name] = digest
        agreed_digest = recorded.get(live_spec.name, self._digests[live_spec.name])
        if digest == agreed_digest:
            return JudgedTool(live_spec, digest, is_locked=self._is_locked)
        agreed_spec = known_spec if self._digests[live_spec.name] == agreed_digest else None
        # If the agreed text is lost, the model sees a text of the host. `subject` stays, so deny rules still apply.
        offered_spec = agreed_spec or live_spec.model_copy(
            update={"description": _UNKNOWN_TEXT, "input_schema": _ANY_ARGUMENTS}
        )
        return JudgedTool(
            offered_spec.model_copy(update={"effect": "sideEffect"}),
            digest,
            _CHANGED_IN_LOCK if self._is_locked else _CHANGED_IN_JOB,
            definition_diff(agreed_spec, live_spec),
        )

    def _instructions_for(self, live_toolset: Toolset, recorded: Mapping[str, str]) -> tuple[str, bool]:
        """Return the instructions to show, and whether the skill's present ones differ."""
        agreed_digest = recorded.get(INSTRUCTIONS, text_digest(self._instructions))
        if text_digest(live_toolset.instructions) == agreed_digest:
            return live_toolset.instructions, False
        return self._instructions if text_digest(self._instructions) == agreed_digest else "", True

    def _differences(
        self,
        judged_tools: Mapping[str, JudgedTool | None],
        current: Mapping[str, ToolSpec],
        *,
        has_other_instructions: bool,
    ) -> Iterator[str]:
        lists = [
            ("missing", self._specs.keys() - current.keys() if self._is_locked else ()),
            ("new, left out", [name for name, tool in judged_tools.items() if tool is None]),
            (
                "changed, each call asks",
                [name for name, tool in judged_tools.items() if tool is not None and tool.changed],
            ),
        ]
        yield from (f"{label}: {_list_names(sorted(names))}" for label, names in lists if names)
        if has_other_instructions:
            yield "its instructions changed, the new ones are not shown to the model"

    def _build_notice(self, skill: str, differences: list[str]) -> str:
        details = "; ".join(differences)
        if self._is_locked:
            return f"{out_of_date_notice(skill)} ({details})"
        return f"skill {skill} has changed since this Job first used it ({details}); a new Job takes it as it is"


def _list_names(names: list[str]) -> str:
    more = f", and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more


def out_of_date_notice(name: str) -> str:
    """Return the notice that perstack.lock is out of date for a skill."""
    return f"perstack.lock is out of date for skill {name}: install the skills again"
