"""Compute the recorded settings of a new or redefined Run: instruction, sandbox, rules, limits."""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict

from perstack.config.settings import recalled, resolve_sandbox
from perstack.core.base.records import JsonObject
from perstack.core.definitions.experts import Expert, Limits, with_skills_required
from perstack.core.definitions.instruction import AgentsMdFile, render_instruction
from perstack.core.definitions.permissions import RuleSet, missing_from, not_in_force
from perstack.core.definitions.project import Project, SnapshotPolicy, rule_sets
from perstack.core.definitions.sandbox import SandboxPolicy, narrowed
from perstack.core.definitions.secrets import without_secrets
from perstack.core.jobs.job import Job
from perstack.core.runs.decide import moved, redefined
from perstack.core.runs.events import StartRun
from perstack.core.runs.facts import Definition
from perstack.core.runs.state import Run, wanted_schema
from perstack.engine.plugins.agent_skills import reachable, wants_agents_md
from perstack.engine.plugins.providers import RunSettings
from perstack.engine.plugins.tool_catalogue import delegate_infos, delegate_tools
from perstack.engine.runs.job_context import Wiring
from perstack.system.clock import iso


def as_started(wiring: Wiring, expert: Expert) -> Expert:
    """Return the Expert as a new Run records it. Raises UsageError if one of its Agent Skills cannot be used."""
    return strict(wiring, wiring.knowledge.with_skill_digests(expert))


def strict(wiring: Wiring, expert: Expert) -> Expert:
    """Return the Expert, with all its skills required if strict skills were asked for."""
    return with_skills_required(expert) if wiring.overrides.strict_skills else expert


class Told(TypedDict):
    """Fields of a Run's start: the instruction, the AGENTS.md files that are in it, and whether secrets are masked."""

    instruction: str
    agents_md: tuple[AgentsMdFile, ...]
    mask_secrets: bool


def masks_secrets(project: Project, expert: Expert, *held: StartRun | None) -> bool:
    """Return True if a new Run masks secrets in the output of its tools.

    It does if its definition says so, or if a Run in `held` does: its parent and the Run that it continues.
    """
    own = project.mask_secrets if expert.mask_secrets is None else expert.mask_secrets
    return bool(own) or any(start is not None and start.mask_secrets for start in held)


def told(
    wiring: Wiring, expert: Expert, output: JsonObject | None, *, is_coordinator: bool, masks_secrets: bool
) -> Told:
    """Render the instruction of a new Run."""
    wants = wants_agents_md(wiring.project, expert, is_coordinator=is_coordinator)
    agents_md, files = wiring.knowledge.agents_md() if wants else ("", ())
    instruction = render_instruction(
        expert,
        delegate_infos(delegate_tools(expert, wiring.project.experts)),
        time=iso(wiring.clock.now()),
        directory=wiring.directory,
        is_coordinator=is_coordinator,
        schema=wanted_schema(expert, output, is_coordinator=is_coordinator),
        agents_md=agents_md,
        masks_secrets=masks_secrets,
    )
    return Told(instruction=instruction, agents_md=files, mask_secrets=masks_secrets)


def sandbox_of(wiring: Wiring, expert: Expert, within: SandboxPolicy | None, base: Run | None) -> SandboxPolicy | None:
    """Return the sandbox policy of a new Run: its own, narrowed to that of its parent or of the Run that it continues.

    A continuation that names a runtime is not narrowed to the Run that it continues.
    """
    own = reachable(resolve_sandbox(wiring.project, expert, wiring.overrides), expert, wiring.directory)
    if base is not None and wiring.overrides.runtime is None:
        within = base.start.sandbox
    return narrowed(own, within)


def snapshots_of(wiring: Wiring, caller: StartRun | None) -> SnapshotPolicy | None:
    """Return the snapshot policy of a new Run: its parent's for a delegate; None records no snapshots."""
    return wiring.project.snapshots if caller is None else caller.snapshots


def stricter_today(wiring: Wiring, job: Job, run: Run, above: tuple[RuleSet, ...]) -> tuple[RuleSet, ...]:
    """Return those of today's rules, and of the parent Run's rules in `above`, that the Run does not have yet."""
    expert = wiring.project.expert(run.start.expert_key) or run.start.expert
    added = not_in_force(rule_sets(wiring.project, expert), run.permissions, job.widenings)
    return (*added, *missing_from((*run.permissions, *added), above, wiring.overrides.widening))


def settings_of(wiring: Wiring, expert: Expert, of_job: Limits | None, steps_before: int) -> RunSettings:
    """Return the settings of a new Run. Raises UsageError or MissingCredential.

    `of_job`: limits of the Job, whose steps, depth and budget a delegate shares; None for a Coordinator.
    """
    settings = wiring.providers.settings(wiring.project, expert, wiring.overrides, steps_before=steps_before)
    if of_job is None:
        return settings
    shared = {name: getattr(of_job, name) for name in ("max_steps", "max_depth", "budget")}
    return replace(settings, limits=settings.limits.model_copy(update=shared))


def of_today(wiring: Wiring, job: Job, run: Run, limits: Limits | None) -> tuple[Definition | None, Limits | None]:
    """Return an Expert's definition and limits today, where they differ from those of its Run, which may be redefined.

    The recorded definition of a Run that waits for a worker stays: only its working directory changes.
    """
    expert = wiring.project.expert(run.start.expert_key)
    if expert is None:
        return None, limits
    expert = as_started(wiring, expert)
    overrides = recalled(wiring.overrides, run.start)
    steps_before = job.total_steps - run.step
    settings = wiring.providers.settings(wiring.project, expert, overrides, steps_before=steps_before)
    wiring.providers.check(settings, wiring.project, expert)
    masks = masks_secrets(wiring.project, expert, run.start)
    today = Definition(
        model=settings.model,
        provider=settings.provider.provider_name,
        **told(wiring, expert, run.start.output, is_coordinator=run.is_coordinator, masks_secrets=masks),
        expert=without_secrets(expert),
        reasoning_budget=settings.reasoning_budget,
        fallbacks=settings.fallbacks,
    )
    if run.status == "queued":
        return moved(run, today, wiring.directory), limits
    return redefined(run, today, settings.limits, limits)
