"""The event that starts a Run, which the state holds, and the upgrade of older event shapes.

A stored event is a line of the Run's log: it happened once and is never edited. `events/` has all others. Field names
are the JSON names in snake_case; docs/events.md describes them for readers of the JSON.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, TypedDict, TypeVar

from pydantic import Field
from typing_extensions import override

from perstack.core.base.records import EMPTIED, JsonObject, Text, falsy
from perstack.core.definitions.exec_grant import ExecGrant
from perstack.core.definitions.expert_changes import ExpertOfRun
from perstack.core.definitions.instruction import AgentsMdFile
from perstack.core.definitions.permissions import RuleSets
from perstack.core.definitions.project import SnapshotPolicy
from perstack.core.definitions.sandbox import SandboxPolicy
from perstack.core.definitions.settings import Limits, ReasoningBudget
from perstack.core.messages.messages import BlobPart, ResultContent
from perstack.core.runs.facts import ContinuedFrom, DelegatedBy, RunEvent
from perstack.core.runs.log_rows import EventContext, LogRow

FORMAT = 1  # version of the event shapes; `upgrade` converts older ones
UNKNOWN = "unknown"  # model and provider of a Run whose log, written by another program, does not name them


class CallerFields(TypedDict, total=False):
    """Fields of `StartRun` that the caller of a new Run sets, and that are recorded as given."""

    labels: Mapping[str, str] | None


class StartRun(RunEvent):
    """The start of a Run with all that it was started with, except secrets. Once per Run."""

    type: Literal["startRun"] = "startRun"
    format: int = FORMAT
    query: Text
    model: str
    provider: str
    instruction: Text  # the whole instruction, as the model gets it
    expert: ExpertOfRun
    limits: Limits
    reasoning_budget: ReasoningBudget | None = None
    delegated_by: DelegatedBy | None = None
    continued_from: ContinuedFrom | None = None
    runtime_version: str = Field(default="", exclude_if=falsy)
    labels: Annotated[dict[str, str], EMPTIED] = Field(default_factory=dict, exclude_if=falsy)
    overrides: tuple[str, ...] = Field(default=(), exclude_if=falsy)
    # rules of the project, of the Expert and of all Runs above
    permissions: RuleSets = Field(default=(), exclude_if=falsy)
    depth: int = Field(default=0, exclude_if=falsy)  # number of Runs above; 0 for delegates in logs of earlier versions
    sandbox: SandboxPolicy | None = None  # policy for programs of its tools; None: they run as the host's user
    # JSON schema of the result that the caller requests, before the Expert's `output`
    output: Annotated[JsonObject | None, EMPTIED] = None
    agents_md: Annotated[tuple[AgentsMdFile, ...], EMPTIED] = Field(default=(), exclude_if=falsy)
    attachments: Annotated[tuple[ResultContent, ...], EMPTIED] = Field(default=(), exclude_if=falsy)
    fallbacks: tuple[str, ...] = Field(default=(), exclude_if=falsy)  # fallback models in order, as `provider/model`
    snapshots: SnapshotPolicy | None = None  # policy for recording the workspace; None if it is not recorded
    mask_secrets: bool = Field(default=False, exclude_if=falsy)
    exec_grant: ExecGrant | None = None  # None in logs of earlier versions: programs run without a question
    # True: alternating steps also count for `maxRepeats`
    counts_rounds: bool = Field(default=False, exclude_if=falsy)

    @property
    def named_runs(self) -> tuple[str, ...]:
        """The Runs that it works for and continues."""
        return tuple(origin.run_id for origin in (self.delegated_by, self.continued_from) if origin is not None)

    @property
    @override
    def media(self) -> tuple[ResultContent, ...]:
        return self.attachments

    def describe(self, context: EventContext) -> list[LogRow]:
        """Return the query, what came with it, and the Run that it continues."""
        rows = [LogRow("query", self.query, "bold", "query")]
        if self.model:
            rows.append(LogRow("model", f"{self.provider}/{self.model}", "dim", "model"))
        if self.attachments:
            rows.append(LogRow("attached", ", ".join(map(_attachment_line, self.attachments))))
        if self.continued_from is not None:
            another = ", with another answer" if self.continued_from.answers else ""
            another = ", as it was there" if self.continued_from.as_it_was else another
            rows.append(LogRow("continues", f"from checkpoint {self.continued_from.checkpoint_id}{another}"))
        if context.full:
            rows += [LogRow("fallback", name) for name in self.fallbacks]
        return rows


def _attachment_line(part: ResultContent) -> str:
    if isinstance(part, BlobPart):
        return f"{part.name} ({part.mime_type}, {part.size:,} bytes)"
    return part.text.strip().partition("\n")[0].removeprefix("Attached file ").removesuffix(":")


# Upgrading older event shapes. Each step is a pure function from one format to the next and never changes once
# released. Format 1 is the first.

E = TypeVar("E", bound=RunEvent)


class TooNew(ValueError):
    """A log in a newer format than this version reads."""


def upgrade(event: E) -> E:
    """Return the event in the current shape. Raises TooNew."""
    if isinstance(event, StartRun) and event.format > FORMAT:
        raise TooNew(
            f"{event.run_id} was written in format {event.format}; this version reads up to {FORMAT}: upgrade it"
        )
    return event
