"""Skills of an Expert: the sources of its tools, and folders of knowledge that it reads when needed."""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from fnmatch import fnmatchcase
from functools import cache
from typing import Annotated, Literal, get_args

from pydantic import Field

from perstack.core.base.records import EMPTIED, TEXT, JsonObject, Record, Text, falsy, snake_cased
from perstack.core.definitions.keys import (
    NOT_EMPTY,
    InText,
    Key,
    Rule,
    at_least,
    domain_problem,
    issuer_problem,
    parse_schema,
)

# Tools as the agent loop knows them, and decisions about calls.

ToolKind = Literal["tool", "todo", "clearTodo", "attemptCompletion", "delegate", "interactive", "refused"]
"""Part that answers a call: a skill, the loop itself (todo, clearTodo, attemptCompletion), another Run, or a person.
`refused`: nobody; the call is invalid, and the model sees why."""

Effect = Literal["readOnly", "idempotent", "sideEffect"]  # only calls of the first two are repeated after a crash

COUNTED_CALLS: frozenset[ToolKind] = frozenset(("tool", "delegate"))  # kinds of calls that count against a budget

LOOP_KINDS: frozenset[ToolKind] = frozenset(("todo", "clearTodo", "attemptCompletion", "interactive", "refused"))

NO_ARGUMENTS: JsonObject = {"type": "object", "properties": {}}

LEGAL_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


_Arguments = Annotated[tuple[Annotated[str, NOT_EMPTY], ...], Field(exclude_if=falsy)]
_Argument = Annotated[str, NOT_EMPTY, Field(exclude_if=falsy)]


class Subject(Record):
    """Meaning of a tool's arguments: the bare glob of a permission rule is compared with arguments named here."""

    paths: Annotated[_Arguments, Key("arguments that are paths in the workspace, or lists of them", effect="text")] = ()
    urls: Annotated[_Arguments, Key("arguments that are addresses, or lists of them", effect="text")] = ()
    script: Annotated[_Argument, Key("argument with a whole command line for a shell", effect="text")] = ""
    program: Annotated[_Argument, Key("argument that names a program to run", effect="text")] = ""
    arguments: Annotated[_Argument, Key("argument with the list of that program's arguments", effect="text")] = ""
    folder: Annotated[
        _Argument,
        Key("argument with the working folder, a path in the workspace, which `paths` are relative to", effect="text"),
    ] = ""
    variables: Annotated[
        _Argument, Key("argument with the object of additional variables of the program", effect="text")
    ] = ""
    is_nothing: Annotated[bool, Field(exclude_if=falsy)] = False  # True if the tool does nothing: no rule applies to it

    any_case: Annotated[bool, Field(exclude_if=falsy)] = False  # True if names of arguments may be in camelCase as well

    reads: Annotated[tuple[str, ...], Field(exclude_if=falsy)] = ()  # names in `paths` of files that the tool reads
    writes: Annotated[
        tuple[str, ...], Field(exclude_if=falsy)
    ] = ()  # names in `paths` of files that it changes, creates or removes

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all arguments that have a meaning."""
        one_each = (self.script, self.program, self.arguments, self.folder, self.variables)
        return (*self.paths, *self.urls, *filter(None, one_each))


PathUse = Literal["read", "write"]  # what a tool does with a path; also the rules `read(PATH)` and `write(PATH)`


def path_uses(subject: Subject, argument: str, effect: Effect) -> tuple[PathUse, ...]:
    """Return how a tool uses the paths in an argument: both ways, if it declares neither and is not read-only."""
    uses: list[PathUse] = []
    if argument in subject.reads:
        uses.append("read")
    if argument in subject.writes:
        uses.append("write")
    if uses:
        return tuple(uses)
    return ("read",) if effect == "readOnly" else ("read", "write")


def named_arguments(subject: Subject | None, args: JsonObject) -> JsonObject:
    """Return the arguments of a call under the names in the tool's schema and in permission rules."""
    return snake_cased(args) if subject is not None and subject.any_case else args


class ToolSpec(Record):
    """Tool that a model may be offered."""

    name: str  # name as the model sees it: legal for every provider, unique within one Run
    description: str = ""
    input_schema: JsonObject = Field(default_factory=lambda: NO_ARGUMENTS)
    skill_name: str = ""
    kind: ToolKind = "tool"
    effect: Effect = "sideEffect"
    approval: bool = Field(default=False, exclude_if=falsy)
    polling: bool = Field(default=False, exclude_if=falsy)  # True for a tool that waits: repeated calls are no loop
    pin: bool = Field(default=False, exclude_if=falsy)  # True if its results are never left out of a full context
    target: str | None = None  # Expert's key, for a delegate; the server's name of the tool, if `name` had to differ
    subject: Subject | None = None


CATALOGUE_STAGE, ARGUMENTS_STAGE, RULES_STAGE = "catalogue", "arguments", "rules"
"""Names of the stages that `DecidedCall.stage` need not record, because other fields show which one decided."""


class Strictness(IntEnum):
    """Verdicts on a call, from the mildest to the strictest."""

    ALLOWED = 0
    APPROVED = 1  # allowed by an approval for the whole Job
    ASKED = 2
    DENIED = 3


STRICTNESS_WORDS = ("allowed", "approved for the whole Job", "waiting for approval", "denied")


class DecidedCall(Record):
    """Host's decision about one tool call of a reply. The arguments are in the reply."""

    id: str
    tool_name: str
    skill_name: str = Field(default="", exclude_if=lambda value: not value)
    kind: ToolKind = Field(default="tool", exclude_if=lambda value: value == "tool")
    effect: Effect = Field(default="sideEffect", exclude_if=lambda value: value == "sideEffect")
    polling: bool = Field(default=False, exclude_if=falsy)
    pin: bool = Field(default=False, exclude_if=falsy)
    problem: Annotated[str | None, TEXT] = None  # text that the model sees for `refused`
    target: str | None = None
    rule: Text = Field(default="", exclude_if=falsy)
    asks: bool = Field(default=False, exclude_if=falsy)  # True if a person must approve the call before it runs
    # protected paths, relative to the workspace, that a rule opens for this call
    opens: Annotated[tuple[str, ...], EMPTIED] = Field(default=(), exclude_if=falsy)
    approved_by: str = Field(default="", exclude_if=falsy)  # id of the event with the Job-wide approval that covers it
    # Resolved paths by the path as written, for paths that rules were asked about and that a link led to other places.
    ways: Annotated[dict[str, tuple[str, ...]], EMPTIED] = Field(
        default_factory=dict[str, tuple[str, ...]], exclude_if=falsy
    )
    definition: str = Field(default="", exclude_if=falsy)  # digest of the tool's definition; empty for the host's tools
    changed: str = Field(default="", exclude_if=falsy)  # why nobody has agreed to `definition`, so that each call asks
    # stage that refused the call or has a person asked; empty if `decider` follows from the other fields
    stage: str = Field(default="", exclude_if=falsy)

    @property
    def decider(self) -> str:
        """Stage whose verdict this is; empty for a call that every stage allows."""
        if self.stage or self.rule:
            return self.stage or RULES_STAGE
        if self.kind != "refused":
            return ""
        return ARGUMENTS_STAGE if self.skill_name else CATALOGUE_STAGE

    @property
    def strictness(self) -> Strictness:
        """The verdict as a number, to be compared with others."""
        if self.kind == "refused":
            return Strictness.DENIED
        if self.asks:
            return Strictness.ASKED
        return Strictness.APPROVED if self.approved_by else Strictness.ALLOWED


def without_verdict(decided: DecidedCall) -> DecidedCall:
    """Return a decided call with the verdicts of the first two stages alone.

    The kind of a refused call is lost: with a skill `delegate/…` it becomes a delegation, otherwise a call of a tool.
    """
    kind: ToolKind = "delegate" if decided.skill_name.startswith("delegate/") else "tool"
    plain: dict[str, object] = {"rule": "", "stage": "", "asks": False, "opens": (), "approved_by": "", "problem": None}
    return decided.model_copy(update=plain | ({"kind": kind} if decided.kind == "refused" else {}))


def legal_tool_name(name: str) -> str:
    """Return the nearest name that every provider accepts: `@org/name` becomes `org_name`."""
    cleaned = re.sub(r"[^a-zA-Z0-9_-]+", "_", name).strip("_")[:64]
    return cleaned or "tool"


BASE_SKILL = "@perstack/base"

BASE_GROUPS: Mapping[str, tuple[str, ...]] = {
    "files": (
        *("readTextFile", "readImageFile", "readPdfFile", "getFileInfo", "listDirectory"),
        *("writeTextFile", "appendTextFile", "editTextFile", "moveFile", "deleteFile"),
        *("createDirectory", "deleteDirectory"),
    ),
    "programs": ("exec",),
    "todo": ("todo", "clearTodo"),
}
"""Tools of the base skill by the name of their group, for `pick` and `omit` of a definition file.

Reading a file replaces groups by the names of their tools, so that records, rules and agreements contain no groups. A
test compares the groups with the tools that the skill declares.
"""

ChangingTool = Literal["addSkill", "removeSkill", "addDelegate", "removeDelegate", "addDelegateFromConfig"]
"""Tool with which an Expert changes its own skills and delegates for the rest of its Run."""

CHANGING_TOOLS: tuple[ChangingTool, ...] = get_args(ChangingTool)

_Filled = Annotated[str, NOT_EMPTY]

_KIND = Key("the kind of skill", effect="text", is_required=True)
_Polling = Annotated[
    bool,
    Field(exclude_if=falsy),
    Key("its tools are made for waiting: repeated calls are not a loop; default false", effect="text"),
]
_LazyInit = Annotated[bool, Key("connect at the first use; default false", effect="text")]
_Sampling = Annotated[
    bool, Key("let the server request generations from the Expert's model; default false", effect="pays")
]
_CallTimeout = Annotated[int | None, at_least(1), Key("milliseconds that one call may take", effect="narrows")]
_Required = Annotated[
    bool,
    Field(exclude_if=falsy),
    Key("end the Run before its model is called if this skill is missing; default false", effect="narrows"),
]


class _SkillFields(Record):
    description: Annotated[str | None, Key("purpose of the skill", effect="text")] = None
    rule: Annotated[str | None, Key("for the model: how and when to use these tools", effect="text")] = None
    pick: Annotated[tuple[str, ...], Key("only these tools (patterns)", effect="narrows")] = ()
    omit: Annotated[tuple[str, ...], Key("not these tools (patterns)", effect="narrows")] = ()
    polling: _Polling = False


_Pin = Annotated[
    bool, Field(exclude_if=falsy), Key("never leave its results out of a full context; default false", effect="text")
]


class McpTool(Subject):
    """Meaning of the arguments of one MCP tool, which servers do not declare."""

    name: str
    pin: _Pin = False


_McpTools = Annotated[
    tuple[McpTool, ...],
    Field(exclude_if=falsy),
    Key(
        "which arguments of its tools are paths, addresses or commands for permission rules, by the tool's name",
        effect="table",
    ),
]


class McpStdioSkill(_SkillFields):
    """MCP server as a child process. `@perstack/base` declared this way means the built-in one."""

    type: Annotated[Literal["mcpStdioSkill"], _KIND] = "mcpStdioSkill"
    name: str
    command: Annotated[str, Key("command that starts the server; default `npx`", effect="executes")] = "npx"
    package_name: Annotated[str | None, Key("the package that `npx` or `uvx` runs", effect="executes")] = None
    args: Annotated[tuple[str, ...], Key("further arguments", effect="executes")] = ()
    required_env: Annotated[tuple[str, ...], Key("environment variables that the server needs", effect="executes")] = ()
    env: Annotated[
        dict[str, str],
        Field(exclude_if=falsy),
        Key("additional variables of the server; `${NAME}` stands for one of yours", effect="executes"),
    ] = Field(default_factory=dict)
    allowed_domains: Annotated[
        tuple[Annotated[str, Rule(domain_problem)], ...],
        Key("its domains, `example.com` or `*.example.com`; enforced in a sandbox, see `runtime`", effect="reaches"),
    ] = ()
    lazy_init: _LazyInit = False
    sampling: _Sampling = False
    timeout: _CallTimeout = None
    required: _Required = False
    tools: _McpTools = ()


class OAuth(Record):
    """OAuth login to a remote server; `${NAME}` in a text is replaced by an environment variable."""

    flow: Annotated[
        Literal["authorizationCode", "clientCredentials", "identityAssertion"],
        Key(
            "`authorizationCode` (default): a person logs in; `clientCredentials`: the client itself;"
            " `identityAssertion`: the client for a person, with a token of an identity provider",
            effect="reaches",
        ),
    ] = "authorizationCode"
    client_id: Annotated[
        str | None,
        NOT_EMPTY,
        Key("the client's id, or the address of its metadata; default: registered at login", effect="reaches"),
    ] = None
    client_secret: Annotated[
        str | None, NOT_EMPTY, Key("the client's secret: name a variable, `${NAME}`", effect="reaches")
    ] = None
    private_key: Annotated[  # key that signs an assertion used instead of the secret (RFC 7523)
        str | None,
        NOT_EMPTY,
        Key("for `clientCredentials` without a secret: a key in PEM, `${NAME}`", effect="reaches"),
    ] = None
    identity_file: Annotated[  # holds the token that a person got from the identity provider
        str | None,
        NOT_EMPTY,
        Key(
            "for `identityAssertion`: absolute path of that token, a JWT, which is read for each login; `${NAME}`",
            effect="reads",
        ),
    ] = Field(default=None, exclude_if=falsy)
    identity_endpoint: Annotated[  # token endpoint of an identity provider (RFC 8693, SEP-990)
        str | None,
        NOT_EMPTY,
        Rule(issuer_problem),
        Key(
            "for `identityAssertion`: the identity provider's token endpoint, which is sent that token; `${NAME}`",
            effect="reaches",
        ),
    ] = Field(default=None, exclude_if=falsy)
    identity_client_id: Annotated[
        str | None,
        NOT_EMPTY,
        Key("for `identityAssertion`: the client's id at the identity provider", effect="reaches"),
    ] = Field(default=None, exclude_if=falsy)
    identity_client_secret: Annotated[
        str | None,
        NOT_EMPTY,
        Key("for `identityAssertion`: the client's secret there, if it has one, `${NAME}`", effect="reaches"),
    ] = Field(default=None, exclude_if=falsy)
    issuer: Annotated[
        str | None,
        NOT_EMPTY,
        Rule(issuer_problem),
        Key("authorization server of the client: no other gets its secret", effect="reaches"),
    ] = None
    scopes: Annotated[
        tuple[_Filled, ...], Key("scopes to request; default: what the server wants", effect="reaches")
    ] = ()


class McpSseSkill(_SkillFields):
    """Remote MCP server."""

    type: Annotated[Literal["mcpSseSkill"], _KIND] = "mcpSseSkill"
    name: str
    endpoint: Annotated[_Filled, Key("the server's address, public HTTPS", effect="reaches")]
    headers: Annotated[dict[str, str], Key("HTTP headers to send", effect="reaches")] = Field(default_factory=dict)
    oauth: Annotated[OAuth | None, Key("how to log in, see `oauth` below", effect="table")] = None
    allow_local_network: Annotated[bool, Key("let `endpoint` be plain HTTP or a private address", effect="reaches")] = (
        False
    )
    lazy_init: _LazyInit = False
    sampling: _Sampling = False
    timeout: _CallTimeout = None
    required: _Required = False
    tools: _McpTools = ()


class InteractiveTool(Record):
    """Tool that a person or the application answers."""

    name: str
    description: Annotated[str | None, Key("purpose of the tool", effect="text")] = None
    input_schema: Annotated[
        JsonObject,
        InText(parse_schema),
        Key(
            "a JSON schema of an object, written as JSON text", effect="text", name="inputJsonSchema", is_required=True
        ),
    ] = Field(default_factory=dict)
    approval: Annotated[
        bool,
        Key(
            "it asks for approval, which is answered by yes or no: the Job pauses as `human_approval`; default false",
            effect="text",
        ),
    ] = False
    pin: _Pin = False


class InteractiveSkill(_SkillFields):
    """Tools that a person answers; only a Coordinator is offered them."""

    type: Annotated[Literal["interactiveSkill"], _KIND] = "interactiveSkill"
    name: str
    tools: Annotated[
        tuple[InteractiveTool, ...], Key("the tools that a person answers, by name", effect="table", is_required=True)
    ] = ()


class PluginSkill(_SkillFields):
    """Tools written in Python: of a package in the `perstack` entry point group, or of a file of the project.

    It has either a `plugin` or a `file`. With `functions`, `plugin` names the Expert that they were given to.
    """

    type: Annotated[Literal["pluginSkill"], _KIND] = "pluginSkill"
    name: str
    plugin: Annotated[
        str,
        NOT_EMPTY,
        Field(exclude_if=falsy),
        Key("the plugin's name, as `perstack plugins` lists it; or name a `file`", effect="executes"),
    ] = ""
    settings: Annotated[
        JsonObject,
        Key("settings that the plugin's page names; `${NAME}` stands for one of your variables", effect="executes"),
    ] = Field(default_factory=dict)
    required: _Required = False
    file: Annotated[  # relative to the folder of the definition after reading
        str,
        NOT_EMPTY,
        Field(exclude_if=falsy),
        Key(
            "in place of `plugin`: Python file whose functions are the tools, relative to this file and in its folder",
            effect="executes",
        ),
    ] = ""
    functions: Annotated[tuple[str, ...], Field(exclude_if=falsy)] = ()  # names of functions given in Python


MAX_SKILL_NAME_CHARS = 64


def skill_name_problem(name: str) -> str | None:
    plain = unicodedata.normalize("NFKC", name)
    if not plain:
        return "must not be empty"
    if len(plain) > MAX_SKILL_NAME_CHARS:
        return f"has {len(plain)} characters: shorten it to {MAX_SKILL_NAME_CHARS}"
    if plain != plain.lower():
        return f"must be in lower-case letters, not `{plain}`"
    if not all(char.isalnum() or char == "-" for char in plain):
        return f"must consist of letters, digits and hyphens, not `{plain}`"
    if plain.startswith("-") or plain.endswith("-") or "--" in plain:
        return f"must have single hyphens, and none at its start or end, not `{plain}`"
    return None


class AgentSkill(Record):
    """Folder with a SKILL.md in the public format: knowledge that an Expert reads when needed."""

    type: Annotated[Literal["agentSkill"], _KIND] = "agentSkill"
    name: Annotated[str, Rule(skill_name_problem)]
    path: Annotated[
        _Filled, Key("folder of the SKILL.md, relative to this file", effect="reads", is_path=True)
    ]  # absolute after reading
    description: str = Field(default="", exclude_if=falsy)  # purpose, as the SKILL.md said when the Run started
    digest: str = Field(default="", exclude_if=falsy)  # digest of its files at that time
    is_found: bool = Field(default=False, exclude=True)  # True if only a pattern names it: it is skipped if unusable


# Functions that a Python program gives to an Expert. A definition records only their names: a program that resumes its
# Runs must give the functions again.

OWN_FUNCTIONS = 'for functions of your own write `file = "tools.py"` in place of `plugin`, or Expert(…, tools=[…])'
"""Remedy for a plugin that is not installed."""

FUNCTIONS_SKILL = "tools"  # name of the skill with the functions that an Expert was given in Python

TOOL_OPTIONS = "__perstack_tool__"  # attribute of a function with options of its tool, such as its `name`


def functions_skill(expert_key: str, functions: Iterable[object]) -> PluginSkill:
    """Return the skill that names the functions of an Expert. Raises ValueError for a function without a name."""
    names: list[str] = []
    for function in functions:
        options: object = getattr(function, TOOL_OPTIONS, None)
        name = getattr(options, "name", None) or getattr(function, "__name__", None)
        if not isinstance(name, str):
            raise ValueError(f"{function!r} has no name: write a function around it, `def NAME(…)`")
        names.append(name)
    return PluginSkill(name=FUNCTIONS_SKILL, plugin=f"python:{expert_key}", functions=tuple(names))


Skill = Annotated[McpStdioSkill | McpSseSkill | InteractiveSkill | PluginSkill, Field(discriminator="type")]

AnySkill = Annotated[
    McpStdioSkill | McpSseSkill | InteractiveSkill | PluginSkill | AgentSkill, Field(discriminator="type")
]


def tool_skills(skills: Iterable[AnySkill]) -> tuple[Skill, ...]:
    """Return the skills that offer tools of their own."""
    return tuple(skill for skill in skills if not isinstance(skill, AgentSkill))


def with_base_skill(skills: Iterable[AnySkill]) -> list[Skill]:
    """Return the declared skills that offer tools; the base skill comes first if it is not declared."""
    offering = tool_skills(skills)
    if any(is_base_skill(skill) for skill in offering):
        return list(offering)
    return [_undeclared_base(), *offering]


@cache
def _undeclared_base() -> McpStdioSkill:
    return McpStdioSkill(name=BASE_SKILL, package_name=BASE_SKILL)


def find_base_skill(skills: Iterable[AnySkill]) -> Skill:
    """Return the base skill as declared; without a declaration the default that every Expert has."""
    return next(skill for skill in with_base_skill(skills) if is_base_skill(skill))


def picked_changing_tools(base: Skill) -> tuple[ChangingTool, ...]:
    """Return the tools with which an Expert changes itself, as far as the base skill's `pick` and `omit` offer them."""
    return tuple(name for name in CHANGING_TOOLS if name in base.pick and is_picked(name, (), base.omit))


def agent_skills(skills: Iterable[AnySkill]) -> tuple[AgentSkill, ...]:
    """Return the skills that are folders of knowledge."""
    return tuple(skill for skill in skills if isinstance(skill, AgentSkill))


def shared_definition(definition: Skill) -> Skill:
    """Return what identifies a skill: its definition without the keys about its use by one Expert."""
    return definition.model_copy(update={"pick": (), "omit": (), "rule": None, "description": None, "required": False})


def is_base_skill(skill: Skill) -> bool:
    """Return True if a declaration means the built-in base skill, under any name and version."""
    if not isinstance(skill, McpStdioSkill):
        return False
    package = skill.package_name or ""
    return skill.name == BASE_SKILL or package == BASE_SKILL or package.startswith(f"{BASE_SKILL}@")


def apply_definition(spec: ToolSpec, definition: Skill) -> ToolSpec:
    """Return the tool with what perstack.toml declares about it."""
    if definition.polling and not spec.polling:
        spec = spec.model_copy(update={"polling": True})
    if not isinstance(definition, McpStdioSkill | McpSseSkill):
        return spec
    declared = next((tool for tool in definition.tools if tool.name == spec.name), None)
    if declared is not None and declared.pin:
        spec = spec.model_copy(update={"pin": True})
    is_declared = declared is not None and bool(declared.names) and spec.subject is None
    return spec.model_copy(update={"subject": declared}) if is_declared else spec


def declaration_problems(specs: Sequence[ToolSpec], definition: Skill) -> Iterator[str]:
    """Yield a message for each declaration in perstack.toml about a missing tool or a missing argument."""
    by_name = {spec.name: spec for spec in specs}
    for tool in definition.tools if isinstance(definition, McpStdioSkill | McpSseSkill) else ():
        spec = by_name.get(tool.name)
        if spec is None:
            yield f"perstack.toml describes a tool {tool.name}, which the skill does not have: rename or remove it"
            continue
        properties = spec.input_schema.get("properties")
        arguments = properties if isinstance(properties, dict) else {}
        for name in tool.names if arguments else ():
            if name not in arguments:
                yield f"tool {tool.name} has no argument {name}, which perstack.toml describes"


def without_groups(patterns: Iterable[str]) -> tuple[str, ...]:
    """Return the patterns of a base skill's `pick` or `omit` with the names of tools in place of groups."""
    names = (name for pattern in patterns for name in BASE_GROUPS.get(pattern, (pattern,)))
    return tuple(dict.fromkeys(names))


def is_picked(name: str, pick: Sequence[str], omit: Sequence[str]) -> bool:
    """Return True if `pick` takes the name (empty: all) and `omit` does not remove it; both are globs."""
    picked = not pick or any(fnmatchcase(name, pattern) for pattern in pick)
    return picked and not any(fnmatchcase(name, pattern) for pattern in omit)


# Skill that `ask = true` adds to an Expert. It is an ordinary interactive skill, so only Coordinators are offered its
# tool, and `core.jobs.answer_reading` reads the answers.

ASK_USER = "askUser"

_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "question": {"type": "string", "minLength": 1, "description": "One question, with what the person must know."},
        "options": {
            "type": "array",
            "items": {
                "anyOf": [
                    {"type": "string"},
                    {
                        "type": "object",
                        "properties": {"label": {"type": "string"}, "description": {"type": "string"}},
                        "required": ["label"],
                    },
                ]
            },
            "description": "Possible answers, if there are a few.",
        },
        "several": {"type": "boolean", "description": "Several options may be chosen; the answer is a JSON array."},
        "allowOther": {"type": "boolean", "description": "Another text may be the answer; default true."},
    },
    "required": ["question"],
}

QUESTIONS = "@perstack/ask"


def questions_skill() -> InteractiveSkill:
    """Return the skill with `askUser`."""
    ask_user = InteractiveTool(
        name=ASK_USER,
        description="Ask the person whom you work for a question, and wait for the answer. Ask only what you cannot"
        " find out or decide yourself, one question at a time.",
        input_schema=_SCHEMA,
    )
    return InteractiveSkill(name=QUESTIONS, tools=(ask_user,))
