"""Begin and resume Runs: compute their recorded settings and record their first event.

A new Run takes two steps. `prepare_run` checks that it can begin here and computes the content of its first event: the
definition, model and sandbox; nothing is recorded or written. `RunStarter.begin` records the event from the
`PreparedRun`, and checks nothing again. `RunStarter.resume` checks a stopped Run and records that it resumes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, TypedDict

from perstack.config.resolved_settings import (
    exec_grant_of,
    masks_secrets,
    rule_sets,
    with_recorded_choices,
)
from perstack.core.base.ids import run_id_of
from perstack.core.base.records import JsonObject
from perstack.core.definitions.exec_grant import ExecGrant
from perstack.core.definitions.experts import Expert, with_skills_required
from perstack.core.definitions.instruction import SEPARATOR, AgentsMdFile, instruction_parts
from perstack.core.definitions.permissions import (
    Approval,
    RuleSet,
    missing_parent_rules,
    parse_rule,
    start_rules,
    todays_missing_rules,
)
from perstack.core.definitions.sandbox import SandboxPolicy, narrow_policy
from perstack.core.definitions.secrets import without_secrets
from perstack.core.definitions.settings import Limits, intern_record, with_shared_names
from perstack.core.definitions.skills import legal_tool_name
from perstack.core.definitions.tool_definitions import Definitions
from perstack.core.messages.messages import ResultContent
from perstack.core.runs.facts import ContinuedFrom, Definition, DelegatedBy, Delegation
from perstack.core.runs.start import StartRun
from perstack.core.runs.state import Run, result_schema
from perstack.dataclass import dataclass
from perstack.engine.context.host_setup import HostSetup
from perstack.engine.context.protection import RUN_FILES
from perstack.engine.log.run_session import RunSession
from perstack.engine.plugins.knowledge import Knowledge
from perstack.engine.plugins.providers_and_prices import RunSettings
from perstack.engine.plugins.tool_catalogue import delegate_infos, delegate_tools
from perstack.engine.runs.job_drive import JobDrive
from perstack.engine.runs.person_decisions import NO_DECISIONS, PersonAnswer, PersonDecisions
from perstack.errors import PerstackError
from perstack.ports.storage import RunRef
from perstack.system.clock import iso
from perstack.system.user import this_user
from perstack.version import VERSION

if TYPE_CHECKING:
    from perstack.core.runs.events.lifecycle import ResumeReason


@dataclass(frozen=True, slots=True)
class NewRun:
    """Request for a new Run: a Coordinator's, or a delegate's if `delegated_by` is set."""

    expert: Expert
    query: str
    caller_fields: Mapping[str, Any] = field(default_factory=dict[str, Any])  # checked values, by field of `StartRun`
    attachments: tuple[ResultContent, ...] = ()
    continued_from: ContinuedFrom | None = None
    base_run: Run | None = None  # the state that the Run continues from
    answer: PersonAnswer | None = None  # answer to the question that `base_run` asks
    run_id: str | None = None  # None for the Job's next number
    delegated_by: DelegatedBy | None = None
    outer_policy: SandboxPolicy | None = None  # sandbox policy of the parent Run; this Run's policy is narrowed to it
    parent_rules: tuple[RuleSet, ...] = ()  # permission rules of the parent Run
    shared_limits: Limits | None = None  # limits that a delegate shares with the whole Job; None for a Coordinator


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A new Run that can begin here, with the definition and settings that its first event records."""

    new: NewRun
    expert: Expert  # the Expert with the digests of its Agent Skills
    settings: RunSettings
    policy: SandboxPolicy | None


def prepare_run(
    setup: HostSetup, knowledge: Knowledge, new: NewRun, *, steps_before: int, is_driven_here: bool = True
) -> PreparedRun:
    """Check that a new Run can begin, and compute the settings that it records. Raises UsageError or ProviderError.

    `steps_before`: number of steps of the Job so far. Without `is_driven_here` another process has the providers.
    """
    expert = with_strict_skills(setup, knowledge.with_skill_digests(new.expert))
    settings = _run_settings(setup, expert, new.shared_limits, steps_before)
    policy = _sandbox_policy(setup, expert, new)
    if is_driven_here:
        setup.providers.check(settings, setup.project, expert)
    return PreparedRun(new, expert, settings, policy)


@dataclass(frozen=True, slots=True)
class ResumedRun:
    """A stopped Run, and how it is resumed."""

    run: Run
    reason: ResumeReason
    limits: Limits | None = None  # new limits; None for the recorded ones
    parent_rules: tuple[RuleSet, ...] = ()  # permission rules of the parent Run
    answer: PersonAnswer | None = None
    """Answer to the question that the Run asks; None to look for it in the decisions of the Job."""
    decisions: PersonDecisions = NO_DECISIONS  # decisions that the whole Job resumes with; empty for a delegate


class RunStarter:
    """Begins and resumes the Runs of one Job."""

    def __init__(self, drive: JobDrive) -> None:
        self._drive = drive

    def start(self, start: PreparedRun | ResumedRun) -> RunSession:
        """Begin or resume a Run."""
        return self.begin(start) if isinstance(start, PreparedRun) else self.resume(start)

    def begin(self, prepared_run: PreparedRun) -> RunSession:
        """Record the start of a new Run."""
        drive, setup, new = self._drive, self._drive.setup, prepared_run.new
        expert, settings, policy = prepared_run.expert, prepared_run.settings, prepared_run.policy
        base, delegated_by = new.base_run, new.delegated_by
        output = setup.overrides.output if delegated_by is None else None
        # the rules of a continued Run hold in addition to today's
        outer_rules = new.parent_rules if base is None else drive.runs.get(base.id, base).permissions
        parent = None if delegated_by is None else drive.job.runs.get(delegated_by.run_id)
        inherited_starts = (None if parent is None else parent.start, None if base is None else base.start)
        does_mask_secrets = masks_secrets(setup.project, expert, *inherited_starts)
        run_id = new.run_id or run_id_of(drive.job.id, drive.job.next_number)
        session = drive.new_session(RunRef(drive.job.id, run_id), expert.key)
        session.base = base
        session.add(
            with_shared_names(
                StartRun(
                    **session.stamp(),
                    query=new.query,
                    model=settings.model,
                    provider=settings.provider.provider_name,
                    fallbacks=settings.fallbacks,
                    **_read_instruction(
                        drive, expert, output, is_coordinator=delegated_by is None, masks_secrets=does_mask_secrets
                    ),
                    expert=intern_record(without_secrets(expert)),
                    limits=settings.limits,
                    reasoning_budget=settings.reasoning_budget,
                    delegated_by=delegated_by,
                    continued_from=new.continued_from,
                    runtime_version=VERSION,
                    **new.caller_fields,
                    overrides=setup.overrides.chosen,
                    permissions=start_rules(outer_rules, rule_sets(setup.project, expert), drive.job.widenings),
                    depth=0 if parent is None else parent.start.depth + 1,
                    sandbox=policy,
                    output=output,
                    attachments=new.attachments,
                    snapshots=drive.setup.project.snapshots if parent is None else parent.start.snapshots,
                    exec_grant=_exec_grant(drive, expert, policy, *inherited_starts),
                    counts_rounds=True,
                )
            )
        )
        if delegated_by is None:  # delegates inherit the wider permissions
            self._record_widening(session)
        if new.answer is not None:
            self._record_answer(session, new.answer)
        return session

    def begin_delegate(self, parent_session: RunSession, delegation: Delegation, shared_limits: Limits) -> RunSession:
        """Record the start of a delegate's Run; `shared_limits` are the Job's limits. Raises PerstackError."""
        added_expert = parent_session.run.added_experts.get(delegation.expert_key)
        expert = added_expert or self._drive.setup.project.expert(delegation.expert_key)
        if expert is None:
            raise PerstackError(f"there is no Expert {delegation.expert_key!r} in perstack.toml any more")
        delegated_by = DelegatedBy(
            expert_key=parent_session.expert_key,
            run_id=parent_session.ref.run_id,
            tool_call_id=delegation.tool_call_id,
            tool_name=delegation.tool_name,
        )
        new = NewRun(
            expert,
            delegation.query,
            run_id=delegation.run_id,
            delegated_by=delegated_by,
            outer_policy=parent_session.run.start.sandbox,
            parent_rules=parent_session.run.permissions,
            shared_limits=shared_limits,
        )
        drive = self._drive
        steps_before, is_driven_here = drive.job.total_steps, drive.is_driven_here
        return self.begin(
            prepare_run(drive.setup, drive.knowledge, new, steps_before=steps_before, is_driven_here=is_driven_here)
        )

    def resume(self, resumed_run: ResumedRun) -> RunSession:
        """Record that a stopped Run resumes, and the answer to its question. Raises PerstackError, recording nothing.

        A Run that failed before its model replied resumes under today's definition and settings.
        """
        from perstack.core.runs.decide import (
            resume_event,  # imported late: it loads all events, and a new Run shows its first one earlier
        )

        drive, setup, run, decisions = self._drive, self._drive.setup, resumed_run.run, self._drive.decisions
        definition, limits = None, resumed_run.limits
        if run.may_be_redefined and drive.is_driven_here:
            definition, limits = _redefine(drive, run, limits)
        if definition is None and not run.uses_fallback and drive.is_driven_here:
            setup.providers.for_run(run, setup.project, setup.overrides)
        session = drive.session_of(run)
        session.add(
            resume_event(
                run,
                resumed_run.reason,
                session.stamp,
                limits=limits,
                settled=decisions.settled,
                by=None if limits is None else decisions.limited_by or this_user(),
                signal=decisions.signal,
                definition=definition,
                permissions=_stricter_rules_today(drive, run, resumed_run.parent_rules),
                worker="" if resumed_run.reason == "parent" else drive.worker.name,
            )
        )
        self._record_widening(session)
        answer = resumed_run.answer or drive.take_answer(run.id)
        if answer is not None:
            self._record_answer(session, answer)
        return session

    def _record_widening(self, session: RunSession) -> None:
        overrides = self._drive.setup.overrides
        if overrides.widening is not None:
            from perstack.core.runs.events.lifecycle import WidenPermissions

            by = overrides.widened_by or this_user()
            session.add(WidenPermissions(**session.stamp(), widening=overrides.widening, by=by))

    def _record_answer(self, session: RunSession, answer: PersonAnswer) -> None:
        """Record an answer; a rule that it approves for the project is stored first. Raises StorageError."""
        from perstack.core.runs.decide import answer_event

        if isinstance(answer.answer, Approval) and answer.answer.decision == "project":
            # before the answer is recorded: if this fails, the question stays open
            rule, setup = answer.answer.rule, self._drive.setup
            contents = setup.parts.get(RUN_FILES).contents_of_rule(rule, setup.workspace)
            setup.grants.add(rule, answer.by, _pins_for_rule(session.run, rule), contents)
        session.add(answer_event(session.run, answer.answer, session.stamp, answer.by))


def _pins_for_rule(run: Run, rule: str) -> Definitions:
    """Return the digests of the definitions that the Run was offered, for the tools that a rule may name."""
    from perstack.core.permissions.matching import is_about
    from perstack.core.permissions.policy_calls import PolicyCall

    parsed_rule = parse_rule(rule)
    pins = {
        skill: {
            name: digest
            for name, digest in digests.items()
            if name and is_about(parsed_rule, PolicyCall(tool=name, skill=skill, shown=legal_tool_name(name)))
        }
        for skill, digests in run.definitions.items()
    }
    call = run.calls.get(run.asked_call_id or "")
    if call is not None and call.decided.definition:  # add the tool that the person was asked about, whatever its name
        skill = call.decided.skill_name
        digests = run.definitions.get(skill, {})
        asked_pins = {name: digest for name, digest in digests.items() if digest == call.decided.definition}
        pins[skill] = {**pins.get(skill, {}), **asked_pins}
    return {skill: digests for skill, digests in pins.items() if digests}


# The recorded settings of a new or redefined Run.


def with_strict_skills(setup: HostSetup, expert: Expert) -> Expert:
    """Return the Expert, with all its skills required if the option for strict skills was given."""
    return with_skills_required(expert) if setup.overrides.strict_skills else expert


class _Instruction(TypedDict):
    """Fields of `StartRun`: the instruction, the AGENTS.md files that are in it, and whether secrets are masked."""

    instruction: str
    agents_md: tuple[AgentsMdFile, ...]
    mask_secrets: bool


def _read_instruction(
    drive: JobDrive, expert: Expert, output: JsonObject | None, *, is_coordinator: bool, masks_secrets: bool
) -> _Instruction:
    knowledge, files = drive.knowledge.instruction_parts(expert, is_coordinator=is_coordinator)
    parts = instruction_parts(
        expert,
        delegate_infos(delegate_tools(expert, drive.setup.project.experts)),
        time=iso(drive.setup.clock.now()),
        directory=drive.directory,
        is_coordinator=is_coordinator,
        schema=result_schema(expert, output, is_coordinator=is_coordinator),
        knowledge=knowledge,
        masks_secrets=masks_secrets,
    )
    return _Instruction(instruction=SEPARATOR.join(parts.values()), agents_md=files, mask_secrets=masks_secrets)


def _sandbox_policy(setup: HostSetup, expert: Expert, new: NewRun) -> SandboxPolicy | None:
    """Return the sandbox policy of a new Run: its own, narrowed by that of its parent or of the continued Run.

    A continuation that names a runtime is not narrowed to the Run that it continues.
    """
    outer_policy = new.outer_policy
    if new.base_run is not None and setup.overrides.runtime is None:
        outer_policy = new.base_run.start.sandbox
    own_policy = setup.policy(expert)
    return own_policy if outer_policy is None else narrow_policy(own_policy, outer_policy)


def _exec_grant(
    drive: JobDrive, expert: Expert, policy: SandboxPolicy | None, *inherited: StartRun | None
) -> ExecGrant | None:
    """Return the grant of `exec` for a new Run. `inherited`: the start of the parent, and of the Run that it continues.

    A Job of an earlier version, which has no grant, continues without one.
    """
    inherited_starts = [start for start in inherited if start is not None]
    if any(start.exec_grant is None for start in inherited_starts):
        return None
    overrides = drive.setup.overrides
    widenings = (*drive.job.widenings, *(() if overrides.widening is None else (overrides.widening,)))
    is_open = overrides.open or any(start.exec_grant == "open" for start in inherited_starts)
    return exec_grant_of(drive.setup.project, expert, policy, widenings, is_open=is_open)


def _stricter_rules_today(drive: JobDrive, run: Run, parent_rules: tuple[RuleSet, ...]) -> tuple[RuleSet, ...]:
    """Return the rules of today's definition and of the parent Run that a resumed Run does not have yet."""
    expert = drive.setup.project.expert(run.start.expert_key) or run.start.expert
    new_rules = todays_missing_rules(rule_sets(drive.setup.project, expert), run.permissions, drive.job.widenings)
    return (
        *new_rules,
        *missing_parent_rules((*run.permissions, *new_rules), parent_rules, drive.setup.overrides.widening),
    )


def _run_settings(setup: HostSetup, expert: Expert, job_limits: Limits | None, steps_before: int) -> RunSettings:
    """Return a new Run's settings; a delegate shares `job_limits`. Raises UsageError and MissingCredential."""
    settings = setup.providers.settings(setup.project, expert, setup.overrides, steps_before=steps_before)
    if job_limits is None:
        return settings
    shared_limits = {name: getattr(job_limits, name) for name in ("max_steps", "max_depth", "budget")}
    return replace(settings, limits=settings.limits.model_copy(update=shared_limits))


def _redefine(drive: JobDrive, run: Run, limits: Limits | None) -> tuple[Definition | None, Limits | None]:
    """Return today's definition of a Run's Expert, or None if it is the recorded one, and the limits to resume with."""
    from perstack.core.runs.decide import changed_definition, definition_in_directory

    expert = drive.setup.project.expert(run.start.expert_key)
    if expert is None:
        return None, limits
    expert = with_strict_skills(drive.setup, drive.knowledge.with_skill_digests(expert))
    overrides = with_recorded_choices(drive.setup.overrides, run.start)
    steps_before = drive.job.total_steps - run.step
    settings = drive.setup.providers.settings(drive.setup.project, expert, overrides, steps_before=steps_before)
    drive.setup.providers.check(settings, drive.setup.project, expert)
    does_mask_secrets = masks_secrets(drive.setup.project, expert, run.start)
    definition = Definition(
        model=settings.model,
        provider=settings.provider.provider_name,
        **_read_instruction(
            drive, expert, run.start.output, is_coordinator=run.is_coordinator, masks_secrets=does_mask_secrets
        ),
        expert=without_secrets(expert),
        reasoning_budget=settings.reasoning_budget,
        fallbacks=settings.fallbacks,
    )
    if run.status == "queued":
        return definition_in_directory(run, definition, drive.directory), limits
    return changed_definition(run, definition, settings.limits, limits)
