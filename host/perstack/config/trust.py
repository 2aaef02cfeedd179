"""What a definition has executed, and where it sends keys: what a person agrees to, item by item.

Instructions, descriptions, models and limits are none of it. Two Experts that declare the same thing make one item.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Literal, assert_never

from pydantic import JsonValue

from perstack.core.audit import Audit
from perstack.core.base import Fact, JsonObject
from perstack.core.canonical import canonical_json
from perstack.core.definitions import (
    Expert,
    ExpertEvaluator,
    FunctionEvaluator,
    InteractiveSkill,
    McpSseSkill,
    McpStdioSkill,
    PluginSkill,
    Project,
    ProviderSetting,
    Skill,
    is_base_skill,
)
from perstack.core.secret_text import masked_address, masked_args, masked_line
from perstack.core.skill_definitions import with_base
from perstack.engine.catalogue import picked
from perstack.ports.environment import Environment, is_address_name

Kind = Literal["command", "endpoint", "plugin", "evaluator", "provider", "include", "tool", "address", "anchor"]

_EXEC = "exec"


class Agreed(Fact):
    """An item as it is kept: no value that may be a secret."""

    kind: Kind
    name: str
    """Where it is said."""
    digest: str


class Item(Agreed):
    """One thing that is executed, or one place that is sent something."""

    shown: str
    """For a person at a terminal or a form, in one line; it is not kept."""

    def kept(self) -> Agreed:
        """What is kept of it."""
        return Agreed(kind=self.kind, name=self.name, digest=self.digest)


def executed(project: Project) -> tuple[Item, ...]:
    """What a project has executed, each once, in the order in which it is said."""
    return _each_once(_of_project(project))


def addresses(env: Environment) -> tuple[Item, ...]:
    """The addresses that only a workspace's `.env` names."""
    found = (name for name in env.unconfirmed if is_address_name(name))
    return tuple(_item("address", name, [name, env[name]], f"{name}={env[name]}") for name in sorted(found))


def confirming(env: Environment, digests: frozenset[str]) -> Environment:
    """The environment, with the addresses that a person has agreed to taken for their own."""
    agreed = {item.name for item in addresses(env) if item.digest in digests}
    unconfirmed = {name: file for name, file in env.unconfirmed.items() if name not in agreed}
    return Environment(env, unconfirmed=unconfirmed, files=env.files, left_out=env.left_out)


def digests_of(items: Iterable[Agreed]) -> frozenset[str]:
    """What items are compared by."""
    return frozenset(item.digest for item in items)


def _of_project(project: Project) -> Iterator[Item]:
    for pattern in project.includes:
        yield _item("include", "include", [pattern], pattern)
    yield from _of_audit(project.audit)
    yield from _of_provider(project.provider, "perstack.toml")
    for expert in project.experts.values():
        yield from _of_provider(expert.provider, expert.key)
        yield from _of_evaluator(expert)
        for skill in with_base(expert.skills):
            yield from _of_skill(skill, f"skill {skill.name} of {expert.key}")


def _of_audit(audit: Audit | None) -> Iterator[Item]:
    """A program that is given heads is executed, and an address is sent them, signed by a key that is read for it."""
    if audit is None:
        return
    anchor = audit.anchor
    where = shlex.join(masked_args(anchor, _hidden)) if isinstance(anchor, tuple) else anchor or "none"
    key = f" with the key {audit.signing_key}" if audit.signing_key else ""
    said: JsonValue = [*anchor] if isinstance(anchor, tuple) else anchor
    yield _item("anchor", "audit", [said, audit.signing_key], f"{where}{key}")


def _of_provider(provider: ProviderSetting | None, name: str) -> Iterator[Item]:
    if provider is None:
        return
    # numbers and flags say how a model replies, not where it is
    setting: JsonObject = {
        key: value for key, value in provider.setting.items() if not isinstance(value, bool | int | float)
    }
    address = setting.get("baseUrl")
    more = f" at {masked_address(address, _hidden)}" if isinstance(address, str) else ""
    others = ", ".join(key for key in setting if key != "baseUrl")
    shown = f"{provider.provider_name}{more}{f' with {others}' if others else ''}"
    yield _item("provider", f"provider of {name}", [provider.provider_name, setting], shown)


def _of_evaluator(expert: Expert) -> Iterator[Item]:
    evaluator = None if expert.iterate is None else expert.iterate.evaluator
    name = f"evaluator of {expert.key}"
    match evaluator:
        case None | ExpertEvaluator():
            return
        case FunctionEvaluator():
            yield _item("evaluator", name, ["entry", evaluator.entry], evaluator.entry)
        case str():
            yield _item("evaluator", name, ["shell", evaluator], masked_line(evaluator, _hidden))
        case tuple():
            yield _item("evaluator", name, ["program", *evaluator], shlex.join(masked_args(evaluator, _hidden)))
        case _:
            assert_never(evaluator)


def _of_skill(skill: Skill, name: str) -> Iterator[Item]:
    match skill:
        case McpStdioSkill() if is_base_skill(skill):
            if picked(_EXEC, skill.pick, skill.omit):
                yield _item("tool", name, [_EXEC], "exec: any command that the model writes")
        case McpStdioSkill():
            payload: JsonObject = skill.model_dump(
                mode="json", include={"command", "package_name", "args", "required_env", "env"}
            )
            package = [skill.package_name] if skill.package_name else []
            variables = ", ".join((*skill.required_env, *skill.env))
            line = shlex.join([skill.command or "npx", *package, *masked_args(skill.args, _hidden)])
            yield _item("command", name, payload, f"{line} (gets {variables})" if variables else line)
        case McpSseSkill():
            remote: JsonObject = skill.model_dump(
                mode="json", include={"endpoint", "headers", "oauth", "allow_local_network"}
            )
            sent = f" (gets {', '.join(skill.headers)})" if skill.headers else ""
            yield _item("endpoint", name, remote, masked_address(skill.endpoint, _hidden) + sent)
        case PluginSkill():
            yield _item("plugin", name, [skill.plugin, skill.settings], skill.plugin)
        case InteractiveSkill():
            return
        case _:
            assert_never(skill)


def _item(kind: Kind, name: str, payload: JsonValue, shown: str) -> Item:
    digest = sha256(canonical_json([kind, payload])).hexdigest()
    line = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in f"{kind}: {shown}")
    return Item(kind=kind, name=name, digest=digest, shown=line)


def _hidden(value: str) -> str:
    return "***"


def _each_once(items: Iterable[Item]) -> tuple[Item, ...]:
    found: dict[str, Item] = {}
    for item in items:
        found.setdefault(item.digest, item)
    return tuple(found.values())
