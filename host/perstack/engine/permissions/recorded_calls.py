"""Ruling on recorded calls again, for replay: by the rules that the log has, and by what is known of tools today."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from perstack.core.chain import BrokenSeal, open_line, taken_out
from perstack.core.definitions import Expert, PluginSkill
from perstack.core.events import CallTools, DecideApproval, RequestApproval, StoredEvent, parse_event
from perstack.core.instruction import names_directory
from perstack.core.messages import ToolCallPart
from perstack.core.policy.approvals import Standing
from perstack.core.policy.calls import PolicyCall, Ways, as_written
from perstack.core.runs.state import Run, latest_reply
from perstack.core.tools import DecidedCall, Subject
from perstack.core.toolsearch import SEARCH_TOOL
from perstack.engine.known_tools import known_tools, names_and_subjects
from perstack.engine.logs.lines import readable, run_ids
from perstack.engine.policy_paths import resolver
from perstack.ports.skill import SkillFactory
from perstack.ports.storage import RunRef, Storage
from perstack.version import VERSION

_OTHER_VERSION = "ruled on by another version of perstack, and otherwise by this one"
_NO_TOOL = "of a plugin that is not there now, or does not say what its tools' arguments are"
_OF_FILES = "decided otherwise than the rules make it now, and where its paths led then is not recorded"
_NO_APPROVAL = "by an approval that may have been redacted since"
_NO_RULES = "under rules that this version cannot read"
_OF_APPROVALS = (b'{"type":"requestApproval"', b'{"type":"decideApproval"')


class RulesCheck:
    """What the rules in force make of the calls of one Run."""

    def __init__(self, factories: Sequence[SkillFactory], workspace: Path, approvals: JobApprovals) -> None:
        self._factories = factories
        self._root = str(workspace)
        self._resolve = resolver(workspace)
        self._approvals = approvals
        self._known: tuple[Expert, Mapping[tuple[str, str], tuple[str, Subject | None]], frozenset[str]] | None = None
        self.ruled = 0
        self.unchecked: dict[str, int] = {}
        """How many calls could not be ruled on again, by the reason."""

    async def difference(self, run: Run, event: StoredEvent) -> str | None:
        """What is wrong with `callTools` as the next event; None if nothing is, or nothing can be said."""
        if not isinstance(event, CallTools) or not run.permissions:
            return None
        parts = {part.tool_call_id: part for part in latest_reply(run).tool_calls}
        standing = await self._approvals.all() if any(call.approved_by for call in event.calls) else ()
        return await asyncio.to_thread(self._first, run, event.calls, parts, standing)

    def _first(
        self,
        run: Run,
        calls: Sequence[DecidedCall],
        parts: Mapping[str, ToolCallPart],
        standing: Sequence[Standing],
    ) -> str | None:
        for decided in calls:
            part = parts.get(decided.id)
            wrong = None if part is None or part.raw_args is not None else self._of(run, decided, part, standing)
            if wrong is not None:
                return wrong
        return None

    def _of(self, run: Run, decided: DecidedCall, part: ToolCallPart, standing: Sequence[Standing]) -> str | None:
        from perstack.core.policy.recorded import difference_of

        if decided.tool_name == SEARCH_TOOL:
            return None
        readings = self._readings(run, decided, part)
        if readings is None:
            self._pass_over(_NO_TOOL)
            return None
        try:
            found = difference_of(
                run.permissions,
                standing,
                decided,
                readings,
                is_same_place=names_directory(run.start.instruction, self._root),
            )
        except ValueError:
            self._pass_over(_NO_RULES)
            return None
        self.ruled += 1
        if found is None:
            return None
        if decided.approved_by and not self._approvals.is_whole:
            self._pass_over(_NO_APPROVAL)
        elif run.start.runtime_version != VERSION:
            self._pass_over(_OTHER_VERSION)
        elif found.is_certain:
            return found.words
        else:
            self._pass_over(_OF_FILES)
        return None

    def _pass_over(self, why: str) -> None:
        self.unchecked[why] = self.unchecked.get(why, 0) + 1

    def _readings(self, run: Run, decided: DecidedCall, part: ToolCallPart) -> list[PolicyCall] | None:
        """The call as rules may have seen it; None if it is not known what its arguments were to them."""
        from perstack.core.policy.recorded import own_names

        tools, unknown = self._tools(run)
        if decided.skill_name in unknown:
            return None
        is_delegate = decided.kind == "delegate" or decided.skill_name.startswith("delegate/")
        own, subject = tools.get((decided.skill_name, decided.tool_name), (None, None))
        names = (own,) if own else own_names(run.permissions, decided)
        if is_delegate:
            names = (decided.target or decided.skill_name.removeprefix("delegate/"),)
        return [
            PolicyCall(
                tool=name,
                skill="" if is_delegate else decided.skill_name,
                args=part.args,
                kind="delegate" if is_delegate else "tool" if decided.kind == "refused" else decided.kind,
                effect=decided.effect,
                subject=subject,
                shown=decided.tool_name,
                resolve=resolve,
                root=self._root,
            )
            for name in names
            # a log of before paths were recorded may have led anywhere
            for resolve in ((Ways(as_written, decided.ways),) if decided.ways else (as_written, self._resolve))
        ]

    def _tools(self, run: Run) -> tuple[Mapping[tuple[str, str], tuple[str, Subject | None]], frozenset[str]]:
        """What is known of tools, and the skills of which nothing is."""
        expert = run.start.expert
        if self._known is None or self._known[0] is not expert:
            known = known_tools(self._factories, expert)
            plugins = (one.name for one in expert.skills if isinstance(one, PluginSkill))
            unknown = frozenset(name for name in plugins if known.get(name) is None)
            self._known = (expert, names_and_subjects(self._factories, expert), unknown)
        return self._known[1:]


class JobApprovals:
    """The approvals for the whole Job that its logs have. They are read when one is first named."""

    def __init__(self, storage: Storage, job_id: str) -> None:
        self._storage = storage
        self._job_id = job_id
        self._found: list[Standing] | None = None
        self.is_whole = True
        """Whether none was redacted since."""

    async def all(self) -> Sequence[Standing]:
        """As far as they can be read."""
        if self._found is None:
            self._found = []
            for run_id in await run_ids(self._storage, self._job_id):
                lines, _ = await readable(self._storage, RunRef(self._job_id, run_id))
                self._found += _standing_in(lines)
                self.is_whole = self.is_whole and not any(map(_is_taken_out, lines))
        return self._found


def _standing_in(lines: Iterable[bytes]) -> Iterator[Standing]:
    places: dict[str, tuple[str, ...]] = {}
    for line in lines:
        event = _event(line) if line.startswith(_OF_APPROVALS) else None
        if isinstance(event, RequestApproval):
            places[event.tool_call_id] = event.leads_to
        elif isinstance(event, DecideApproval) and event.decision == "job":
            given = places.get(event.tool_call_id, ())
            yield Standing(id=event.id, call_digest=event.call_digest, leads_to=given, rule=event.rule)


def _is_taken_out(line: bytes) -> bool:
    return line.startswith(_OF_APPROVALS) and _event(line) is None


def _event(line: bytes) -> StoredEvent | None:
    try:
        payload = open_line(line).payload
        return None if taken_out(payload) is not None else parse_event(payload)
    except (BrokenSeal, ValueError):
        return None
