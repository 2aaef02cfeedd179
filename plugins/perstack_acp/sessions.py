"""Sessions of an editor: each is one Job of one Expert in one directory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import field
from pathlib import Path

from perstack.core.definitions.experts import Expert
from perstack.core.jobs.summary import JobSummary
from perstack.dataclass import dataclass
from perstack.doors.operations.driving import answer_and_follow, is_driven_by_worker
from perstack.doors.shared.live_project import ReloadedProject
from perstack.doors.shared.question_forms import check_shown_whole
from perstack.engine.log.run_session import OnEvent
from perstack.errors import NotFound, PerstackError, UsageError
from perstack.host import Host
from perstack.system.clock import new_ids
from perstack.system.user import this_user
from perstack.toml_reader.definition_with_includes import LoadedProject
from perstack.toolkit.context import Blob

# Maximum open sessions. Editors close none, so the least recently used are dropped; they can be loaded again.
MAX_OPEN_SESSIONS = 200

MakeHost = Callable[[Path], tuple[Host, LoadedProject]]  # opens a folder; raises DefinitionError and UsageError


@dataclass(slots=True)
class EditorSession:
    """A session with one Job, which begins with the first prompt."""

    id: str
    host: Host
    expert_key: str
    client: str = ""  # the editor's name and version
    has_begun: bool = False
    # the task that drives or follows the turn; None between turns
    turn: asyncio.Task[JobSummary] | None = field(default=None)
    is_cancelled: bool = False  # True if the editor cancelled the latest prompt
    is_remote: bool = False  # True if a worker drives the turn
    stop_task: asyncio.Task[None] | None = field(default=None)  # the task that asks that worker to stop

    @property
    def workspace(self) -> Path:
        return self.host.workspace

    async def prompt(self, text: str, on_event: OnEvent, attachments: Sequence[Blob] = ()) -> JobSummary:
        """Drive the Job with its query, an answer, or its next query. Raises UsageError while another turn runs."""
        if self.turn is not None:
            raise UsageError("a turn of this session is still running: cancel it, or wait for its end")
        self.turn = asyncio.create_task(self._drive(text, on_event, attachments))
        try:
            await asyncio.wait({self.turn})
            if self.turn.cancelled():
                return await self.host.job(self.id)
            return self.turn.result()
        finally:
            self.turn, self.is_remote = None, False

    def cancel(self) -> None:
        """Interrupt the turn, if one is running."""
        self.is_cancelled = True
        if self.turn is None:
            return
        if self.is_remote:
            self.stop_task = asyncio.create_task(self._stop_remote(self.turn))
        else:
            self.turn.cancel()

    async def _stop_remote(self, turn: asyncio.Task[JobSummary]) -> None:
        try:
            await self.host.cancel(self.id)
        except PerstackError:  # the Job has stopped already, or its worker does not answer: stop following
            turn.cancel()

    async def _drive(self, text: str, on_event: OnEvent, attachments: Sequence[Blob]) -> JobSummary:
        """Start the Job, answer its question, or continue it with the text, as its state requires."""
        if not self.has_begun:
            self.has_begun = True
            return await self._begin(text, on_event, attachments)
        try:
            summary = await self.host.job(self.id)
        except NotFound:  # the first turn was stopped before the Job was stored
            return await self._begin(text, on_event, attachments)
        if summary.asking is not None:
            if attachments:
                raise UsageError("the Job asks a question: answer it as text, and attach files to the next query")
            check_shown_whole(summary.asking, self.workspace, text)
            self.is_remote = is_driven_by_worker(self.host, summary)
            by = this_user("acp", self.client)
            return await answer_and_follow(
                self.host, summary, text, question_id=summary.asking.id, by=by, on_event=on_event
            )
        return await self.host.continue_job(
            self.expert_key, text, job_id=self.id, attachments=attachments, on_event=on_event
        )

    async def _begin(self, text: str, on_event: OnEvent, attachments: Sequence[Blob]) -> JobSummary:
        return await self.host.run(self.expert_key, text, job_id=self.id, attachments=attachments, on_event=on_event)


class Sessions:
    """The open sessions, and a Host for each workspace."""

    def __init__(self, make_host: MakeHost, expert: str | None) -> None:
        """Begin new sessions with this Expert, or if it is None with the one that `default_expert` returns."""
        self.client = ""  # the editor's name and version; empty until it has sent them
        self._make_host = make_host
        self._expert = expert
        self._hosts: dict[Path, Host] = {}
        self._live: dict[Path, ReloadedProject] = {}  # the live definition of each workspace
        self._sessions: dict[str, EditorSession] = {}

    def new(self, cwd: str) -> EditorSession:
        """Open a session in a directory. Raises DefinitionError and UsageError."""
        host = self.host(cwd)
        expert_key = self._initial_expert_key(host)
        session_id = next(new_id for new_id in new_ids(host.clock.now()) if new_id not in self._sessions)
        return self._add(EditorSession(session_id, host, expert_key, self.client))

    async def load(self, cwd: str, session_id: str) -> EditorSession:
        """Return the session of an existing Job. Raises NotFound."""
        editor_session = self._sessions.get(session_id)
        if editor_session is not None:
            return editor_session
        host = self.host(cwd)
        summary = await host.job(session_id)
        return self._add(EditorSession(session_id, host, summary.expert_key, self.client, has_begun=True))

    def get(self, session_id: str) -> EditorSession:
        """Return an open session. Raises UsageError if it is not open."""
        editor_session = self._sessions.get(session_id)
        if editor_session is None:
            raise UsageError(f"session {session_id} is not open here: load it first")
        # move it to the end: the least recently used is dropped first
        self._sessions[session_id] = self._sessions.pop(session_id)
        return editor_session

    def host(self, cwd: str) -> Host:
        """Return the Host of a directory, created at the first call. A changed definition is used from now on."""
        workspace = Path(cwd).resolve()
        if workspace not in self._hosts:
            host, loaded = self._make_host(workspace)
            self._hosts[workspace], self._live[workspace] = host, ReloadedProject(loaded)
        elif self._live[workspace].refresh():
            self._hosts[workspace].use(self._live[workspace].loaded.project)
        return self._hosts[workspace]

    def live(self, editor_session: EditorSession) -> ReloadedProject:
        """Return the definition of a session's workspace, read again if it changed."""
        folder = next(folder for folder, host in self._hosts.items() if host is editor_session.host)
        self.host(str(folder))
        return self._live[folder]

    async def close(self) -> None:
        """Interrupt the running turns, wait until their interruption is recorded, and close the Hosts."""
        turns = [editor_session.turn for editor_session in self._sessions.values() if editor_session.turn is not None]
        for turn in turns:
            turn.cancel()
        if turns:
            await asyncio.wait(turns)
        for host in self._hosts.values():
            await host.close()

    def _add(self, editor_session: EditorSession) -> EditorSession:
        """Add a session, and drop the least recently used ones without a turn if there are too many."""
        self._sessions[editor_session.id] = editor_session
        unused = [other for other in self._sessions.values() if other.turn is None and other is not editor_session]
        for dropped in unused[: max(0, len(self._sessions) - MAX_OPEN_SESSIONS)]:
            del self._sessions[dropped.id]
        return editor_session

    def _initial_expert_key(self, host: Host) -> str:
        experts = host.project.experts
        if self._expert is not None:
            if host.project.expert(self._expert) is None:
                host.project.check_broken(self._expert)
                raise UsageError(f"there is no Expert {self._expert!r}; available: {', '.join(experts) or 'none'}")
            return self._expert
        return default_expert(list(experts.values())).key


def default_expert(experts: Sequence[Expert]) -> Expert:
    """Return the first Expert that is not a delegate of another; the first one if all are.

    Raises UsageError without any Expert.
    """
    if not experts:
        raise UsageError("perstack.toml defines no Expert: write one as [experts.NAME]")
    delegates = {key for expert in experts for key in expert.delegates}
    return next((expert for expert in experts if expert.key not in delegates), experts[0])


@asynccontextmanager
async def open_sessions(make_host: MakeHost, expert: str | None) -> AsyncGenerator[Sessions]:
    """Yield the sessions. At the end interrupt all running turns, and wait until that is recorded."""
    sessions = Sessions(make_host, expert)
    try:
        yield sessions
    finally:
        await sessions.close()
