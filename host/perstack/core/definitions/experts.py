"""Definition models of an Expert: the tables `[experts.NAME]` of perstack.toml and the types of their keys.

This package has the models that perstack.toml is read into; reading and checking files is `perstack.config`. A field
is a key of the file if its annotation has a `Key`, with the meaning that the docs, the error messages and the JSON
schema show. Its type and default hold for the key too. A `Rule` holds only for values that come from a file: recorded
definitions followed the rules of their version, and definitions made in Python are the caller's responsibility.

Names follow Perstack's perstack.toml reference. Times are milliseconds. An Expert's key overrides the same key at the
top of the file (of budgets and permissions both hold), and `Overrides` (overrides.py) takes precedence over both.

Definitions are recorded in `startRun` and in iterations, so the order of fields is the byte order of logs: add new
fields with `exclude_if`, so that old logs and digests stay the same. A key that is both an Expert's and a project's is
declared twice, with one shared annotation (`ModelKey`, `BudgetKey`, …); change both, recorded_definition.py,
perstack.schema.json and the docs together.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import BeforeValidator, Discriminator, Field, Tag

from perstack.core.base.records import Fact, JsonObject, falsy
from perstack.core.definitions.keys import (
    BROKEN,
    NOT_EMPTY,
    InText,
    Key,
    Rule,
    at_least,
    at_most,
    wrong_budget,
    wrong_entry,
    wrong_expert_key,
    wrong_number,
    wrong_runtime_level,
    wrong_version,
)
from perstack.core.definitions.models import WrittenModels, as_tuple
from perstack.core.definitions.permissions import Permissions
from perstack.core.definitions.result_schemas import result_schema_of
from perstack.core.definitions.skills import AgentSkill, AnySkill, InteractiveSkill

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


class ExpertEvaluator(Fact):
    """An Expert that judges what another has made."""

    expert: NonEmptyText


class FunctionEvaluator(Fact):
    """A Python function, `package.module:function`."""

    entry: Annotated[NonEmptyText, Rule(wrong_entry)]
    required_env: Annotated[
        tuple[NonEmptyText, ...],
        BeforeValidator(as_tuple),
        Field(exclude_if=falsy),
        Key("environment variables that the function needs"),
    ] = ()


def _kind_of_evaluator(evaluator: object) -> str | None:
    match evaluator:
        case str():
            return "line"
        case tuple() | list():
            return "program"
        case ExpertEvaluator():
            return "expert"
        case FunctionEvaluator():
            return "function"
        case dict():
            return "expert" if "expert" in evaluator else "function" if "entry" in evaluator else None
        case _:
            return None


Evaluator = Annotated[  # shell line, program with arguments, Expert, or function
    Annotated[NonEmptyText, Tag("line")]
    | Annotated[tuple[NonEmptyText, ...], NOT_EMPTY, Tag("program")]
    | Annotated[ExpertEvaluator, Tag("expert")]
    | Annotated[FunctionEvaluator, Tag("function")],
    Discriminator(
        _kind_of_evaluator,
        custom_error_type=BROKEN,
        custom_error_message="must be a command, or a table with `expert`, or with `entry`",
    ),
]

Direction = Literal["higher", "lower"]


class Budget(Fact):
    """Spending limits of a Job, or of one Expert within it: reserved before spending, and never exceeded."""

    max_cost: Annotated[float | None, Rule(wrong_budget), Key("US dollars")] = None
    max_tokens: Annotated[int | None, at_least(1), Key("tokens, sent and generated")] = None
    max_time: Annotated[int | None, at_least(1), Key("milliseconds of work, without waiting for a person")] = None
    max_tool_calls: Annotated[int | None, at_least(1), Key("calls of tools and delegates")] = None


BudgetKey = Annotated[Budget | None, Key("what may be spent, see `[budget]`")]


class Iterate(Fact):
    """Settings for running an Expert repeatedly until a measurement of its result is good enough."""

    evaluator: Annotated[Evaluator, Key("the evaluator: a command, `{ expert = … }` or `{ entry = … }`")]
    target: Annotated[
        float | None, Rule(wrong_number), Key("value at which the series ends; default: all iterations run")
    ] = None
    max_iterations: Annotated[int, at_least(1), Key("maximum iterations; default 5")] = 5
    metric: Annotated[
        NonEmptyText | tuple[NonEmptyText, ...],
        NOT_EMPTY,
        Key("metrics to compare; default `score`; of several, the worst counts"),
    ] = "score"
    direction: Annotated[Direction, Key("the better direction; default `higher`")] = "higher"
    accumulate: Annotated[bool, Key("show each iteration all earlier ones, not only the last; default false")] = False
    timeout: Annotated[int, at_least(1), Key("milliseconds for a command or a function; default 600000")] = 600_000
    max_cost: Annotated[
        float | None,
        Rule(wrong_budget),
        Key("US dollars for all its Jobs together, including those of an evaluating Expert"),
    ] = None
    max_tokens: Annotated[
        int | None,
        at_least(1),
        Key("tokens for all its Jobs together"),
    ] = None


class Expert(ContextKeys):
    """Agent with one purpose."""

    key: Annotated[str, Rule(wrong_expert_key)]
    version: Annotated[str, Rule(wrong_version), Key("a semantic version; default `1.0.0`")] = "1.0.0"
    min_runtime_version: Annotated[
        str | None, Rule(wrong_runtime_level), Key("the oldest runtime that it works on, such as `v1.0`")
    ] = None
    description: Annotated[str, at_most(2048), Key("one line for Experts that may delegate to it")] = ""
    instruction: Annotated[NonEmptyText, at_most(20 * 1024), Key("what the Expert knows and does")]
    delegates: Annotated[
        tuple[NonEmptyText, ...], Key("keys of the Experts that it may call, `name` or `name@version`")
    ] = ()
    tags: Annotated[tuple[str, ...], Key("words to sort Experts by")] = ()
    skills: Annotated[tuple[AnySkill, ...], Key("its tools, by the skill's name")] = ()
    agent_skills: Annotated[  # empty after reading: each entry is then one of `skills`
        tuple[NonEmptyText, ...],
        Field(exclude_if=falsy),
        Key("folders with a SKILL.md, or patterns, relative to this file, see `agentSkill`"),
    ] = ()
    model: ModelKey = None
    provider: ProviderKey = None
    reasoning_budget: ThinkingKey = None
    max_steps: MaxStepsKey = None
    max_depth: MaxDepthKey = None
    max_repeats: MaxRepeatsKey = None
    max_retries: MaxRetriesKey = None
    timeout: TimeoutKey = None
    retry_timeout: RetryTimeoutKey = None
    tool_search: ToolSearchKey = None
    permissions: Annotated[Permissions | None, Key("permission rules, in addition to the project's")] = None
    runtime: RuntimeKey = None
    budget: BudgetKey = None
    returns: Annotated[
        JsonObject | None,
        InText(result_schema_of),
        Key("for a delegate: JSON schema of its result, as JSON text"),
    ] = None
    output: Annotated[
        JsonObject | None,
        InText(result_schema_of),
        Key("for a Coordinator: JSON schema of its result, as JSON text"),
    ] = None
    result_limit: ResultLimitKey = None
    effects: Annotated[
        bool,
        Field(exclude_if=falsy),
        Key("its work has an effect: a success without one is marked; default false"),
    ] = False
    agents_md: AgentsMdKey = None
    mask_secrets: MaskSecrets = None
    iterate: Annotated[
        Iterate | None, Key("how it is repeated until its result is good enough, see `iterate` below")
    ] = None


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


def with_skills_required(expert: Expert) -> Expert:
    """Return the definition with every skill that can be missing marked as required."""
    skills = tuple(
        skill if isinstance(skill, InteractiveSkill | AgentSkill) else skill.model_copy(update={"required": True})
        for skill in expert.skills
    )
    return expert.model_copy(update={"skills": skills})


def lower(one: Budget | None, other: Budget | None) -> Budget | None:
    """Return a budget with the lower of each limit; a missing limit does not count."""
    if one is None or other is None:
        return one or other
    fields = {name: _lower(getattr(one, name), getattr(other, name)) for name in Budget.model_fields}
    return Budget.model_validate(fields)


def _lower(one: float | None, other: float | None) -> float | None:
    return min((value for value in (one, other) if value is not None), default=None)
