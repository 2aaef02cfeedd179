"""Shared state of a Job for one drive, and of each of its Runs for as long as the Run uses one model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from perstack.core.base.ids import number_of_run
from perstack.core.definitions.settings import Limits
from perstack.core.definitions.skills import Skill, ToolSpec, shared_definition, tool_skills
from perstack.core.definitions.tool_definitions import Definitions, merged_definitions
from perstack.core.jobs.job import Job
from perstack.core.messages.adaptations import Adaptations, new_adaptations, shared_adaptations
from perstack.core.messages.messages import Message
from perstack.core.runs.state import Run
from perstack.dataclass import dataclass
from perstack.engine.context.host_setup import HostSetup
from perstack.engine.log.job_summary_file import JobSummaryFile
from perstack.engine.log.run_session import Emitter, RunSession
from perstack.engine.log.storage_access import JobBlobs
from perstack.engine.permissions.rulings import Rulings
from perstack.engine.plugins.knowledge import Knowledge
from perstack.engine.plugins.providers_and_prices import OpenProvider, Prices
from perstack.engine.plugins.tool_catalogue import Catalogue
from perstack.engine.plugins.trust_checks import ToolLock
from perstack.engine.runs.job_budget import JobBudget
from perstack.engine.runs.person_decisions import LiveQuestions, PersonAnswer, PersonDecisions
from perstack.ports.storage import RunRef
from perstack.system.user import this_user

if TYPE_CHECKING:
    from perstack.core.runs.events.lifecycle import QueueFields
    from perstack.engine.plugins.job_skills import JobSkills, RunSkills
    from perstack.engine.plugins.secret_vault import SecretVault


@dataclass(slots=True)
class StopFlags:
    """Requests to stop the drive of a Job, or of a Run apart from its Job."""

    requested: bool = False  # a person or another process stops the Job
    after_step: bool = False  # True: each Run stops before its next step, as interrupted


def _ignore(waits: bool) -> None:
    pass


@dataclass(frozen=True, slots=True)
class WorkerRole:
    """Duties of a process that is a worker, for a Job or Run that it drives."""

    name: str = ""
    """Name of the worker, which queues what it drives again when it leaves; "" if this process is not a worker."""
    distributes: bool = False  # delegates are queued for any worker
    on_waiting: Callable[[bool], None] = _ignore
    """Function to call with True when this process starts waiting only for remote Runs, with False when it stops."""


NO_WORKER = WorkerRole()


class JobDrive:
    """Everything that the Runs of one driven Job share. `close` closes the skills."""

    def __init__(
        self,
        setup: HostSetup,
        job: Job,
        emit: Emitter,
        tool_lock: ToolLock,
        knowledge: Knowledge,
        *,
        decisions: PersonDecisions,
        worker: WorkerRole = NO_WORKER,
        stop: StopFlags,
        is_driven_here: bool = True,
    ) -> None:
        """Create the context of a loaded Job. `is_driven_here` false: another process has the providers."""
        self.setup = setup
        self.job = job
        self.runs = dict(job.runs)  # loaded states; a delegate is removed when it continues
        self.emit = emit
        self.lock = tool_lock
        self.knowledge = knowledge
        self.directory = str(setup.workspace)  # the working directory that the model is given
        self.decisions = decisions
        self.worker = worker
        self.stop = stop
        self.is_driven_here = is_driven_here
        self.blobs = JobBlobs(setup.storage, self.job.id)
        self.prices = Prices(setup.providers.factories, setup.project.prices)
        self.snapshots = setup.snapshots(self.job.id)
        self.rulings = Rulings(self.directory)
        self.summary_file = JobSummaryFile(setup.storage, self.job)
        self.has_sandboxed = False  # True once a notice said that programs run in a sandbox
        self.has_denied = False  # True once a notice has said that programs are denied because nobody can be asked
        self.questions = LiveQuestions()  # the questions that delegates ask while other Runs of the Job are active
        self.sessions: WeakValueDictionary[str, RunSession] = WeakValueDictionary()
        """The writers of Runs that are driven now, by Run id. Weak, because a delegate's history may be large."""
        self._answers = dict(decisions.answers)
        self._vault: SecretVault | None = None

    @cached_property
    def skills(self) -> JobSkills:
        """Skills of the Job, created after the first event, when the first skill is opened."""
        from perstack.engine.plugins.job_skills import JobSkills

        setup = self.setup
        return JobSkills(
            setup.plugins.skills,
            setup.skill_context(self.job.id),
            self.emit,
            self.lock,
            setup.clock,
            runtimes=setup.runtimes(self.job.id),
            agreement=setup.agreement,
            knowledge=self.knowledge,
        )

    async def close(self) -> None:
        if "skills" in vars(self):
            await self.skills.close()

    def new_session(self, ref: RunRef, expert_key: str) -> RunSession:
        """Create the writer of a new Run; each of its writes marks job.json as outdated."""
        setup, on_written = self.setup, self.summary_file.mark_changed
        session = RunSession(setup.storage, self.job, self.emit, ref, expert_key, on_written, setup.clock)
        self.sessions[ref.run_id] = session
        return session

    def session_of(self, run: Run) -> RunSession:
        """Create the writer of a Run that has begun."""
        setup, on_written = self.setup, self.summary_file.mark_changed
        session = RunSession.of(setup.storage, self.job, run, self.emit, on_written, setup.clock)
        self.sessions[run.id] = session
        return session

    def take_answer(self, run_id: str) -> PersonAnswer | None:
        """Remove and return the answer that the Job was resumed with for this Run; None without one."""
        return self._answers.pop(run_id, None)

    @property
    def runs_with_unrecorded_answer(self) -> tuple[str, ...]:
        """The ids of Runs whose answer is not recorded yet."""
        return tuple(self._answers)

    def requeue(self, run: Run) -> QueueFields | None:
        """Return how a leaving worker queues an interrupted Run again; None in a process that is not a worker."""
        if not self.worker.name or self.stop.requested or run.status != "stoppedByInterrupt":
            return None
        priority = 0 if run.queued is None else run.queued.priority
        by = this_user("worker", self.worker.name)
        return {"by": by, "definition": run.definition, "due": 0, "priority": priority}

    def offered_definitions(self, run: Run) -> Definitions:
        """Return the definitions of tools that the Job's Runs were offered, for the skills of this Run.

        A delegate that begins after a resume gets the definitions that the Job was offered before. Experts may have
        different skills of one name.
        """
        skills = {skill.name: shared_definition(skill) for skill in tool_skills(run.expert.skills)}
        definitions: Definitions = run.definitions
        for other_run in self.runs.values():
            shared_names = {skill.name for skill in tool_skills(other_run.expert.skills) if _is_among(skill, skills)}
            earlier_definitions = {
                name: other_run.definitions[name] for name in shared_names & other_run.definitions.keys()
            }
            definitions = merged_definitions(earlier_definitions, definitions)
        return definitions

    def missing_adaptations(
        self, run: Run, model: str, tools: Iterable[ToolSpec], messages: Iterable[Message]
    ) -> Adaptations:
        """Return the adaptations to a model's endpoint that other Runs of the Job know and this Run does not.

        Only adaptations of `tools` and `messages`, which the model is sent next, are returned.
        """
        other_runs = [other for other in self.job.runs.values() if other.adaptations_by_model and other.id != run.id]
        learned_adaptations = [item for other in other_runs for item in other.adaptations_by_model.get(model, ())]
        if not learned_adaptations:
            return ()
        known_adaptations = run.adaptations_by_model.get(model, ())
        return new_adaptations(known_adaptations, shared_adaptations(learned_adaptations, tools, messages))

    def vault(self, run: Run) -> SecretVault | None:
        """Return the secrets that tools of the Job have shown in this process; None for a Run that masks none."""
        if not run.start.mask_secrets:
            return None
        if self._vault is None:
            block = self.job.root  # processes that drive parts of a Job must not use one number for two secrets
            self._vault = self.setup.vault(self.job.id, block)
            self._vault.continue_after((other.last_secret_number for other in self.runs.values()), block)
        return self._vault


def _is_among(skill: Skill, skills: Mapping[str, Skill]) -> bool:
    return skill.name in skills and shared_definition(skill) == skills[skill.name]


@dataclass(frozen=True, slots=True)
class Allowance:
    """Limits and budget that the root Run of a drive shares with all its descendants."""

    job: Job
    root_id: str  # the Coordinator, or a delegate whose Job another process drives
    limits: Limits
    outside_steps: int  # steps of the Job outside the root Run and its descendants
    budget: JobBudget | None

    @property
    def steps_left(self) -> int | None:
        """The number of steps that the driven Runs may still take together; None without a limit."""
        return self.job.steps_left(self.limits, self.outside_steps)

    @classmethod
    async def open(cls, drive: JobDrive, root_session: RunSession) -> Allowance:
        """Compute the allowance of a Run; one driven apart has its share in its limits. Raises UnknownPrice."""
        run, limits = root_session.run, root_session.run.limits
        runs = {**drive.runs, run.id: run}
        outside_steps = 0
        if drive.job.root:
            descendants = {run.id}
            for other in sorted(runs.values(), key=lambda other: number_of_run(other.id)):
                if other.start.delegated_by is not None and other.start.delegated_by.run_id in descendants:
                    descendants.add(other.id)
            runs = {run_id: other for run_id, other in runs.items() if run_id in descendants}
            outside_steps = drive.job.total_steps - sum(drive.job.runs[run_id].step for run_id in descendants)
        experts = (*drive.setup.project.experts.values(), *(other.start.expert for other in drive.runs.values()))
        budget: JobBudget | None = None
        if limits.budget is not None or any(expert.budget is not None for expert in experts):
            root_id = "" if run.is_coordinator else run.id
            prices, parts, read = drive.prices, drive.setup.parts, drive.blobs.get
            budget = JobBudget(drive.job, limits.budget, prices, runs.values(), parts, read, drive.sessions, root_id)
            await budget.check_prices(run)
            drive.job.watch = budget.watch
        return cls(drive.job, run.id, limits, outside_steps, budget)


@dataclass(frozen=True, slots=True)
class RunDrive:
    """Services for one Run while one model is in force."""

    drive: JobDrive
    session: RunSession
    skills: RunSkills
    endpoint: OpenProvider
    fallback_model: str  # the fallback model in force, as `provider/model`; empty if it is the first one
    allowance: Allowance
    vault: SecretVault | None  # the secrets to mask in tool output; None in a Run that masks none

    @property
    def budget(self) -> JobBudget | None:
        return self.allowance.budget

    @property
    def catalogue(self) -> Catalogue:
        return self.skills.catalogue

    @property
    def plays_recording(self) -> bool:
        """True if a recording answers in place of the model."""
        return self.endpoint.provider.player is not None

    async def refresh(self) -> Catalogue:
        """Return the tools that the next request offers."""
        self.skills.fit_to(self.session.run, self.drive.setup.storage, self.drive.setup.parts)
        return await self.skills.refresh()
