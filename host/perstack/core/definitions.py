"""What an Expert is: the definitions that perstack.toml is read into.

Source of the names: Perstack's perstack.toml reference. Times are milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from perstack.core.base import Fact, JsonObject, falsy
from perstack.errors import DefinitionError, Problem

ReasoningBudget = Literal["none", "minimal", "low", "medium", "high"] | int
"""How much a model may think: a word that each provider maps, or a number of tokens."""

ToolSearch = Literal["auto", "on", "off"]
"""Whether a model is shown all tools: `auto` defers those beyond a budget behind a search, `on` all that can be."""

TOOL_SEARCHES = ("auto", "on", "off")

BASE_SKILL = "@perstack/base"

EXPERT_KEY = r"^(@[a-z0-9][a-z0-9._-]*/)?[a-zA-Z0-9][a-zA-Z0-9._-]*$"
"""A legal Expert key without its version: `name` or `@org/name`."""


class _SkillFields(Fact):
    description: str | None = None
    rule: str | None = None
    """Told to the model: how and when to use this skill's tools."""
    pick: tuple[str, ...] = ()
    """Only these tools (globs); empty means all."""
    omit: tuple[str, ...] = ()
    """Not these tools (globs)."""


class McpStdioSkill(_SkillFields):
    """An MCP server as a child process. `@perstack/base` declared this way means the built-in one."""

    type: Literal["mcpStdioSkill"] = "mcpStdioSkill"
    name: str
    command: str = "npx"
    package_name: str | None = None
    args: tuple[str, ...] = ()
    required_env: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict, exclude_if=falsy)
    """Further variables; here and in `args`, `${NAME}` in a text stands for a variable of the environment."""
    allowed_domains: tuple[str, ...] = ()
    lazy_init: bool = False
    sampling: bool = False
    """Whether the server may ask the Run's own model for generations."""
    timeout: int | None = None
    required: bool = Field(default=False, exclude_if=falsy)
    """Whether a Run without it is to end before its model is called."""


class OAuth(Fact):
    """How a remote server is logged in to; `${NAME}` in a text stands for a variable of the environment."""

    flow: Literal["authorizationCode", "clientCredentials"] = "authorizationCode"
    """A person logs in once, or the client itself each time."""
    client_id: str | None = None
    """None: the client registers itself."""
    client_secret: str | None = None
    private_key: str | None = None
    """PEM: signs an assertion that stands in for the secret (RFC 7523)."""
    issuer: str | None = None
    """The only authorization server that is given the secret; None is the one that the server names."""
    scopes: tuple[str, ...] = ()
    """Empty: what the server asks for."""


class McpSseSkill(_SkillFields):
    """A remote MCP server."""

    type: Literal["mcpSseSkill"] = "mcpSseSkill"
    name: str
    endpoint: str
    headers: dict[str, str] = Field(default_factory=dict)
    oauth: OAuth | None = None
    allow_local_network: bool = False
    lazy_init: bool = False
    sampling: bool = False
    """Whether the server may ask the Run's own model for generations."""
    timeout: int | None = None
    required: bool = Field(default=False, exclude_if=falsy)
    """Whether a Run without it is to end before its model is called."""


class InteractiveTool(Fact):
    """A tool that a person or the application answers."""

    name: str
    description: str | None = None
    input_schema: JsonObject = Field(default_factory=dict)
    """The JSON schema that `inputJsonSchema` held as text."""
    approval: bool = False
    """Whether a person is asked to approve of something, rather than to tell something."""


class InteractiveSkill(_SkillFields):
    """Tools answered by a person; only a Coordinator is shown them."""

    type: Literal["interactiveSkill"] = "interactiveSkill"
    name: str
    tools: tuple[InteractiveTool, ...] = ()


class PluginSkill(_SkillFields):
    """Tools from a Python package, found through the `perstack` entry point group."""

    type: Literal["pluginSkill"] = "pluginSkill"
    name: str
    plugin: str
    settings: JsonObject = Field(default_factory=dict)
    required: bool = Field(default=False, exclude_if=falsy)
    """Whether a Run without it is to end before its model is called."""


Skill = Annotated[McpStdioSkill | McpSseSkill | InteractiveSkill | PluginSkill, Field(discriminator="type")]


def is_base_skill(skill: Skill) -> bool:
    """Whether a declaration means the built-in base skill, whatever it is called and whichever version it pins."""
    if not isinstance(skill, McpStdioSkill):
        return False
    package = skill.package_name or ""
    return skill.name == BASE_SKILL or package == BASE_SKILL or package.startswith(f"{BASE_SKILL}@")


class ProviderSetting(Fact):
    """`[provider]`: which endpoint, and its settings as the provider's own documentation names them."""

    provider_name: str
    setting: JsonObject = Field(default_factory=dict)


class ExpertEvaluator(Fact):
    """An Expert that judges what another has made."""

    expert: str


class FunctionEvaluator(Fact):
    """A Python function, `package.module:function`."""

    entry: str


Evaluator = str | tuple[str, ...] | ExpertEvaluator | FunctionEvaluator
"""A line for the shell, a program with its arguments, an Expert, or a function."""

Direction = Literal["higher", "lower"]
DIRECTIONS: tuple[Direction, ...] = ("higher", "lower")


class Iterate(Fact):
    """How an Expert is run again and again until what it makes is good enough."""

    evaluator: Evaluator
    target: float | None = None
    """None: all iterations are run, and the best one counts."""
    max_iterations: int = 5
    metric: str | tuple[str, ...] = "score"
    """What is compared; of several the worst counts."""
    direction: Direction = "higher"
    """Which is better."""
    accumulate: bool = False
    """Whether an iteration is told of all those before it, or of the last."""
    timeout: int = 600_000
    """Milliseconds that a command or a function may take."""


class Expert(Fact):
    """One agent with one purpose."""

    key: str
    version: str = "1.0.0"
    min_runtime_version: str | None = None
    description: str = ""
    instruction: str
    delegates: tuple[str, ...] = ()
    """Keys of the Experts it may call."""
    tags: tuple[str, ...] = ()
    skills: tuple[Skill, ...] = ()
    model: str | None = None
    """Overrides the file's model for this Expert."""
    provider: ProviderSetting | None = None
    reasoning_budget: ReasoningBudget | None = None
    max_steps: int | None = None
    max_retries: int | None = None
    timeout: int | None = None
    retry_timeout: int | None = None
    tool_search: ToolSearch | None = None
    iterate: Iterate | None = None


class Limits(Fact):
    """What a Job and its generations are held to."""

    max_steps: int | None = None
    """Bounds the sum of the steps of all Runs of the Job; None is no bound."""
    max_retries: int = 5
    """How often one generation is tried again."""
    timeout: int = 300_000
    """Milliseconds that one try of a generation may take."""
    retry_timeout: int = 900_000
    """Milliseconds that one generation may take with all its tries."""


class Audit(Fact):
    """Where the heads of logs are kept out of reach of those who write the logs."""

    anchor: str | tuple[str, ...] | None = None
    """`file:PATH`, an address, or a program with its arguments."""
    signing_key: str | None = None
    """`file:PATH` or `env:NAME`: where the key is, never the key itself."""


class Project(Fact):
    """Everything that one perstack.toml, with its includes and overrides, says."""

    experts: dict[str, Expert] = Field(default_factory=dict)
    model: str | None = None
    provider: ProviderSetting | None = None
    reasoning_budget: ReasoningBudget | None = None
    runtime: str | None = None
    storage: str = "file:perstack"
    workspace: str | None = None
    """The folder that Experts work in, absolute; None leaves it to whoever runs them."""
    max_steps: int | None = None
    max_retries: int | None = None
    timeout: int | None = None
    retry_timeout: int | None = None
    tool_search: ToolSearch | None = None
    env_path: tuple[str, ...] = ()
    audit: Audit | None = None
    path: str | None = None
    """The file it was read from, absolute; None when it was made in Python."""
    files: tuple[str, ...] = ()
    """That file and those that it includes, absolute."""
    includes: tuple[str, ...] = ()
    """The names and patterns that it includes files by, absolute."""
    broken: dict[str, tuple[Problem, ...]] = Field(default_factory=dict)
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


def with_delegates(project: Project, keys: Iterable[str]) -> list[Expert]:
    """These Experts, and all that they may delegate to, each once. Keys are ones that the project has."""
    found: dict[str, Expert] = {}
    waiting = list(keys)
    while waiting:
        expert = project.expert(waiting.pop(0))
        if expert is not None and expert.key not in found:
            found[expert.key] = expert
            waiting += expert.delegates
    return list(found.values())
