"""The agent that an editor talks to. Source: Agent Client Protocol, version 1; the SDK is `agent-client-protocol`."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC
from typing import Any, assert_never

from acp import RequestError
from acp.helpers import SessionUpdate, update_agent_message_text
from acp.interfaces import Client
from acp.schema import (
    AgentCapabilities,
    AllowedOutcome,
    ClientCapabilities,
    EmbeddedResourceContentBlock,
    Implementation,
    InitializeResponse,
    ListSessionsResponse,
    LoadSessionResponse,
    NewSessionResponse,
    PermissionOption,
    PermissionOptionKind,
    PromptCapabilities,
    PromptResponse,
    ResourceContentBlock,
    SessionCapabilities,
    SessionInfo,
    SessionListCapabilities,
    SessionMode,
    SessionModeState,
    SetSessionModeResponse,
    StopReason,
    TextContentBlock,
    TextResourceContents,
    ToolCallUpdate,
)

from perstack.core.answers import ALWAYS, accepted, asked_by
from perstack.core.job import JobSummary
from perstack.core.runs.asking import OpenQuestion
from perstack.errors import PerstackError, UsageError
from perstack.frontends.acp.attachments import Block, attachments_of
from perstack.frontends.acp.history import shown_again
from perstack.frontends.acp.next_steps import said
from perstack.frontends.acp.sessions import Session, Sessions
from perstack.frontends.acp.updates import Sender, Updates
from perstack.frontends.shared.approvals import call_shown
from perstack.frontends.shared.consent import CHOICES, agrees, declines
from perstack.frontends.shared.forms import choices_of, form_of
from perstack.frontends.shared.words import local_time
from perstack.ports.toolkit.context import Blob
from perstack.version import VERSION

_PROTOCOL = 1


class PerstackAgent:
    """Experts are the session's modes, Jobs are sessions, Runs are turns."""

    _client: Client

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def on_connect(self, conn: Client) -> None:
        """The editor is there."""
        self._client = conn

    async def initialize(
        self,
        protocol_version: int,
        client_capabilities: ClientCapabilities | None = None,
        client_info: Implementation | None = None,
        **kwargs: Any,
    ) -> InitializeResponse:
        """What this agent can do."""
        if client_info is not None:
            self._sessions.client = f"{client_info.name} {client_info.version}"
        return InitializeResponse(
            protocol_version=min(protocol_version, _PROTOCOL),
            agent_capabilities=AgentCapabilities(
                load_session=True,
                prompt_capabilities=PromptCapabilities(image=True, embedded_context=True),
                session_capabilities=SessionCapabilities(list=SessionListCapabilities()),
            ),
            agent_info=Implementation(name="perstack", title="Perstack", version=VERSION),
        )

    async def new_session(self, cwd: str, **kwargs: Any) -> NewSessionResponse:
        """A session in a directory, with the Experts that its perstack.toml defines."""
        with _errors():
            session = self._sessions.new(cwd)
            return NewSessionResponse(session_id=session.id, modes=_modes(session))

    async def load_session(self, cwd: str, session_id: str, **kwargs: Any) -> LoadSessionResponse:
        """Show a Job again, and go on with it."""
        with _errors():
            session = await self._sessions.load(cwd, session_id)
            loaded = await session.host.load(session_id)
            run = loaded.runs[loaded.job.coordinator.start.run_id]
            for update in shown_again(run.messages):
                await self._client.session_update(session_id, update)
            if (asking := loaded.job.question) is not None:
                await self._say(session, _in_words(asking))
            return LoadSessionResponse(modes=_modes(session))

    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **kwargs: Any
    ) -> ListSessionsResponse:
        """The Jobs of a directory, the one written to last first."""
        with _errors():
            if cwd is None:
                return ListSessionsResponse(sessions=[])
            page = await self._sessions.host(cwd).jobs(limit=50, after=cursor)
            return ListSessionsResponse(sessions=[_info(job, cwd) for job in page.jobs], next_cursor=page.next)

    async def set_session_mode(self, session_id: str, mode_id: str, **kwargs: Any) -> SetSessionModeResponse:
        """Choose the Expert. Once a session has begun it stays with its own: context is never shared."""
        with _errors():
            session = self._sessions.get(session_id)
            if session.has_begun and mode_id != session.expert_key:
                raise UsageError(f"this session is {session.expert_key}'s: begin a new one for another Expert")
            if session.host.project.expert(mode_id) is None:
                raise UsageError(
                    f"there is no Expert {mode_id!r}; there are: {', '.join(session.host.project.experts)}"
                )
            session.expert_key = mode_id
            return SetSessionModeResponse()

    async def prompt(self, session_id: str, prompt: Sequence[Block], **kwargs: Any) -> PromptResponse:
        """One turn. A question that can be answered by a choice is put at once; any other ends the turn."""
        with _errors():
            session = self._sessions.get(session_id)
            session.is_cancelled = False
            await self._consent(session)
            job = await self._turn(session, _text(prompt), await attachments_of(prompt, session.host))
            while job.asking is not None:
                said = await self._ask(session, job.asking)
                if said is None:
                    break
                job = await self._turn(session, said)
        # also while a permission is asked for, when nothing is driven (ACP, «Cancellation»)
        return PromptResponse(stop_reason="cancelled" if session.is_cancelled else _reason(job))

    async def cancel(self, session_id: str, **kwargs: Any) -> None:
        """Interrupt the turn: it is recorded, and the next prompt goes on."""
        self._sessions.get(session_id).cancel()

    async def _turn(self, session: Session, text: str, attachments: Sequence[Blob] = ()) -> JobSummary:
        async def send(update: SessionUpdate) -> None:
            await self._client.session_update(session.id, update)

        sender = Sender(Updates(session.workspace), send)
        sending = asyncio.create_task(sender.run())
        try:
            job = await session.prompt(text, sender, attachments)
            sender.end()
            await sending
            return job
        finally:
            sending.cancel()

    async def _ask(self, session: Session, asking: OpenQuestion) -> str | None:
        """The answer, if the question has choices to put to the person; else it is said, and None."""
        form = form_of(asking)
        options = [
            PermissionOption(option_id=one, name=name, kind=_kind_of(one)) for one, name in choices_of(form).items()
        ]
        if options:
            title = call_shown(asking, session.workspace) if asking.call_digest else form.message
            call = ToolCallUpdate(
                tool_call_id=asking.id, title=title, kind="other", status="pending", raw_input=asking.args or None
            )
            reply = await self._client.request_permission(session_id=session.id, tool_call=call, options=options)
            if isinstance(reply.outcome, AllowedOutcome):
                return reply.outcome.option_id
        await self._say(session, f"\n\n{_in_words(asking)}")
        return None

    async def _consent(self, session: Session) -> None:
        """Ask whether a changed definition may have something else executed; else that of before goes on."""
        live = self._sessions.live(session)
        held = live.open_change
        if held is None or live.is_asked:
            return
        options = [
            PermissionOption(option_id=one, name=name, kind="allow_once" if agrees(one) else "reject_once")
            for one, name in CHOICES.items()
        ]
        call = ToolCallUpdate(
            tool_call_id=f"trust-{held.digest[:16]}", title=held.question, kind="other", status="pending"
        )
        live.is_asked = True
        try:
            reply = await self._client.request_permission(session_id=session.id, tool_call=call, options=options)
        finally:
            live.is_asked = False
        if isinstance(reply.outcome, AllowedOutcome) and agrees(reply.outcome.option_id):
            if live.agree(held.digest):
                session.host.use(live.loaded.project)
            return
        live.refuse(held.digest)
        await self._say(session, f"{held.note.said(said)}.\n\n")

    async def _say(self, session: Session, text: str) -> None:
        await self._client.session_update(session.id, update_agent_message_text(text))


@contextmanager
def _errors() -> Generator[None]:
    """What a user can mend is told in its own words."""
    try:
        yield
    except PerstackError as error:
        raise RequestError(-32000 if not isinstance(error, UsageError) else -32602, error.said(said)) from error


def _kind_of(choice: str) -> PermissionOptionKind:
    if declines(choice):
        return "reject_once"
    return "allow_always" if choice.startswith(ALWAYS) else "allow_once"


def _in_words(asking: OpenQuestion) -> str:
    """A question as it is said, for the next prompt to answer."""
    message, asked = form_of(asking).message, asked_by(asking)
    return f"{message}\n({accepted(asked)})" if asked.is_bound else message


def _modes(session: Session) -> SessionModeState:
    experts = session.host.project.experts
    if session.has_begun:
        experts = {key: expert for key, expert in experts.items() if key == session.expert_key}
    modes = [SessionMode(id=key, name=key, description=expert.description or None) for key, expert in experts.items()]
    return SessionModeState(current_mode_id=session.expert_key, available_modes=modes)


def _info(job: JobSummary, cwd: str) -> SessionInfo:
    when = local_time(job.updated_at).astimezone(UTC).isoformat()
    return SessionInfo(session_id=job.id, cwd=cwd, title=job.query[:100], updated_at=when)


def _text(prompt: Sequence[Block]) -> str:
    """A prompt as a query: texts as they are, files by their place, embedded ones whole."""
    parts: list[str] = []
    for block in prompt:
        if isinstance(block, TextContentBlock):
            parts.append(block.text)
        elif isinstance(block, ResourceContentBlock):
            parts.append(f"@{block.uri.removeprefix('file://')}")
        elif isinstance(block, EmbeddedResourceContentBlock) and isinstance(block.resource, TextResourceContents):
            parts.append(f"\n\n{block.resource.uri}:\n{block.resource.text}\n\n")
    text = "".join(parts)
    if not text.strip():
        raise UsageError("the prompt has no text: type what is to be done")
    return text


def _reason(job: JobSummary) -> StopReason:
    """Why a turn ended. Raises RequestError for one that failed."""
    match job.status:
        case "completed" | "stoppedByInteractiveTool":
            return "end_turn"
        case "stoppedByMaxSteps" | "stoppedByBudget":
            return "max_turn_requests"
        case "stoppedByInterrupt" | "running" | "queued":
            return "cancelled"
        case "stoppedByError":
            raise RequestError(-32000, job.error or "the Job failed")
        case _:
            assert_never(job.status)
