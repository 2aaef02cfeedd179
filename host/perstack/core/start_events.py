"""How a Run begins, and begins again: everything that it was started with, and what is new when it is resumed."""

from typing import Literal

from pydantic import Field

from perstack.core.agents_md import AgentsMdFile
from perstack.core.base import JsonObject, falsy
from perstack.core.by import By
from perstack.core.definitions import Expert, Limits, ReasoningBudget
from perstack.core.messages import ResultContent
from perstack.core.policy.permissions import RuleSet
from perstack.core.run_event import RunEvent
from perstack.core.run_facts import ContinuedFrom, Definition, DelegatedBy, Override
from perstack.core.sandbox import SandboxPolicy
from perstack.core.snapshots.events import SnapshotPolicy

FORMAT = 1
"""The version of the shapes below; `core/upgrades.py` brings older ones up to it."""

Settlement = Literal["done", "retry", "ask"]
"""What becomes of a call that began and has no result: `done` (it had its effect), `retry` (run it again), `ask` (the
model sees that it was interrupted, and decides)."""

ResumeReason = Literal["answer", "interrupt", "maxSteps", "budget", "error", "crash", "parent", "queued"]


class StartRun(RunEvent):
    """Once per Run, with everything that it was started with, but for secrets."""

    type: Literal["startRun"] = "startRun"
    format: int = FORMAT
    query: str
    model: str
    provider: str
    instruction: str
    """The whole text that the model is given as its instruction, rendered."""
    expert: Expert
    limits: Limits
    reasoning_budget: ReasoningBudget | None = None
    delegated_by: DelegatedBy | None = None
    continued_from: ContinuedFrom | None = None
    runtime_version: str = Field(default="", exclude_if=falsy)
    """The version of perstack that started it."""
    labels: dict[str, str] = Field(default_factory=dict, exclude_if=falsy)
    """What a person adds to the Job, to find it by."""
    overrides: tuple[Override, ...] = Field(default=(), exclude_if=falsy)
    """Which settings the caller chose, in place of the definitions."""
    permissions: tuple[RuleSet, ...] = Field(default=(), exclude_if=falsy)
    """The rules in force: the project's, the Expert's, those of every Run above it. Empty: nothing is restricted."""
    depth: int = Field(default=0, exclude_if=falsy)
    """How many Runs are above it; of a delegate in a log of an earlier version it is not known, and 0."""
    sandbox: SandboxPolicy | None = None
    """Where programs of its tools run and what they may reach there; None: as the host's user, without a sandbox."""
    output: JsonObject | None = None
    """The JSON schema that its caller wants the result to fit, in place of the Expert's `output`."""
    agents_md: tuple[AgentsMdFile, ...] = Field(default=(), exclude_if=falsy)
    """The AGENTS.md files whose texts are in the instruction."""
    attachments: tuple[ResultContent, ...] = Field(default=(), exclude_if=falsy)
    """What a person added to the query: images and documents, and texts as the model sees them."""
    fallbacks: tuple[str, ...] = Field(default=(), exclude_if=falsy)
    """`provider/model` of each that stands in for the one before it; in all, `switchModel` says which generates."""
    snapshots: SnapshotPolicy | None = None
    """That the workspace is recorded, and how; None: it is not."""


class ResumeRun(RunEvent):
    """A stopped or interrupted Run is resumed."""

    type: Literal["resumeRun"] = "resumeRun"
    reason: ResumeReason
    checkpoint_id: str
    limits: Limits | None = None
    """New limits, if it was given some."""
    settled: dict[str, Settlement] = Field(default_factory=dict, exclude_if=falsy)
    """Tool call id to what was decided by hand."""
    signal: str | None = None
    """The event from outside that let it continue: its source and id, which are taken once."""
    by: By | None = None
    """Who gave new limits; a log of an earlier version does not say."""
    definition: Definition | None = None
    """Today's, for a Run that failed before anything was generated: nothing that it has done rests on the old one."""
    permissions: tuple[RuleSet, ...] = Field(default=(), exclude_if=falsy)
    """Today's rules, as far as they are others than those in force, which hold besides them."""
    worker: str = Field(default="", exclude_if=falsy)
    """The name of the worker that drives it from here on; empty: whoever resumed it."""


def started_as(start: StartRun, event: ResumeRun) -> StartRun:
    """What a Run counts as started with after it was resumed."""
    if event.definition is None:
        return start
    fields: dict[str, object] = {name: getattr(event.definition, name) for name in Definition.model_fields}
    return start.model_copy(update={**fields, "limits": event.limits or start.limits})
