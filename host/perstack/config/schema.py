"""Every key that perstack.toml knows, table by table; `docs/perstack-toml.md` is checked against this.

Source of the names and limits: Perstack's perstack.toml reference and the schemas of its core package. What only this
host knows is marked in the page. Times are milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from perstack.core.definitions import DIRECTIONS, TOOL_SEARCHES

Kind = Literal[
    "text", "texts", "words", "flag", "number", "decimal", "budget", "table", "json", "domains", "choice", "evaluator",
    "ignored",
]  # fmt: skip
"""`words`: a text, or several. `decimal`: a number that may have a fraction. `json`: a table whose values JSON can
hold. `ignored`: a key of the original that has no effect here.
"""

MAX_DESCRIPTION = 2048
MAX_INSTRUCTION = 20 * 1024
MAX_NAME = 255


@dataclass(frozen=True, slots=True)
class Key:
    """One key: what it takes, and what it means."""

    kind: Kind
    meaning: str
    required: bool = False
    least: int = 0
    """For numbers: the smallest that makes sense. For text: 1 if it must not be blank."""
    longest: int | None = None
    """For text: the most characters."""
    choices: tuple[str, ...] = ()
    """For a choice: the words there are."""


Table = Mapping[str, Key]

_LIMITS: Table = {
    "model": Key("text", "the model's name, as its provider spells it", least=1),
    "reasoningBudget": Key("budget", "how much a model may think"),
    "maxSteps": Key("number", "most steps of a whole Job, over all its Runs", least=1),
    "maxRetries": Key("number", "how often one generation is tried again; 5 if not given"),
    "timeout": Key("number", "milliseconds that one try of a generation may take; 300000 if not given", least=1),
    "retryTimeout": Key(
        "number", "milliseconds that a generation may take with all its tries; 900000 if not given", least=1
    ),
    "provider": Key("table", "which endpoint to use, see `[provider]`"),
    "toolSearch": Key(
        "choice", "whether the model finds tools by a search instead of being shown all", choices=TOOL_SEARCHES
    ),
}

PROJECT: Table = {
    **_LIMITS,
    "runtime": Key("text", "`local`; the original's other runtimes are taken with a warning and run locally"),
    "envPath": Key("texts", "files with environment variables, from this file's folder", least=1),
    "storage": Key("text", "where state is kept, from this file's folder; `file:perstack` if not given", least=1),
    "workspace": Key("text", "the folder that Experts work in, from this file's; by default where you are", least=1),
    "include": Key("texts", "further files, or patterns of them, whose Experts are taken in", least=1),
    "audit": Key("table", "where the heads of logs are kept besides, and how they are signed, see `[audit]`"),
    "experts": Key("table", "the Experts, by their key"),
    "temperature": Key("ignored", "every model runs at its own default temperature"),
    "perstackApiBaseUrl": Key("ignored", "there is no registry to ask: `include` takes in Experts from other files"),
    "perstackBaseSkillCommand": Key("ignored", "the base skill is built in and starts no command"),
    "network": Key("ignored", "say `allowedDomains` in the skill that it is about"),
}

PROVIDER: Table = {
    "providerName": Key("text", "which endpoint; `perstack plugins` lists them", required=True, least=1),
    "setting": Key("json", "settings as that provider's page names them"),
}

AUDIT: Table = {
    "anchor": Key(
        "words", "gets a Job's heads when it stops: `file:PATH`, an `https://` address, or a program as a list", least=1
    ),
    "signingKey": Key("text", "the Ed25519 key, in PEM, that signs them: `file:PATH` or `env:NAME`", least=1),
}

EXPERT: Table = {
    "instruction": Key("text", "what the Expert knows and does", required=True, least=1, longest=MAX_INSTRUCTION),
    "description": Key("text", "one line for those who may delegate to it", longest=MAX_DESCRIPTION),
    "version": Key("text", "a semantic version, `1.0.0` if not given"),
    "minRuntimeVersion": Key("text", "the oldest runtime that it works on, such as `v1.0`"),
    "delegates": Key("texts", "keys of the Experts that it may call, `name` or `name@version`", least=1),
    "tags": Key("texts", "words to sort Experts by"),
    "skills": Key("table", "its tools, by the skill's name"),
    "iterate": Key("table", "how it is run until what it makes is good enough, see `iterate` below"),
    **_LIMITS,
    "runtime": Key("ignored", "every Expert runs in this process"),
    "network": Key("ignored", "say `allowedDomains` in the skill that it is about"),
    "providerTools": Key("ignored", "tools that a provider runs itself are not offered"),
    "providerSkills": Key("ignored", "skills that a provider runs itself are not offered"),
    "providerToolOptions": Key("ignored", "tools that a provider runs itself are not offered"),
}

ITERATE: Table = {
    "evaluator": Key(
        "evaluator", "what measures: a command, `{ expert = … }` or `{ entry = … }`", required=True, least=1
    ),
    "target": Key("decimal", "good enough; if not given, all iterations are run"),
    "maxIterations": Key("number", "most iterations; 5 if not given", least=1),
    "metric": Key("words", "what is compared, `score` if not given; of several, the worst counts", least=1),
    "direction": Key("choice", "which is better; `higher` if not given", choices=DIRECTIONS),
    "accumulate": Key("flag", "tell each iteration of all before it, not of the last only; false if not given"),
    "timeout": Key("number", "milliseconds that a command or a function may take; 600000 if not given", least=1),
}

_SKILL: Table = {
    "type": Key("text", "which kind of skill this is", required=True, least=1),
    "description": Key("text", "what it is for"),
    "rule": Key("text", "told to the model: how and when to use these tools"),
    "pick": Key("texts", "only these tools (patterns)"),
    "omit": Key("texts", "not these tools (patterns)"),
}

_REQUIRED: Table = {
    "required": Key("flag", "end the Run before its model is called if this skill is missing; false if not given"),
}

_STARTING: Table = {
    "lazyInit": Key("flag", "connect at the first use; false if not given"),
    "sampling": Key("flag", "let the server ask the Expert's model for generations; false if not given"),
    "timeout": Key("number", "milliseconds that one call may take", least=1),
    **_REQUIRED,
}

SKILLS: Mapping[str, Table] = {
    "mcpStdioSkill": {
        **_SKILL,
        "command": Key("text", "the command that starts the server; `npx` if not given"),
        "packageName": Key("text", "the package that `npx` or `uvx` runs"),
        "args": Key("texts", "further arguments"),
        "requiredEnv": Key("texts", "variables that the server must be given"),
        "env": Key("json", "further variables for the server, as texts; `${NAME}` stands for one of yours"),
        "allowedDomains": Key("domains", "its domains, `example.com` or `*.example.com`; recorded, not enforced"),
        **_STARTING,
    },
    "mcpSseSkill": {
        **_SKILL,
        "endpoint": Key("text", "the server's address, public HTTPS", required=True, least=1),
        "headers": Key("json", "HTTP headers to send"),
        "oauth": Key("table", "how to log in, see `oauth` below"),
        "allowLocalNetwork": Key("flag", "let `endpoint` be plain HTTP or a private address"),
        **_STARTING,
        "allowedDomains": Key("ignored", "only the endpoint is ever reached"),
    },
    "interactiveSkill": {
        **_SKILL,
        "tools": Key("table", "the tools that a person answers, by name", required=True),
    },
    "pluginSkill": {
        **_SKILL,
        "plugin": Key("text", "the plugin's name, as `perstack plugins` lists it", required=True, least=1),
        "settings": Key("json", "settings as the plugin's page names them; `${NAME}` stands for a variable of yours"),
        **_REQUIRED,
    },
}

TOOL: Table = {
    "description": Key("text", "what the tool is for"),
    "approval": Key(
        "flag",
        "whether it asks for approval, which only a yes or a no answers: the Job pauses as `human_approval`;"
        " false if not given",
    ),
    "inputJsonSchema": Key("text", "a JSON schema of an object, written as JSON text", required=True, least=1),
}

OAUTH: Table = {
    "flow": Key("text", "`authorizationCode`, which is taken if not given: a person logs in; or `clientCredentials`"),
    "clientId": Key(
        "text", "the client's id, or the address of its metadata; registered at login if not given", least=1
    ),
    "clientSecret": Key("text", "the client's secret: name a variable, `${NAME}`", least=1),
    "privateKey": Key("text", "for `clientCredentials` without a secret: a key in PEM, `${NAME}`", least=1),
    "issuer": Key("text", "the authorization server that the client belongs to: no other is given its secret", least=1),
    "scopes": Key("texts", "what to ask for; if not given, what the server wants", least=1),
}
