"""Recorded calls as permission rules see them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import get_args

from pydantic import ValidationError

from perstack.core.base import JsonObject
from perstack.core.definitions import Expert, Project
from perstack.core.policy.calls import PolicyCall, Resolve
from perstack.core.policy.history import PastCall, PastRun, past_run
from perstack.core.tools import Subject, ToolKind
from perstack.engine.known_tools import names_and_subjects
from perstack.engine.policy_paths import resolver
from perstack.engine.read import RunLog
from perstack.errors import StorageError
from perstack.ports.skill import SkillFactory

_Tools = Mapping[tuple[str, str], tuple[str, Subject | None]]
"""By skill and name as the model sees it: the tool's own name, and what its arguments are."""


class SeenCalls:
    """What the tools of recorded Runs do, as far as definitions and plugins say so. Nothing is opened."""

    def __init__(self, project: Project, factories: Sequence[SkillFactory], workspace: Path) -> None:
        self._project = project
        self._factories = factories
        self._resolve: Resolve = resolver(workspace, remembers=True)
        self._root = str(workspace)
        self._tools: dict[str, _Tools] = {}

    def of(self, run: PastRun) -> Callable[[PastCall, JsonObject], PolicyCall]:
        """Makes of each call of a Run, and its arguments, what rules see."""
        tools = self._tools_of(key_of(run), run.expert)

        def seen(call: PastCall, args: JsonObject) -> PolicyCall:
            own, subject = tools.get((call.skill, call.tool), (call.target or call.tool, None))
            is_delegate = call.kind == "delegate" or call.skill.startswith("delegate/")
            return PolicyCall(
                tool=(call.target or call.skill.removeprefix("delegate/")) if is_delegate else own,
                skill="" if is_delegate else call.skill,
                args=args,
                kind="delegate" if is_delegate else call.kind,
                effect=call.effect,
                subject=subject,
                shown=call.tool,
                resolve=self._resolve,
                root=self._root,
            )

        return seen

    def _tools_of(self, key: str, definition: JsonObject) -> _Tools:
        written = json.dumps([key, definition.get("skills")])
        if written not in self._tools:
            self._tools[written] = names_and_subjects(self._factories, _expert(definition), self._project.expert(key))
        return self._tools[written]


def calls_made(logs: Iterable[RunLog], factories: Sequence[SkillFactory], workspace: Path) -> tuple[PolicyCall, ...]:
    """The calls that recorded Runs have made, whoever answers them; without arguments if those were taken out.

    Raises Damaged, and StorageError for a line that does not read.
    """
    calls = SeenCalls(Project(), factories, workspace)
    found: list[PolicyCall] = []
    for log in logs:
        if log.damage is not None:
            raise log.damage
        try:
            run = past_run(log.run_id, log.lines, get_args(ToolKind))
        except ValueError as error:
            raise StorageError(f"Run {log.run_id}: {error}") from error
        seen = calls.of(run)
        found += [seen(call, call.args or {}) for call in run.calls if call.ran]
    return tuple(found)


def key_of(run: PastRun) -> str:
    """The key of the Expert of a recorded Run."""
    key = run.expert.get("key")
    return key if isinstance(key, str) else ""


def _expert(definition: JsonObject) -> Expert:
    """The Expert of a recorded definition, as far as its tools are concerned."""
    with suppress(ValidationError):
        return Expert.model_validate({"key": "a", "instruction": "", "skills": definition.get("skills") or []})
    return Expert(key="a", instruction="")
