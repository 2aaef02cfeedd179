"""What the model of an Expert is sent before its query, without running it."""

from __future__ import annotations

from perstack.config.settings import resolve_settings
from perstack.config.skill_folders import SkillFolder
from perstack.core.base import JsonObject
from perstack.core.definitions import Expert
from perstack.core.instruction import BETWEEN, instruction_parts
from perstack.core.messages import ExpertMessage
from perstack.core.runs.results import wanted_schema
from perstack.core.tools import ToolSpec
from perstack.core.toolsearch import tokens_of
from perstack.core.usage import NO_USAGE
from perstack.dataclass import dataclass
from perstack.engine.catalogue import delegate_infos, delegate_tools
from perstack.engine.clock import iso
from perstack.engine.knowledge import wants_agents_md
from perstack.engine.prices import Prices
from perstack.engine.providers import RunSettings
from perstack.engine.setup import Setup
from perstack.engine.tooling import offered_tools
from perstack.errors import PerstackError
from perstack.next_steps import Note
from perstack.ports.provider import Generation


@dataclass(frozen=True, slots=True)
class Known:
    """An Agent Skill of an Expert: a person sees more of it than the model does."""

    name: str
    path: str
    digest: str
    files: int
    license: str
    compatibility: str
    allowed_tools: tuple[str, ...]
    """It grants nothing."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What a model is sent of an Expert. Tokens are estimates."""

    parts: dict[str, str]
    """The instruction, in its parts by their names."""
    shown: tuple[ToolSpec, ...]
    deferred: tuple[ToolSpec, ...]
    """Tools that it finds by a search: not sent at first."""
    problems: tuple[Note, ...]
    """Why a skill's tools are missing."""
    schema: JsonObject | None
    """What its result has to fit."""
    provider: str | None
    """None: there is none that could be used."""
    model: str | None
    knowledge: tuple[Known, ...]
    """Its Agent Skills."""
    window: int | None
    """How many tokens the model's context can hold, where that is known."""

    @property
    def instruction(self) -> str:
        """The whole text."""
        return BETWEEN.join(self.parts.values())

    def tokens(self) -> dict[str, int]:
        """By part, in the order of what is sent; a token is about four characters."""
        found = {name: len(text) // 4 + 1 for name, text in self.parts.items()}
        return {**found, "tools": sum(map(tokens_of, self.shown))}


async def sent_to_model(setup: Setup, expert: Expert, *, as_delegate: bool) -> Sent:
    """What a Run of this Expert would begin with; its skills are opened for it, and ended.

    Raises SkillError for a wrong definition, and UsageError for an Agent Skill that cannot be used.
    """
    knowledge = await setup.knowledge(expert.key)
    expert = knowledge.informed(expert)
    tools = await offered_tools(setup, expert, is_coordinator=not as_delegate)
    wants = wants_agents_md(setup.project, expert, is_coordinator=not as_delegate)
    schema = wanted_schema(expert, setup.overrides.output, is_coordinator=not as_delegate)
    parts = instruction_parts(
        expert,
        delegate_infos(delegate_tools(expert, setup.project.experts)),
        time=iso(setup.clock.now()),
        directory=str(setup.workspace),
        is_coordinator=not as_delegate,
        schema=schema,
        agents_md=knowledge.agents_md()[0] if wants else "",
    )
    if tools.guidance:
        parts["skills"] = tools.guidance
    settings = _settings(setup, expert)
    return Sent(
        parts=parts,
        shown=tools.shown,
        deferred=tools.deferred,
        problems=tools.problems,
        schema=schema,
        provider=None if settings is None else settings.provider.provider_name,
        model=None if settings is None else settings.model,
        knowledge=tuple(map(_shown, knowledge.folders(expert))),
        window=await _window(setup, expert, settings),
    )


def _shown(folder: SkillFolder) -> Known:
    head = folder.head
    return Known(
        name=head.name,
        path=str(folder.path),
        digest=folder.digest,
        files=len(folder.files),
        license=head.license,
        compatibility=head.compatibility,
        allowed_tools=head.allowed_tools,
    )


def _settings(setup: Setup, expert: Expert) -> RunSettings | None:
    try:
        return setup.providers.settings(setup.project, expert, setup.overrides)
    except PerstackError:
        return None  # what it is sent can be shown without


async def _window(setup: Setup, expert: Expert, settings: RunSettings | None) -> int | None:
    policy = resolve_settings(setup.project, expert, setup.overrides).limits.context
    if policy is not None and policy.window is not None:
        return policy.window
    if settings is None:
        return None
    prices = Prices(setup.providers.factories, setup.project.prices)
    nothing = Generation(ExpertMessage(contents=()), NO_USAGE, "stop")
    _, window = await prices.known(settings.provider.provider_name, settings.model, nothing)
    return window
