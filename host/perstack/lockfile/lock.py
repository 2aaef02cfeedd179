"""perstack.lock: the tools that the skills of a perstack.toml offered when `perstack install` asked them.

It is a TOML file next to its perstack.toml. Equal answers give equal bytes. Neither the file nor the data behind its
digests contains secrets.
"""

import json
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from os.path import relpath
from pathlib import Path

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from perstack.core.base.records import JsonObject, Record, falsy, fields_of, first_problem
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.secrets import without_secrets
from perstack.core.definitions.skills import (
    AgentSkill,
    Effect,
    PluginSkill,
    Skill,
    Subject,
    ToolKind,
    ToolSpec,
    shared_definition,
    tool_skills,
)
from perstack.core.definitions.tool_definitions import Definitions, definition_digest
from perstack.errors import UsageError
from perstack.lockfile.agreed_tools import AgreedTools, out_of_date_notice
from perstack.next_steps import Install
from perstack.ports.skill import Toolset
from perstack.toml_reader.source import NotRead, parse_toml, read_bounded

LOCK_NAME = "perstack.lock"
VERSION = 1
MAX_LOCK_BYTES = 64 << 20  # maximum bytes; it contains every tool of every server


@cache
def _json_object_adapter() -> TypeAdapter[JsonObject]:
    return TypeAdapter(JsonObject)


class LockedTool(Record):
    """Tool as its skill described it."""

    name: str
    description: str = ""
    effect: Effect = "sideEffect"
    kind: ToolKind = "tool"
    polling: bool = Field(default=False, exclude_if=falsy)
    subject: Subject | None = None
    target: str | None = None
    input_schema: str
    digest: str  # digest of the schema, independent of the order of keys

    @model_validator(mode="after")
    def _check_digest(self) -> "LockedTool":
        if digest_of_schema(self.schema_object()) != self.digest:
            raise ValueError(f"the schema of {self.name} does not match its digest")
        return self

    @classmethod
    def of(cls, spec: ToolSpec) -> "LockedTool":
        text = json.dumps(spec.input_schema, ensure_ascii=False, separators=(",", ":"))
        return cls(**fields_of(spec, cls, input_schema=text), digest=digest_of_schema(spec.input_schema))

    def schema_object(self) -> JsonObject:
        return _json_object_adapter().validate_json(self.input_schema)

    def spec(self) -> ToolSpec:
        """Return the tool as offered to models."""
        return ToolSpec(**fields_of(self, ToolSpec, input_schema=self.schema_object()))


class LockedSkill(Record):
    """Skill with the tools that it offered."""

    name: str
    type: str
    digest: str  # digest of its definition, see `digest_of_skill`
    instructions: str = ""
    tools: tuple[LockedTool, ...] = ()

    @classmethod
    def of(cls, definition: Skill, toolset: Toolset) -> "LockedSkill":
        """Return the entry of a skill, with its tools sorted by name."""
        tools = sorted((LockedTool.of(spec) for spec in toolset.specs), key=lambda tool: tool.name)
        return cls(
            name=definition.name,
            type=definition.type,
            digest=digest_of_skill(definition),
            instructions=toolset.instructions,
            tools=tuple(tools),
        )

    def toolset(self) -> Toolset:
        return Toolset(tuple(tool.spec() for tool in self.tools), self.instructions)


class LockedExpert(Record):
    """Expert whose skills were asked."""

    digest: str


class LockedFolder(Record):
    """Folder of an Agent Skill."""

    path: str  # relative to the lock, with slashes
    digest: str  # digest of its files, with the paths


class Lock(Record):
    """Content of the whole file. An empty lock locks nothing."""

    version: int = VERSION
    experts: dict[str, LockedExpert] = Field(default_factory=dict)
    skills: tuple[LockedSkill, ...] = ()
    agent_skills: tuple[LockedFolder, ...] = Field(default=(), exclude_if=falsy)

    def of_skill(self, definition: Skill) -> LockedSkill | None:
        """Return the entry for exactly this definition; None also for tools that a lock cannot exempt from rules."""
        if not self.skills:
            return None
        digest = digest_of_skill(definition)
        entry = next((skill for skill in self.skills if skill.digest == digest), None)
        is_plugin = isinstance(definition, PluginSkill)
        return (
            entry if entry is not None and all(_may_exempt(tool, is_plugin=is_plugin) for tool in entry.tools) else None
        )

    def locked_toolset(self, definition: Skill) -> Toolset | None:
        """Return the tools of `of_skill`."""
        locked = self.of_skill(definition)
        return None if locked is None else locked.toolset()

    def agreed_definitions(self, toolset: Toolset, *, is_locked: bool) -> AgreedTools:
        return AgreedTools(toolset, is_locked=is_locked)

    def notice_for(self, definition: Skill) -> str:
        """Return a notice that the lock is out of date, if it has a skill of this name; otherwise an empty text."""
        is_named = any(skill.name == definition.name for skill in self.skills)
        return f"{out_of_date_notice(definition.name)} (its definition has changed)" if is_named else ""

    def folder_digest(self, config: str, skill: AgentSkill) -> str | None:
        """Return the digest of the entry for an Agent Skill of a definition file."""
        return {folder.path: folder.digest for folder in self.agent_skills}.get(path_in_lock(config, skill))

    def of_team(self, experts: Iterable[Expert]) -> "Lock | None":
        """Return the part about these Experts and skills, without folders (paths of one machine); None if empty."""
        team = {expert.key: expert for expert in experts}
        names = {skill.name for expert in team.values() for skill in tool_skills(expert.skills)}
        skills = tuple(skill for skill in self.skills if skill.name in names)
        locked_experts = {key: entry for key, entry in self.experts.items() if key in team}
        return Lock(experts=locked_experts, skills=skills) if skills or locked_experts else None

    def definitions(self) -> Definitions:
        """Return the digests of the locked tools' definitions; of skills with one name, the last counts."""
        return {
            skill.name: {spec.name: definition_digest(spec) for spec in skill.toolset().specs} for skill in self.skills
        }

    def to_toml(self) -> str:
        """Return the file's text, sorted so that equal content gives equal text."""
        from tomli_w import dumps

        ordered = self.model_copy(
            update={
                "experts": dict(sorted(self.experts.items())),
                "skills": tuple(sorted(self.skills, key=lambda skill: (skill.name, skill.digest))),
                "agent_skills": tuple(sorted(self.agent_skills, key=lambda folder: folder.path)),
            }
        )
        head = "# What the skills offer; written by `perstack install`, and read by every run.\n"
        return head + dumps(ordered.model_dump(by_alias=True, exclude_none=True))


def _may_exempt(tool: LockedTool, *, is_plugin: bool) -> bool:
    if tool.kind != "tool":
        return False
    return tool.subject is None or (is_plugin and not tool.subject.is_nothing)


def digest_of_skill(definition: Skill) -> str:
    """Return the digest of a skill's shared definition, without secrets."""
    masked = without_secrets(Expert(key="x", instruction="", skills=(shared_definition(definition),)))
    return digest_of_json(masked.skills[0].to_json())


def digest_of_schema(schema: JsonObject) -> str:
    """Return the digest of a JSON schema, independent of the order of keys."""
    return digest_of_json(json.dumps(schema, sort_keys=True, separators=(",", ":")).encode())


def digest_of_json(data: bytes) -> str:
    return f"sha256:{sha256(data).hexdigest()}"


NO_LOCK = Lock.model_construct()  # constructed without validation, so that no start builds a validator


def lock_path(config: str) -> Path:
    return Path(config).with_name(LOCK_NAME)


def read_lock(path: Path) -> Lock:
    """Read the lock; an empty one without a file. Raises UsageError if it is unreadable or too new."""
    try:
        table = parse_toml(read_bounded(path, MAX_LOCK_BYTES).decode())
    except FileNotFoundError:
        return NO_LOCK
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    except NotRead as error:
        raise UsageError(f"{path} {error}", next_steps=(Install(),)) from error
    except ValueError as error:
        raise UsageError(f"{path} is damaged ({error})", next_steps=(Install(),)) from error
    version = table.get("version")
    if isinstance(version, int) and version > VERSION:
        raise UsageError(
            f"{path} has version {version}, and this perstack reads versions up to {VERSION}: update perstack",
            next_steps=(Install(),),
        )
    try:
        return Lock.model_validate({**table, "version": table["version"]})
    except (KeyError, ValueError) as error:
        problem = ": ".join(first_problem(error)) if isinstance(error, ValidationError) else f"{error} is missing"
        raise UsageError(f"{path} is damaged ({problem})", next_steps=(Install(),)) from error


def lock_of(config: str | None) -> Lock:
    """Return the lock beside a definition file; an empty one without a file. Raises as `read_lock`."""
    return NO_LOCK if config is None else read_lock(lock_path(config))


def path_in_lock(config: str, skill: AgentSkill) -> str:
    """Return a skill's path relative to perstack.lock, which is equal on each machine."""
    return Path(relpath(skill.path, lock_path(config).parent)).as_posix()
