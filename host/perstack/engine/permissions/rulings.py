"""Apply the permission rules in force to the calls of a Run. `core.permissions.call_rulings` decides.

This module supplies the spec of the called tool, and where the paths in the arguments lead on disk. The results are
recorded in `DecidedCall.ways`, so that a replay can repeat the decision without the disk. After a stop, calls that have
not begun are judged again (`judge_again`), because the rules may be stricter by then.

Three places build a `PolicyCall`, and must agree: `Rulings._policy_call` from a live call, `recorded_calls` from a log,
and `rule_testing.make_call` from a person's description.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from perstack.core.definitions.permissions import RuleSet, StandingApproval
from perstack.core.definitions.skills import DecidedCall
from perstack.core.messages.messages import ToolCallPart
from perstack.core.permissions.policy_calls import PathResolver, PolicyCall, Resolve, policy_call
from perstack.core.runs.commands import Call
from perstack.core.runs.state import Run
from perstack.engine.permissions.changed_files import content_digest
from perstack.engine.plugins.tool_catalogue import Catalogue

# Resolution of the paths in a call, for permission rules: through links, and out of the workspace.


def path_resolver(workspace: Path, *, caches_folders: bool = False) -> Resolve:
    """Return a function that maps a path of a call to its names; see `Resolve`. It reads the disk, and never raises.

    With `caches_folders` it reads each folder only once, for calls that do not run now.
    """
    root = os.path.realpath(workspace)

    def real_path_of(folder: str) -> str:
        return os.path.realpath(folder)

    real_path = lru_cache(maxsize=100_000)(real_path_of) if caches_folders else real_path_of

    def follow_links(path: str) -> tuple[str, str]:
        """Return the path's own name in the real folder that contains it, and the path that it leads to."""
        folder, name = os.path.split(path)
        own_name = f"{real_path(folder).rstrip('/')}/{name}" if name not in ("", ".", "..") else real_path(path)
        return own_name, os.path.realpath(own_name) if os.path.islink(own_name) else own_name  # noqa: PTH114 - nothing but names

    def resolve(path: str, folder: str) -> Sequence[str]:
        full_path = os.path.join(root, folder, path)  # noqa: PTH118 - normpath needs what Path would drop
        # File tools resolve `link/..` lexically, and programs as the system does.
        normalized = os.path.normpath(full_path)
        names: tuple[str, ...]
        try:
            own_name, target = follow_links(normalized)
            names = (target, *(() if full_path == normalized else follow_links(full_path)[1:]), own_name)
        except (ValueError, OSError):
            names = (normalized,)
        return tuple(dict.fromkeys(_relative_to(root, name) for name in names))

    return resolve


def _relative_to(root: str, name: str) -> str:
    if name == root:
        return "."
    return name.removeprefix(f"{root.rstrip('/')}/")


def _may_begin(call: Call) -> bool:
    """Return whether a call has not begun and may still begin: it is no delegation and not settled by a person."""
    has_begun = call.began or call.tool_question is not None or bool(call.answers)
    return not has_begun and call.delegation is None and call.settlement in (None, "retry")


class Rulings:
    """Permission rules, applied to the calls in one workspace."""

    def __init__(self, workspace: str) -> None:
        self._workspace = workspace
        self._resolve: Resolve | None = None

    async def apply_to(
        self,
        parts: Sequence[ToolCallPart],
        decided: Sequence[DecidedCall],
        catalogue: Catalogue,
        chain: Sequence[RuleSet],
        approvals: Sequence[StandingApproval],
    ) -> list[DecidedCall]:
        """Return the calls with the decisions of the rules and of approvals for the Job."""
        parts_by_id = {part.tool_call_id: part for part in parts}

        def apply_all() -> list[DecidedCall]:
            return [
                self._apply_rules(parts_by_id[decided_call.id], decided_call, catalogue, chain, approvals)
                for decided_call in decided
            ]

        return await asyncio.to_thread(apply_all)

    async def judge_again(self, run: Run, catalogue: Catalogue) -> list[tuple[Call, str]]:
        """Judge the calls that have not begun again, because rules may have become stricter.

        Return the calls that may no longer run as decided, each with the message for the model.
        """
        not_begun = [call for call in run.open_calls if _may_begin(call)]
        new_decisions = await self.apply_to(
            [call.part for call in not_begun], [call.decided for call in not_begun], catalogue, run.rules, ()
        )
        blocked: list[tuple[Call, str]] = []
        for call, new_decision in zip(not_begun, new_decisions, strict=True):
            if new_decision.kind == "refused" and call.decided.kind != "refused":
                blocked.append((call, new_decision.problem or ""))
            elif new_decision.asks and not (call.decided.asks or call.decided.approved_by):
                blocked.append((call, "Not run: it needs approval by now. Call it again if it is still needed."))
        return blocked

    async def offered_rules(self, call: Call, catalogue: Catalogue, chain: Sequence[RuleSet]) -> tuple[str, ...]:
        """Return the rules that a person may approve instead of only this call."""
        from perstack.core.permissions.call_rulings import offered_rules

        rule_call = self._policy_call(call.part, call.decided, catalogue)
        return () if rule_call is None else await asyncio.to_thread(offered_rules, chain, rule_call)

    async def is_allowed(self, call: Call, catalogue: Catalogue, chain: Sequence[RuleSet]) -> bool:
        """Return whether these rules allow a call without a question."""
        from perstack.core.permissions.decide_call import decide_call

        rule_call = self._policy_call(call.part, call.decided, catalogue)
        return rule_call is not None and (await asyncio.to_thread(decide_call, chain, rule_call)).decision == "allow"

    async def granted_rule(
        self, call: Call, catalogue: Catalogue, chain: Sequence[RuleSet], rules: Sequence[str]
    ) -> str | None:
        """Return the first of these granted rules that covers a call; None without one."""
        from perstack.core.permissions.call_rulings import allows_alone

        rule_call = self._policy_call(call.part, call.decided, catalogue) if rules else None
        if rule_call is None:
            return None
        sufficient_rules = (rule for rule in rules if allows_alone(chain, rule_call, rule))
        return await asyncio.to_thread(next, sufficient_rules, None)

    async def resolved_paths(self, call: Call, catalogue: Catalogue) -> tuple[str, ...]:
        """Return the files to which the paths of a call lead now."""
        from perstack.core.permissions.call_rulings import resolved_paths

        rule_call = self._policy_call(call.part, call.decided, catalogue)
        return () if rule_call is None else await asyncio.to_thread(resolved_paths, rule_call)

    async def changed_file_digest(self, call: Call) -> str:
        """Return the present digest of the file that a call changes; empty if it changes none."""
        workspace, decided = Path(self._workspace), call.decided
        return await asyncio.to_thread(content_digest, workspace, decided.skill_name, decided.tool_name, call.part.args)

    def _apply_rules(
        self,
        part: ToolCallPart,
        decided: DecidedCall,
        catalogue: Catalogue,
        chain: Sequence[RuleSet],
        approvals: Sequence[StandingApproval],
    ) -> DecidedCall:
        from perstack.core.permissions.call_rulings import apply_rules

        rule_call = self._policy_call(part, decided, catalogue)
        if rule_call is None:
            return decided
        path_names = PathResolver(rule_call.resolve)
        ruled = apply_rules(chain, approvals, decided, replace(rule_call, resolve=path_names))
        return ruled.model_copy(update={"ways": {path: tuple(names) for path, names in path_names.resolved.items()}})

    def _policy_call(self, part: ToolCallPart, decided: DecidedCall, catalogue: Catalogue) -> PolicyCall | None:
        tool = None if decided.kind == "refused" else catalogue.find(decided)
        if tool is None:
            return None
        if self._resolve is None:
            self._resolve = path_resolver(Path(self._workspace))
        is_host = tool.rank == 0
        rule_call = policy_call(tool.spec, tool.own_name, part.args, self._resolve, self._workspace, is_host=is_host)
        return replace(rule_call, changed=decided.changed)
