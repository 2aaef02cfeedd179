"""Open the skills of a Job: each once, shared by all Runs with an equal definition of it, and closed at the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from typing_extensions import override

from perstack.core.definitions.expert_changes import ExpertChange
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.project import Project
from perstack.core.definitions.sandbox import SandboxPolicy
from perstack.core.definitions.skills import (
    OWN_FUNCTIONS,
    InteractiveSkill,
    McpSseSkill,
    McpStdioSkill,
    PluginSkill,
    Skill,
    ToolSpec,
    declaration_problems,
    is_base_skill,
    shared_definition,
    with_base_skill,
)
from perstack.core.definitions.tool_definitions import Definitions, by_name
from perstack.core.messages.tool_search import SEARCH_TOOL
from perstack.core.runs.context_window import policy_of
from perstack.core.runs.display_events import SkillConnected, SkillDisconnected, SkillStarting, SkillStderr
from perstack.core.runs.facts import Question
from perstack.core.runs.state import Run
from perstack.core.schemas.json_schema import unchecked_parts
from perstack.dataclass import dataclass
from perstack.engine.log.run_session import DisplayStamp, Emitter
from perstack.engine.plugins.knowledge import Knowledge
from perstack.engine.plugins.runtimes import Runtimes
from perstack.engine.plugins.tool_catalogue import (
    Catalogue,
    OfferedTool,
    PlayedSession,
    agreed_definitions_of,
    delegate_tools,
    interactive_tools,
    skill_tools,
)
from perstack.engine.plugins.trust_checks import AgreedDefinitions, JudgedToolset, ToolLock, TrustCheck, judge_own_tools
from perstack.errors import SkillError, UsageError
from perstack.next_steps import Inspect, Note
from perstack.ports.parts import Part, Parts
from perstack.ports.skill import SkillContext, SkillFactory, SkillSession, ToolCall, ToolResult, Toolset
from perstack.ports.storage import Storage
from perstack.support.variables import fill_settings
from perstack.system.clock import SYSTEM, Clock

if TYPE_CHECKING:
    from perstack.engine.plugins.secret_vault import SecretVault

CONTEXT_TOOLS: Part[Callable[[Run, Storage], tuple[OfferedTool, ...]]] = Part("tools for a full context")
"""Returns the tools with which a Run pins notes and recalls results that were left out of its context."""


# A skill whose tools are known from perstack.lock.


class LockedSession(SkillSession):
    """A session that lists the locked tools until it is connected, and then the skill's own."""

    def __init__(self, locked: Toolset, skill_session: SkillSession, connect: Callable[[], Awaitable[Toolset]]) -> None:
        self._locked = locked
        self._session = skill_session
        self._connect = connect
        self._lock = asyncio.Lock()
        self.is_connected = False
        self.problem = ""  # why the skill cannot be reached; empty until an attempt has failed

    async def tools(self) -> Toolset:
        """Return the locked tools, the skill's own once it is connected, or none if it could not be reached."""
        if self.is_connected:
            return await self._session.tools()
        return _NO_TOOLS if self.problem else self._locked

    async def connect(self) -> None:
        """Connect to the skill once. Raises SkillError if it cannot be reached, and again at each later call."""
        async with self._lock:
            if self.problem:
                raise SkillError(self.problem)
            if not self.is_connected:
                try:
                    await self._connect()
                except SkillError as error:
                    self.problem = str(error)
                    raise
                self.is_connected = True

    async def call(self, tool_call: ToolCall) -> ToolResult | Question:
        """Connect at the first call, and call the tool. Raises SkillError if the skill cannot be reached."""
        await self.connect()
        return await self._session.call(tool_call)

    @override
    async def close(self) -> None:
        if not self.problem:
            await self._session.close()


async def tool_in_force(skill_session: SkillSession, name: str) -> ToolSpec | None:
    """Return the tool as its skill defines it now; None if the skill has no such tool. Raises SkillError.

    Connect to a locked skill, because only its server knows its present tools.
    """
    if isinstance(skill_session, LockedSession):
        await skill_session.connect()
    return by_name((await skill_session.tools()).specs).get(name)


CLOSE_TIMEOUT_S = 10.0  # maximum seconds for closing a skill; the end or the cancellation of the Job waits for it

_WHOLE_JOB = ""  # entry of `users` that keeps a skill open to the end of the Job

_T = TypeVar("_T")

_NO_TOOLS = Toolset()
_MAX_GUIDANCE_CHARACTERS = 8_000  # maximum characters of a skill's instructions: the model reads them at every step
_MAX_PROBLEM_CHARACTERS = 2_000


@dataclass(frozen=True, slots=True)
class _ConnectedSkill:
    """Result of connecting to a skill: its session and tools, or the reason why it cannot be reached."""

    skill_session: SkillSession | None
    toolset: Toolset = _NO_TOOLS
    problem: str = ""
    agreed: AgreedDefinitions | None = None  # None: definitions of the host itself, or of a recording


@dataclass(slots=True)
class _SkillConnection:
    """A skill that is open or being opened, and the Run that first needed it."""

    name: str
    run_id: str
    session: asyncio.Task[SkillSession]  # creates the session from the definition, without starting anything
    may_start: asyncio.Future[None]  # done once a Run has all its sessions, so that none of them lacks a variable
    outcome: asyncio.Task[_ConnectedSkill] = field(init=False)
    is_shown: bool = False  # True if a start was shown without an end
    users: set[str] = field(default_factory=set[str])  # ids of the Runs that have opened it, or `_WHOLE_JOB`

    def allow_start(self) -> None:
        if not self.may_start.done():
            self.may_start.set_result(None)


class JobSkills:
    """The skills of one Job, opened concurrently when a Run first needs them, with events for display."""

    def __init__(
        self,
        factories: Sequence[SkillFactory],
        context: SkillContext,
        emit: Emitter,
        tool_lock: ToolLock,
        clock: Clock = SYSTEM,
        *,
        runtimes: Runtimes,
        agreement: TrustCheck,
        knowledge: Knowledge,
    ) -> None:
        self._runtimes = runtimes
        self._agreement = agreement
        self._lock = tool_lock
        self._knowledge = knowledge
        self._factories = factories
        self._context = context
        self._emit = emit
        self._clock = clock
        self._connections: dict[bytes, _SkillConnection] = {}
        self._notices: set[tuple[str, str]] = set()  # notices about tools that this Job has already shown
        self._numbers = count(1)
        self._vault: SecretVault | None = None

    async def open(
        self,
        expert: Expert,
        project: Project,
        *,
        run_id: str,
        is_coordinator: bool,
        policy: SandboxPolicy | None = None,
        played_toolsets: Mapping[str, Toolset] | None = None,
        vault: SecretVault | None = None,
        recorded_definitions: Definitions | None = None,
        host_tools: Sequence[OfferedTool] = (),
    ) -> RunSkills:
        """Open the skills of a Run of this Expert, which also has `host_tools` of the host.

        Skills with `lazyInit` are not waited for, unless they are required. Runs with different sandbox policies share
        no skill. Skills in `played_toolsets` are not opened: a recording answers. `vault` masks the stderr of all
        servers from now on. `recorded_definitions` are the definitions of tools that the Job was offered first. Raises
        SkillError if a skill has no plugin or a wrong definition, or is required and cannot be reached.
        """
        definitions = with_base_skill(expert.skills)
        self._vault = vault or self._vault
        played_toolsets = played_toolsets or {}
        connections = {
            definition.name: self._connection_for(definition, run_id, policy, played_toolsets.get(definition.name))
            for definition in definitions
            if not isinstance(definition, InteractiveSkill)
        }
        await _wait_for_all([connection.session for connection in connections.values()])
        for connection in connections.values():
            connection.allow_start()
        outcomes = {name: connection.outcome for name, connection in connections.items()}
        awaited_outcomes = [
            outcomes[skill.name] for skill in definitions if skill.name in outcomes and not _is_lazy(skill)
        ]
        if awaited_outcomes:
            await asyncio.wait(awaited_outcomes)
        await _require_all({skill.name: outcomes[skill.name] for skill in definitions if _is_required(skill)})
        builtin_tools = (*self._knowledge.loading_tools(expert), *host_tools, *_played_search_tool(played_toolsets))
        notify = partial(self._notify, run_id)
        skills = RunSkills(
            expert,
            project,
            definitions,
            outcomes,
            notify,
            builtin_tools,
            recorded_definitions or {},
            is_coordinator=is_coordinator,
        )
        await skills.refresh()
        return skills

    async def reach(
        self, definition: Skill, run_id: str, policy: SandboxPolicy | None, played_toolset: Toolset | None
    ) -> str | None:
        """Open one skill for a Run and wait for it. If it cannot be reached, close it and return the reason."""
        connection = self._connection_for(definition, run_id, policy, played_toolset)
        try:
            await _wait_for_all([connection.session])
            connection.allow_start()
            problem = await _unreachable_reason(connection.outcome)
        except SkillError as error:
            problem = str(error)
        if problem is not None:
            await self._drop_user(_sharing_key(definition, policy, played_toolset), run_id)
        return problem

    async def keep_only(
        self, expert: Expert, run_id: str, policy: SandboxPolicy | None, played_toolsets: Mapping[str, Toolset]
    ) -> None:
        """Close the skills that this Run alone has opened, except those of the Expert."""
        kept_keys = {
            _sharing_key(skill, policy, played_toolsets.get(skill.name)) for skill in with_base_skill(expert.skills)
        }
        for key, connection in tuple(self._connections.items()):
            if key not in kept_keys and run_id in connection.users:
                await self._drop_user(key, run_id)

    async def _drop_user(self, key: bytes, run_id: str) -> None:
        """Stop counting a Run as a user of a skill, and close a skill without users."""
        connection = self._connections[key]
        connection.users.discard(run_id)
        if not connection.users:
            del self._connections[key]
            await self._close_connection(connection)

    async def open_sandboxed_base(self, expert: Expert, run_id: str, policy: SandboxPolicy) -> SkillSession:
        """Open the Expert's base skill for the whole Job, its programs in a sandbox. Raises SkillError, UsageError."""
        definition = next(skill for skill in with_base_skill(expert.skills) if is_base_skill(skill))
        connection = self._connection_for(definition, run_id, policy, None)
        connection.users.add(_WHOLE_JOB)
        connection.allow_start()
        return await asyncio.shield(connection.session)

    @property
    def has_waiting_call(self) -> bool:
        """True while a call of an open skill waits for a person's answer."""
        sessions = (_result_if_done(connection.session) for connection in self._connections.values())
        return any(skill_session is not None and skill_session.has_waiting_call for skill_session in sessions)

    def pause(self) -> None:
        """Show nothing until `continue_as`: nobody drives the Job, so nobody watches it."""
        self._emit = Emitter((), None)

    def continue_as(self, other: JobSkills) -> None:
        """Replace `other`, which has opened nothing: show events and open further skills with its context."""
        self._emit, self._lock, self._knowledge = other._emit, other._lock, other._knowledge
        self._context, self._agreement = other._context, other._agreement

    async def close(self) -> None:
        """Close every skill. An error while closing is shown; results of earlier calls stay valid."""
        connections, self._connections = list(self._connections.values()), {}
        await asyncio.gather(*(self._close_connection(connection) for connection in connections))
        await self._runtimes.close()

    def _connection_for(
        self, definition: Skill, run_id: str, policy: SandboxPolicy | None, played_toolset: Toolset | None
    ) -> _SkillConnection:
        key = _sharing_key(definition, policy, played_toolset)
        if key not in self._connections:
            self._connections[key] = self._create_connection(definition, run_id, policy, played_toolset)
        self._connections[key].users.add(run_id)
        return self._connections[key]

    def _create_connection(
        self, definition: Skill, run_id: str, policy: SandboxPolicy | None, played_toolset: Toolset | None
    ) -> _SkillConnection:
        def show_stderr(line: str) -> None:
            self._show_start(connection)
            line = line if self._vault is None else self._vault.mask_unrecorded(line)
            self._emit.display(SkillStderr(**self._stamp(run_id), skill_name=definition.name, message=line))

        async def make_session() -> SkillSession:
            if played_toolset is not None:
                return PlayedSession(played_toolset)
            sandboxed_context = await self._runtimes.skill_context(context, policy)
            return await open_skill(self._factories, definition, sandboxed_context, self._agreement)

        context = replace(self._context, on_stderr=show_stderr)
        may_start = asyncio.get_running_loop().create_future()  # smaller than an Event, which each Job would keep
        connection = _SkillConnection(definition.name, run_id, asyncio.create_task(make_session()), may_start)
        connection.outcome = asyncio.create_task(self._connect_when_ready(definition, connection, show_stderr))
        return connection

    async def _connect_when_ready(
        self, definition: Skill, connection: _SkillConnection, show: Callable[[str], None]
    ) -> _ConnectedSkill:
        """Connect to a skill once its Run has all its sessions, and show problems of its tools."""
        skill_session = await connection.session
        await connection.may_start
        if is_base_skill(definition) or isinstance(skill_session, PlayedSession):
            return _ConnectedSkill(skill_session, await skill_session.tools())
        connected = await self._connect_unless_locked(definition, connection, skill_session, show)
        for spec in connected.toolset.specs:
            for problem in unchecked_parts(spec.input_schema):
                show(f"tool {spec.name}: {problem}")
        if connected.skill_session is not None:
            for problem in declaration_problems(connected.toolset.specs, definition):
                show(problem)
        return connected

    async def _connect_unless_locked(
        self, definition: Skill, connection: _SkillConnection, skill_session: SkillSession, show: Callable[[str], None]
    ) -> _ConnectedSkill:
        """Connect to a skill; one with tools in perstack.lock is connected to at its first call."""
        locked = self._lock.locked_toolset(definition)
        if locked is not None:
            connect = partial(self._connect, connection, skill_session)
            agreed = self._lock.agreed_definitions(locked, is_locked=True)
            return _ConnectedSkill(LockedSession(locked, skill_session, connect), locked, agreed=agreed)
        if notice := self._lock.notice_for(definition):
            show(notice)
        try:
            toolset = await self._connect(connection, skill_session)
            return _ConnectedSkill(
                skill_session, toolset, agreed=self._lock.agreed_definitions(toolset, is_locked=False)
            )
        except SkillError as error:
            return _ConnectedSkill(None, problem=str(error))

    async def _connect(self, connection: _SkillConnection, skill_session: SkillSession) -> Toolset:
        began = time.monotonic()
        self._show_start(connection)
        try:
            toolset = await skill_session.tools()
        except SkillError as error:
            with suppress(Exception):  # the connection error is the one to show, not an error of closing
                await skill_session.close()
            self._show_end(connection, str(error), error.note)
            raise
        duration_ms = round((time.monotonic() - began) * 1000)
        self._emit.display(
            SkillConnected(
                **self._stamp(connection.run_id),
                skill_name=connection.name,
                tools=len(toolset.specs),
                duration_ms=duration_ms,
            )
        )
        return toolset

    async def _close_connection(self, connection: _SkillConnection) -> None:
        """Cancel the tasks that connect to a skill, and close its session within CLOSE_TIMEOUT_S. Never raises."""
        tasks = {connection.outcome, connection.session}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        connected, unconnected_session = _result_or_none(connection.outcome), _result_or_none(connection.session)
        skill_session = unconnected_session if connected is None else connected.skill_session
        if skill_session is None:
            return
        limit = asyncio.timeout(CLOSE_TIMEOUT_S)
        try:
            async with limit:
                await skill_session.close()
        except Exception as error:  # noqa: BLE001 - skill code may raise anything; the Job's outcome stays
            reason = (
                f"it took more than {CLOSE_TIMEOUT_S:g} s" if limit.expired() else str(error) or type(error).__name__
            )
            self._show_end(connection, f"skill {connection.name!r} did not end cleanly: {reason}")
        else:
            if connection.is_shown:
                self._show_end(connection)

    def _notify(self, run_id: str, notices: Mapping[str, str]) -> None:
        for skill, message in notices.items():
            if (skill, message) not in self._notices:
                self._notices.add((skill, message))
                self._emit.display(SkillStderr(**self._stamp(run_id), skill_name=skill, message=message))

    def _show_start(self, connection: _SkillConnection) -> None:
        if not connection.is_shown:
            connection.is_shown = True
            self._emit.display(SkillStarting(**self._stamp(connection.run_id), skill_name=connection.name))

    def _show_end(self, connection: _SkillConnection, reason: str = "", note: Note | None = None) -> None:
        connection.is_shown = False
        self._emit.display(
            SkillDisconnected(**self._stamp(connection.run_id), skill_name=connection.name, reason=reason, note=note)
        )

    def _stamp(self, run_id: str) -> DisplayStamp:
        return DisplayStamp(
            id=f"{run_id}-skill-{next(self._numbers)}",
            timestamp=self._clock.now(),
            job_id=self._context.job_id,
            run_id=run_id,
        )


def _sharing_key(definition: Skill, policy: SandboxPolicy | None, played_toolset: Toolset | None) -> bytes:
    """Return the key under which Runs share a skill."""
    key = shared_definition(definition).to_json() + (b"" if policy is None else policy.to_json())
    if played_toolset is not None:  # recorded toolsets differ between Experts
        key += b"".join(spec.to_json() for spec in played_toolset.specs) + b"played"
    return key


class RunSkills:
    """The tools of one Run, which may change while it runs."""

    def __init__(
        self,
        expert: Expert,
        project: Project,
        definitions: Sequence[Skill],
        outcomes: Mapping[str, asyncio.Task[_ConnectedSkill]],
        notify: Callable[[Mapping[str, str]], None],
        builtin_tools: tuple[OfferedTool, ...] = (),
        recorded_definitions: Definitions | None = None,
        *,
        is_coordinator: bool,
    ) -> None:
        """Start with an empty catalogue. `notify` shows notices about renamed and changed tools, by skill."""
        self._recorded_definitions = recorded_definitions or {}
        self.expert = expert
        self._notify = notify
        self._builtin_tools = builtin_tools
        self._project = project
        self._definitions = definitions
        self._outcomes = outcomes
        self._is_coordinator = is_coordinator
        self._known_toolsets: dict[str, Toolset | None] = {}
        self._context_state: tuple[object, ...] = (False, False, ())
        """The state of the Run's context for which the context tools were made."""
        self._context_tools: tuple[OfferedTool, ...] = ()
        self._revealed: tuple[str, ...] = ()
        self.changes: tuple[ExpertChange, ...] = ()
        """The changes of the Run's Expert that are in `expert`."""
        self.catalogue = Catalogue([])

    def fit_to(self, run: Run, storage: Storage, parts: Parts) -> None:
        """Update the context tools to the Run's context; they are offered from the next `refresh` on."""
        context_policy, context = policy_of(run), run.context
        state = (context_policy is not None and context_policy.offers_pin, context.has_dropped, context.revealed)
        if state != self._context_state:
            self._context_state, self._known_toolsets = state, {}
            has_tools = state[0] or context.has_dropped
            self._context_tools = parts.get(CONTEXT_TOOLS)(run, storage) if has_tools else ()
            self._revealed = context.revealed

    async def refresh(self) -> Catalogue:
        """Return the current catalogue, without skills that cannot be reached. Raises the errors of opening a skill."""
        toolsets = {name: await _current_toolset(outcome) for name, outcome in self._outcomes.items()}
        if not self._known_toolsets or any(
            toolsets[name] is not toolset for name, toolset in self._known_toolsets.items()
        ):
            self.catalogue = self._make_catalogue(toolsets)
            self._known_toolsets = toolsets
            self._notify(self.catalogue.rename_notices)
            self._notify(self.catalogue.difference_notices)
        return self.catalogue

    async def connect_locked(self, names: Collection[str]) -> bool:
        """Connect to locked skills of these names. Return whether any is newly connected: its tools may differ."""
        sessions = [
            skill_session
            for name in names
            if (outcome := self._outcomes.get(name)) is not None and (connected := _result_if_done(outcome)) is not None
            if isinstance(skill_session := connected.skill_session, LockedSession)
            if not (skill_session.is_connected or skill_session.problem)
        ]
        await asyncio.gather(*(locked_session.connect() for locked_session in sessions), return_exceptions=True)
        return any(locked_session.is_connected for locked_session in sessions)

    def _make_catalogue(self, toolsets: Mapping[str, Toolset | None]) -> Catalogue:
        """Return the catalogue of these toolsets, by skill; a skill whose toolset is None is named as missing."""
        offered: list[OfferedTool] = []
        missing: dict[str, str] = {}
        unreachable: dict[str, str] = {}
        guidance: list[str] = []
        definitions: dict[str, Mapping[str, str]] = {}
        notices: dict[str, str] = {}
        for definition in self._definitions:
            if isinstance(definition, InteractiveSkill):
                offered += interactive_tools(definition) if self._is_coordinator else []
                continue
            name, toolset = definition.name, toolsets[definition.name]
            skill_session = None if toolset is None else self._outcomes[name].result().skill_session
            if toolset is None or skill_session is None:
                outcome = self._outcomes[name]
                missing[name] = f"skill {name!r} is being connected to"
                if outcome.done():
                    missing[name] = outcome.result().problem
                    unreachable[name] = missing[name][:_MAX_PROBLEM_CHARACTERS]
                    guidance.append(f"The tools of skill {name} are not there: {unreachable[name]}")
                continue
            judged = self._judge_toolset(name, toolset)
            tools = skill_tools(definition, skill_session, judged.tools)
            offered += tools
            if judged.digests is not None and tools:
                definitions[name] = agreed_definitions_of(judged.digests, tools)
            if judged.notice:
                notices[name] = judged.notice
            if tools and judged.instructions.strip():
                guidance.append(f"What skill {name} says of its tools:\n{_cut_guidance(judged.instructions.strip())}")
        return Catalogue(
            [*offered, *self._builtin_tools, *delegate_tools(self.expert, self._project.experts), *self._context_tools],
            missing,
            "\n\n".join(guidance),
            self.expert.tool_search or self._project.tool_search or "auto",
            unreachable,
            self._revealed,
            definitions,
            notices,
        )

    def _judge_toolset(self, name: str, toolset: Toolset) -> JudgedToolset:
        connected = self._outcomes[name].result()
        is_unreachable = isinstance(connected.skill_session, LockedSession) and bool(connected.skill_session.problem)
        if connected.agreed is None or is_unreachable:
            return judge_own_tools(toolset)
        return connected.agreed.judge(name, toolset, self._recorded_definitions.get(name, {}))


async def _current_toolset(outcome: asyncio.Task[_ConnectedSkill]) -> Toolset | None:
    """Return what a skill offers now; None while it is being connected to, and if it cannot be reached."""
    if not outcome.done():
        return None
    connected = outcome.result()
    if connected.skill_session is None:
        return None
    try:
        return await connected.skill_session.tools()
    except SkillError:
        return connected.toolset


async def _wait_for_all(sessions: Collection[asyncio.Task[SkillSession]]) -> None:
    await asyncio.wait(sessions)
    errors = [error for session in sessions if (error := session.exception()) is not None]
    if errors:
        raise errors[0]


async def _require_all(required: Mapping[str, asyncio.Task[_ConnectedSkill]]) -> None:
    """Raise SkillError, with the reasons, if required skills cannot be reached."""
    problems = await asyncio.gather(*(_unreachable_reason(outcome) for outcome in required.values()))
    missing = [
        f"skill {name!r} is required and missing: {problem}"
        for name, problem in zip(required, problems, strict=True)
        if problem is not None
    ]
    if missing:
        raise SkillError("; ".join(missing))


async def _unreachable_reason(outcome: asyncio.Task[_ConnectedSkill]) -> str | None:
    """Return why a skill cannot be reached, or None. Connects to a locked skill to find out."""
    connected = await asyncio.shield(outcome)
    if connected.skill_session is None:
        return connected.problem
    if isinstance(connected.skill_session, LockedSession):
        try:
            await connected.skill_session.connect()
        except SkillError as error:
            return str(error)
    return None


def _result_or_none(task: asyncio.Task[_T]) -> _T | None:
    """Return the result of a finished task; None if it was cancelled or failed."""
    return None if task.cancelled() or task.exception() is not None else task.result()


def _result_if_done(task: asyncio.Task[_T]) -> _T | None:
    return _result_or_none(task) if task.done() else None


def _cut_guidance(text: str) -> str:
    return text if len(text) <= _MAX_GUIDANCE_CHARACTERS else text[:_MAX_GUIDANCE_CHARACTERS] + " …"


def _played_search_tool(played_toolsets: Mapping[str, Toolset]) -> list[OfferedTool]:
    """Return the recorded tool search of a Run that used it: without opened skills there may be nothing to defer."""
    specs = played_toolsets.get(SEARCH_TOOL, _NO_TOOLS).specs
    return [OfferedTool(spec, PlayedSession(_NO_TOOLS), spec.name) for spec in specs]


def _is_lazy(definition: Skill) -> bool:
    return isinstance(definition, McpStdioSkill | McpSseSkill) and definition.lazy_init and not definition.required


def _is_required(definition: Skill) -> bool:
    return not isinstance(definition, InteractiveSkill) and definition.required


async def open_skill(
    factories: Sequence[SkillFactory], definition: Skill, context: SkillContext, agreement: TrustCheck
) -> SkillSession:
    """Open a skill with its plugin, substituting `${NAME}` in settings. Raises SkillError, as for an unagreed one."""
    factory = factory_for(factories, definition)
    check_agreed(definition, agreement)
    if isinstance(definition, PluginSkill):
        settings = fill_settings(definition.settings, context.env, definition.name)
        definition = definition.model_copy(update={"settings": settings})
        folder = context.workspace if agreement.path is None else Path(agreement.path).parent
        definition = with_file_in(definition, folder)
    return await factory.open(definition, context)


def with_file_in(definition: PluginSkill, folder: Path) -> PluginSkill:
    """Return the definition with its `file`, which is relative to `folder`, as an absolute path."""
    path = str(folder.absolute() / definition.file)
    return definition.model_copy(update={"file": path}) if definition.file else definition


def check_agreed(definition: Skill, agreement: TrustCheck) -> None:
    """Raise SkillError if a person must first agree to what a skill executes or reaches."""
    try:
        agreement.check_skill(definition)
    except UsageError as error:
        raise SkillError(error.message, next_steps=error.next_steps) from error


def factory_for(factories: Sequence[SkillFactory], definition: Skill) -> SkillFactory:
    """Return the plugin that provides a skill. Raises SkillError without one."""
    factory = next((factory for factory in factories if factory.handles(definition)), None)
    if factory is not None:
        return factory
    if isinstance(definition, PluginSkill) and definition.functions:
        expert_key = definition.plugin.partition(":")[2]
        names = ", ".join(definition.functions)
        raise SkillError(
            f"Expert {expert_key!r} has Python functions ({names}) that this program does not provide:"
            f" run it from a program that does, with Expert(name={expert_key!r}, …, tools=[{names}])"
        )
    hint = f"; {OWN_FUNCTIONS}" if isinstance(definition, PluginSkill) else ""
    raise SkillError(
        f"no installed plugin provides skill {definition.name!r} of type {definition.type!r}{hint}",
        next_steps=(Inspect("plugins"),),
    )
