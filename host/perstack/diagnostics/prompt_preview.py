"""Show what an Expert's model is sent before the query, without a Run."""

from __future__ import annotations

from perstack.agent_skills.library import library_of
from perstack.agent_skills.skill_folders import SkillFolder
from perstack.config.resolved_settings import chain_of, masks_secrets, resolve_settings
from perstack.core.base.records import JsonObject
from perstack.core.base.usage import NO_USAGE
from perstack.core.definitions.expert_changes import changing_tools_of
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.instruction import SEPARATOR, instruction_parts
from perstack.core.definitions.project import with_delegates
from perstack.core.definitions.skills import ToolSpec, tool_skills
from perstack.core.messages.messages import ExpertMessage
from perstack.core.messages.tool_search import tokens_of
from perstack.core.runs.display_events import SkillDisconnected
from perstack.core.runs.events import Event
from perstack.core.runs.state import result_schema
from perstack.dataclass import dataclass
from perstack.engine.context.host_setup import HostSetup
from perstack.engine.log.run_session import Emitter
from perstack.engine.plugins.job_skills import JobSkills
from perstack.engine.plugins.provider_tools import NO_OFFER, ProviderToolOffer, offer_tools
from perstack.engine.plugins.providers_and_prices import Prices, RunSettings
from perstack.engine.plugins.tool_catalogue import OfferedTool, delegate_infos, delegate_tools
from perstack.errors import PerstackError
from perstack.next_steps import Note
from perstack.ports.provider import Generation
from perstack.system.clock import iso

# Tools of an Expert.


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools of one Expert."""

    shown: tuple[ToolSpec, ...]  # tools that the model sees at every step
    deferred: tuple[ToolSpec, ...] = ()  # tools that the model finds by a search
    problems: tuple[Note, ...] = ()  # reasons why a skill's tools are missing, or have other names than in the skill
    guidance: str = ""  # the skills' instructions for their tools, sent after the Expert's instruction


async def list_offered_tools(setup: HostSetup, expert: Expert, *, is_coordinator: bool = True) -> OfferedTools:
    """Return the tools that a Run of this Expert would offer. Raises SkillError for a wrong definition."""
    problems: list[Note] = []

    def collect_problem(event: Event, _: bytes) -> None:
        if isinstance(event, SkillDisconnected) and event.reason:
            problems.append(event.note or Note(event.reason))

    # also connect to lazy skills, to list their tools
    eager_skills = tuple(
        skill.model_copy(update={"lazy_init": False}) if hasattr(skill, "lazy_init") else skill
        for skill in expert.skills
    )
    context, tool_lock = setup.skill_context("tools"), setup.lock()
    skills = JobSkills(
        setup.plugins.skills,
        context,
        Emitter((), collect_problem),
        tool_lock,
        runtimes=setup.runtimes(context.job_id),
        agreement=setup.agreement,
        knowledge=setup.knowledge(tool_lock),
    )
    try:
        run_skills = await skills.open(
            expert.model_copy(update={"skills": eager_skills}),
            setup.project,
            run_id=context.job_id,
            is_coordinator=is_coordinator,
            policy=setup.policy(expert),
            host_tools=[OfferedTool(spec) for spec in changing_tools_of(expert, setup.project)],
        )
        await run_skills.connect_locked([skill.name for skill in tool_skills(expert.skills)])
        catalogue = await run_skills.refresh()
        problems += map(Note, catalogue.difference_notices.values())
        problems += (Note(f"skill {skill!r}: {message}") for skill, message in catalogue.rename_notices.items())
        return OfferedTools(catalogue.shown, catalogue.deferred, tuple(problems), catalogue.guidance)
    finally:
        await skills.close()


@dataclass(frozen=True, slots=True)
class SkillInfo:
    """An Agent Skill of an Expert, with more details than the model sees."""

    name: str
    path: str
    digest: str
    files: int
    license: str
    compatibility: str
    allowed_tools: tuple[str, ...]  # declared in the skill; has no effect here


@dataclass(frozen=True, slots=True)
class PromptPreview:
    """The content that a model is sent before the query. Token counts are estimates."""

    parts: dict[str, str]
    shown: tuple[ToolSpec, ...]
    deferred: tuple[ToolSpec, ...]  # tools that are found by a search, and not sent at first
    problems: tuple[Note, ...]
    schema: JsonObject | None  # JSON Schema of the result; None if any text will do
    provider: str | None  # name of the provider; None if none can be used
    model: str | None
    knowledge: tuple[SkillInfo, ...]
    window: int | None  # context size of the model in tokens; None if unknown
    provider_tools: tuple[str, ...] = ()  # tools that the provider runs itself

    @property
    def instruction(self) -> str:
        """The whole instruction."""
        return SEPARATOR.join(self.parts.values())

    def tokens(self) -> dict[str, int]:
        """Return the estimated tokens of each part in order; about four characters are a token."""
        counts = {name: len(text) // 4 + 1 for name, text in self.parts.items()}
        return {**counts, "tools": sum(map(tokens_of, self.shown))}


async def preview_prompt(setup: HostSetup, expert: Expert, *, as_delegate: bool) -> PromptPreview:
    """Return what a Run of this Expert would send first. Raises SkillError and UsageError."""
    knowledge = setup.knowledge(setup.lock())
    await knowledge.read(with_delegates(setup.project, (expert.key,)))
    expert = knowledge.with_skill_digests(expert)
    tools = await list_offered_tools(setup, expert, is_coordinator=not as_delegate)
    schema = result_schema(expert, setup.overrides.output, is_coordinator=not as_delegate)
    parts = instruction_parts(
        expert,
        delegate_infos(delegate_tools(expert, setup.project.experts)),
        time=iso(setup.clock.now()),
        directory=str(setup.workspace),
        is_coordinator=not as_delegate,
        schema=schema,
        knowledge=knowledge.instruction_parts(expert, is_coordinator=not as_delegate)[0],
        masks_secrets=masks_secrets(setup.project, expert),
    )
    if tools.guidance:
        parts["skills"] = tools.guidance
    settings = _settings_or_none(setup, expert)
    offer = _provider_tools(setup, expert, settings)
    return PromptPreview(
        parts=parts,
        shown=tools.shown,
        deferred=tools.deferred,
        problems=(*tools.problems, *map(Note, offer.withheld_reasons.values())),
        schema=schema,
        provider=None if settings is None else settings.provider.provider_name,
        model=None if settings is None else settings.model,
        knowledge=tuple(map(_skill_info, library_of(knowledge).valid_folders((expert,)).values())),
        window=await _window(setup, expert, settings),
        provider_tools=tuple(tool.name for tool in offer.tools),
    )


def _skill_info(folder: SkillFolder) -> SkillInfo:
    skill_head = folder.skill_head
    return SkillInfo(
        name=skill_head.name,
        path=str(folder.path),
        digest=folder.digest,
        files=len(folder.files),
        license=skill_head.license,
        compatibility=skill_head.compatibility,
        allowed_tools=skill_head.allowed_tools,
    )


def _settings_or_none(setup: HostSetup, expert: Expert) -> RunSettings | None:
    try:
        return setup.providers.settings(setup.project, expert, setup.overrides)
    except PerstackError:
        return None  # all else can be shown without a model


def _provider_tools(setup: HostSetup, expert: Expert, settings: RunSettings | None) -> ProviderToolOffer:
    if settings is None:
        return NO_OFFER
    name = settings.provider.provider_name
    try:
        tools = setup.providers.get(settings.provider).tools
    except PerstackError:
        tools = setup.providers.factories[name].tools  # without a key, assume the factory's tools
    return offer_tools(expert, name, tools, chain_of(setup.project, expert))


async def _window(setup: HostSetup, expert: Expert, settings: RunSettings | None) -> int | None:
    context_policy = resolve_settings(setup.project, expert, setup.overrides).limits.context
    if context_policy is not None and context_policy.window is not None:
        return context_policy.window
    if settings is None:
        return None
    prices = Prices(setup.providers.factories, setup.project.prices)
    no_generation = Generation(ExpertMessage(contents=()), NO_USAGE, "stop")
    _, window = await prices.cost_and_window(settings.provider.provider_name, settings.model, no_generation)
    return window
