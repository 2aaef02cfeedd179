"""The skills of an Expert: where its tools, and what it knows on demand, come from."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from perstack.core.agent_skills import wrong_skill_name
from perstack.core.base import Fact, JsonObject, falsy
from perstack.core.keys import NOT_EMPTY, InText, Key, Rule, at_least
from perstack.core.rules import schema_of, wrong_domain, wrong_issuer
from perstack.core.tools import Subject

BASE_SKILL = "@perstack/base"

_Filled = Annotated[str, NOT_EMPTY]

_KIND = Key("which kind of skill this is", is_required=True)
_Polling = Annotated[
    bool,
    Field(exclude_if=falsy),
    Key("its tools are made for waiting: calling one again and again is not a loop; false if not given"),
]
_LazyInit = Annotated[bool, Key("connect at the first use; false if not given")]
_Sampling = Annotated[bool, Key("let the server ask the Expert's model for generations; false if not given")]
_CallTimeout = Annotated[int | None, at_least(1), Key("milliseconds that one call may take")]
_Required = Annotated[
    bool,
    Field(exclude_if=falsy),
    Key("end the Run before its model is called if this skill is missing; false if not given"),
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


class AgentSkill(Fact):
    """A folder with a SKILL.md, in the public format: what an Expert knows, read when it is needed."""

    type: Annotated[Literal["agentSkill"], _KIND] = "agentSkill"
    name: Annotated[str, Rule(wrong_skill_name)]
    """That of its folder."""
    path: Annotated[_Filled, Key("the folder with its SKILL.md, from this file's folder")]
    """Once read, absolute."""
    description: str = Field(default="", exclude_if=falsy)
    """What it is for, as its SKILL.md said when the Run was started."""
    digest: str = Field(default="", exclude_if=falsy)
    """Of its files then: `core.agent_skills`."""


Skill = Annotated[McpStdioSkill | McpSseSkill | InteractiveSkill | PluginSkill, Field(discriminator="type")]
"""One that offers tools of its own."""

AnySkill = Annotated[
    McpStdioSkill | McpSseSkill | InteractiveSkill | PluginSkill | AgentSkill, Field(discriminator="type")
]


def with_tools(skills: Iterable[AnySkill]) -> tuple[Skill, ...]:
    """Those that offer tools of their own."""
    return tuple(skill for skill in skills if not isinstance(skill, AgentSkill))


def with_base(skills: Iterable[AnySkill]) -> list[Skill]:
    """The declared skills that offer tools, with the base skill in front if none of them is it."""
    offering = with_tools(skills)
    if any(is_base_skill(skill) for skill in offering):
        return list(offering)
    return [McpStdioSkill(name=BASE_SKILL, package_name=BASE_SKILL), *offering]


def agent_skills(skills: Iterable[AnySkill]) -> tuple[AgentSkill, ...]:
    """Those that are folders of knowledge."""
    return tuple(skill for skill in skills if isinstance(skill, AgentSkill))


def is_base_skill(skill: Skill) -> bool:
    """Whether a declaration means the built-in base skill, whatever it is called and whichever version it pins."""
    if not isinstance(skill, McpStdioSkill):
        return False
    package = skill.package_name or ""
    return skill.name == BASE_SKILL or package == BASE_SKILL or package.startswith(f"{BASE_SKILL}@")
