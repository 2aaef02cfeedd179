"""What a new Run is made of, beside what is asked of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict

from perstack.config.settings import recalled, resolve_sandbox
from perstack.core.agents_md import AgentsMdFile
from perstack.core.base import JsonObject
from perstack.core.definition_secrets import without_secrets
from perstack.core.definitions import Expert, Limits, with_skills_required
from perstack.core.events import StartRun
from perstack.core.instruction import render_instruction
from perstack.core.job import Job
from perstack.core.policy.chain import rule_sets
from perstack.core.policy.permissions import RuleSet
from perstack.core.policy.widening import missing_from, not_in_force
from perstack.core.run_facts import Definition
from perstack.core.runs.decide import moved, redefined
from perstack.core.runs.results import wanted_schema
from perstack.core.runs.state import Run
from perstack.core.sandbox import SandboxPolicy, narrowed
from perstack.core.snapshots.events import SnapshotPolicy
from perstack.engine.catalogue import delegate_infos, delegate_tools
from perstack.engine.clock import iso
from perstack.engine.knowledge import reachable, wants_agents_md
from perstack.engine.providers import RunSettings
from perstack.engine.wiring import Wiring


def as_started(wiring: Wiring, expert: Expert) -> Expert:
    """The Expert as a new Run records it. Raises UsageError if one of its Agent Skills cannot be used."""
    return strict(wiring, wiring.knowledge.informed(expert))


def strict(wiring: Wiring, expert: Expert) -> Expert:
    """The Expert, whose skills are all required if that was asked for."""
    return with_skills_required(expert) if wiring.overrides.strict_skills else expert


class Told(TypedDict):
    """What the model is told it is, and which files that was taken from."""

    instruction: str
    agents_md: tuple[AgentsMdFile, ...]


def told(wiring: Wiring, expert: Expert, output: JsonObject | None, *, is_coordinator: bool) -> Told:
    """What the model of a new Run is instructed with."""
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
    )
    return Told(instruction=instruction, agents_md=files)


def sandbox_of(wiring: Wiring, expert: Expert, within: SandboxPolicy | None, base: Run | None) -> SandboxPolicy | None:
    """What programs of a new Run are held to: at most what those of its caller are, or of the one it continues.

    A caller that names a runtime chooses anew for what continues.
    """
    own = reachable(resolve_sandbox(wiring.project, expert, wiring.overrides), expert, wiring.directory)
    if base is not None and wiring.overrides.runtime is None:
        within = base.start.sandbox
    return narrowed(own, within)


def snapshots_of(wiring: Wiring, caller: StartRun | None) -> SnapshotPolicy | None:
    """Whether the workspace is recorded, and how: a delegate's is as its caller's."""
    return wiring.project.snapshots if caller is None else caller.snapshots


def stricter_today(wiring: Wiring, job: Job, run: Run, above: tuple[RuleSet, ...]) -> tuple[RuleSet, ...]:
    """Today's rules, and those of the Run that waits for it, as far as the Run does not have them."""
    expert = wiring.project.expert(run.start.expert_key) or run.start.expert
    added = not_in_force(rule_sets(wiring.project, expert), run.permissions, job.widenings)
    return (*added, *missing_from((*run.permissions, *added), above, wiring.overrides.widening))


def settings_of(wiring: Wiring, expert: Expert, of_job: Limits | None, steps_before: int) -> RunSettings:
    """What a Run begins with; a delegate is held to what its Job is held to. Raises UsageError or MissingCredential."""
    settings = wiring.providers.settings(wiring.project, expert, wiring.overrides, steps_before=steps_before)
    if of_job is None:
        return settings
    shared = {name: getattr(of_job, name) for name in ("max_steps", "max_depth", "budget")}
    return replace(settings, limits=settings.limits.model_copy(update=shared))


def of_today(wiring: Wiring, job: Job, run: Run, limits: Limits | None) -> tuple[Definition | None, Limits | None]:
    """The definition of an Expert and its limits, where they are others than those of its Run, which may be redefined.

    Of one that waits for a worker what is recorded holds: only its folder is another.
    """
    expert = wiring.project.expert(run.start.expert_key)
    if expert is None:
        return None, limits
    expert = as_started(wiring, expert)
    overrides = recalled(wiring.overrides, run.start)
    steps_before = job.total_steps - run.step
    settings = wiring.providers.settings(wiring.project, expert, overrides, steps_before=steps_before)
    wiring.providers.check(settings, wiring.project, expert)
    today = Definition(
        model=settings.model,
        provider=settings.provider.provider_name,
        **told(wiring, expert, run.start.output, is_coordinator=run.is_coordinator),
        expert=without_secrets(expert),
        reasoning_budget=settings.reasoning_budget,
        fallbacks=settings.fallbacks,
    )
    if run.status == "queued":
        return moved(run, today, wiring.directory), limits
    return redefined(run, today, settings.limits, limits)
