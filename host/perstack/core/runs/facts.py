"""What events of Runs are made of: who a Run works for, what it begins with, where a delegate ended, what failed."""

from typing import Literal, assert_never

from pydantic import Field

from perstack.core.agents_md import AgentsMdFile
from perstack.core.base import Fact, falsy
from perstack.core.definitions import Expert, ReasoningBudget

BudgetName = Literal["maxCost", "maxTokens", "maxTime", "maxToolCalls"]

Override = Literal[
    "model",
    "provider",
    "reasoningBudget",
    "maxSteps",
    "maxRetries",
    "timeout",
    "strictSkills",
    "maxCost",
    "maxTokens",
    "maxTime",
    "maxToolCalls",
    "compaction",
]
"""A setting that a caller may choose, in place of the definitions."""


class DelegatedBy(Fact):
    """Which call of which Run a delegate works for."""

    expert_key: str
    run_id: str
    tool_call_id: str
    tool_name: str


class ContinuedFrom(Fact):
    """The place whose messages a Run begins with."""

    run_id: str
    checkpoint_id: str
    answers: bool = Field(default=False, exclude_if=falsy)
    """Whether it begins with another answer to the question that was open there, and not with its query."""
    as_it_was: bool = Field(default=False, exclude_if=falsy)
    """Whether it begins as that Run was there, without a query of its own."""


class Delegation(Fact):
    """One delegate Run, decided on before it begins."""

    tool_call_id: str
    tool_name: str
    expert_key: str
    run_id: str
    query: str


class DelegateHead(Fact):
    """Where a delegate's log ended, and its hash there: an anchor outside that log."""

    run_id: str
    seq: int
    hash: str


class DelegateReport(Fact):
    """What a delegate's Run came to, besides its result."""

    outcome: Literal["completed", "failed"]
    steps: int
    effects: int = Field(default=0, exclude_if=falsy)
    """How many calls had an effect, those of its own delegates among them."""
    without_effect: bool = Field(default=False, exclude_if=falsy)
    """It declares that its work has an effect, was completed, and had none."""
    text: str
    """What the caller's model is shown after the result."""


class Definition(Fact):
    """What a Run goes on with in place of what it was started with."""

    model: str
    provider: str
    instruction: str
    """The whole text that the model is given as its instruction, rendered."""
    expert: Expert
    reasoning_budget: ReasoningBudget | None = None
    agents_md: tuple[AgentsMdFile, ...] = Field(default=(), exclude_if=falsy)
    fallbacks: tuple[str, ...] = Field(default=(), exclude_if=falsy)
    """As in `startRun`."""


class ErrorInfo(Fact):
    """An error with the provider's own words."""

    name: str
    message: str
    status_code: int | None = None
    is_retryable: bool = False


class ShrunkResult(Fact):
    """A result that the model is shown the ends of."""

    at: str
    """The event with which the step's last result came."""
    tool_call_id: str
    blob: str
    """The sha256 (hex) of its whole text, which is a blob of the Job."""


def amount(budget: BudgetName, value: float) -> str:
    """What a budget counts, for people: dollars, tokens, milliseconds or calls."""
    match budget:
        case "maxCost":
            return f"${value:,.4f}"
        case "maxTokens":
            return f"{value:,.0f} tokens"
        case "maxTime":
            return f"{value:,.0f} ms"
        case "maxToolCalls":
            return f"{value:,.0f} tool calls"
        case _:
            assert_never(budget)
