"""A skill whose tools are known from perstack.lock: it is connected to when one of them is first called."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from perstack.core.questions import Question
from perstack.core.tools import ToolSpec
from perstack.errors import SkillError
from perstack.ports.skill import SkillSession, ToolCall, ToolResult, Toolset


class LockedSession:
    """Offers the locked tools until the skill is connected to, then its own if they differ.

    `connect` asks the session for its tools, and shows that it does; `show` is told, in a line, what differs.
    """

    def __init__(
        self,
        name: str,
        locked: Toolset,
        session: SkillSession,
        connect: Callable[[], Awaitable[Toolset]],
        show: Callable[[str], None],
    ) -> None:
        self._name = name
        self._offered = locked
        self._session = session
        self._connect = connect
        self._show = show
        self._lock = asyncio.Lock()
        self._first: Toolset | None = None
        self._problem = ""
        self._gone: frozenset[str] = frozenset()

    async def tools(self) -> Toolset:
        """The locked ones, the skill's own if they differ, and none if it could not be reached."""
        if self._first is None:
            return self._offered
        live = await self._session.tools()
        return self._offered if live is self._first else live

    async def connect(self) -> None:
        """Connect now, if that was not tried before. Raises SkillError if the skill cannot be reached."""
        async with self._lock:
            if self._problem:
                raise SkillError(self._problem)
            if self._first is None:
                await self._meet()

    async def call(self, call: ToolCall) -> ToolResult | Question:
        """Raises SkillError if the skill cannot be reached: it is tried once, as without a lock."""
        await self.connect()
        if call.tool_name in self._gone:
            return ToolResult.text(
                f"Skill {self._name!r} no longer has a tool {call.tool_name!r}: perstack.lock is out of date.",
                is_error=True,
            )
        return await self._session.call(call)

    async def close(self) -> None:
        """End it, unless that was done when it could not be reached."""
        if not self._problem:
            await self._session.close()

    async def _meet(self) -> None:
        try:
            live = await self._connect()
        except SkillError as error:
            self._problem, self._offered = str(error), Toolset()
            raise
        difference = _difference(self._offered, live)
        if difference:
            self._show(f"{out_of_date(self._name)} ({difference})")
            self._gone = _names(self._offered) - _names(live)
            self._offered = live
        self._first = live


def out_of_date(name: str) -> str:
    """What a person is told."""
    return f"perstack.lock is out of date for skill {name}: install the skills again"


def _names(toolset: Toolset) -> frozenset[str]:
    return frozenset(spec.name for spec in toolset.specs)


def _difference(locked: Toolset, live: Toolset) -> str:
    """What has changed since, in words; empty if nothing has."""
    before, now = _by_name(locked), _by_name(live)
    parts = [
        ("missing", sorted(before.keys() - now.keys())),
        ("new", sorted(now.keys() - before.keys())),
        ("changed", sorted(name for name in before.keys() & now.keys() if before[name] != now[name])),
    ]
    words = [f"{word}: {', '.join(names)}" for word, names in parts if names]
    if locked.instructions != live.instructions:
        words.append("its instructions changed")
    return "; ".join(words)


def _by_name(toolset: Toolset) -> dict[str, ToolSpec]:
    return {spec.name: spec.model_copy(update={"skill_name": ""}) for spec in toolset.specs}
