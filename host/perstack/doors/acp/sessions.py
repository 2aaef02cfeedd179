"""Sessions: each is one Job of one Expert in one directory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import field
from pathlib import Path

from perstack.config.load import LoadedProject
from perstack.core.definitions import Expert
from perstack.core.job import JobSummary
from perstack.dataclass import dataclass
from perstack.engine.clock import new_ids
from perstack.engine.emit import OnEvent
from perstack.engine.live import LiveProject
from perstack.engine.who import this_user
from perstack.errors import NotFound, PerstackError, UsageError
from perstack.frontends.shared.answering import answered, is_elsewhere
from perstack.host import Host
from perstack.ports.toolkit.context import Blob

MOST_OPEN = 200
"""Sessions. Beyond that those used longest ago are given up: no editor closes them, and each can be loaded again."""

MakeHost = Callable[[Path], tuple[Host, LoadedProject]]
"""A Host on a workspace, and the definition that it was made from. Raises DefinitionError and UsageError."""


@dataclass(slots=True)
class Session:
    """A Job, or one to be: it begins with the first prompt."""

    id: str
    host: Host
    expert_key: str
    client: str = ""
    """The editor, by its name and version."""
    has_begun: bool = False
    turn: asyncio.Task[JobSummary] | None = field(default=None)
    """The Run that is driven now."""
    is_cancelled: bool = False
    """Whether the editor has cancelled the prompt that came last."""
    is_elsewhere: bool = False
    """Whether a worker drives the turn."""
    stopping: asyncio.Task[None] | None = field(default=None)
    """What asks that worker to stop."""

    @property
    def workspace(self) -> Path:
        return self.host.workspace

    async def prompt(self, text: str, on_event: OnEvent, attachments: Sequence[Blob] = ()) -> JobSummary:
        """Drive the Job with what a person said: its query, an answer to its question, or the next query."""
        if self.turn is not None:
            raise UsageError("a turn of this session is still running: cancel it, or wait for its end")
        self.turn = asyncio.create_task(self._drive(text, on_event, attachments))
        try:
            await asyncio.wait({self.turn})
            if self.turn.cancelled():
                return await self.host.job(self.id)
            return self.turn.result()
        finally:
            self.turn, self.is_elsewhere = None, False

    def cancel(self) -> None:
        """Interrupt the turn, if there is one."""
        self.is_cancelled = True
        if self.turn is None:
            return
        if self.is_elsewhere:
            self.stopping = asyncio.create_task(self._stop_elsewhere(self.turn))
        else:
            self.turn.cancel()

    async def _stop_elsewhere(self, turn: asyncio.Task[JobSummary]) -> None:
        """The turn ends with the Job."""
        try:
            await self.host.cancel(self.id)
        except PerstackError:  # it has stopped by itself, or its worker does not answer
            turn.cancel()

    async def _drive(self, text: str, on_event: OnEvent, attachments: Sequence[Blob]) -> JobSummary:
        if not self.has_begun:
            self.has_begun = True
            return await self._begin(text, on_event, attachments)
        try:
            job = await self.host.job(self.id)
        except NotFound:  # the first turn was stopped before anything was written
            return await self._begin(text, on_event, attachments)
        if job.asking is not None:
            if attachments:
                raise UsageError("the Job asks a question: answer it as text, and attach files to the next query")
            self.is_elsewhere = is_elsewhere(self.host, job)
            by = this_user("acp", self.client)
            return await answered(self.host, job, text, question_id=job.asking.id, by=by, on_event=on_event)
        return await self.host.continue_job(
            self.expert_key, text, job_id=self.id, attachments=attachments, on_event=on_event
        )

    async def _begin(self, text: str, on_event: OnEvent, attachments: Sequence[Blob]) -> JobSummary:
        return await self.host.run(self.expert_key, text, job_id=self.id, attachments=attachments, on_event=on_event)


class Sessions:
    """All of them, and a Host for each directory."""

    def __init__(self, make_host: MakeHost, expert: str | None) -> None:
        self.client = ""
        """The editor, by its name and version, if it has said."""
        self._make_host = make_host
        self._expert = expert
        self._hosts: dict[Path, Host] = {}
        self._live: dict[Path, LiveProject] = {}
        """The definition of each workspace."""
        self._sessions: dict[str, Session] = {}

    def new(self, cwd: str) -> Session:
        """A session in a directory. Raises DefinitionError and UsageError."""
        host = self.host(cwd)
        expert_key = self._first(host)
        session_id = next(one for one in new_ids(host.clock.now()) if one not in self._sessions)
        return self._keep(Session(session_id, host, expert_key, self.client))

    async def load(self, cwd: str, session_id: str) -> Session:
        """The session of a Job that there is. Raises NotFound."""
        known = self._sessions.get(session_id)
        if known is not None:
            return known
        host = self.host(cwd)
        job = await host.job(session_id)
        return self._keep(Session(session_id, host, job.expert_key, self.client, has_begun=True))

    def get(self, session_id: str) -> Session:
        """Raises UsageError for a session that is not open."""
        found = self._sessions.get(session_id)
        if found is None:
            raise UsageError(f"session {session_id} is not open here: load it first")
        self._sessions[session_id] = self._sessions.pop(session_id)  # the one used last is given up last
        return found

    def host(self, cwd: str) -> Host:
        """The Host of a directory."""
        workspace = Path(cwd).resolve()
        if workspace not in self._hosts:
            host, loaded = self._make_host(workspace)
            self._hosts[workspace], self._live[workspace] = host, LiveProject(loaded)
        elif self._live[workspace].refresh():
            self._hosts[workspace].use(self._live[workspace].loaded.project)
        return self._hosts[workspace]

    def live(self, session: Session) -> LiveProject:
        """The definition of a session's workspace, read again if it has changed."""
        folder = next(folder for folder, host in self._hosts.items() if host is session.host)
        self.host(str(folder))
        return self._live[folder]

    async def close(self) -> None:
        """Interrupt what is driven, wait until that is recorded, and close the Hosts."""
        turns = [session.turn for session in self._sessions.values() if session.turn is not None]
        for turn in turns:
            turn.cancel()
        if turns:
            await asyncio.wait(turns)
        for host in self._hosts.values():
            await host.close()

    def _keep(self, session: Session) -> Session:
        self._sessions[session.id] = session
        unused = [one for one in self._sessions.values() if one.turn is None and one is not session]
        for one in unused[: max(0, len(self._sessions) - MOST_OPEN)]:
            del self._sessions[one.id]
        return session

    def _first(self, host: Host) -> str:
        experts = host.project.experts
        if self._expert is not None:
            if host.project.expert(self._expert) is None:
                host.project.check_broken(self._expert)
                raise UsageError(f"there is no Expert {self._expert!r}; there are: {', '.join(experts) or 'none'}")
            return self._expert
        return first_of(list(experts.values())).key


def first_of(experts: Sequence[Expert]) -> Expert:
    """The Expert that a session begins with: the first to which no other delegates. Raises UsageError for none."""
    if not experts:
        raise UsageError("perstack.toml defines no Expert: write one as [experts.NAME]")
    delegates = {key for expert in experts for key in expert.delegates}
    return next((expert for expert in experts if expert.key not in delegates), experts[0])


@asynccontextmanager
async def opened(make_host: MakeHost, expert: str | None) -> AsyncGenerator[Sessions]:
    """Sessions, all of which are stopped and recorded at the end."""
    sessions = Sessions(make_host, expert)
    try:
        yield sessions
    finally:
        await sessions.close()
