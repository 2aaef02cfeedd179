"""Trying an Expert of a definition that a model wrote: in a copy, bounded, and with nothing started or reached."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from perstack.config.load import load_usable
from perstack.config.problems import describe_problems
from perstack.core.definitions import Project
from perstack.core.events import CallTools, Event
from perstack.core.job import JobSummary
from perstack.core.overrides import Overrides
from perstack.core.policy.widening import Widening
from perstack.core.protected import is_variables
from perstack.core.teams import with_delegates
from perstack.dataclass import dataclass
from perstack.errors import DefinitionError, PerstackError, SkillError
from perstack.frontends.making.reach import IN_A_RUN, new_reach
from perstack.frontends.making.team import DEFINITION
from perstack.frontends.shared.copying import copy_project
from perstack.frontends.shared.words import count, spent
from perstack.host import Host
from perstack.ports.environment import Environment

MOST_TRIALS = 4
_STEPS = 12
_MILLISECONDS = 180_000
_TOKENS = 200_000
_LONGEST = 4_000
"""Characters of a result, and of all files together, that are shown."""


@dataclass(frozen=True, slots=True)
class Left:
    """What may still be spent on trials."""

    trials: int = MOST_TRIALS
    tokens: int | None = None
    cost: float | None = None

    def after(self, job: JobSummary) -> Left:
        """What is left when this has been spent."""
        tokens = None if self.tokens is None else self.tokens - job.usage.total_tokens
        cost = None if self.cost is None else self.cost - (job.usage.cost_usd or 0)
        return Left(self.trials - 1, tokens, cost)

    @property
    def is_nothing(self) -> bool:
        """Whether no trial can begin."""
        return self.trials < 1 or any(one is not None and one <= 0 for one in (self.tokens, self.cost))


class Trials:
    """The trials of one Job that makes a definition."""

    def __init__(
        self, folder: Path, env: Environment, overrides: Overrides, plugins: Sequence[object], own: Project, left: Left
    ) -> None:
        """`own` is the project as it was before: what it starts, reaches and says of prices is a person's own."""
        self._folder = folder
        self._env = env
        self._overrides = overrides
        self._plugins = plugins
        self._own = own
        self._left = left
        self._one_at_a_time = asyncio.Lock()

    async def tried(self, key: str, query: str, on_progress: Callable[[str], None]) -> str:
        """What came of a Run of the Expert, for a model to read. Raises SkillError if there can be none."""
        async with self._one_at_a_time:
            if self._left.is_nothing:
                raise SkillError("nothing is left to try with: judge by what has been seen, and say so")
            room = Path(tempfile.mkdtemp(prefix="perstack-create-"))
            try:
                return await self._in(room, key, query, on_progress)
            except DefinitionError as error:
                raise SkillError("\n".join(describe_problems(error.problems))) from None
            except PerstackError as error:
                raise SkillError(str(error)) from None
            except OSError as error:
                raise SkillError(f"the folder cannot be copied: {error.strerror or error}") from None
            finally:
                await asyncio.to_thread(shutil.rmtree, room, ignore_errors=True)

    async def _in(self, room: Path, key: str, query: str, on_progress: Callable[[str], None]) -> str:
        copy = room / "work"
        await asyncio.to_thread(copy_project, self._folder, copy, is_variables)
        if not (copy / DEFINITION).is_file():
            raise SkillError(f"there is no {DEFINITION} yet: write it first")
        # what is read is tried, and not what has come to be in the folder meanwhile
        project = self._confined(load_usable(copy / DEFINITION).project, key)
        before = _files(copy)
        called: Counter[str] = Counter()

        def note(event: Event, _: bytes) -> None:
            if isinstance(event, CallTools):
                called.update(f"{event.expert_key}: {call.tool_name}" for call in event.calls)

        host = Host(
            project,
            workspace=copy,
            storage=f"file:{room / 'state'}",
            env=self._env,
            overrides=self._bounded(),
            plugins=self._plugins,
        )
        async with host:
            on_progress(f"trying {key}")
            job = await host.run(key, query, on_event=note)
        self._left = self._left.after(job)
        return _told(job, called, copy, before)

    def _confined(self, project: Project, key: str) -> Project:
        """The Expert and its delegates, and nothing that reaches out of the copy. Raises SkillError."""
        if key not in project.experts:
            project.check_broken(key)
            raise SkillError(f"there is no Expert {key!r} in {DEFINITION}; there are: {', '.join(project.experts)}")
        experts = {one.key: one for one in with_delegates(project, (key,))}
        update: dict[str, object] = {
            "audit": None,
            "sandbox": None,
            "retention": None,
            "workspace": None,
            "env_path": (),
            "includes": (),
        }
        project = project.model_copy(update={**update, "experts": experts, "prices": self._own.prices})
        new = new_reach(self._own, project, IN_A_RUN)
        if new:
            what = "; ".join(new)
            raise SkillError(f"{key} is not tried, because a person has to agree to what it starts or reaches: {what}")
        return project

    def _bounded(self) -> Overrides:
        left, given = self._left, self._overrides
        asked = given.widening or Widening(source="")
        return replace(
            given,
            max_steps=min(_STEPS, given.max_steps or _STEPS),
            max_time=min(_MILLISECONDS, given.max_time or _MILLISECONDS),
            max_tokens=min(_TOKENS, left.tokens or _TOKENS),
            max_cost=left.cost,
            unattended=True,
            widening=Widening(source="perstack create", deny=("exec", *asked.deny, *asked.ask)),
            output=None,
        )


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for base, _, names in os.walk(folder):
        for name in names:
            path = Path(base, name)
            status = path.lstat()
            found[str(path.relative_to(folder))] = (status.st_mtime_ns, status.st_size)
    return found


def _told(job: JobSummary, called: Counter[str], copy: Path, before: dict[str, tuple[int, int]]) -> str:
    return "\n".join(_lines(job, called, copy, before))


def _lines(job: JobSummary, called: Counter[str], copy: Path, before: dict[str, tuple[int, int]]) -> Iterator[str]:
    why = job.error or job.exceeded or job.asks
    yield f"{job.status}, {spent(job)}{f': {why}' if why else ''}"
    if called:
        yield "called: " + ", ".join(f"{name} ({count(times, 'time')})" for name, times in called.items())
    if job.text:
        yield f"answered:\n{_cut(job.text, _LONGEST)}"
    changed = [name for name, status in sorted(_files(copy).items()) if before.get(name) != status]
    left = _LONGEST
    for name in changed:
        path = copy / name
        text = path.read_bytes()[:left].decode("utf-8", "replace") if left > 0 and _is_plain(path) else ""
        left -= len(text)
        yield f"wrote {name}:\n{_cut(text, left)}" if text else f"wrote {name}"


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
