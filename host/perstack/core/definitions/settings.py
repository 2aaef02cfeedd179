"""Settings of Runs, each declared once, and the options with which a caller chooses them.

A setting is a field of `SharedKeys`, `ContextKeys` or `Budget`, with its type, default, rules and meaning. If a caller
may choose it, `Overrides` has a field of its name, and `options` its option of the command line; if Runs record it as a
limit, `Limits` has one. For a shared key the nearest level counts: caller, Expert, file. Budgets and permissions hold
on all levels. A provider is chosen together with the models that were written for it.
"""

# no postponed annotations: pydantic would compile each of them in each class that inherits it
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, cast
from weakref import WeakValueDictionary

from pydantic import ConfigDict, Field, JsonValue, TypeAdapter
from pydantic.alias_generators import to_camel
from pydantic.dataclasses import dataclass

from perstack.core.base.ids import By
from perstack.core.base.records import JsonObject, Record, StrictCalls, falsy
from perstack.core.base.usage import BudgetName
from perstack.core.definitions.keys import NOT_EMPTY, Key, Rule, at_least, budget_problem
from perstack.core.definitions.models import WrittenModels
from perstack.core.definitions.options import OPTIONS, Option
from perstack.core.definitions.permissions import Widening
from perstack.errors import UsageError

# How a Run is kept within its model's context window: the keys in perstack.toml and the resulting policy.

COMPACT_AT = 0.8
KEEP_RESULTS = 10
KEEP_RECENT = 0.3


def share_problem(share: float) -> str | None:
    return None if 0 < share < 1 else f"must be a share of the context window between 0 and 1, not {share}"


class CompactionExpert(Record):
    """The Expert whose instruction and model write the summaries."""

    expert: Annotated[str, NOT_EMPTY]


Compaction = Literal["auto", "off"] | CompactionExpert


class ContextKeys(Record):
    """Keys about the context window, of an Expert and of a whole file."""

    context_window: Annotated[
        int | None,
        at_least(1_000),
        Key("tokens that the model's context can hold; default: as its provider or published lists say", effect="text"),
    ] = None
    compact_at: Annotated[
        float | None,
        Rule(share_problem),
        Key("share of the context window from which old content is shortened", effect="text", default=COMPACT_AT),
    ] = None
    keep_results: Annotated[
        int | None,
        at_least(1),
        Key(
            "number of latest steps that keep the results of read-only tools whole", effect="text", default=KEEP_RESULTS
        ),
    ] = None
    keep_recent: Annotated[
        float | None,
        Rule(share_problem),
        Key("share of the context window whose latest turns are never summarised", effect="text", default=KEEP_RECENT),
    ] = None
    compaction: Annotated[
        Compaction | None,
        Key(
            "whether old turns are shortened and summarised when the context is nearly full: `auto` "
            "(default), `off`, or `{ expert = NAME }`, whose instruction and model write the summary",
            effect="text",
        ),
    ] = None


class ContextPolicy(Record):
    """Policy of a Run for a model context that is nearly full."""

    window: int | None = None  # tokens that the context can hold; None if the definition does not say
    compact_at: float = Field(default=COMPACT_AT, exclude_if=lambda value: value == COMPACT_AT)  # share of the window
    keep_results: int = Field(default=KEEP_RESULTS, exclude_if=lambda value: value == KEEP_RESULTS)  # turns
    keep_recent: float = Field(default=KEEP_RECENT, exclude_if=lambda value: value == KEEP_RECENT)  # share of window
    is_off: bool = Field(default=False, exclude_if=falsy)  # True: the model sees all, and an overflow ends the Run
    expert: str | None = None  # key of the Expert that writes the summaries; None for the Run's own model
    offers_pin: bool = Field(default=False, exclude_if=falsy)


def apply_compaction(context_policy: ContextPolicy, compaction: Compaction) -> ContextPolicy:
    """Return the policy with the caller's choice of compaction."""
    expert = compaction.expert if isinstance(compaction, CompactionExpert) else None
    return context_policy.model_copy(update={"is_off": compaction == "off", "expert": expert})


ReasoningBudget = Literal["none", "minimal", "low", "medium", "high"] | int  # word that each provider maps, or tokens

ToolSearch = Literal["auto", "on", "off"]

NonEmptyText = Annotated[str, NOT_EMPTY]

MAX_RETRIES = 5
TIMEOUT_MS = 300_000
RETRY_TIMEOUT_MS = 900_000
RESULT_LIMIT = 20_000  # characters


class SharedKeys(ContextKeys):
    """Keys of an Expert and of the top of a file. The nearest value of each counts."""

    model: Annotated[
        WrittenModels | None,
        Key(
            "name of the model, as its provider spells it, or a list of a model and its fallbacks, see `[models]`",
            effect="text",
        ),
    ] = None
    reasoning_budget: Annotated[
        ReasoningBudget | None, at_least(0), Key("how much a model may think", effect="text")
    ] = None
    max_steps: Annotated[
        int | None,
        at_least(0),
        Key(
            "maximum steps of a Job, over all its Runs",
            effect="narrows",
            default=100,
            zero_lifts=True,
            widens_above=100,
        ),
    ] = None
    max_depth: Annotated[
        int | None,
        at_least(0),
        Key("maximum depth of nested delegates", effect="narrows", default=8, zero_lifts=True, widens_above=8),
    ] = None
    max_repeats: Annotated[
        int | None,
        at_least(0),
        Key(
            "maximum consecutive steps with the same calls and results",
            effect="narrows",
            default=10,
            zero_lifts=True,
            widens_above=10,
        ),
    ] = None
    max_retries: Annotated[
        int | None,
        at_least(0),
        Key("maximum retries of one generation", effect="narrows", default=MAX_RETRIES, widens_above=MAX_RETRIES),
    ] = None
    timeout: Annotated[
        int | None,
        at_least(1),
        Key("milliseconds for one attempt of a generation", effect="narrows", default=TIMEOUT_MS),
    ] = None
    retry_timeout: Annotated[
        int | None,
        at_least(1),
        Key("milliseconds for a generation with all its attempts", effect="narrows", default=RETRY_TIMEOUT_MS),
    ] = None
    tool_search: Annotated[
        ToolSearch | None, Key("whether the model finds tools by a search instead of seeing all", effect="text")
    ] = None
    result_limit: Annotated[
        int | None,
        at_least(200),
        Key("characters of a delegate's result that its caller sees at once", effect="narrows", default=RESULT_LIMIT),
    ] = None
    agents_md: Annotated[
        bool | None,
        Key(
            "show the model the AGENTS.md files of the project; default false; a delegate uses its own key",
            effect="text",
        ),
    ] = None
    mask_secrets: Annotated[
        bool | None,
        Key(
            "replace secrets in the output of tools by `[secret:1]` before the model and the disk get it, "
            "see below; default false, or true if its caller masks",
            effect="narrows",
        ),
    ] = None
    runtime: Annotated[str | None, NOT_EMPTY, Key("where programs of tools run; default `local`", effect="narrows")] = (
        None
    )

    # first fields of a class's JSON, in the order that logs and digests have fixed; all others follow as declared
    first_fields: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Put the fields of a class into the order of its JSON."""
        super().__pydantic_init_subclass__(**kwargs)
        fields_by_name = cls.model_fields
        for name in (*cls.first_fields, *(name for name in tuple(fields_by_name) if name not in cls.first_fields)):
            fields_by_name[name] = fields_by_name.pop(name)


class ProviderSetting(Record):
    """`[provider]`: the endpoint, and its settings as the provider's documentation names them."""

    provider_name: Annotated[
        NonEmptyText, Key("the endpoint's provider; `perstack plugins` lists them", effect="reaches")
    ]
    setting: Annotated[JsonObject, Key("settings that the provider's page names", effect="reaches")] = Field(
        default_factory=dict
    )


ProviderKey = Annotated[ProviderSetting | None, Key("the endpoint, see `[provider]`", effect="table")]


class Budget(Record):
    """Spending limits of a Job, or of one Expert within it: reserved before spending, and never exceeded."""

    max_cost: Annotated[float | None, Rule(budget_problem), Key("US dollars", effect="narrows")] = None
    max_tokens: Annotated[int | None, at_least(1), Key("tokens, sent and generated", effect="narrows")] = None
    max_time: Annotated[
        int | None, at_least(1), Key("milliseconds of work, without waiting for a person", effect="narrows")
    ] = None
    max_tool_calls: Annotated[int | None, at_least(1), Key("calls of tools and delegates", effect="narrows")] = None

    def limit_of(self, budget: BudgetName) -> float | None:
        """Return the limit in dollars, tokens, milliseconds or calls; None without one."""
        limits: dict[BudgetName, float | None] = {
            "maxCost": self.max_cost,
            "maxTokens": self.max_tokens,
            "maxTime": self.max_time,
            "maxToolCalls": self.max_tool_calls,
        }
        return limits[budget]


BudgetKey = Annotated[Budget | None, Key("what may be spent, see `[budget]`", effect="table")]


class Limits(Record):
    """Limits of a Job and of its generations."""

    max_steps: int | None = None  # maximum sum of steps over all Runs of the Job; None without a limit
    max_depth: int | None = None  # maximum depth of nested delegates; None without a limit
    max_repeats: int | None = None  # maximum consecutive steps with equal calls and equal results; None without a limit
    budget: Budget | None = None
    max_retries: int = MAX_RETRIES
    timeout: int = TIMEOUT_MS  # milliseconds for one attempt of a generation
    retry_timeout: int = RETRY_TIMEOUT_MS  # milliseconds for one generation including all its retries
    context: ContextPolicy | None = None  # None in logs of earlier versions: a nearly full context is left as it is


def lower_budget(first: Budget | None, second: Budget | None) -> Budget | None:
    """Return a budget with the lower of each limit; a missing limit does not count."""
    if first is None or second is None:
        return first or second
    pairs = {name: (getattr(first, name), getattr(second, name)) for name in Budget.model_fields}
    return Budget.model_validate({name: _lower_limit(*values) for name, values in pairs.items()})


def _lower_limit(first: float | None, second: float | None) -> float | None:
    return min((value for value in (first, second) if value is not None), default=None)


RECORDED = "recorded"  # provider that plays recordings
NOT_RECORDED = "NotRecorded"  # name of the error for a call that the played recording does not contain


@dataclass(frozen=True, config=ConfigDict(alias_generator=to_camel, populate_by_name=True, defer_build=True))
class Overrides(metaclass=StrictCalls):
    """Caller's settings, which override the definitions'; None keeps theirs. Excluded fields are not recorded."""

    model: Annotated[str | tuple[str, ...] | None, OPTIONS["model"]] = None  # several are fallbacks
    provider: Annotated[str | None, OPTIONS["provider"]] = None
    reasoning_budget: Annotated[ReasoningBudget | None, OPTIONS["reasoning_budget"]] = None
    max_steps: Annotated[int | None, OPTIONS["max_steps"]] = None
    max_retries: Annotated[int | None, OPTIONS["max_retries"]] = None
    timeout: Annotated[int | None, OPTIONS["timeout"]] = None
    unattended: Annotated[bool, Field(exclude=True), OPTIONS["unattended"]] = False
    open: Annotated[bool, Field(exclude_if=falsy), OPTIONS["open"]] = False
    strict_skills: Annotated[bool, Field(exclude=True), OPTIONS["strict_skills"]] = False
    widening: Widening | None = Field(
        default=None, exclude=True
    )  # added to the rules of every Run that starts or resumes
    widened_by: By | None = Field(
        default=None, exclude=True
    )  # person who asked for `widening`; None: this process's user
    runtime: Annotated[str | None, OPTIONS["runtime"]] = None
    max_cost: Annotated[float | None, OPTIONS["max_cost"]] = None
    max_tokens: Annotated[int | None, OPTIONS["max_tokens"]] = None
    max_time: Annotated[int | None, OPTIONS["max_time"]] = None
    max_tool_calls: Annotated[int | None, OPTIONS["max_tool_calls"]] = None
    compaction: Annotated[Compaction | None, OPTIONS["compaction"]] = None
    output: JsonObject | None = Field(default=None, exclude=True)  # JSON schema in place of the Expert's `output`
    recording: Annotated[str | None, Field(exclude=True), OPTIONS["recording"]] = None
    recorded_tools: JsonValue = Field(default=None, exclude=True)  # `live` or `recorded`, or a table of tools
    # `any` accepts an instruction that changed since the recording
    recorded_definition: Literal["same", "any"] | None = Field(default=None, exclude=True)

    def __post_init__(self) -> None:
        """Raise UsageError for an invalid budget, or a recording together with another provider."""
        if self.recording is not None:
            if self.provider not in (None, RECORDED):
                raise UsageError(
                    f"a recording is played by provider {RECORDED}, not by {self.provider}: leave one of the two out"
                )
            object.__setattr__(self, "provider", RECORDED)
        check_budget(**{name: getattr(self, name) for name in Budget.model_fields})

    def playing(self, setting: ProviderSetting) -> ProviderSetting:
        """Return settings of provider `recorded` with the caller's choices about the recording added."""
        values: JsonObject = {
            "recording": self.recording,
            "tools": self.recorded_tools,
            "definition": self.recorded_definition,
        }
        present = {name: value for name, value in values.items() if value is not None}
        return setting.model_copy(update={"setting": {**setting.setting, **present}}) if present else setting

    @property
    def names_recording(self) -> bool:
        """True if the caller named the recording to play: only then may it answer for a person."""
        return self.recording is not None

    def without_live_tools(self, setting: ProviderSetting) -> ProviderSetting:
        """Return a provider's setting; for `recorded` without `tools`, unless the caller named the recording.

        A recording that a definition names must not choose which programs it starts.
        """
        if self.names_recording or setting.provider_name != RECORDED or "tools" not in setting.setting:
            return setting
        values = {name: value for name, value in setting.setting.items() if name != "tools"}
        return setting.model_copy(update={"setting": values})

    def budget_over(self, budget: Budget | None) -> Budget | None:
        """Return the budget with the limits that the caller chose."""
        limits = {name: value for name in Budget.model_fields if (value := getattr(self, name)) is not None}
        return (budget or Budget()).model_copy(update=limits) if limits else budget

    @property
    def chosen(self) -> tuple[str, ...]:
        """The names of the settings that the caller chose, as `startRun` has them; resuming repeats these."""
        repeated = (name for name, option in options().items() if option.is_repeated)
        return tuple(to_camel(name) for name in repeated if not _is_unset(getattr(self, name)))

    def without_excluded(self) -> Self:
        """Return a copy without the fields that are not recorded."""
        return type(self)(**_dump_overrides(self))

    def filled(self, **earlier: Any) -> Self:
        """Return a copy in which unset fields have the values of `earlier`."""
        return replace(self, **{name: value for name, value in earlier.items() if _is_unset(getattr(self, name))})

    def or_else(self, earlier: Self) -> Self:
        """Return a copy in which unset fields have the recorded values of `earlier`."""
        return self.filled(**_dump_overrides(earlier))


def _no_overrides() -> Overrides:
    """Return overrides that change nothing, without building pydantic's schema."""
    overrides = object.__new__(Overrides)
    vars(overrides).update({field.name: getattr(Overrides, field.name) for field in fields(Overrides)})
    return overrides


NO_OVERRIDES = _no_overrides()


def _is_unset(value: object) -> bool:
    return value is None or value is False or value == ""


def options() -> Mapping[str, Option]:
    """Return the options of the fields of `Overrides` that have one, by the field's name."""
    return OPTIONS


def check_budget(max_cost: float | None, **limits: int | None) -> None:
    """Raise UsageError for an invalid amount of US dollars, or a limit below 1."""
    problem = None if max_cost is None else budget_problem(max_cost)
    if problem is not None:
        raise UsageError(f"a budget of {max_cost:g} {problem}")
    for name, limit in limits.items():
        if limit is not None and limit < 1:
            raise UsageError(f"{name} = {limit} must be at least 1")


@cache
def _adapter() -> TypeAdapter[Overrides]:
    return TypeAdapter(Overrides)


def _dump_overrides(overrides: Overrides) -> dict[str, Any]:
    return cast("dict[str, Any]", _adapter().dump_python(overrides))


# Records that many Jobs keep, such as the definition of their Expert and its tools.

_INTERNED: WeakValueDictionary[tuple[type, bytes], Record] = WeakValueDictionary()
"""Equal records are one, because none is ever changed; an entry ends with the last Job that keeps its record."""

_R = TypeVar("_R", bound=Record)


def intern_record(record: _R) -> _R:
    """Return an equal record of an earlier call; without one this record, which later calls then return."""
    earlier = cast("_R", _INTERNED.setdefault((type(record), record.to_json()), record))
    return earlier if earlier == record else record  # values that JSON leaves out may differ


_NAME_SETS: dict[type, set[str]] = {}


def with_shared_names(record: _R) -> _R:
    """Return the record with a set of its fields' names that its class shares: pydantic's own takes up to 2 KB each."""
    names = _NAME_SETS.setdefault(type(record), set(type(record).model_fields))
    return record.model_construct(names, **dict(record))
