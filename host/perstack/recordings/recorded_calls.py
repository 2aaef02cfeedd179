"""Judge recorded calls again, by today's meaning of their arguments: for replay, or with other rules for a backtest."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import get_args

from pydantic import ValidationError

from perstack.agent_skills.load_tool import SKILL_NAME, load_spec
from perstack.compaction.context_tools import pin_spec
from perstack.compaction.recall import recall_spec
from perstack.core.base.chain import BrokenSeal, open_line, read_remains
from perstack.core.base.records import JsonObject
from perstack.core.definitions.expert_changes import changing_specs
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.instruction import names_directory
from perstack.core.definitions.permissions import PROVIDER, STANDING_DECISIONS, StandingApproval
from perstack.core.definitions.project import Project
from perstack.core.definitions.skills import (
    DecidedCall,
    InteractiveSkill,
    McpSseSkill,
    McpStdioSkill,
    PluginSkill,
    Skill,
    Subject,
    ToolKind,
    ToolSpec,
    agent_skills,
    is_base_skill,
    is_picked,
    legal_tool_name,
    named_arguments,
    with_base_skill,
)
from perstack.core.messages.messages import ToolCallPart
from perstack.core.messages.tool_search import search_spec
from perstack.core.permissions.policy_calls import PathResolver, PolicyCall, Resolve, as_written
from perstack.core.runs.call_stages import LoggedCall
from perstack.core.runs.events import ResumeRun, StartGeneration, StoredEvent, parse_event
from perstack.core.runs.events.changed_calls import DecideChangedCall
from perstack.core.runs.events.questions import DecideApproval, RequestApproval
from perstack.core.runs.events.tool_calls import CallTools
from perstack.core.runs.request_digest import schemas_in, tools_blob
from perstack.core.runs.state import Run, latest_reply
from perstack.engine.log.event_log import read_intact, run_ids
from perstack.engine.log.run_log import RunLog
from perstack.engine.permissions.rulings import path_resolver
from perstack.engine.plugins.tool_catalogue import interactive_tools
from perstack.engine.runs.call_stages import decision_difference
from perstack.errors import NotFound, StorageError
from perstack.ports.provider import ProviderTool
from perstack.ports.skill import SkillFactory
from perstack.ports.storage import RunRef, Storage
from perstack.recordings.past_calls import PastCall, PastRun, read_past_run
from perstack.version import VERSION

# Tools of an Expert, as far as they are known without opening a skill.


def known_tools(
    factories: Sequence[SkillFactory], expert: Expert, provider_tools: Sequence[ProviderTool] = ()
) -> Mapping[str, tuple[ToolSpec, ...] | None]:
    """Return the tools of an Expert's skills, by skill name; None for a skill whose tools only its server knows.

    `provider_tools` have the other names of the tools that the Expert wants of its provider.
    """
    skills = with_base_skill(expert.skills)
    specs_by_skill = {skill.name: tools_of_skill(factories, skill) for skill in skills}
    if expert.provider_tools:
        names = dict.fromkeys(expert.provider_tools)
        for tool in provider_tools:
            if tool.name in expert.provider_tools or tool.alias in expert.provider_tools:
                names.update(dict.fromkeys(filter(None, (tool.name, tool.alias))))
        specs_by_skill[PROVIDER] = tuple(ToolSpec(name=name, skill_name=PROVIDER) for name in names)
    folders = agent_skills(expert.skills)
    return {**specs_by_skill, SKILL_NAME: (load_spec(folders),)} if folders else specs_by_skill


def host_skills(expert: Expert) -> frozenset[str]:
    """Return the names under which an Expert's calls of the base skill and of `loadSkill` are recorded.

    An `allow` rule without a skill matches their tools only.
    """
    skills = with_base_skill(expert.skills)
    others = {skill.name for skill in skills if not is_base_skill(skill)}
    return frozenset({SKILL_NAME, *(skill.name for skill in skills if is_base_skill(skill))} - others)


def names_and_subjects(
    factories: Sequence[SkillFactory], expert: Expert, todays_expert: Expert | None = None
) -> Mapping[tuple[str, str], tuple[str, Subject | None]]:
    """Return each tool's own name and the meaning of its arguments, by skill and by the name that models see.

    The declarations of `todays_expert` replace the Expert's own.
    """
    declared = {skill.name for skill in expert.skills}
    builtin_specs = (spec for spec in (search_spec(()), pin_spec(), recall_spec()) if spec.skill_name not in declared)
    names: dict[tuple[str, str], tuple[str, Subject | None]] = {
        (spec.skill_name, spec.name): (spec.name, spec.subject) for spec in builtin_specs
    }
    for skill, specs in known_tools(factories, expert).items():
        names.update(_names_and_subjects_of_tools(skill, ((spec.name, spec.subject) for spec in specs or ())))
    for declared_skill in (*expert.skills, *(() if todays_expert is None else todays_expert.skills)):
        if isinstance(declared_skill, McpStdioSkill | McpSseSkill):
            names.update(
                _names_and_subjects_of_tools(declared_skill.name, ((tool.name, tool) for tool in declared_skill.tools))
            )
    return names


def _names_and_subjects_of_tools(
    skill: str, tools: Iterable[tuple[str, Subject | None]]
) -> Iterator[tuple[tuple[str, str], tuple[str, Subject | None]]]:
    for name, subject in tools:
        # the plain name, and the prefixed one used if two skills have a tool of that name
        for visible_name in (legal_tool_name(name), legal_tool_name(f"{skill}_{name}")):
            yield (skill, visible_name), (name, subject)


def tools_of_skill(factories: Sequence[SkillFactory], skill: Skill) -> tuple[ToolSpec, ...] | None:
    """Return the tools of one skill, filtered by its `pick` and `omit`; None if only its server knows them."""
    if isinstance(skill, InteractiveSkill):
        return tuple(tool.spec for tool in interactive_tools(skill))
    factory = next((factory for factory in factories if factory.handles(skill)), None)
    specs = None if factory is None else factory.known_tools(skill)
    if specs is None:
        return None
    picked = tuple(
        spec.model_copy(update={"skill_name": skill.name})
        for spec in specs
        if is_picked(spec.name, skill.pick, skill.omit)
    )
    return picked + changing_specs(skill) if is_base_skill(skill) else picked


_OTHER_VERSION = "decided by another version of perstack, and otherwise by this one"
_NO_APPROVAL = "by an approval that may have been redacted since"
_DEPENDS_ON_SECRETS = "decided with the values of secrets, which are not recorded"
_APPROVAL_EVENTS = (b'{"type":"requestApproval"', b'{"type":"decideApproval"')


class DecisionReplay:
    """A replay of the recorded decisions on the calls of one Run: each stage decides again."""

    def __init__(
        self, factories: Sequence[SkillFactory], workspace: Path, approvals: JobApprovals, offers: OfferedSchemas
    ) -> None:
        self._factories = factories
        self._root = str(workspace)
        self._resolve = path_resolver(workspace)
        self._approvals = approvals
        self._offers = offers
        self._tools_digest: str | None = None  # digest of the tools in the latest request
        self._is_resumed = False  # True if the Run was resumed after its latest reply
        self._cached: tuple[Expert, Mapping[tuple[str, str], tuple[str, Subject | None]], frozenset[str]] | None = None
        self.ruled = 0
        self.unchecked: dict[str, int] = {}  # calls that could not be judged again, counted by reason

    async def difference(self, run: Run, event: StoredEvent) -> str | None:
        """Return how the event's decisions on calls differ from new ones; None if they do not, or cannot be judged."""
        parts: Mapping[str, ToolCallPart]
        match event:
            case StartGeneration():
                self._tools_digest, self._is_resumed = event.tools_digest, False
                return None
            case ResumeRun():
                self._is_resumed = True
                return None
            case CallTools():
                calls, parts = event.calls, {part.tool_call_id: part for part in latest_reply(run).tool_calls}
            case DecideChangedCall() if event.decided is not None:
                calls, parts = (event.decided,), _changed_part(run, event.tool_call_id)
            case _:
                return None
        approvals = await self._approvals.all() if any(decided.approved_by for decided in calls) else ()
        schemas = await self._offers.of(self._tools_digest)
        return await asyncio.to_thread(self._first_difference, run, calls, parts, approvals, schemas)

    def _first_difference(
        self,
        run: Run,
        calls: Sequence[DecidedCall],
        parts: Mapping[str, ToolCallPart],
        approvals: Sequence[StandingApproval],
        schemas: Mapping[str, JsonObject] | None,
    ) -> str | None:
        are_ruled = bool(run.rules_for(calls))
        for decided in calls:
            part = parts.get(decided.id)
            if part is None:
                continue
            recorded = self._to_logged_call(run, decided, part, approvals, schemas)
            self.ruled += are_ruled and part.raw_args is None and recorded.readings is not None
            problem = self._find_problem(recorded)
            if problem is not None:
                return problem
        return None

    def _to_logged_call(
        self,
        run: Run,
        decided: DecidedCall,
        part: ToolCallPart,
        approvals: Sequence[StandingApproval],
        schemas: Mapping[str, JsonObject] | None,
    ) -> LoggedCall:
        tools, unknown = self._tools(run)
        own_skills = host_skills(run.expert)
        skill = decided.skill_name or next((skill for skill in own_skills if (skill, part.tool_name) in tools), "")
        _, subject = tools.get((skill, part.tool_name), ("", None))
        return LoggedCall(
            run=run,
            part=part,
            decided=decided,
            schemas=schemas,
            is_host_tool=skill in own_skills,
            subject=subject,
            readings=None if skill in unknown else self._possible_calls(run, decided, part),
            approvals=approvals,
            is_same_place=names_directory(run.start.instruction, self._root),
            is_resumed=self._is_resumed,
        )

    def _find_problem(self, recorded: LoggedCall) -> str | None:
        difference, decided = decision_difference(recorded), recorded.decided
        if difference is None:
            return None
        if difference.doubt:
            self._add_unchecked(difference.doubt)
        elif recorded.run.start.mask_secrets and _has_masked_secret(recorded.part):
            self._add_unchecked(_DEPENDS_ON_SECRETS)
        elif decided.approved_by and not self._approvals.is_whole:
            self._add_unchecked(_NO_APPROVAL)
        elif recorded.run.start.runtime_version != VERSION:
            self._add_unchecked(_OTHER_VERSION)
        else:
            return difference.words
        return None

    def _add_unchecked(self, reason: str) -> None:
        self.unchecked[reason] = self.unchecked.get(reason, 0) + 1

    def _possible_calls(self, run: Run, decided: DecidedCall, part: ToolCallPart) -> list[PolicyCall]:
        """Return the call in each form that rules may have seen."""
        from perstack.core.permissions.call_rulings import names_in_skill

        tools, _ = self._tools(run)
        own_name, subject = tools.get((decided.skill_name, decided.tool_name), (None, None))
        policy_call = PolicyCall(
            tool=own_name or decided.tool_name,
            skill=decided.skill_name,
            args=named_arguments(subject, part.args),
            kind="tool" if decided.kind == "refused" else decided.kind,
            effect=decided.effect,
            subject=subject,
            shown=decided.tool_name,
            root=self._root,
            is_host=decided.skill_name in host_skills(run.expert),
            changed=decided.changed,
        )
        delegate = _as_delegation(policy_call, decided.target)
        if delegate is not None:
            readings = [delegate]
        else:
            readings = [
                replace(policy_call, tool=name)
                for name in ((own_name,) if own_name else names_in_skill(run.permissions, decided))
            ]
        return [
            replace(reading, resolve=resolve)
            for reading in readings
            # Older logs have no resolved paths: try each path as written, and as it resolves now.
            for resolve in ((PathResolver(as_written, decided.ways),) if decided.ways else (as_written, self._resolve))
        ]

    def _tools(self, run: Run) -> tuple[Mapping[tuple[str, str], tuple[str, Subject | None]], frozenset[str]]:
        expert = run.expert
        if self._cached is None or self._cached[0] != expert:
            specs = known_tools(self._factories, expert)
            plugins = (skill.name for skill in expert.skills if isinstance(skill, PluginSkill))
            unknown = frozenset(name for name in plugins if specs.get(name) is None)
            self._cached = (expert, names_and_subjects(self._factories, expert), unknown)
        return self._cached[1:]


def _changed_part(run: Run, call_id: str) -> Mapping[str, ToolCallPart]:
    call = run.calls.get(call_id)
    return {} if call is None else {call_id: call.changed_part}


class OfferedSchemas:
    """The schemas of the tools that the models of a Job were offered; the latest are kept."""

    def __init__(self, storage: Storage, job_id: str) -> None:
        self._storage = storage
        self._job_id = job_id
        self._latest: tuple[str, Mapping[str, JsonObject] | None] = ("", None)

    async def of(self, digest: str | None) -> Mapping[str, JsonObject] | None:
        """Return the schemas by the tool's name; None if the digest has another form or its blob cannot be read."""
        name = tools_blob(digest or "")
        if name is None:
            return None
        if self._latest[0] != name:
            self._latest = (name, await self._read(name))
        return self._latest[1]

    async def _read(self, name: str) -> Mapping[str, JsonObject] | None:
        try:
            return schemas_in(await self._storage.blob(self._job_id, name))
        except (NotFound, StorageError, ValueError):
            return None  # `verify` reports the blob


class JobApprovals:
    """The approvals for the whole Job that are in its logs, read at the first use."""

    def __init__(self, storage: Storage, job_id: str) -> None:
        self._storage = storage
        self._job_id = job_id
        self._cached: list[StandingApproval] | None = None
        self.is_whole = True  # True if no approval has been redacted; valid after `all`

    async def all(self) -> Sequence[StandingApproval]:
        """Return the approvals in readable lines."""
        if self._cached is None:
            self._cached = []
            for run_id in await run_ids(self._storage, self._job_id):
                lines, _ = await read_intact(self._storage, RunRef(self._job_id, run_id))
                self._cached += _approvals_in(lines)
                self.is_whole = self.is_whole and not any(map(_is_redacted, lines))
        return self._cached


def _has_masked_secret(part: ToolCallPart) -> bool:
    from perstack.engine.plugins.secret_vault import has_placeholder  # few Runs mask secrets

    return has_placeholder((part,))


def _approvals_in(lines: Iterable[bytes]) -> Iterator[StandingApproval]:
    paths_by_call: dict[str, tuple[str, ...]] = {}
    for line in lines:
        event = _parse_event(line) if line.startswith(_APPROVAL_EVENTS) else None
        if isinstance(event, RequestApproval):
            paths_by_call[event.tool_call_id] = event.leads_to
        elif isinstance(event, DecideApproval) and event.decision in STANDING_DECISIONS:
            leads_to = paths_by_call.get(event.tool_call_id, ())
            yield StandingApproval(id=event.id, call_digest=event.call_digest, leads_to=leads_to, rule=event.rule)


def _is_redacted(line: bytes) -> bool:
    return line.startswith(_APPROVAL_EVENTS) and _parse_event(line) is None


def _parse_event(line: bytes) -> StoredEvent | None:
    try:
        payload = open_line(line).payload
        return None if read_remains(payload) is not None else parse_event(payload)
    except (BrokenSeal, ValueError):
        return None


# Recorded calls as permission rules see them.

ToolsByName = Mapping[tuple[str, str], tuple[str, Subject | None]]
"""Map from skill and the name that the model sees to the tool's own name and the meaning of its arguments."""


def _as_delegation(policy_call: PolicyCall, target: str | None) -> PolicyCall | None:
    """Return a recorded call under the name of the Expert that it delegates to; None if it does not delegate."""
    if policy_call.kind != "delegate" and not policy_call.skill.startswith("delegate/"):
        return None
    return replace(policy_call, tool=target or policy_call.skill.removeprefix("delegate/"), skill="", kind="delegate")


class RecordedCalls:
    """The calls of recorded Runs as rules see them, as far as definitions and plugins describe the tools."""

    def __init__(self, project: Project, factories: Sequence[SkillFactory], workspace: Path) -> None:
        self._project = project
        self._factories = factories
        self._resolve: Resolve = path_resolver(workspace, caches_folders=True)
        self._root = str(workspace)
        self._tools: dict[str, ToolsByName] = {}

    def of(self, past_run: PastRun) -> Callable[[PastCall, JsonObject], PolicyCall]:
        """Return a function that converts a call of the Run, with its arguments, to what rules see."""
        tools = self._tools_for(expert_key_of(past_run), past_run.expert)
        own_skills = host_skills(_parse_expert(past_run.expert))

        def policy_call(past_call: PastCall, args: JsonObject) -> PolicyCall:
            own_name, subject = tools.get((past_call.skill, past_call.tool), (past_call.target or past_call.tool, None))
            recorded = PolicyCall(
                tool=own_name,
                skill=past_call.skill,
                args=args,
                kind=past_call.kind,
                effect=past_call.effect,
                subject=subject,
                shown=past_call.tool,
                resolve=self._resolve,
                root=self._root,
                is_host=past_call.skill in own_skills,
                changed=past_call.changed,
            )
            return _as_delegation(recorded, past_call.target) or recorded

        return policy_call

    def _tools_for(self, key: str, definition: JsonObject) -> ToolsByName:
        cache_key = json.dumps([key, definition.get("skills")])
        if cache_key not in self._tools:
            self._tools[cache_key] = names_and_subjects(
                self._factories, _parse_expert(definition), self._project.expert(key)
            )
        return self._tools[cache_key]


def calls_of_logs(logs: Iterable[RunLog], factories: Sequence[SkillFactory], workspace: Path) -> tuple[PolicyCall, ...]:
    """Return the calls that Runs have made; without arguments if redacted. Raises Damaged and StorageError."""
    calls = RecordedCalls(Project(), factories, workspace)
    policy_calls: list[PolicyCall] = []
    for log in logs:
        if log.damage is not None:
            raise log.damage
        try:
            logged_run = read_past_run(log.run_id, log.lines, get_args(ToolKind))
        except ValueError as error:
            raise StorageError(f"Run {log.run_id}: {error}") from error
        to_policy_call = calls.of(logged_run)
        policy_calls += [
            to_policy_call(past_call, past_call.args or {}) for past_call in logged_run.calls if past_call.ran
        ]
    return tuple(policy_calls)


def expert_key_of(past_run: PastRun) -> str:
    """Return the key of a recorded Run's Expert; empty if the log has none."""
    key = past_run.expert.get("key")
    return key if isinstance(key, str) else ""


def _parse_expert(definition: JsonObject) -> Expert:
    with suppress(ValidationError):
        return Expert.model_validate({"key": "a", "instruction": "", "skills": definition.get("skills") or []})
    return Expert(key="a", instruction="")
