"""Settings that a caller chooses, on the command line or in Python, over the definitions."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, Literal, cast

from pydantic import ConfigDict, Field, JsonValue, TypeAdapter
from pydantic.alias_generators import to_camel
from pydantic.dataclasses import dataclass

from perstack.core.base.ids import By
from perstack.core.base.records import JsonObject
from perstack.core.definitions.experts import Budget, Compaction, ProviderSetting, ReasoningBudget
from perstack.core.definitions.keys import wrong_budget
from perstack.core.definitions.permissions import Widening
from perstack.errors import UsageError

RECORDED = "recorded"  # provider that plays recordings
NOT_RECORDED = "NotRecorded"  # name of the error for a call that the played recording does not contain


@dataclass(frozen=True, config=ConfigDict(alias_generator=to_camel, populate_by_name=True, defer_build=True))
class Overrides:
    """Caller's settings over the definitions; None leaves a setting to them. Excluded fields are not recorded."""

    model: str | tuple[str, ...] | None = None  # several are fallbacks
    provider: str | None = None
    reasoning_budget: ReasoningBudget | None = None
    max_steps: int | None = None
    max_retries: int | None = None
    timeout: int | None = None
    unattended: bool = Field(default=False, exclude=True)  # True to decline every question of a tool at once
    strict_skills: bool = Field(default=False, exclude=True)
    widening: Widening | None = Field(default=None, exclude=True)  # over the rules of every started or resumed Run
    widened_by: By | None = Field(default=None, exclude=True)  # person who asked for it; None for this process's user
    runtime: str | None = None  # runtime in which tools' programs run; overrides the definitions
    max_cost: float | None = None
    max_tokens: int | None = None
    max_time: int | None = None
    max_tool_calls: int | None = None
    compaction: Compaction | None = None
    output: JsonObject | None = Field(default=None, exclude=True)  # JSON schema in place of the Expert's `output`
    recording: str | None = Field(default=None, exclude=True)  # path; played in place of every model
    recorded_tools: JsonValue = Field(default=None, exclude=True)  # `live` or `recorded`, or a table of tools
    recorded_definition: Literal["same", "any"] | None = Field(default=None, exclude=True)
    """`any` accepts an instruction that changed since the recording."""

    def __post_init__(self) -> None:
        """Raise UsageError for an invalid budget, or a recording together with another provider."""
        if self.recording is not None:
            if self.provider not in (None, RECORDED):
                raise UsageError(
                    f"a recording is played on provider {RECORDED}, not on {self.provider}: name one of them"
                )
            object.__setattr__(self, "provider", RECORDED)
        limits = {name: getattr(self, name) for name in ("max_tokens", "max_time", "max_tool_calls")}
        check_budget(self.max_cost, **limits)

    def playing(self, setting: ProviderSetting) -> ProviderSetting:
        """Return the settings of provider `recorded`, with what the caller asked for."""
        asked: JsonObject = {
            "recording": self.recording,
            "tools": self.recorded_tools,
            "definition": self.recorded_definition,
        }
        given = {name: value for name, value in asked.items() if value is not None}
        return setting.model_copy(update={"setting": {**setting.setting, **given}}) if given else setting

    def budget_over(self, budget: Budget | None) -> Budget | None:
        """Return a budget with the caller's limits in place of its limits."""
        asked = {name: value for name in Budget.model_fields if (value := getattr(self, name)) is not None}
        return (budget or Budget()).model_copy(update=asked) if asked else budget

    def recorded(self) -> Overrides:
        """Return a copy without the fields that are not recorded."""
        return Overrides(**_recorded(self))

    def or_else(self, earlier: Overrides) -> Overrides:
        """Return a copy in which recorded values of `earlier` fill what this one leaves open."""
        return replace(self, **{name: one for name, one in _recorded(earlier).items() if getattr(self, name) is None})


def check_budget(max_cost: float | None, **limits: int | None) -> None:
    """Raise UsageError for an invalid amount of US dollars, or a limit below 1."""
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
