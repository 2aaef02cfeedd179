"""Registration of the plugin with the host."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from perstack.core.definitions.sandbox import LOCAL, SandboxPolicy
from perstack.core.definitions.skills import BASE_SKILL, McpStdioSkill, PluginSkill, Skill, ToolSpec, is_base_skill
from perstack.errors import SkillError
from perstack.ports.hooks import hookimpl
from perstack.ports.runtime import LOCAL_RUNTIME, Runtime, RuntimeFactory, Surroundings
from perstack.ports.skill import SkillContext, SkillFactory, SkillSession

if TYPE_CHECKING:
    from perstack_base.python_file import AnyToolkit

PLUGIN_API = 1

IMPORT_TIMEOUT_S = 60.0


class BaseSkillFactory(SkillFactory):
    """Factory for `@perstack/base`, even if it is declared as the npm package of that name."""

    name = BASE_SKILL

    @override
    def handles(self, definition: Skill) -> bool:
        return is_base_skill(definition)

    @override
    def known_tools(self, definition: Skill) -> tuple[ToolSpec, ...]:
        from perstack_base.tools import SPECS

        return SPECS

    @override
    async def open(self, definition: Skill, context: SkillContext) -> SkillSession:
        from perstack_base.skill import BaseSession

        domains = definition.allowed_domains if isinstance(definition, McpStdioSkill) else ()
        return BaseSession(context, domains)


class FileSkillFactory(SkillFactory):
    """Factory for the `file` of a pluginSkill. Each version of a file is imported once per process."""

    name = "file"

    def __init__(self) -> None:
        self._kits: dict[tuple[Path, str], AnyToolkit] = {}
        self._importing = threading.Lock()

    @override
    def handles(self, definition: Skill) -> bool:
        return isinstance(definition, PluginSkill) and bool(definition.file)

    @override
    def check(self, definition: Skill) -> None:
        from perstack_base.python_file import check_source, read_source

        path = _resolve_file(definition)
        check_source(path, read_source(path))

    @override
    async def open(self, definition: Skill, context: SkillContext) -> SkillSession:
        from perstack.system.concurrency import in_daemon_thread

        path = _resolve_file(definition)
        try:
            async with asyncio.timeout(IMPORT_TIMEOUT_S):
                kit = await in_daemon_thread(lambda: self._load_toolkit(path, definition.name), f"import {path.name}")
        except TimeoutError as error:
            raise SkillError(
                f"{path} was not imported within {IMPORT_TIMEOUT_S:g} s: work in functions, not during the import"
            ) from error
        return await kit.open(definition, context)

    def _load_toolkit(self, path: Path, name: str) -> AnyToolkit:
        from perstack_base.python_file import load_file, read_source

        source = read_source(path)
        key = (path, sha256(source).hexdigest())
        with self._importing:
            if key not in self._kits:
                self._kits[key] = load_file(path, source, name)
            return self._kits[key]


class LocalRuntimeFactory(RuntimeFactory):
    """Factory of `local`."""

    name = LOCAL

    async def check(self, policy: SandboxPolicy, surroundings: Surroundings) -> Sequence[str]:
        """Return a warning for each limit of the policy, since only a sandbox can enforce limits."""
        return tuple(f"`{key}`: only a sandbox can, such as `bubblewrap`" for key in policy.limited)

    @override
    async def prepare(self, policy: SandboxPolicy, surroundings: Surroundings) -> Runtime:
        return LOCAL_RUNTIME


def _resolve_file(definition: Skill) -> Path:
    return Path(definition.file if isinstance(definition, PluginSkill) else "")


@hookimpl
def perstack_skills() -> Sequence[SkillFactory]:
    """Return the factories of the base skill and of files with functions."""
    return [BaseSkillFactory(), FileSkillFactory()]


@hookimpl
def perstack_runtimes() -> Sequence[RuntimeFactory]:
    return [LocalRuntimeFactory()]
