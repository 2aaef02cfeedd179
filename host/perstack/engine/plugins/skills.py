"""The skills of a Job: each opened once, shared by all Runs that declare the same one, closed at the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import partial
from itertools import count
from typing import TypeVar

from perstack.config.lock import Lock, shared_definition
from perstack.core.checking import unchecked
from perstack.core.definitions import (
    Expert,
    InteractiveSkill,
    McpSseSkill,
    McpStdioSkill,
    PluginSkill,
    Project,
    Skill,
    is_base_skill,
)
from perstack.core.events import SkillConnected, SkillDisconnected, SkillStarting, SkillStderr
from perstack.core.runs.context import policy_of
from perstack.core.runs.state import Run
from perstack.core.sandbox import SandboxPolicy
from perstack.core.skill_definitions import agent_skills, with_base
from perstack.core.toolsearch import SEARCH_TOOL
from perstack.dataclass import dataclass
from perstack.engine.catalogue import (
    Catalogue,
    Offered,
    delegate_tools,
    interactive_tools,
    misdeclared,
    skill_tools,
)
from perstack.engine.clock import SYSTEM
from perstack.engine.emit import DisplayStamp, Emitter
from perstack.engine.knowledge import Knowledge
from perstack.engine.locked import LockedSession, out_of_date
from perstack.engine.played_session import PlayedSession
from perstack.engine.recalling import context_tools
from perstack.engine.runtimes import Runtimes
from perstack.errors import SkillError
from perstack.next_steps import Look, Note
from perstack.ports.clock import Clock
from perstack.ports.skill import SkillContext, SkillFactory, SkillSession, Toolset
from perstack.ports.storage import Storage
from perstack.ports.variables import filled_settings

PATIENCE = 10.0
"""Seconds that a skill may take to end; a Job, and who cancels one, wait for it."""

_T = TypeVar("_T")

_NOTHING = Toolset()
_LONGEST_GUIDANCE = 8_000
"""Characters of what a skill says of its tools: a model reads them at every step."""
_LONGEST_PROBLEM = 2_000


@dataclass(frozen=True, slots=True)
class _Up:
    """A skill with its tools; without a session, why it has none."""

    session: SkillSession | None
    toolset: Toolset = _NOTHING
    problem: str = ""


@dataclass(slots=True)
class _Opening:
    """A skill that is up or on its way, and the Run that first needed it."""

    name: str
    run_id: str
    session: asyncio.Task[SkillSession]
    """Made of the definition; nothing has been started yet."""
    may_start: asyncio.Event
    """Set once some Run has all its sessions: none of them lacks a variable."""
    work: asyncio.Task[_Up] = field(init=False)
    is_shown: bool = False
    """Whether a start has been shown, and no end."""


class JobSkills:
    """Opens skills when a Run first needs them, all at the same time, and shows that it does.

    One that is in the lock offers what it offered then, and is connected to when one of its tools is first called.
    """

    def __init__(
        self,
        factories: Sequence[SkillFactory],
        context: SkillContext,
        emit: Emitter,
        lock: Lock | None = None,
        clock: Clock = SYSTEM,
        *,
        runtimes: Runtimes,
        knowledge: Knowledge | None = None,
    ) -> None:
        self._runtimes = runtimes
        self._lock = lock or Lock()
        self._knowledge = knowledge
        self._factories = factories
        self._context = context
        self._emit = emit
        self._clock = clock
        self._open: dict[bytes, _Opening] = {}
        self._numbers = count(1)

    async def open(
        self,
        expert: Expert,
        project: Project,
        *,
        run_id: str,
        is_coordinator: bool,
        sandbox: SandboxPolicy | None = None,
        played: Mapping[str, Toolset] | None = None,
    ) -> RunSkills:
        """The skills of a Run of this Expert. Those with `lazyInit` are not waited for, unless they are required.

        Runs whose programs are held to different policies share no skill. Those in `played` are not opened: a recording
        answers for their tools, and for the search for tools, which is under its own name.

        Raises SkillError for a skill that nothing provides, or whose definition or environment must change, and for
        one that is required and cannot be reached.
        """
        definitions = with_base(expert.skills)
        played = played or {}
        openings = {
            one.name: self._opening(one, run_id, sandbox, played.get(one.name))
            for one in definitions
            if not isinstance(one, InteractiveSkill)
        }
        await _all_made([one.session for one in openings.values()])
        for one in openings.values():
            one.may_start.set()
        awaited = [openings[one.name].work for one in definitions if one.name in openings and not _is_lazy(one)]
        if awaited:
            await asyncio.wait(awaited)
        await _all_there({one.name: openings[one.name].work for one in definitions if _is_required(one)})
        work = {name: one.work for name, one in openings.items()}
        own = (*self._loading(expert, project), *_played_search(played))
        skills = RunSkills(expert, project, definitions, work, own, is_coordinator=is_coordinator)
        await skills.refresh()
        return skills

    def _loading(self, expert: Expert, project: Project) -> tuple[Offered, ...]:
        """The tool that reads the Expert's Agent Skills, if it has any."""
        known = agent_skills(expert.skills)
        if not known:
            return ()
        from perstack.engine.skill_loading import loading_tools

        return loading_tools(known, self._knowledge or Knowledge(project, self._lock, self._context.workspace))

    async def close(self) -> None:
        """End every skill. One that fails to end is shown; what its tools have done stands all the same."""
        opened, self._open = list(self._open.values()), {}
        await asyncio.gather(*(self._end(one) for one in opened))
        await self._runtimes.close()

    def _opening(
        self, definition: Skill, run_id: str, sandbox: SandboxPolicy | None, played: Toolset | None
    ) -> _Opening:
        key = shared_definition(definition).to_json() + (b"" if sandbox is None else sandbox.to_json())
        if played is not None:  # each Expert's is its own
            key += b"".join(spec.to_json() for spec in played.specs) + b"played"
        if key not in self._open:
            self._open[key] = self._begun(definition, run_id, sandbox, played)
        return self._open[key]

    def _begun(self, definition: Skill, run_id: str, sandbox: SandboxPolicy | None, played: Toolset | None) -> _Opening:
        def show_stderr(line: str) -> None:
            self._show_start(opening)
            self._emit.display(SkillStderr(**self._stamp(run_id), skill_name=definition.name, message=line))

        async def made() -> SkillSession:
            if played is not None:
                return PlayedSession(played)
            return await opened(self._factories, definition, await self._runtimes.context(context, sandbox))

        context = replace(self._context, on_stderr=show_stderr)
        opening = _Opening(definition.name, run_id, asyncio.create_task(made()), asyncio.Event())
        opening.work = asyncio.create_task(self._start(definition, opening, show_stderr))
        return opening

    async def _start(self, definition: Skill, opening: _Opening, show: Callable[[str], None]) -> _Up:
        session = await opening.session
        await opening.may_start.wait()
        if is_base_skill(definition) or isinstance(session, PlayedSession):
            return _Up(session, await session.tools())
        up = await self._reached(definition, opening, session, show)
        for spec in up.toolset.specs:
            for problem in unchecked(spec.input_schema):
                show(f"tool {spec.name}: {problem}")
        if up.session is not None:
            for problem in misdeclared(up.toolset.specs, definition):
                show(problem)
        return up

    async def _reached(
        self, definition: Skill, opening: _Opening, session: SkillSession, show: Callable[[str], None]
    ) -> _Up:
        locked = self._lock.of_skill(definition)
        if locked is not None:
            toolset = locked.toolset()
            connect = partial(self._connect, opening, session)
            return _Up(LockedSession(definition.name, toolset, session, connect, show), toolset)
        if self._lock.names(definition):
            show(f"{out_of_date(definition.name)} (its definition has changed)")
        try:
            return _Up(session, await self._connect(opening, session))
        except SkillError as error:
            return _Up(None, problem=str(error))

    async def _connect(self, opening: _Opening, session: SkillSession) -> Toolset:
        began = time.monotonic()
        self._show_start(opening)
        try:
            toolset = await session.tools()
        except SkillError as error:
            with suppress(Exception):  # why it could not be reached is what a person must know
                await session.close()
            self._show_end(opening, str(error), error.note)
            raise
        took = round((time.monotonic() - began) * 1000)
        self._emit.display(
            SkillConnected(
                **self._stamp(opening.run_id), skill_name=opening.name, tools=len(toolset.specs), duration_ms=took
            )
        )
        return toolset

    async def _end(self, one: _Opening) -> None:
        tasks = {one.work, one.session}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        up, made = _result(one.work), _result(one.session)
        session = made if up is None else up.session
        if session is None:
            return
        limit = asyncio.timeout(PATIENCE)
        try:
            async with limit:
                await session.close()
        except Exception as error:  # noqa: BLE001 - whatever a skill's code raises, the Job's outcome stands
            why = f"it took more than {PATIENCE:g} s" if limit.expired() else str(error) or type(error).__name__
            self._show_end(one, f"skill {one.name!r} did not end cleanly: {why}")
        else:
            if one.is_shown:
                self._show_end(one)

    def _show_start(self, one: _Opening) -> None:
        if not one.is_shown:
            one.is_shown = True
            self._emit.display(SkillStarting(**self._stamp(one.run_id), skill_name=one.name))

    def _show_end(self, one: _Opening, reason: str = "", note: Note | None = None) -> None:
        one.is_shown = False
        self._emit.display(SkillDisconnected(**self._stamp(one.run_id), skill_name=one.name, reason=reason, note=note))

    def _stamp(self, run_id: str) -> DisplayStamp:
        return DisplayStamp(
            id=f"{run_id}-skill-{next(self._numbers)}",
            timestamp=self._clock.now(),
            job_id=self._context.job_id,
            run_id=run_id,
        )


class RunSkills:
    """The tools that one Run is offered, which may change while it runs."""

    def __init__(
        self,
        expert: Expert,
        project: Project,
        definitions: Sequence[Skill],
        work: Mapping[str, asyncio.Task[_Up]],
        loading: tuple[Offered, ...] = (),
        *,
        is_coordinator: bool,
    ) -> None:
        self._expert = expert
        self._loading = loading
        self._project = project
        self._definitions = definitions
        self._work = work
        self._is_coordinator = is_coordinator
        self._known: dict[str, Toolset | None] = {}
        self._context: tuple[object, ...] = (False, False, ())
        """What the tools for the Run's context are made for."""
        self._own: tuple[Offered, ...] = ()
        self._revealed: tuple[str, ...] = ()
        self.catalogue = Catalogue([])
        """What was offered last."""

    def fit_to(self, run: Run, storage: Storage) -> None:
        """Offer from the next `refresh` on what this Run needs for its context as it is now."""
        policy, context = policy_of(run), run.context
        needs = (policy is not None and policy.offers_pin, context.has_dropped, context.revealed)
        if needs != self._context:
            self._context, self._known = needs, {}
            self._own, self._revealed = context_tools(run, storage), context.revealed

    async def refresh(self) -> Catalogue:
        """What is offered now: the same object while no skill has changed what it offers.

        A skill that cannot be reached is left out, and so is one that is still on its way. Raises what opening one of
        them raised.
        """
        now = {name: await _toolset(work) for name, work in self._work.items()}
        if not self._known or any(now[name] is not known for name, known in self._known.items()):
            self.catalogue = self._made(now)
            self._known = now
        return self.catalogue

    def _made(self, toolsets: Mapping[str, Toolset | None]) -> Catalogue:
        offered: list[Offered] = []
        missing: dict[str, str] = {}
        unreachable: dict[str, str] = {}
        guidance: list[str] = []
        for definition in self._definitions:
            if isinstance(definition, InteractiveSkill):
                offered += interactive_tools(definition) if self._is_coordinator else []
                continue
            name, toolset = definition.name, toolsets[definition.name]
            session = None if toolset is None else self._work[name].result().session
            if toolset is None or session is None:
                work = self._work[name]
                missing[name] = f"skill {name!r} is being connected to"
                if work.done():
                    missing[name] = work.result().problem
                    unreachable[name] = missing[name][:_LONGEST_PROBLEM]
                    guidance.append(f"The tools of skill {name} are not there: {unreachable[name]}")
                continue
            tools = skill_tools(definition, session, toolset.specs)
            offered += tools
            if tools and toolset.instructions.strip():
                guidance.append(f"What skill {name} says of its tools:\n{_bounded(toolset.instructions.strip())}")
        return Catalogue(
            [*offered, *self._loading, *delegate_tools(self._expert, self._project.experts), *self._own],
            missing,
            "\n\n".join(guidance),
            self._expert.tool_search or self._project.tool_search or "auto",
            unreachable,
            self._revealed,
        )


async def _toolset(work: asyncio.Task[_Up]) -> Toolset | None:
    """What a skill offers now; None while it is on its way, and if it cannot be reached."""
    if not work.done():
        return None
    up = work.result()
    if up.session is None:
        return None
    try:
        return await up.session.tools()
    except SkillError:
        return up.toolset


async def _all_made(sessions: Collection[asyncio.Task[SkillSession]]) -> None:
    """Raises what the first of them raised, when all have been tried."""
    await asyncio.wait(sessions)
    errors = [error for one in sessions if (error := one.exception()) is not None]
    if errors:
        raise errors[0]


async def _all_there(required: Mapping[str, asyncio.Task[_Up]]) -> None:
    """Raises SkillError that names every skill which cannot be reached, and why."""
    problems = await asyncio.gather(*(_problem(work) for work in required.values()))
    missing = [
        f"skill {name!r} is required and missing: {problem}"
        for name, problem in zip(required, problems, strict=True)
        if problem is not None
    ]
    if missing:
        raise SkillError("; ".join(missing))


async def _problem(work: asyncio.Task[_Up]) -> str | None:
    """Why a skill cannot be reached. One that is known from the lock is connected to, to see whether it can."""
    up = await asyncio.shield(work)
    if up.session is None:
        return up.problem
    if isinstance(up.session, LockedSession):
        try:
            await up.session.connect()
        except SkillError as error:
            return str(error)
    return None


def _result(task: asyncio.Task[_T]) -> _T | None:
    """What came of a task that is done; None if nothing did."""
    return None if task.cancelled() or task.exception() is not None else task.result()


def _bounded(text: str) -> str:
    return text if len(text) <= _LONGEST_GUIDANCE else text[:_LONGEST_GUIDANCE] + " …"


def _played_search(played: Mapping[str, Toolset]) -> list[Offered]:
    """The search for tools, of a Run that used it: without the skills that are not opened there may be none to do."""
    specs = played.get(SEARCH_TOOL, _NOTHING).specs
    return [Offered(spec, PlayedSession(_NOTHING), spec.name) for spec in specs]


def _is_lazy(definition: Skill) -> bool:
    return isinstance(definition, McpStdioSkill | McpSseSkill) and definition.lazy_init and not definition.required


def _is_required(definition: Skill) -> bool:
    return not isinstance(definition, InteractiveSkill) and definition.required


async def opened(factories: Sequence[SkillFactory], definition: Skill, context: SkillContext) -> SkillSession:
    """A session of the plugin that provides a skill; `${NAME}` in its settings is filled in. Raises SkillError."""
    factory = factory_for(factories, definition)
    if isinstance(definition, PluginSkill):
        settings = filled_settings(definition.settings, context.env, definition.name)
        definition = definition.model_copy(update={"settings": settings})
    return await factory.open(definition, context)


def factory_for(factories: Sequence[SkillFactory], definition: Skill) -> SkillFactory:
    """The plugin that provides a skill. Raises SkillError that says what is missing."""
    found = next((factory for factory in factories if factory.handles(definition)), None)
    if found is None:
        raise SkillError(
            f"no installed plugin provides skill {definition.name!r} of type {definition.type!r}",
            next_steps=(Look("plugins"),),
        )
    return found
