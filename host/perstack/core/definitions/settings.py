"""Settings of Runs: the keys that an Expert and the top of perstack.toml share, limits, and what a caller chooses."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import ConfigDict, Field, JsonValue, TypeAdapter
from pydantic.alias_generators import to_camel
from pydantic.dataclasses import dataclass

from perstack.core.base.ids import By
from perstack.core.base.records import Fact, JsonObject, falsy
from perstack.core.definitions.keys import NOT_EMPTY, Key, Rule, at_least, wrong_budget
from perstack.core.definitions.models import WrittenModels
from perstack.core.definitions.permissions import Widening
from perstack.errors import UsageError

# How a Run is kept within its model's context window: the keys in perstack.toml and the resulting policy.

COMPACT_AT = 0.8
KEEP_RESULTS = 10
KEEP_RECENT = 0.3


def wrong_share(share: float) -> str | None:
    """Return what is wrong with a share of the context window, or None."""
    return None if 0 < share < 1 else f"must be a share of the context window between 0 and 1, not {share}"


class CompactionExpert(Fact):
    """The Expert whose instruction and model write the summaries."""

    expert: Annotated[str, NOT_EMPTY]


Compaction = Literal["auto", "off"] | CompactionExpert


class ContextKeys(Fact):
    """Keys about the context window, of an Expert and of a whole file."""

    context_window: Annotated[
        int | None,
        at_least(1_000),
        Key("tokens that the model's context can hold; default: as its provider or published lists say"),
    ] = None
    compact_at: Annotated[
        float | None,
        Rule(wrong_share),
        Key("share of the context window from which old content is shortened; default 0.8"),
    ] = None
    keep_results: Annotated[
        int | None,
        at_least(1),
        Key("number of latest steps that keep the results of read-only tools whole; default 10"),
    ] = None
    keep_recent: Annotated[
        float | None,
        Rule(wrong_share),
        Key("share of the context window whose latest turns are never summarised; default 0.3"),
    ] = None
    compaction: Annotated[
        Compaction | None,
        Key(
            "whether old turns are shortened and summarised when the context is nearly full: `auto` "
            "(default), `off`, or `{ expert = NAME }`, whose instruction and model write the summary"
        ),
    ] = None


class ContextPolicy(Fact):
    """Policy of a Run for a model context that is nearly full."""

    window: int | None = None  # tokens that the context can hold; None if the definition does not say
    compact_at: float = Field(default=COMPACT_AT, exclude_if=lambda value: value == COMPACT_AT)  # share of the window
    keep_results: int = Field(default=KEEP_RESULTS, exclude_if=lambda value: value == KEEP_RESULTS)  # turns
    keep_recent: float = Field(default=KEEP_RECENT, exclude_if=lambda value: value == KEEP_RECENT)  # share of window
    is_off: bool = Field(default=False, exclude_if=falsy)  # True: the model sees all, and an overflow ends the Run
    expert: str | None = None  # whose instruction and model write the summaries; None for the Run's own model
    offers_pin: bool = Field(default=False, exclude_if=falsy)


def policy_of(own: ContextKeys, shared: ContextKeys, asked: Compaction | None = None) -> ContextPolicy:
    """Return an Expert's context policy: the caller's (`asked`), then the Expert's, the file's, the default."""
    written = next((one for one in (asked, own.compaction, shared.compaction) if one is not None), None)
    return ContextPolicy(
        window=_first(own.context_window, shared.context_window),
        compact_at=_first(own.compact_at, shared.compact_at) or COMPACT_AT,
        keep_results=_first(own.keep_results, shared.keep_results) or KEEP_RESULTS,
        keep_recent=_first(own.keep_recent, shared.keep_recent) or KEEP_RECENT,
        is_off=written == "off",
        expert=written.expert if isinstance(written, CompactionExpert) else None,
        offers_pin=written is not None and written != "off",
    )


def turned(policy: ContextPolicy, asked: Compaction) -> ContextPolicy:
    """Return the policy with compaction as the caller asked for it."""
    expert = asked.expert if isinstance(asked, CompactionExpert) else None
    return policy.model_copy(update={"is_off": asked == "off", "expert": expert})


_N = TypeVar("_N", int, float)


def _first(own: _N | None, shared: _N | None) -> _N | None:
    return shared if own is None else own


ReasoningBudget = Literal["none", "minimal", "low", "medium", "high"] | int  # word that each provider maps, or tokens

ToolSearch = Literal["auto", "on", "off"]

NonEmptyText = Annotated[str, NOT_EMPTY]

ModelKey = Annotated[
    WrittenModels | None,
    Key("name of the model, as its provider spells it, or a list of a model and its fallbacks, see `[models]`"),
]
ThinkingKey = Annotated[ReasoningBudget | None, at_least(0), Key("how much a model may think")]
MaxStepsKey = Annotated[
    int | None, at_least(0), Key("maximum steps of a Job, over all its Runs; default 100, 0 for no limit")
]
MaxDepthKey = Annotated[int | None, at_least(0), Key("maximum depth of nested delegates; default 8, 0 for no limit")]
MaxRepeatsKey = Annotated[
    int | None,
    at_least(0),
    Key("maximum consecutive steps with the same calls and results; default 10, 0 for no limit"),
]
MaxRetriesKey = Annotated[int | None, at_least(0), Key("maximum retries of one generation; default 5")]
TimeoutKey = Annotated[int | None, at_least(1), Key("milliseconds for one attempt of a generation; default 300000")]
RetryTimeoutKey = Annotated[
    int | None, at_least(1), Key("milliseconds for a generation with all its attempts; default 900000")
]
ToolSearchKey = Annotated[ToolSearch | None, Key("whether the model finds tools by a search instead of seeing all")]

RuntimeKey = Annotated[str | None, NOT_EMPTY, Key("where programs of tools run; default `local`")]

ResultLimitKey = Annotated[
    int | None,
    at_least(200),
    Key("characters of a delegate's result that its caller sees at once; default 20000"),
]


AgentsMdKey = Annotated[
    bool | None,
    Key("show the model the AGENTS.md files of the project; default false; a delegate uses its own key"),
]
MaskSecrets = Annotated[
    bool | None,
    Key(
        "replace secrets in the output of tools by `[secret:1]` before the model and the disk get it, "
        "see below; default false, or true if its caller masks"
    ),
]


class ProviderSetting(Fact):
    """`[provider]`: the endpoint, and its settings as the provider's documentation names them."""

    provider_name: Annotated[NonEmptyText, Key("the endpoint's provider; `perstack plugins` lists them")]
    setting: Annotated[JsonObject, Key("settings that the provider's page names")] = Field(default_factory=dict)


ProviderKey = Annotated[ProviderSetting | None, Key("the endpoint, see `[provider]`")]


class Budget(Fact):
    """Spending limits of a Job, or of one Expert within it: reserved before spending, and never exceeded."""

    max_cost: Annotated[float | None, Rule(wrong_budget), Key("US dollars")] = None
    max_tokens: Annotated[int | None, at_least(1), Key("tokens, sent and generated")] = None
    max_time: Annotated[int | None, at_least(1), Key("milliseconds of work, without waiting for a person")] = None
    max_tool_calls: Annotated[int | None, at_least(1), Key("calls of tools and delegates")] = None


BudgetKey = Annotated[Budget | None, Key("what may be spent, see `[budget]`")]


class Limits(Fact):
    """Limits of a Job and of its generations."""

    max_steps: int | None = None  # maximum sum of steps over all Runs of the Job; None without a limit
    max_depth: int | None = None  # maximum depth of nested delegates; None without a limit
    max_repeats: int | None = None  # maximum consecutive steps with equal calls and equal results; None without a limit
    budget: Budget | None = None
    max_retries: int = 5
    timeout: int = 300_000  # milliseconds for one attempt of a generation
    retry_timeout: int = 900_000  # milliseconds for one generation including all its retries
    context: ContextPolicy | None = None  # None in earlier versions' logs: nothing is done about a nearly full context


def lower(one: Budget | None, other: Budget | None) -> Budget | None:
    """Return a budget with the lower of each limit; a missing limit does not count."""
    if one is None or other is None:
        return one or other
    fields = {name: _lower(getattr(one, name), getattr(other, name)) for name in Budget.model_fields}
    return Budget.model_validate(fields)


def _lower(one: float | None, other: float | None) -> float | None:
    return min((value for value in (one, other) if value is not None), default=None)


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
