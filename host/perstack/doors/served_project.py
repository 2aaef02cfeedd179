"""A project as a server offers it: its definitions, its Jobs, and what its clients may see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from hashlib import sha256

from perstack.core.definitions.experts import Expert
from perstack.core.definitions.project import Project
from perstack.core.definitions.skills import legal_tool_name
from perstack.core.jobs.summary import JobSummary, summarize
from perstack.dataclass import dataclass
from perstack.doors.shared.job_tasks import JobTasks
from perstack.doors.shared.live_project import ReloadedProject
from perstack.engine.jobs.reader import JobPage
from perstack.errors import NotFound, PerstackError, UsageError
from perstack.host import Host
from perstack.oversight.inbox import InboxItem
from perstack.toml_reader.definition_with_includes import LoadedProject

# The offered Experts, as perstack.toml defines them now.


class Definitions:
    """The definition, read again when its files change. While they are invalid, the last valid one is used."""

    def __init__(
        self, host: Host, loaded: LoadedProject, *, only: Sequence[str] = (), taken: Iterable[str] = ()
    ) -> None:
        """Offer the Experts named in `only`; empty offers all. `taken` are tool names that no Expert may get."""
        self._host = host
        self._only = only_experts(loaded.project, only)
        self._taken = tuple(taken)
        self.live = ReloadedProject(loaded)  # the definition in use, with its problems
        self.experts = self._offered_experts()  # the offered Experts by the names of their tools

    def check_offered(self, key: str) -> None:
        """Raise UsageError for an Expert that this server does not offer."""
        if not self.offers(key):
            offered = ", ".join(sorted(self._only))
            raise UsageError(f"Jobs of {key} are not driven by this server, which is limited to: {offered}")

    def offers(self, key: str) -> bool:
        """Return whether Jobs of this Expert may be seen and driven here."""
        return not self._only or key in self._only

    def hides(self, agent_id: str) -> bool:
        """Return whether this agent's tasks are hidden: it is an Expert of the project that is not offered."""
        return not self.offers(agent_id) and agent_id in self.live.loaded.project.experts

    def refresh(self) -> bool:
        """Read changed files again, and return whether the offered Experts changed."""
        return self.live.refresh() and self._apply_definition()

    def agree(self, digest: str) -> bool:
        """Accept a change of what is executed; return whether the offered Experts changed. Raises StorageError."""
        return self.live.agree(digest) and self._apply_definition()

    async def watch(self, on_change: Callable[[], Awaitable[None]]) -> None:
        """Check the files periodically and await `on_change` when the offered Experts changed. Runs until cancelled."""
        async for is_new in self.live.changes():
            if is_new and self._apply_definition():
                await on_change()

    def _apply_definition(self) -> bool:
        previous = self.experts
        self._host.use(self.live.loaded.project)
        self.experts = self._offered_experts()
        return _listing_of(self.experts) != _listing_of(previous)

    def _offered_experts(self) -> dict[str, Expert]:
        experts = {key: expert for key, expert in self.live.loaded.project.experts.items() if self.offers(key)}
        names = tool_names(experts, self._taken)
        return {names[key]: expert for key, expert in experts.items()}


def _listing_of(experts: dict[str, Expert]) -> list[tuple[str, str, str]]:
    return [(name, expert.key, expert.description) for name, expert in experts.items()]


@dataclass(frozen=True, slots=True)
class ServedProject:
    """The state of one workspace, shared by all its clients."""

    host: Host
    definitions: Definitions
    job_tasks: JobTasks
    on_change: Callable[[], Awaitable[None]]  # notifies the clients that the offered Experts changed

    async def job(self, job_id: str) -> JobSummary:
        """Return a Job. Raises NotFound if its Expert is not offered, so call it before reading what a client names."""
        summary = await self.host.job(job_id)
        if not self.definitions.offers(summary.expert_key):
            raise NotFound(f"there is no Job {job_id} of an Expert that this server offers")
        return summary

    async def current_job(self, job_id: str) -> JobSummary:
        """Return a Job as `job` does, but a running Job from its logs: its stored summary may be a step old."""
        summary = await self.job(job_id)
        return summary if summary.status != "running" else summarize(await self.host.jobs.load(job_id), is_driven=True)

    async def job_to_drive(self, job_id: str) -> JobSummary:
        """Return a Job. Raises UsageError if Jobs of its Expert are not driven here."""
        summary = await self.host.job(job_id)
        self.definitions.check_offered(summary.expert_key)
        return summary

    async def page_of_jobs(self, *, limit: int, after: str | None = None) -> JobPage:
        """Return a page of Jobs. It may have fewer than `limit` if the server leaves Experts out."""
        page = await self.host.jobs.list(limit=limit, after=after)
        offered = [summary for summary in page.jobs if self.definitions.offers(summary.expert_key)]
        return replace(page, jobs=tuple(offered))

    async def inbox(self) -> tuple[InboxItem, ...]:
        """Return the open questions of Jobs and tasks whose Expert is offered here."""
        items = await self.host.inbox()
        return tuple([item for item in items if await self._shows(item)])

    async def _shows(self, item: InboxItem) -> bool:
        if item.job_id is None:
            return not self.definitions.hides(item.who)
        try:
            await self.job(item.job_id)
        except NotFound:
            return False
        except PerstackError:
            return self.definitions.offers("")  # it cannot be read, so its Expert is unknown
        return True

    async def refresh(self) -> None:
        """Apply changes of perstack.toml and notify the clients."""
        if self.definitions.refresh():
            await self.on_change()


# The choice of offered Experts, and the names of their tools.

_MAX_NAME_CHARS = 48  # maximum characters of a tool's name: clients prefix the server's name and limit both to 60 or 64


def only_experts(project: Project, only: Sequence[str]) -> frozenset[str]:
    """Return the keys of the named Experts; empty for all. Raises UsageError if one does not exist."""
    by_key = {key: project.expert(key) for key in only}
    for key, expert in by_key.items():
        if expert is None:
            project.check_broken(key)
            names = ", ".join(sorted(project.experts)) or "none"
            raise UsageError(f"--experts: there is no Expert {key!r} in {project.path}; available: {names}")
    return frozenset(expert.key for expert in by_key.values() if expert is not None)


def tool_names(keys: Iterable[str], taken: Iterable[str]) -> dict[str, str]:
    """Return a legal tool name for each key, unique among them and different from those in `taken`.

    A name depends only on its key, unless two keys would get one name. In that case, and if the name is taken or
    too long, it gets a suffix hashed from the key. An Expert whose key is a legal name keeps it.
    """
    keys = tuple(keys)
    plain = {key: legal_tool_name(key) for key in keys}
    counts = Counter(plain.values())
    reserved = set(taken)
    names: dict[str, str] = {}
    for key, name in plain.items():
        is_own = name not in reserved and len(name) <= _MAX_NAME_CHARS and (name == key or counts[name] == 1)
        names[key] = name if is_own else _with_mark(key, name)
    return names


def _with_mark(key: str, name: str) -> str:
    mark = sha256(key.encode()).hexdigest()[:6]
    return f"{name[: _MAX_NAME_CHARS - len(mark) - 1]}_{mark}"
