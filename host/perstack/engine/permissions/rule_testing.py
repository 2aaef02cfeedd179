"""Rules tried on all calls that stored Jobs have made. No model is asked, nothing is run, and nothing is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from perstack.core.definitions import Expert, Project
from perstack.core.job import JobSummary
from perstack.core.policy.chain import rule_sets
from perstack.core.policy.decide import decide_call
from perstack.core.policy.history import PastCall, PastRun, past_run
from perstack.core.policy.permissions import Permissions, RuleSet
from perstack.core.policy.rulings import Ruling
from perstack.dataclass import dataclass
from perstack.engine.logs.lines import run_ids
from perstack.engine.seen_calls import SeenCalls, key_of
from perstack.errors import StorageError
from perstack.ports.skill import SkillFactory
from perstack.ports.storage import Page, RunRef, Storage

_PAGE = 200
_AT_ONCE = 20
"""Jobs that are in memory, and that one change of threads pays for."""


@dataclass(frozen=True, slots=True)
class Otherwise:
    """A call that would be decided otherwise."""

    job_id: str
    run_id: str
    expert_key: str
    call: PastCall
    ruling: Ruling


@dataclass(frozen=True, slots=True)
class Tested:
    """What has been looked at of one Job."""

    job_id: str
    calls: int = 0
    unknown: int = 0
    """Calls whose arguments were taken out of the log."""
    otherwise: tuple[Otherwise, ...] = ()
    problem: str | None = None
    """Why it cannot be read."""


@dataclass(frozen=True, slots=True)
class _Read:
    job_id: str
    logs: Mapping[str, Sequence[bytes]]
    problem: str | None = None


class Backtest:
    """Today's rules, or others in their place, on recorded calls."""

    def __init__(
        self,
        project: Project,
        factories: Sequence[SkillFactory],
        workspace: Path,
        rules: tuple[str, Permissions] | None = None,
    ) -> None:
        """`rules`, with the name of their file, take the place of the project's; the Experts' own stay."""
        other = {} if rules is None else {"path": rules[0], "permissions": rules[1]}
        self._project = project.model_copy(update=other)
        self._calls = SeenCalls(self._project, factories, workspace)

    async def of(self, storage: Storage, since: int = 0) -> AsyncGenerator[Tested]:
        """Every Job that was written to since then (milliseconds since 1970), the latest first."""
        after: str | None = None
        while True:
            page = await storage.jobs(limit=_PAGE, after=after)
            read: list[_Read] = []
            for job_id in page.ids:
                if since and await _is_older(storage, job_id, since):
                    page = Page(())
                    break
                read.append(await _logs(storage, job_id))
                if len(read) == _AT_ONCE:
                    for tested in await asyncio.to_thread(self._all, read, since):
                        yield tested
                    read = []
            for tested in await asyncio.to_thread(self._all, read, since):
                yield tested
            if page.next is None:
                return
            after = page.next

    def _all(self, read: Sequence[_Read], since: int) -> list[Tested]:
        found: list[Tested] = []
        for one in read:
            try:
                found.append(
                    self._tested(one.job_id, one.logs, since)
                    if one.problem is None
                    else Tested(one.job_id, problem=one.problem)
                )
            except ValueError as error:
                found.append(Tested(one.job_id, problem=str(error)))
        return found

    def _tested(self, job_id: str, logs: Mapping[str, Sequence[bytes]], since: int) -> Tested:
        runs = {run_id: past_run(run_id, lines) for run_id, lines in logs.items()}
        chains: dict[str, Sequence[RuleSet]] = {}
        calls, unknown = 0, 0
        found: list[Otherwise] = []
        for run in runs.values():
            chain = chains[run.id] = self._chain(run, runs)
            key = key_of(run)
            seen = self._calls.of(run)
            for call in run.calls:
                if call.timestamp < since:
                    continue
                calls += 1
                if call.args is None:
                    unknown += 1
                    continue
                ruling = decide_call(chain, seen(call, call.args))
                if ruling.decision != call.decision:
                    found.append(Otherwise(job_id, run.id, key, call, ruling))
        return Tested(job_id, calls, unknown, tuple(found))

    def _chain(self, run: PastRun, runs: Mapping[str, PastRun]) -> Sequence[RuleSet]:
        """The rules of the Run's Expert, and those of the Experts of all Runs above it."""
        found: dict[str, RuleSet] = {}
        above: PastRun | None = run
        seen: set[str] = set()
        while above is not None and above.id not in seen:
            seen.add(above.id)
            key = key_of(above)
            expert = self._project.expert(key) or Expert(key=key, instruction="")
            found.update((one.source, one) for one in rule_sets(self._project, expert))
            above = runs.get(above.works_for or "")
        return list(found.values())


async def _logs(storage: Storage, job_id: str) -> _Read:
    try:
        ids = await run_ids(storage, job_id)
        return _Read(job_id, {run_id: await storage.read(RunRef(job_id, run_id)) for run_id in ids})
    except StorageError as error:
        return _Read(job_id, {}, str(error))


async def _is_older(storage: Storage, job_id: str, since: int) -> bool:
    """Whether a Job has not been written to since then, if its summary tells."""
    written = await storage.summary(job_id)
    if written is None:
        return False
    try:
        summary = JobSummary.model_validate_json(written)
    except ValidationError:
        return False
    return summary.status != "running" and 0 < summary.updated_at < since
