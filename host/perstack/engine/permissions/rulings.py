"""Ruling on the calls of a reply, and on what a person may be offered: the disk is looked at beside the loop.

What decides is imported when it is first needed: a Run without rules never does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from perstack.core.commands import Call
from perstack.core.messages import ToolCallPart
from perstack.core.policy.approvals import Standing
from perstack.core.policy.calls import PolicyCall, Resolve, Ways, policy_call
from perstack.core.policy.permissions import RuleSet
from perstack.core.runs.state import Run
from perstack.core.tools import DecidedCall
from perstack.core.toolsearch import SEARCH_TOOL
from perstack.engine.catalogue import Catalogue
from perstack.engine.policy_paths import resolver


def _has_not_begun(call: Call) -> bool:
    """Whether a call, found open after a stop, has had no effect yet."""
    is_at_work = call.began or call.question is not None or bool(call.answers)
    return not is_at_work and call.delegation is None and call.settlement in (None, "retry")


class Rulings:
    """What the rules in force make of the calls of one workspace."""

    def __init__(self, workspace: str) -> None:
        self._workspace = workspace
        self._resolve: Resolve | None = None

    async def of(
        self,
        parts: Sequence[ToolCallPart],
        decided: Sequence[DecidedCall],
        catalogue: Catalogue,
        chain: Sequence[RuleSet],
        standing: Sequence[Standing],
    ) -> list[DecidedCall]:
        """The decided calls under these rules."""
        args = {part.tool_call_id: part for part in parts}

        def rule() -> list[DecidedCall]:
            return [self._ruled(args[one.id], one, catalogue, chain, standing) for one in decided]

        return await asyncio.to_thread(rule)

    async def again(self, run: Run, catalogue: Catalogue) -> list[tuple[Call, str]]:
        """The calls that have not begun and may not be run any more as they were decided, and what the model sees:
        the rules have become stricter since."""
        waiting = [call for call in run.open_calls if _has_not_begun(call)]
        decided = await self.of(
            [call.part for call in waiting], [call.decided for call in waiting], catalogue, run.permissions, ()
        )
        found: list[tuple[Call, str]] = []
        for call, now in zip(waiting, decided, strict=True):
            if now.kind == "refused" and call.decided.kind != "refused":
                found.append((call, now.problem or ""))
            elif now.asks and not (call.decided.asks or call.decided.approved_by):
                found.append((call, "Not run: it needs approval by now. Call it again if it is still needed."))
        return found

    async def offers(self, call: Call, catalogue: Catalogue, chain: Sequence[RuleSet]) -> tuple[str, ...]:
        """The rules that a person may choose to approve of more than this call."""
        from perstack.core.runs.ruling import offers

        seen = self._seen(call.part, call.decided, catalogue)
        return () if seen is None else await asyncio.to_thread(offers, chain, seen)

    async def leads_to(self, call: Call, catalogue: Catalogue) -> tuple[str, ...]:
        """Where the paths of a call lead now."""
        from perstack.core.runs.ruling import leads_to

        seen = self._seen(call.part, call.decided, catalogue)
        return () if seen is None else await asyncio.to_thread(leads_to, seen)

    def _ruled(
        self,
        part: ToolCallPart,
        decided: DecidedCall,
        catalogue: Catalogue,
        chain: Sequence[RuleSet],
        standing: Sequence[Standing],
    ) -> DecidedCall:
        from perstack.core.runs.ruling import ruled

        seen = self._seen(part, decided, catalogue)
        if seen is None:
            return decided
        ways = Ways(seen.resolve)
        now = ruled(chain, standing, decided, replace(seen, resolve=ways))
        return now.model_copy(update={"ways": {path: tuple(names) for path, names in ways.found.items()}})

    def _seen(self, part: ToolCallPart, decided: DecidedCall, catalogue: Catalogue) -> PolicyCall | None:
        """The call as rules see it; None if none is ever about it."""
        offered = catalogue.find(part.tool_name)
        if decided.kind == "refused" or offered is None or part.tool_name == SEARCH_TOOL:
            return None
        if self._resolve is None:
            self._resolve = resolver(Path(self._workspace))
        return policy_call(offered.spec, offered.own_name, part.args, self._resolve, self._workspace)
