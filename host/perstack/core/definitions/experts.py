"""Definition models of an Expert: the tables `[experts.NAME]` of perstack.toml and the types of their keys.

This package has the models that perstack.toml is read into; reading and checking files is `perstack.config`. A field
is a key of the file if its annotation has a `Key`, with the meaning that the docs, the error messages and the JSON
schema show. Its type and default hold for the key too. A `Rule` holds only for values that come from a file: recorded
definitions followed the rules of their version, and definitions made in Python are the caller's responsibility.

Names follow Perstack's perstack.toml reference. Times are milliseconds. Keys that the top of the file has too are in
settings.py. Definitions are recorded in `startRun` and in iterations, so the order of fields is the byte order of logs:
add new fields last with `exclude_if`, so that old logs and digests stay the same.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, cast

from pydantic import BeforeValidator, Discriminator, Field, GetCoreSchemaHandler, Tag, model_validator
from pydantic_core import CoreSchema, core_schema

from perstack.core.base.records import JsonObject, Record, falsy
from perstack.core.definitions.keys import (
    BROKEN,
    NOT_EMPTY,
    InText,
    Key,
    Rule,
    at_least,
    at_most,
    budget_problem,
    domain_problem,
    entry_problem,
    expert_key_problem,
    number_problem,
    runtime_level_problem,
    version_problem,
)
from perstack.core.definitions.models import ModelTier, as_tuple
from perstack.core.definitions.permissions import Permissions
from perstack.core.definitions.settings import BudgetKey, ContextKeys, NonEmptyText, ProviderKey, SharedKeys
from perstack.core.definitions.skills import (
    ASK_USER,
    FUNCTIONS_SKILL,
    QUESTIONS,
    AgentSkill,
    AnySkill,
    InteractiveSkill,
    PluginSkill,
    functions_skill,
    is_base_skill,
    questions_skill,
    tool_skills,
)
from perstack.core.schemas.result_schemas import parse_result_schema


class ExpertEvaluator(Record):
    """An Expert that evaluates the result of another."""

    expert: NonEmptyText


class FunctionEvaluator(Record):
    """A Python function, `package.module:function`."""

    entry: Annotated[NonEmptyText, Rule(entry_problem)]
    required_env: Annotated[
        tuple[NonEmptyText, ...],
        BeforeValidator(as_tuple),
        Field(exclude_if=falsy),
        Key("environment variables that the function needs", effect="executes"),
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


class Iterate(Record):
    """Settings for running an Expert repeatedly until a measurement of its result is good enough."""

    evaluator: Annotated[
        Evaluator,
        Key(
            "the evaluator: a command, `{ expert = … }` or `{ entry = … }`",
            effect="executes",
            is_inert=lambda value: isinstance(value, ExpertEvaluator),
        ),
    ]
    target: Annotated[
        float | None,
        Rule(number_problem),
        Key("value at which the series ends; default: all iterations run", effect="narrows"),
    ] = None
    max_iterations: Annotated[
        int, at_least(1), Key("maximum iterations; default 5", effect="narrows", widens_above=5)
    ] = 5
    metric: Annotated[
        NonEmptyText | tuple[NonEmptyText, ...],
        NOT_EMPTY,
        Key("metrics to compare; default `score`; of several, the worst counts", effect="text"),
    ] = "score"
    direction: Annotated[Direction, Key("the better direction; default `higher`", effect="text")] = "higher"
    accumulate: Annotated[
        bool, Key("show each iteration all earlier ones, not only the last; default false", effect="text")
    ] = False
    timeout: Annotated[
        int, at_least(1), Key("milliseconds for a command or a function; default 600000", effect="narrows")
    ] = 600_000
    max_cost: Annotated[
        float | None,
        Rule(budget_problem),
        Key("US dollars for all its Jobs together, including those of an evaluating Expert", effect="narrows"),
    ] = None
    max_tokens: Annotated[int | None, at_least(1), Key("tokens for all its Jobs together", effect="narrows")] = None


def _web_domain_problem(domain: str) -> str | None:
    plain = domain.removeprefix("*.")
    return domain_problem(domain) if plain == domain else f"write `{plain}`: it covers all below it"


def _domain_lists_problem(options: object) -> str | None:
    is_both = isinstance(options, WebToolOptions) and options.allowed_domains and options.blocked_domains
    return "must not have both `allowedDomains` and `blockedDomains`: take one out" if is_both else None


_Domains = Annotated[
    tuple[Annotated[str, Rule(_web_domain_problem)], ...], BeforeValidator(as_tuple), Field(exclude_if=falsy)
]


class WebToolOptions(Record):
    """Limits of a provider's tool that searches or reads the web."""

    max_uses: Annotated[
        int | None,
        at_least(1),
        Field(exclude_if=falsy),
        Key("maximum uses in one reply; default: the provider's", effect="narrows"),
    ] = None
    allowed_domains: Annotated[_Domains, Key("the only domains that it may use", effect="narrows")] = ()
    blocked_domains: Annotated[_Domains, Key("domains that it must not use", effect="narrows")] = ()


class FileSearchOptions(Record):
    """Files that a provider's tool searches."""

    vector_store_ids: Annotated[
        tuple[NonEmptyText, ...],
        NOT_EMPTY,
        BeforeValidator(as_tuple),
        Key("vector stores to search, by their ids", effect="reaches"),
    ]


class ProviderToolOptions(Record):
    """Options of the tools that a provider runs, by the tool's name."""

    web_search: Annotated[
        WebToolOptions | None,
        Rule(_domain_lists_problem),
        Field(exclude_if=falsy),
        Key("limits of searches of the web", effect="table"),
    ] = None
    web_fetch: Annotated[
        WebToolOptions | None,
        Rule(_domain_lists_problem),
        Field(exclude_if=falsy),
        Key("limits of the pages that are read", effect="table"),
    ] = None
    file_search: Annotated[
        FileSearchOptions | None, Field(exclude_if=falsy), Key("files to search", effect="table")
    ] = None

    def of(self, tool: str) -> WebToolOptions | FileSearchOptions | None:
        by_name = {"webSearch": self.web_search, "webFetch": self.web_fetch, "fileSearch": self.file_search}
        return by_name.get(tool)


class _Functions:
    """Annotation of a field with Python functions, which is neither recorded nor read from JSON."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Accept a sequence of functions."""

        def check(value: object, info: core_schema.ValidationInfo[object]) -> object:
            if info.mode == "json":
                return ()
            items = tuple(cast("Sequence[object]", value)) if isinstance(value, list | tuple) else (value,)
            for item in items:
                if not callable(item):
                    raise ValueError(f"takes functions, as in tools=[find_order], not {type(item).__name__}")
            return items

        return core_schema.with_info_before_validator_function(check, core_schema.any_schema())


class Expert(SharedKeys):
    """Agent with one purpose. In Python its key may be given as `name`."""

    if TYPE_CHECKING:  # type checkers must accept an Expert with either of the key's two names
        key: Annotated[str, Rule(expert_key_problem)] = ""
        name: str = ""
    else:
        # the Expert's name in `[experts.NAME]`, and for Experts that delegate to it
        key: Annotated[str, Rule(expert_key_problem)]

        @property
        def name(self):
            """The key."""
            return self.key

    argument_names: ClassVar = {"name": "key"}

    version: Annotated[str, Rule(version_problem), Key("a semantic version; default `1.0.0`", effect="text")] = "1.0.0"
    min_runtime_version: Annotated[
        str | None,
        Rule(runtime_level_problem),
        Key("the oldest runtime that it works on, such as `v1.0`", effect="text"),
    ] = None
    description: Annotated[str, at_most(2048), Key("one line for Experts that may delegate to it", effect="text")] = ""
    instruction: Annotated[NonEmptyText, at_most(20 * 1024), Key("what the Expert knows and does", effect="text")]
    delegates: Annotated[
        tuple[NonEmptyText, ...], Key("keys of the Experts that it may call, `name` or `name@version`", effect="text")
    ] = ()
    tags: Annotated[tuple[str, ...], Key("words to sort Experts by", effect="text")] = ()
    skills: Annotated[tuple[AnySkill, ...], Key("its tools, by the skill's name", effect="table")] = ()
    agent_skills: Annotated[  # empty after reading: each entry is then one of `skills`
        tuple[NonEmptyText, ...],
        Field(exclude_if=falsy),
        Key(
            "folders with a SKILL.md, or patterns, relative to this file, see `agentSkill`",
            effect="reads",
            is_path=True,
        ),
    ] = ()
    provider: ProviderKey = None
    permissions: Annotated[
        Permissions | None, Key("permission rules, in addition to the project's", effect="table")
    ] = None
    budget: BudgetKey = None
    returns: Annotated[
        JsonObject | None,
        InText(parse_result_schema),
        Key("for a delegate: JSON schema of its result, as JSON text", effect="text"),
    ] = None
    output: Annotated[
        JsonObject | None,
        InText(parse_result_schema),
        Key("for a Coordinator: JSON schema of its result, as JSON text", effect="text"),
    ] = None
    effects: Annotated[
        bool,
        Field(exclude_if=falsy),
        Key("its work has an effect: a success without one is marked; default false", effect="text"),
    ] = False
    iterate: Annotated[
        Iterate | None, Key("how it is repeated until its result is good enough, see `iterate` below", effect="table")
    ] = None
    ask: Annotated[
        bool,
        Field(exclude_if=falsy),
        Key("as a Coordinator it has the tool `askUser`, to ask a person a question; default false", effect="text"),
    ] = False
    provider_tools: Annotated[
        tuple[NonEmptyText, ...],
        Field(exclude_if=falsy),
        Key(
            "tools that its model's provider runs itself, such as `webSearch`, see `providerTools` below",
            effect="reaches",
        ),
    ] = ()
    provider_tool_options: Annotated[
        ProviderToolOptions | None,
        Field(exclude_if=falsy),
        Key("limits of `providerTools`, by the tool's name", effect="table"),
    ] = None

    default_model_tier: Annotated[
        ModelTier | None,
        Field(exclude_if=falsy),
        Key(
            "how capable its model is, if neither it nor an option names one: `[models]`, or its provider, says which",
            effect="text",
        ),
    ] = None

    standing: Annotated[
        tuple[Annotated[NonEmptyText, at_most(2048)], ...],
        BeforeValidator(as_tuple),
        Field(exclude_if=falsy),
        Key(
            "texts that always hold: said with the instruction, and again after each summary of the history",
            effect="text",
        ),
    ] = ()

    tools: Annotated[Sequence[Callable[..., object]], _Functions(), Field(exclude=True, repr=False)] = ()
    """Functions that are its tools. The Host takes them; a definition has only the skill that names them."""

    @model_validator(mode="after")
    def _with_functions(self) -> Self:
        """Add the skill that names the functions in `tools`."""
        if not self.tools:
            return self
        skill = functions_skill(self.key, self.tools)
        others = tuple(other for other in self.skills if not (isinstance(other, PluginSkill) and other.functions))
        if any(other.name == FUNCTIONS_SKILL for other in others):
            raise ValueError(f"a skill is named `{FUNCTIONS_SKILL}`, like the skill with the functions: rename it")
        object.__setattr__(self, "skills", (*others, skill))
        return self

    @model_validator(mode="after")
    def _with_questions(self) -> Self:
        """Add the skill with `askUser` if `ask`, or a `pick` of the base skill, names it."""
        asks = self.ask or any(is_base_skill(skill) and ASK_USER in skill.pick for skill in tool_skills(self.skills))
        if asks and all(skill.name != QUESTIONS for skill in self.skills):
            object.__setattr__(self, "skills", (*self.skills, questions_skill()))
        return self

    first_fields: ClassVar = (
        *ContextKeys.model_fields,
        *("key", "version", "min_runtime_version", "description", "instruction", "delegates", "tags", "skills"),
        *("agent_skills", "model", "provider", "reasoning_budget", "max_steps", "max_depth", "max_repeats"),
        *("max_retries", "timeout", "retry_timeout", "tool_search", "permissions", "runtime", "budget", "returns"),
        *("output", "result_limit", "effects", "agents_md", "mask_secrets", "iterate", "ask", "provider_tools"),
        *("provider_tool_options", "default_model_tier", "standing"),
    )


def with_skills_required(expert: Expert) -> Expert:
    """Return the definition with every skill that can be missing marked as required."""
    skills = tuple(
        skill if isinstance(skill, InteractiveSkill | AgentSkill) else skill.model_copy(update={"required": True})
        for skill in expert.skills
    )
    return expert.model_copy(update={"skills": skills})
