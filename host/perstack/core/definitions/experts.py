"""What an Expert is: the definitions that perstack.toml is read into.

Source of the names: Perstack's perstack.toml reference. Times are milliseconds.
"""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from perstack.core.audit import Audit
from perstack.core.base import Fact, JsonObject, falsy
from perstack.core.context import ContextKeys, ContextPolicy
from perstack.core.keys import BROKEN, NOT_EMPTY, AsIs, InText, Key, Rule, at_least, at_most
from perstack.core.models import ProviderLimits, WrittenModels
from perstack.core.policy.permissions import Permissions
from perstack.core.price import Price as Price
from perstack.core.results import result_schema_of
from perstack.core.retention import Retention
from perstack.core.rules import (
    wrong_budget,
    wrong_entry,
    wrong_expert_key,
    wrong_number,
    wrong_runtime_level,
    wrong_version,
)
from perstack.core.sandbox import Sandbox
from perstack.core.schedules.definition import Schedule
from perstack.core.skill_definitions import BASE_SKILL as BASE_SKILL
from perstack.core.skill_definitions import AgentSkill as AgentSkill
from perstack.core.skill_definitions import AnySkill as AnySkill
from perstack.core.skill_definitions import InteractiveSkill as InteractiveSkill
from perstack.core.skill_definitions import InteractiveTool as InteractiveTool
from perstack.core.skill_definitions import McpSseSkill as McpSseSkill
from perstack.core.skill_definitions import McpStdioSkill as McpStdioSkill
from perstack.core.skill_definitions import McpTool as McpTool
from perstack.core.skill_definitions import OAuth as OAuth
from perstack.core.skill_definitions import PluginSkill as PluginSkill
from perstack.core.skill_definitions import Skill as Skill
from perstack.core.skill_definitions import is_base_skill as is_base_skill
from perstack.core.snapshots.events import MAX_FILE_SIZE, SnapshotPolicy
from perstack.core.workers import Workers
from perstack.errors import DefinitionError, Problem

ReasoningBudget = Literal["none", "minimal", "low", "medium", "high"] | int
"""How much a model may think: a word that each provider maps, or a number of tokens."""

ToolSearch = Literal["auto", "on", "off"]
"""Whether a model is shown all tools: `auto` defers those beyond a budget behind a search, `on` all that can be."""

_Filled = Annotated[str, NOT_EMPTY]

_Model = Annotated[
    WrittenModels | None,
    Key("the model's name, as its provider spells it; or several, which stand in for each other, see `[models]`"),
]
_Thinking = Annotated[ReasoningBudget | None, at_least(0), Key("how much a model may think")]
_MaxSteps = Annotated[
    int | None, at_least(0), Key("most steps of a whole Job, over all its Runs; 100 if not given, 0 for no limit")
]
_MaxDepth = Annotated[
    int | None, at_least(0), Key("how many delegates may be one below the other; 8 if not given, 0 for no limit")
]
_MaxRepeats = Annotated[
    int | None,
    at_least(0),
    Key("how often in a row a step may repeat the same calls with the same results; 10 if not given, 0 for no limit"),
]
_MaxRetries = Annotated[int | None, at_least(0), Key("how often one generation is tried again; 5 if not given")]
_Timeout = Annotated[
    int | None, at_least(1), Key("milliseconds that one try of a generation may take; 300000 if not given")
]
_RetryTimeout = Annotated[
    int | None, at_least(1), Key("milliseconds that a generation may take with all its tries; 900000 if not given")
]
_ToolSearch = Annotated[ToolSearch | None, Key("whether the model finds tools by a search instead of being shown all")]

_Runtime = Annotated[str | None, NOT_EMPTY, Key("where programs of tools run; `local` if not given")]

_LEFT_OUT = Field(exclude_if=lambda value: value is None)
_ResultLimit = Annotated[
    int | None,
    _LEFT_OUT,
    at_least(200),
    Key("characters of a delegate's result that its caller sees at once; 20000 if not given"),
]


_AgentsMd = Annotated[
    bool | None,
    _LEFT_OUT,
    Key("show the model the AGENTS.md files of the project; false if not given, and a delegate's is its own"),
]


class ProviderSetting(Fact):
    """`[provider]`: which endpoint, and its settings as the provider's own documentation names them."""

    provider_name: Annotated[_Filled, Key("which endpoint; `perstack plugins` lists them")]
    setting: Annotated[JsonObject, Key("settings as that provider's page names them")] = Field(default_factory=dict)


_Provider = Annotated[ProviderSetting | None, Key("which endpoint to use, see `[provider]`")]


class ExpertEvaluator(Fact):
    """An Expert that judges what another has made."""

    expert: _Filled


class FunctionEvaluator(Fact):
    """A Python function, `package.module:function`."""

    entry: Annotated[_Filled, Rule(wrong_entry)]


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


Evaluator = Annotated[
    Annotated[_Filled, Tag("line")]
    | Annotated[tuple[_Filled, ...], NOT_EMPTY, Tag("program")]
    | Annotated[ExpertEvaluator, Tag("expert")]
    | Annotated[FunctionEvaluator, Tag("function")],
    Discriminator(
        _kind_of_evaluator,
        custom_error_type=BROKEN,
        custom_error_message="must be a command, or a table with one key: `expert`, or `entry`",
    ),
]
"""A line for the shell, a program with its arguments, an Expert, or a function."""

Direction = Literal["higher", "lower"]


class Budget(Fact):
    """What a Job, or one Expert within it, may spend: reserved before it is spent, and never crossed."""

    max_cost: Annotated[float | None, Rule(wrong_budget), Key("US dollars")] = None
    max_tokens: Annotated[int | None, at_least(1), Key("tokens, sent and generated")] = None
    max_time: Annotated[int | None, at_least(1), Key("milliseconds of work; waiting for a person is not counted")] = (
        None
    )
    max_tool_calls: Annotated[int | None, at_least(1), Key("calls of tools and delegates")] = None


_Budget = Annotated[Budget | None, _LEFT_OUT, Key("what may be spent, see `[budget]`")]


class Iterate(Fact):
    """How an Expert is run again and again until what it makes is good enough."""

    evaluator: Annotated[Evaluator, Key("what measures: a command, `{ expert = … }` or `{ entry = … }`")]
    target: Annotated[float | None, Rule(wrong_number), Key("good enough; if not given, all iterations are run")] = None
    max_iterations: Annotated[int, at_least(1), Key("most iterations; 5 if not given")] = 5
    metric: Annotated[
        _Filled | tuple[_Filled, ...],
        NOT_EMPTY,
        Key("what is compared, `score` if not given; of several, the worst counts"),
    ] = "score"
    direction: Annotated[Direction, Key("which is better; `higher` if not given")] = "higher"
    accumulate: Annotated[
        bool, Key("tell each iteration of all before it, not of the last only; false if not given")
    ] = False
    timeout: Annotated[
        int, at_least(1), Key("milliseconds that a command or a function may take; 600000 if not given")
    ] = 600_000
    max_cost: Annotated[
        float | None,
        Rule(wrong_budget),
        Field(exclude_if=lambda value: value is None),
        Key("US dollars that all its Jobs may cost together, those of an Expert that evaluates too"),
    ] = None
    max_tokens: Annotated[
        int | None,
        at_least(1),
        Field(exclude_if=lambda value: value is None),
        Key("tokens that they may use together"),
    ] = None


class Expert(ContextKeys):
    """One agent with one purpose."""

    key: Annotated[str, Rule(wrong_expert_key)]
    version: Annotated[str, Rule(wrong_version), Key("a semantic version, `1.0.0` if not given")] = "1.0.0"
    min_runtime_version: Annotated[
        str | None, Rule(wrong_runtime_level), Key("the oldest runtime that it works on, such as `v1.0`")
    ] = None
    description: Annotated[str, at_most(2048), Key("one line for those who may delegate to it")] = ""
    instruction: Annotated[_Filled, at_most(20 * 1024), Key("what the Expert knows and does")]
    delegates: Annotated[
        tuple[_Filled, ...], Key("keys of the Experts that it may call, `name` or `name@version`")
    ] = ()
    tags: Annotated[tuple[str, ...], Key("words to sort Experts by")] = ()
    skills: Annotated[tuple[AnySkill, ...], Key("its tools, by the skill's name")] = ()
    agent_skills: Annotated[
        tuple[_Filled, ...],
        Field(exclude_if=falsy),
        Key("folders with a SKILL.md, or patterns of them, from this file's folder: see `agentSkill`"),
    ] = ()
    """Empty once read: each is one of `skills` then."""
    model: _Model = None
    provider: _Provider = None
    reasoning_budget: _Thinking = None
    max_steps: _MaxSteps = None
    max_depth: _MaxDepth = None
    max_repeats: _MaxRepeats = None
    max_retries: _MaxRetries = None
    timeout: _Timeout = None
    retry_timeout: _RetryTimeout = None
    tool_search: _ToolSearch = None
    permissions: Annotated[
        Permissions | None, Key("what its calls may do, within the project's `[permissions]`; written like those")
    ] = None
    runtime: _Runtime = None
    budget: _Budget = None
    returns: Annotated[
        JsonObject | None,
        _LEFT_OUT,
        InText(result_schema_of),
        Key("as a delegate: its result is JSON that fits this schema, written as JSON text"),
    ] = None
    output: Annotated[
        JsonObject | None,
        _LEFT_OUT,
        InText(result_schema_of),
        Key("as a Coordinator: its result is JSON that fits this schema, written as JSON text"),
    ] = None
    result_limit: _ResultLimit = None
    effects: Annotated[
        bool,
        Field(exclude_if=falsy),
        Key("its work has an effect: a success without one is marked; false if not given"),
    ] = False
    agents_md: _AgentsMd = None
    iterate: Annotated[Iterate | None, Key("how it is run until what it makes is good enough, see `iterate` below")] = (
        None
    )


class Limits(Fact):
    """What a Job and its generations are held to."""

    max_steps: int | None = None
    """Bounds the sum of the steps of all Runs of the Job; None is no bound."""
    max_depth: int | None = None
    """How many delegates may be one below the other; None is no bound."""
    max_repeats: int | None = None
    """How often in a row a step may repeat the same calls with the same results; None is no bound."""
    budget: Budget | None = None
    """What the Job may spend over all its Runs; None is no bound."""
    max_retries: int = 5
    """How often one generation is tried again."""
    timeout: int = 300_000
    """Milliseconds that one try of a generation may take."""
    retry_timeout: int = 900_000
    """Milliseconds that one generation may take with all its tries."""
    context: ContextPolicy | None = None
    """What becomes of a context that is nearly full; None in a log of an earlier version, where nothing does."""


class Workspace(Fact):
    """`workspace = { … }`: the folder that Experts work in, and whether its files are recorded."""

    path: Annotated[_Filled | None, Field(description="the folder, from this file's; by default where you are")] = None
    snapshots: Annotated[bool, Field(description="record its files with each step that may change them")] = False
    max_file_size: Annotated[int, at_least(1), Field(description="bytes: a larger file is named, and not recorded")] = (
        MAX_FILE_SIZE
    )


class Project(ContextKeys):
    """Everything that one perstack.toml, with its includes and overrides, says."""

    model: _Model = None
    reasoning_budget: _Thinking = None
    max_steps: _MaxSteps = None
    max_depth: _MaxDepth = None
    max_repeats: _MaxRepeats = None
    max_retries: _MaxRetries = None
    timeout: _Timeout = None
    retry_timeout: _RetryTimeout = None
    provider: _Provider = None
    tool_search: _ToolSearch = None
    result_limit: _ResultLimit = None
    agents_md: _AgentsMd = None
    runtime: _Runtime = None
    sandbox: Annotated[
        Sandbox | None, Key("what programs of tools may reach besides, and their limits, see `[sandbox]`")
    ] = None
    env_path: Annotated[tuple[_Filled, ...], Key("files with environment variables, from this file's folder")] = ()
    storage: Annotated[_Filled, Key("where state is kept, from this file's folder; `file:perstack` if not given")] = (
        "file:perstack"
    )
    storage_setting: Annotated[JsonObject, Key("settings of that storage, as the page on storages names them")] = Field(
        default_factory=dict
    )
    workspace: Annotated[
        Annotated[str, NOT_EMPTY] | Workspace | None,
        Key("the folder that Experts work in, from this file's; by default where you are; a table, see `workspace`"),
    ] = None
    """Once read, the path is absolute; None leaves it to whoever runs them."""
    includes: Annotated[
        tuple[_Filled, ...],
        Key("further files, or patterns of them, whose Experts are taken in", name="include"),
    ] = ()
    """Once read, absolute."""
    audit: Annotated[
        Audit | None, Key("where the heads of logs are kept besides, and how they are signed, see `[audit]`")
    ] = None
    retention: Annotated[
        Retention | None, Key("which Jobs `perstack task run-due` and `perstack prune` remove, see `[retention]`")
    ] = None
    workers: Annotated[Workers | None, Key("who drives what is queued, see `[workers]`")] = None
    permissions: Annotated[
        Permissions | None, Key("which calls run, ask a person, or never run, see `[permissions]`")
    ] = None
    budget: _Budget = None
    prices: Annotated[
        tuple[Price, ...], Key("what models cost, by `provider/model`, before what is published, see `[prices]`")
    ] = ()
    models: Annotated[dict[str, WrittenModels], Key("names for models, see `[models]`")] = Field(default_factory=dict)
    limits: Annotated[
        tuple[ProviderLimits, ...], Key("what may be asked of an endpoint at once and in a minute, see `[limits]`")
    ] = ()
    schedules: Annotated[
        tuple[Schedule, ...], Key("Jobs that are started by a cron line, by the schedule's name, see `[schedules]`")
    ] = ()
    experts: Annotated[dict[str, Expert], Key("the Experts, by their key")] = Field(default_factory=dict)
    recorded_permissions: Permissions | None = None
    """Those that iterations were started with, which hold besides those of today."""
    path: str | None = None
    """The file it was read from, absolute; None when it was made in Python."""
    files: tuple[str, ...] = ()
    """That file and those that it includes, absolute."""
    broken: Annotated[dict[str, tuple[Problem, ...]], AsIs()] = Field(default_factory=dict)
    """Experts that are declared and cannot be run, by key, and why."""

    @property
    def folder(self) -> str | None:
        """The folder that Experts work in; None leaves it to whoever runs them."""
        return self.workspace.path if isinstance(self.workspace, Workspace) else self.workspace

    @property
    def snapshots(self) -> SnapshotPolicy | None:
        """Whether the files in it are recorded, and how; None: they are not."""
        place = self.workspace
        if not isinstance(place, Workspace) or not place.snapshots:
            return None
        return SnapshotPolicy(max_file_size=place.max_file_size)

    def expert(self, key: str) -> Expert | None:
        """The Expert of that key; `name@version` matches `name` if that version is the one defined."""
        found = self.experts.get(key)
        if found is not None:
            return found
        name, separator, version = key.rpartition("@")
        if not separator or not name:
            return None
        found = self.experts.get(name)
        return found if found is not None and found.version == version else None

    def check_broken(self, key: str) -> None:
        """Raises DefinitionError, with all that is wrong, for an Expert that is declared and cannot be run."""
        problems = self.broken.get(key) or self.broken.get(key.rpartition("@")[0])
        if problems:
            raise DefinitionError(problems)


def with_skills_required(expert: Expert) -> Expert:
    """The definition with every skill that can be missing declared as required."""
    skills = tuple(
        skill if isinstance(skill, InteractiveSkill | AgentSkill) else skill.model_copy(update={"required": True})
        for skill in expert.skills
    )
    return expert.model_copy(update={"skills": skills})
