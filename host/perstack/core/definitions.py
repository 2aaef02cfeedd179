"""What an Expert is: the definitions that perstack.toml is read into.

Source of the names: Perstack's perstack.toml reference. Times are milliseconds.
"""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from perstack.core.audit import Audit
from perstack.core.base import Fact, JsonObject, falsy
from perstack.core.context import ContextKeys, ContextPolicy
from perstack.core.keys import BROKEN, NOT_EMPTY, AsIs, InText, Key, Rule, at_least, at_most
from perstack.core.policy.permissions import Permissions
from perstack.core.price import Price as Price
from perstack.core.results import result_schema_of
from perstack.core.retention import Retention
from perstack.core.rules import (
    schema_of,
    wrong_budget,
    wrong_domain,
    wrong_entry,
    wrong_expert_key,
    wrong_issuer,
    wrong_number,
    wrong_runtime_level,
    wrong_version,
)
from perstack.core.sandbox import Sandbox
from perstack.core.tools import Subject
from perstack.errors import DefinitionError, Problem

ReasoningBudget = Literal["none", "minimal", "low", "medium", "high"] | int
"""How much a model may think: a word that each provider maps, or a number of tokens."""

ToolSearch = Literal["auto", "on", "off"]
"""Whether a model is shown all tools: `auto` defers those beyond a budget behind a search, `on` all that can be."""

BASE_SKILL = "@perstack/base"

_Filled = Annotated[str, NOT_EMPTY]

_Model = Annotated[str | None, NOT_EMPTY, Key("the model's name, as its provider spells it")]
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

_KIND = Key("which kind of skill this is", is_required=True)
_Polling = Annotated[
    bool,
    Field(exclude_if=falsy),
    Key("its tools are made for waiting: calling one again and again is not a loop; false if not given"),
]
_LazyInit = Annotated[bool, Key("connect at the first use; false if not given")]
_Runtime = Annotated[str | None, NOT_EMPTY, Key("where programs of tools run; `local` if not given")]
_Sampling = Annotated[bool, Key("let the server ask the Expert's model for generations; false if not given")]
_CallTimeout = Annotated[int | None, at_least(1), Key("milliseconds that one call may take")]
_Required = Annotated[
    bool,
    Field(exclude_if=falsy),
    Key("end the Run before its model is called if this skill is missing; false if not given"),
]


_LEFT_OUT = Field(exclude_if=lambda value: value is None)
_ResultLimit = Annotated[
    int | None,
    _LEFT_OUT,
    at_least(200),
    Key("characters of a delegate's result that its caller sees at once; 20000 if not given"),
]


class _SkillFields(Fact):
    description: Annotated[str | None, Key("what it is for")] = None
    rule: Annotated[str | None, Key("for the model: how and when to use these tools")] = None
    pick: Annotated[tuple[str, ...], Key("only these tools (patterns)")] = ()
    omit: Annotated[tuple[str, ...], Key("not these tools (patterns)")] = ()
    polling: _Polling = False


_Pin = Annotated[
    bool, Field(exclude_if=falsy), Key("never leave its results out of a full context; false if not given")
]


class McpTool(Subject):
    """What the arguments of one tool of an MCP server are: no server says that of its own tools."""

    name: str
    pin: _Pin = False


_McpTools = Annotated[
    tuple[McpTool, ...],
    Field(exclude_if=falsy),
    Key("which arguments of its tools permission rules read as paths, addresses or commands, by the tool's name"),
]


class McpStdioSkill(_SkillFields):
    """An MCP server as a child process. `@perstack/base` declared this way means the built-in one."""

    type: Annotated[Literal["mcpStdioSkill"], _KIND] = "mcpStdioSkill"
    name: str
    command: Annotated[str, Key("the command that starts the server; `npx` if not given")] = "npx"
    package_name: Annotated[str | None, Key("the package that `npx` or `uvx` runs")] = None
    args: Annotated[tuple[str, ...], Key("further arguments")] = ()
    required_env: Annotated[tuple[str, ...], Key("variables that the server must be given")] = ()
    env: Annotated[
        dict[str, str],
        Field(exclude_if=falsy),
        Key("further variables for the server, as texts; `${NAME}` stands for one of yours"),
    ] = Field(default_factory=dict)
    allowed_domains: Annotated[
        tuple[Annotated[str, Rule(wrong_domain)], ...],
        Key("its domains, `example.com` or `*.example.com`; enforced in a sandbox, see `runtime`"),
    ] = ()
    lazy_init: _LazyInit = False
    sampling: _Sampling = False
    timeout: _CallTimeout = None
    required: _Required = False
    tools: _McpTools = ()


class OAuth(Fact):
    """How a remote server is logged in to; `${NAME}` in a text stands for a variable of the environment."""

    flow: Annotated[
        Literal["authorizationCode", "clientCredentials"],
        Key("whether a person logs in, which is taken if not given, or the client itself"),
    ] = "authorizationCode"
    client_id: Annotated[
        str | None,
        NOT_EMPTY,
        Key("the client's id, or the address of its metadata; registered at login if not given"),
    ] = None
    client_secret: Annotated[str | None, NOT_EMPTY, Key("the client's secret: name a variable, `${NAME}`")] = None
    private_key: Annotated[
        str | None, NOT_EMPTY, Key("for `clientCredentials` without a secret: a key in PEM, `${NAME}`")
    ] = None
    """Signs an assertion that stands in for the secret (RFC 7523)."""
    issuer: Annotated[
        str | None,
        NOT_EMPTY,
        Rule(wrong_issuer),
        Key("the authorization server that the client belongs to: no other is given its secret"),
    ] = None
    scopes: Annotated[tuple[_Filled, ...], Key("what to ask for; if not given, what the server wants")] = ()


class McpSseSkill(_SkillFields):
    """A remote MCP server."""

    type: Annotated[Literal["mcpSseSkill"], _KIND] = "mcpSseSkill"
    name: str
    endpoint: Annotated[_Filled, Key("the server's address, public HTTPS")]
    headers: Annotated[dict[str, str], Key("HTTP headers to send")] = Field(default_factory=dict)
    oauth: Annotated[OAuth | None, Key("how to log in, see `oauth` below")] = None
    allow_local_network: Annotated[bool, Key("let `endpoint` be plain HTTP or a private address")] = False
    lazy_init: _LazyInit = False
    sampling: _Sampling = False
    timeout: _CallTimeout = None
    required: _Required = False
    tools: _McpTools = ()


class InteractiveTool(Fact):
    """A tool that a person or the application answers."""

    name: str
    description: Annotated[str | None, Key("what the tool is for")] = None
    input_schema: Annotated[
        JsonObject,
        InText(schema_of),
        Key("a JSON schema of an object, written as JSON text", name="inputJsonSchema", is_required=True),
    ] = Field(default_factory=dict)
    approval: Annotated[
        bool,
        Key(
            "whether it asks for approval, which only a yes or a no answers: the Job pauses as `human_approval`;"
            " false if not given"
        ),
    ] = False
    pin: _Pin = False


class InteractiveSkill(_SkillFields):
    """Tools answered by a person; only a Coordinator is shown them."""

    type: Annotated[Literal["interactiveSkill"], _KIND] = "interactiveSkill"
    name: str
    tools: Annotated[
        tuple[InteractiveTool, ...], Key("the tools that a person answers, by name", is_required=True)
    ] = ()


class PluginSkill(_SkillFields):
    """Tools from a Python package, found through the `perstack` entry point group."""

    type: Annotated[Literal["pluginSkill"], _KIND] = "pluginSkill"
    name: str
    plugin: Annotated[_Filled, Key("the plugin's name, as `perstack plugins` lists it")]
    settings: Annotated[
        JsonObject, Key("settings as the plugin's page names them; `${NAME}` stands for a variable of yours")
    ] = Field(default_factory=dict)
    required: _Required = False


Skill = Annotated[McpStdioSkill | McpSseSkill | InteractiveSkill | PluginSkill, Field(discriminator="type")]


def is_base_skill(skill: Skill) -> bool:
    """Whether a declaration means the built-in base skill, whatever it is called and whichever version it pins."""
    if not isinstance(skill, McpStdioSkill):
        return False
    package = skill.package_name or ""
    return skill.name == BASE_SKILL or package == BASE_SKILL or package.startswith(f"{BASE_SKILL}@")


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
    skills: Annotated[tuple[Skill, ...], Key("its tools, by the skill's name")] = ()
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
    runtime: _Runtime = None
    sandbox: Annotated[
        Sandbox | None, Key("what programs of tools may reach besides, and their limits, see `[sandbox]`")
    ] = None
    env_path: Annotated[tuple[_Filled, ...], Key("files with environment variables, from this file's folder")] = ()
    storage: Annotated[_Filled, Key("where state is kept, from this file's folder; `file:perstack` if not given")] = (
        "file:perstack"
    )
    workspace: Annotated[
        str | None, NOT_EMPTY, Key("the folder that Experts work in, from this file's; by default where you are")
    ] = None
    """Absolute; None leaves it to whoever runs them."""
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
    permissions: Annotated[
        Permissions | None, Key("which calls run, ask a person, or never run, see `[permissions]`")
    ] = None
    budget: _Budget = None
    prices: Annotated[
        tuple[Price, ...], Key("what models cost, by `provider/model`, before what is published, see `[prices]`")
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
        skill if isinstance(skill, InteractiveSkill) else skill.model_copy(update={"required": True})
        for skill in expert.skills
    )
    return expert.model_copy(update={"skills": skills})
