"""What is asked for besides the definitions, on the command line or in Python."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, Literal, cast

from pydantic import ConfigDict, Field, JsonValue, TypeAdapter
from pydantic.alias_generators import to_camel
from pydantic.dataclasses import dataclass

from perstack.core.base import JsonObject
from perstack.core.by import By
from perstack.core.context import Compaction
from perstack.core.definitions import Budget, ProviderSetting, ReasoningBudget
from perstack.core.policy.widening import Widening
from perstack.core.rules import wrong_budget
from perstack.errors import UsageError

RECORDED = "recorded"
"""The provider that plays recordings."""
NOT_RECORDED = "NotRecorded"
"""The name of the error for what is not in the recording that is played."""


@dataclass(frozen=True, config=ConfigDict(alias_generator=to_camel, populate_by_name=True, defer_build=True))
class Overrides:
    """What the caller asked for, which takes precedence over the definitions; None leaves it to them.

    Iterations record it, without what holds for one process alone: that is excluded.
    """

    model: str | tuple[str, ...] | None = None
    """One, or several that stand in for each other."""
    provider: str | None = None
    reasoning_budget: ReasoningBudget | None = None
    max_steps: int | None = None
    max_retries: int | None = None
    timeout: int | None = None
    unattended: bool = Field(default=False, exclude=True)
    """Nobody answers what a tool asks: it is declined at once."""
    strict_skills: bool = Field(default=False, exclude=True)
    """Every skill is taken for required."""
    widening: Widening | None = Field(default=None, exclude=True)
    """Rules that are laid over those in force, in every Run that is begun or resumed."""
    widened_by: By | None = Field(default=None, exclude=True)
    """Who asked for that; this process's user if not given."""
    runtime: str | None = None
    """Where programs of tools run, whatever the definitions say."""
    max_cost: float | None = None
    max_tokens: int | None = None
    max_time: int | None = None
    max_tool_calls: int | None = None
    compaction: Compaction | None = None
    output: JsonObject | None = Field(default=None, exclude=True)
    """The JSON schema that the result of a Job has to fit, in place of its Expert's `output`."""
    recording: str | None = Field(default=None, exclude=True)
    """The path of a recording, which is played on provider `recorded` in place of every model."""
    recorded_tools: JsonValue = Field(default=None, exclude=True)
    """Which tools are really run then, `live`, and which `recorded`: one of the two, or a table of tools."""
    recorded_definition: Literal["same", "any"] | None = Field(default=None, exclude=True)
    """`any`: an instruction that was changed since the recording is no error."""

    def __post_init__(self) -> None:
        """Raises UsageError for a budget that is none, and for a recording together with another provider."""
        if self.recording is not None:
            if self.provider not in (None, RECORDED):
                raise UsageError(
                    f"a recording is played on provider {RECORDED}, not on {self.provider}: name one of them"
                )
            object.__setattr__(self, "provider", RECORDED)
        limits = {name: getattr(self, name) for name in ("max_tokens", "max_time", "max_tool_calls")}
        check_budget(self.max_cost, **limits)

    def playing(self, setting: ProviderSetting) -> ProviderSetting:
        """The settings of provider `recorded`, with what the caller asked for."""
        asked: JsonObject = {
            "recording": self.recording,
            "tools": self.recorded_tools,
            "definition": self.recorded_definition,
        }
        given = {name: value for name, value in asked.items() if value is not None}
        return setting.model_copy(update={"setting": {**setting.setting, **given}}) if given else setting

    def budget_over(self, budget: Budget | None) -> Budget | None:
        """A budget with those of its limits that the caller asked for."""
        asked = {name: value for name in Budget.model_fields if (value := getattr(self, name)) is not None}
        return (budget or Budget()).model_copy(update=asked) if asked else budget

    def recorded(self) -> Overrides:
        """Without what is not recorded."""
        return Overrides(**_recorded(self))

    def or_else(self, earlier: Overrides) -> Overrides:
        """This; and where it leaves something open, what was recorded earlier."""
        return replace(self, **{name: one for name, one in _recorded(earlier).items() if getattr(self, name) is None})


def check_budget(max_cost: float | None, **limits: int | None) -> None:
    """Raises UsageError for US dollars that are no amount, and for a limit below 1."""
    problem = None if max_cost is None else wrong_budget(max_cost)
    if problem is not None:
        raise UsageError(f"a budget of {max_cost:g} {problem}")
    for name, most in limits.items():
        if most is not None and most < 1:
            raise UsageError(f"{name} = {most} must be at least 1")


@cache
def _form() -> TypeAdapter[Overrides]:
    return TypeAdapter(Overrides)


def _recorded(overrides: Overrides) -> dict[str, Any]:
    return cast("dict[str, Any]", _form().dump_python(overrides))
