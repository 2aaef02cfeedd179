"""The Experts: what the definition says, the rules in force, its problems, and the tools as far as they are known.

No server of a skill is started for these pages. A definition that is invalid is shown with its problems and their
lines, while the last valid one stays in use.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perstack.config.grants import ProjectGrant
from perstack.config.resolved_settings import chain_of, resolve_sandbox, resolve_settings
from perstack.core.base.records import Record
from perstack.core.base.text import duration
from perstack.core.base.usage import amount_text
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.permissions import RuleSet, apply_widening_to_all
from perstack.core.definitions.secrets import without_secrets
from perstack.core.definitions.settings import Limits
from perstack.core.definitions.skills import Skill, ToolSpec, is_picked, legal_tool_name, with_base_skill
from perstack.core.runs.state import result_schema
from perstack.dataclass import dataclass
from perstack.definition_files import open_definition
from perstack.doors.create import validate_definition
from perstack.doors.shared.next_step_phrases import cli_phrase
from perstack.engine.context.host_setup import HostSetup
from perstack.engine.plugins.tool_catalogue import delegate_tools
from perstack.errors import DefinitionError, NotFound, PerstackError, Problem
from perstack.expert_tests.written_tests import WrittenTest, read_tests
from perstack.recordings.recorded_calls import tools_of_skill
from perstack_studio.studio import Studio, render_page, studio_of


def pages() -> Iterable[BaseRoute]:
    """Return the routes: the list, the form that starts a Job, and one Expert."""
    yield Route("/experts", _show_experts, methods=["GET"])
    yield Route("/experts/{key:path}/start", _show_form, methods=["GET"])
    yield Route("/experts/{key:path}", _show_expert, methods=["GET"])


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings of `perstack validate` on the definition file as it is on disk now."""

    problems: tuple[Problem, ...] = ()
    tests: tuple[WrittenTest, ...] = ()
    failure: str = ""  # why the file could not be checked; empty if it was

    def of_expert(self, key: str) -> tuple[Problem, ...]:
        """Return the problems of an Expert, and those of the whole file."""
        return tuple(problem for problem in self.problems if problem.expert in (None, key))


@dataclass(frozen=True, slots=True)
class KnownTool:
    """A tool as the model sees it."""

    spec: ToolSpec
    schema: str  # the JSON schema of its arguments, as it is sent

    @property
    def size(self) -> int:
        """Characters of description and schema, which are sent with each request."""
        return len(self.spec.description) + len(self.schema)


@dataclass(frozen=True, slots=True)
class SkillTools:
    """The tools of a skill."""

    skill: str
    source: str  # where the tools are known from, or why they are unknown
    tools: tuple[KnownTool, ...] = ()

    @property
    def size(self) -> int:
        return sum(tool.size for tool in self.tools)


@dataclass(frozen=True, slots=True)
class ExpertState:
    """Content of the page of an Expert."""

    expert: Expert
    models: tuple[str, ...]
    model_problem: str  # why no model can be used now; empty if one can
    facts: tuple[tuple[str, str], ...]  # limits by name
    rules: tuple[RuleSet, ...]
    grants: tuple[ProjectGrant, ...]
    toolsets: tuple[SkillTools, ...]
    skills: tuple[tuple[str, str, str], ...]  # name, kind, and the definition as JSON without secrets

    @property
    def size(self) -> int:
        """Characters of all known tools."""
        return sum(toolset.size for toolset in self.toolsets)


async def check_definition(studio: Studio) -> Findings:
    """Check the definition file as it is now, in a thread, without starting a server of a skill."""
    setup = studio.host.jobs.source.setup
    path = studio.served_project.definitions.live.loaded.project.path
    if path is None:
        return Findings(failure="there is no definition file")

    def check() -> Findings:
        definition = open_definition(Path(path), must_be_whole=False)
        problems = asyncio.run(validate_definition(definition, setup.env))[1]
        return Findings(problems, read_tests(definition))

    try:
        return await asyncio.to_thread(check)
    except (PerstackError, OSError) as error:
        return Findings(failure=str(error))


def state_of(setup: HostSetup, expert: Expert) -> ExpertState:
    """Return the state of an Expert. Raises UsageError for a name that is missing in `[models]`."""
    settings = resolve_settings(setup.project, expert, setup.overrides)
    models, problem = configured_models(setup, expert), ""
    try:
        settings_in_force = setup.providers.settings(setup.project, expert, setup.overrides)
        models = (f"{settings_in_force.provider.provider_name}/{settings_in_force.model}", *settings_in_force.fallbacks)
    except PerstackError as error:
        problem = str(error)
    sandbox = resolve_sandbox(setup.project, expert, setup.overrides)
    facts = [*_limit_rows(settings.limits), ("Programs run in", "this system" if sandbox is None else sandbox.runtime)]
    if settings.reasoning_budget is not None:
        facts.append(("Reasoning", str(settings.reasoning_budget)))
    rules, widening = chain_of(setup.project, expert), setup.overrides.widening
    try:
        grants = setup.grants.all()
    except PerstackError:
        grants = ()
    return ExpertState(
        expert,
        models,
        problem,
        tuple(facts),
        rules if widening is None else apply_widening_to_all(rules, widening),
        grants,
        tuple(_all_toolsets(setup, expert)),
        tuple((skill.name, skill.type, _as_json(skill)) for skill in without_secrets(expert).skills),
    )


def configured_models(setup: HostSetup, expert: Expert) -> tuple[str, ...]:
    """Return the models that options and definition name, the first choice first; empty for the provider's default."""
    candidates = resolve_settings(setup.project, expert, setup.overrides).models
    names = [model.name for choice in candidates[:1] for model in choice.models]
    return (*names, *(f"{choice.tier} tier" for choice in candidates[:1] if choice.tier and not choice.models))


def _as_json(record: Record) -> str:
    values = record.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return json.dumps(values, ensure_ascii=False, indent=2)


def _limit_rows(limits: Limits) -> Iterator[tuple[str, str]]:
    yield "Steps", "no limit" if limits.max_steps is None else f"{limits.max_steps:,}"
    yield "Delegates, deep", "no limit" if limits.max_depth is None else f"{limits.max_depth:,}"
    yield "Retries", f"{limits.max_retries:,} in {duration(limits.retry_timeout)}"
    yield "One attempt", duration(limits.timeout)
    for name in ("maxCost", "maxTokens", "maxTime", "maxToolCalls"):
        limit = None if limits.budget is None else limits.budget.limit_of(name)
        if limit is not None:
            yield "Budget", amount_text(name, limit)


def _all_toolsets(setup: HostSetup, expert: Expert) -> Iterator[SkillTools]:
    for skill in with_base_skill(expert.skills):
        yield _read_toolset(setup, skill)
    delegates = [_known_tool(offered.spec) for offered in delegate_tools(expert, setup.project.experts)]
    if delegates:
        yield SkillTools("delegates", "the Experts that it may call", tuple(delegates))
    if expert.provider_tools:
        yield SkillTools("provider", f"run by the model's provider: {', '.join(expert.provider_tools)}")


def _read_toolset(setup: HostSetup, skill: Skill) -> SkillTools:
    """Return the tools of a skill from its plugin or perstack.lock; without tools, the reason."""
    try:
        specs, source = tools_of_skill(setup.plugins.skills, skill), "always the same"
        if specs is None:
            locked, source = setup.lock().locked_toolset(skill), "as perstack.lock has them"
            specs = None if locked is None else tuple(_picked_specs(locked.specs, skill))
    except PerstackError as error:
        return SkillTools(skill.name, str(error))
    if specs is None:
        return SkillTools(skill.name, "known only when its server is started, or after `perstack install`")
    return SkillTools(skill.name, source, tuple(map(_known_tool, specs)))


def _picked_specs(specs: Iterable[ToolSpec], skill: Skill) -> Iterator[ToolSpec]:
    for spec in specs:
        if is_picked(spec.name, skill.pick, skill.omit):
            yield spec.model_copy(update={"name": legal_tool_name(spec.name)})


def _known_tool(spec: ToolSpec) -> KnownTool:
    return KnownTool(spec, json.dumps(spec.input_schema, ensure_ascii=False, separators=(",", ":")))


@dataclass(frozen=True, slots=True)
class ListedExpert:
    """An Expert in the list."""

    key: str
    description: str
    models: tuple[str, ...]
    is_broken: bool = False  # True if its definition on disk has errors
    is_offered: bool = True  # False if no valid definition of it was ever read here


async def _show_experts(request: Request) -> Response:
    studio = studio_of(request)
    await studio.served_project.refresh()
    definitions, setup = studio.served_project.definitions, studio.host.jobs.source.setup
    findings = await check_definition(studio)
    broken = {*setup.project.broken, *(problem.expert for problem in findings.problems if problem.severity == "error")}
    rows = [
        ListedExpert(key, expert.description, configured_models(setup, expert), key in broken)
        for key, expert in setup.project.experts.items()
        if definitions.offers(key)
    ]
    missing = (key for key in setup.project.broken if key not in setup.project.experts)
    rows += [ListedExpert(key, "", (), is_broken=True, is_offered=False) for key in missing]
    return await render_page(
        request, "experts.html", experts=rows, findings=findings, unused_definition=UnusedDefinition.of(studio)
    )


@dataclass(frozen=True, slots=True)
class UnusedDefinition:
    """Reason why the definition on disk is not in use; empty if it is."""

    note: str
    change: tuple[str, ...]  # programs and addresses of a changed definition that nobody has agreed to

    @classmethod
    def of(cls, studio: Studio) -> UnusedDefinition:
        """Return the reason for the definition that the studio watches."""
        live = studio.served_project.definitions.live
        note = "" if live.problem is None else live.problem.text_for(cli_phrase)
        return cls(note.partition("\n")[0], () if live.pending_change is None else live.pending_change.page)


async def _show_expert(request: Request) -> Response:
    studio, key = studio_of(request), request.path_params["key"]
    await studio.served_project.refresh()
    studio.served_project.definitions.check_offered(key)
    setup = studio.host.jobs.source.setup
    known = {*setup.project.experts, *setup.project.broken}
    if key not in known:
        raise NotFound(f"there is no Expert {key!r}; available: {', '.join(sorted(known)) or 'none'}")
    findings = await check_definition(studio)
    try:
        state = state_of(setup, studio.host.experts.get(key))
    except DefinitionError:
        state = None  # the page shows the findings, which say why
    return await render_page(
        request,
        "expert.html",
        key=key,
        state=state,
        problems=findings.of_expert(key),
        findings=findings,
        tests=[(test, _as_json(test.test.expect)) for test in findings.tests if test.expert == key],
        programs_note=studio.host.programs_note,
        unused_definition=UnusedDefinition.of(studio),
    )


async def _show_form(request: Request) -> Response:
    """Show the form that starts a Job, made from the Expert."""
    studio, key = studio_of(request), request.path_params["key"]
    await studio.served_project.refresh()
    expert, setup = studio.host.experts.get(key), studio.host.jobs.source.setup
    problem = ""
    try:
        studio.host.experts.check_ready(key)
    except PerstackError as error:
        problem = error.text_for(cli_phrase)
    limits = resolve_settings(setup.project, expert, setup.overrides).limits
    return await render_page(
        request,
        "start.html",
        expert=expert,
        problem="" if studio.host.leaves_to_workers else problem,
        schema=result_schema(expert, setup.overrides.output, is_coordinator=True),
        limits=[f"{name}: {text}" for name, text in _limit_rows(limits) if name in ("Steps", "Budget")],
        programs_note=studio.host.programs_note,
    )
