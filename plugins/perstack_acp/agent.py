"""The agent that an editor talks to. Source: Agent Client Protocol, version 1; the SDK is `agent-client-protocol`."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import UTC
from mimetypes import guess_type
from posixpath import basename
from typing import TYPE_CHECKING, Any, assert_never, cast
from urllib.parse import unquote, urlsplit

from acp import RequestError, run_agent, schema
from acp.helpers import SessionUpdate, update_agent_message_text
from acp.interfaces import Client
from pydantic import TypeAdapter

from perstack.core.base.records import JsonObject
from perstack.core.jobs.answer_reading import ALWAYS, accepted_answers, describe_accepted
from perstack.core.jobs.summary import JobSummary
from perstack.core.messages.media import PDF
from perstack.core.runs.open_questions import OpenQuestion
from perstack.doors.shared.consent import FORM, fitted_change
from perstack.doors.shared.next_step_phrases import acp_phrase
from perstack.doors.shared.question_forms import CHOICES, Form, agrees, choices_of, declines, form_of
from perstack.doors.shared.signals import cancel_on_stop_signal
from perstack.doors.shared.stdio import ProtocolStdio
from perstack.doors.shared.text import local_time
from perstack.doors.shared.workspace_files import read_workspace_file
from perstack.errors import PerstackError, UsageError
from perstack.host import Host
from perstack.toolkit.context import Blob
from perstack.version import VERSION
from perstack_acp.sessions import EditorSession, MakeHost, Sessions, open_sessions
from perstack_acp.updates import Sender, Updates, replay_updates

if TYPE_CHECKING:
    from acp.interfaces import Agent


# Attachments of a prompt: images and PDFs, embedded or as links to files of the workspace.

Block = (
    schema.TextContentBlock
    | schema.ImageContentBlock
    | schema.AudioContentBlock
    | schema.ResourceContentBlock
    | schema.EmbeddedResourceContentBlock
)


async def _read_attachments(prompt: Iterable[Block], host: Host) -> list[Blob]:
    """Return the prompt's images and PDFs. Raises UsageError for embedded data that is not base64."""
    attachments: list[Blob] = []
    for block in prompt:
        match block:
            case schema.ImageContentBlock():
                attachments.append(Blob(_decode_base64(block.data), name=_file_name(block.uri)))
            case schema.EmbeddedResourceContentBlock(resource=schema.BlobResourceContents() as resource):
                attachments.append(Blob(_decode_base64(resource.blob), name=_file_name(resource.uri)))
            case schema.ResourceContentBlock() if _is_image_or_pdf(block):
                attachments += await _read_linked_file(block.uri, host)
            case _:
                continue
    return attachments


async def _read_linked_file(uri: str, host: Host) -> list[Blob]:
    """Return the file of the workspace that a URI names; empty if it cannot be read."""
    try:
        return [await read_workspace_file(host, uri)]
    except UsageError:
        return []  # missing or outside the workspace: the text of the prompt still names it


def _is_image_or_pdf(block: schema.ResourceContentBlock) -> bool:
    mime_type = block.mime_type or guess_type(urlsplit(block.uri).path)[0] or ""
    return mime_type.startswith("image/") or mime_type == PDF


def _decode_base64(data: str) -> bytes:
    try:
        return b64decode(data, validate=True)
    except (NotBase64, ValueError):
        raise UsageError("an attachment of the prompt is not base64: the client must encode it") from None


def _file_name(uri: str | None) -> str | None:
    return basename(unquote(urlsplit(uri).path)) or None if uri else None


_PROTOCOL_VERSION = 1


class PerstackAgent:
    """The agent of one editor connection: Experts are modes, Jobs are sessions, Runs are turns."""

    _client: Client

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def on_connect(self, conn: Client) -> None:
        """Keep the connection, by which requests and notifications reach the editor."""
        self._client = conn

    async def initialize(
        self,
        protocol_version: int,
        client_capabilities: schema.ClientCapabilities | None = None,
        client_info: schema.Implementation | None = None,
        **kwargs: Any,
    ) -> schema.InitializeResponse:
        """Keep the editor's name and version, and return the agent's capabilities."""
        if client_info is not None:
            self._sessions.client = f"{client_info.name} {client_info.version}"
        return schema.InitializeResponse(
            protocol_version=min(protocol_version, _PROTOCOL_VERSION),
            agent_capabilities=schema.AgentCapabilities(
                load_session=True,
                prompt_capabilities=schema.PromptCapabilities(image=True, embedded_context=True),
                session_capabilities=schema.SessionCapabilities(list=schema.SessionListCapabilities()),
            ),
            agent_info=schema.Implementation(name="perstack", title="Perstack", version=VERSION),
        )

    async def new_session(self, cwd: str, **kwargs: Any) -> schema.NewSessionResponse:
        """Open a session in a directory, with the Experts of its perstack.toml as modes."""
        with _convert_errors():
            editor_session = self._sessions.new(cwd)
            return schema.NewSessionResponse(session_id=editor_session.id, modes=_session_modes(editor_session))

    async def load_session(self, cwd: str, session_id: str, **kwargs: Any) -> schema.LoadSessionResponse:
        """Open an existing Job as a session, and send its messages to the editor."""
        with _convert_errors():
            editor_session = await self._sessions.load(cwd, session_id)
            job = await editor_session.host.jobs.load(session_id)
            run = job.coordinator
            for update in replay_updates(run.messages):
                await self._client.session_update(session_id, update)
            if (asking := job.question) is not None:
                await self._send_text(editor_session, _question_text(asking, form_of(asking, editor_session.workspace)))
            return schema.LoadSessionResponse(modes=_session_modes(editor_session))

    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **kwargs: Any
    ) -> schema.ListSessionsResponse:
        """Return the Jobs of a directory, the most recently written first."""
        with _convert_errors():
            if cwd is None:
                return schema.ListSessionsResponse(sessions=[])
            page = await self._sessions.host(cwd).jobs.list(limit=50, after=cursor)
            return schema.ListSessionsResponse(
                sessions=[_session_info(summary, cwd) for summary in page.jobs], next_cursor=page.next
            )

    async def set_session_mode(self, session_id: str, mode_id: str, **kwargs: Any) -> schema.SetSessionModeResponse:
        """Choose the Expert. Raises RequestError in a session that has begun, since Experts never share a context."""
        with _convert_errors():
            editor_session = self._sessions.get(session_id)
            if editor_session.has_begun and mode_id != editor_session.expert_key:
                raise UsageError(
                    f"this session belongs to {editor_session.expert_key}: open a new one for another Expert"
                )
            if editor_session.host.project.expert(mode_id) is None:
                raise UsageError(
                    f"there is no Expert {mode_id!r}; available: {', '.join(editor_session.host.project.experts)}"
                )
            editor_session.expert_key = mode_id
            return schema.SetSessionModeResponse()

    async def prompt(self, session_id: str, prompt: Sequence[Block], **kwargs: Any) -> schema.PromptResponse:
        """Perform one turn. A question with choices is asked within the turn; any other ends it."""
        with _convert_errors():
            editor_session = self._sessions.get(session_id)
            editor_session.is_cancelled = False
            await self._ask_consent(editor_session)
            summary = await self._run_turn(
                editor_session, _prompt_text(prompt), await _read_attachments(prompt, editor_session.host)
            )
            while summary.asking is not None:
                answer = await self._ask_choice(editor_session, summary.asking)
                if answer is None:
                    break
                summary = await self._run_turn(editor_session, answer)
        # `cancel` may also arrive while a permission request is open and no turn runs (ACP, "Cancellation").
        return schema.PromptResponse(stop_reason="cancelled" if editor_session.is_cancelled else _stop_reason(summary))

    async def cancel(self, session_id: str, **kwargs: Any) -> None:
        """Interrupt the turn. The interruption is recorded, and the next prompt continues the Job."""
        self._sessions.get(session_id).cancel()

    async def _run_turn(self, editor_session: EditorSession, text: str, attachments: Sequence[Blob] = ()) -> JobSummary:
        """Drive the Job with a text until it stops, and send its updates. Raises PerstackError."""

        async def send(update: SessionUpdate) -> None:
            await self._client.session_update(editor_session.id, update)

        sender = Sender(Updates(editor_session.workspace), send)
        send_task = asyncio.create_task(sender.run())
        try:
            summary = await editor_session.prompt(text, sender, attachments)
            sender.end()
            await send_task
            return summary
        finally:
            send_task.cancel()

    async def _ask_choice(self, editor_session: EditorSession, question: OpenQuestion) -> str | None:
        """Ask by a permission request and return the chosen option; without one show the question and return None."""
        form = form_of(question, editor_session.workspace)
        choices = choices_of(form)
        options = [
            schema.PermissionOption(option_id=choice, name=name, kind=_option_kind(choice))
            for choice, name in choices.items()
        ]
        if options:
            call = schema.ToolCallUpdate(
                tool_call_id=question.id,
                title=form.message,
                kind="other",
                status="pending",
                raw_input=question.args or None,
            )
            reply = await self._client.request_permission(session_id=editor_session.id, tool_call=call, options=options)
            if isinstance(reply.outcome, schema.AllowedOutcome) and reply.outcome.option_id in choices:
                return reply.outcome.option_id
        await self._send_text(editor_session, f"\n\n{_question_text(question, form)}")
        return None

    async def _ask_consent(self, editor_session: EditorSession) -> None:
        """Ask the user whether a changed definition may be used, unless it is too long for a form: then refuse it."""
        live = self._sessions.live(editor_session)
        change = live.open_change
        if change is None or live.is_asked:
            return
        page = fitted_change(change, FORM)
        if not page.is_whole:
            live.refuse(change.digest)
            await self._send_text(editor_session, f"{page.text}\n\n")
            return
        options = [
            schema.PermissionOption(option_id=choice, name=name, kind="allow_once" if agrees(choice) else "reject_once")
            for choice, name in CHOICES.items()
        ]
        call = schema.ToolCallUpdate(
            tool_call_id=f"trust-{change.digest[:16]}", title=page.text, kind="other", status="pending"
        )
        live.is_asked = True
        try:
            reply = await self._client.request_permission(session_id=editor_session.id, tool_call=call, options=options)
        finally:
            live.is_asked = False
        if isinstance(reply.outcome, schema.AllowedOutcome) and agrees(reply.outcome.option_id):
            if live.agree(change.digest):
                editor_session.host.use(live.loaded.project)
            return
        live.refuse(change.digest)
        await self._send_text(editor_session, f"{change.note.text_for(acp_phrase)}.\n\n")

    async def _send_text(self, editor_session: EditorSession, text: str) -> None:
        await self._client.session_update(editor_session.id, update_agent_message_text(text))


@contextmanager
def _convert_errors() -> Generator[None]:
    """Raise RequestError for a PerstackError of the block."""
    try:
        yield
    except PerstackError as error:
        raise RequestError(
            -32000 if not isinstance(error, UsageError) else -32602, error.text_for(acp_phrase)
        ) from error


def _option_kind(choice: str) -> schema.PermissionOptionKind:
    if declines(choice):
        return "reject_once"
    return "allow_always" if choice.startswith(ALWAYS) else "allow_once"


def _question_text(question: OpenQuestion, form: Form) -> str:
    """Return a question with its accepted answers, for a user who answers with the next prompt."""
    accepted = accepted_answers(question)
    return (
        f"{form.message}\n({describe_accepted(accepted)})" if accepted.is_restricted and form.is_whole else form.message
    )


def _session_modes(editor_session: EditorSession) -> schema.SessionModeState:
    experts = editor_session.host.project.experts
    if editor_session.has_begun:
        experts = {key: expert for key, expert in experts.items() if key == editor_session.expert_key}
    modes = [
        schema.SessionMode(id=key, name=key, description=expert.description or None) for key, expert in experts.items()
    ]
    return schema.SessionModeState(current_mode_id=editor_session.expert_key, available_modes=modes)


def _session_info(summary: JobSummary, cwd: str) -> schema.SessionInfo:
    updated_at = local_time(summary.updated_at).astimezone(UTC).isoformat()
    return schema.SessionInfo(session_id=summary.id, cwd=cwd, title=summary.query[:100], updated_at=updated_at)


def _prompt_text(prompt: Sequence[Block]) -> str:
    """Return the text of a prompt, with the paths of links and embedded texts. Raises UsageError if it is empty."""
    parts: list[str] = []
    for block in prompt:
        if isinstance(block, schema.TextContentBlock):
            parts.append(block.text)
        elif isinstance(block, schema.ResourceContentBlock):
            parts.append(f"@{block.uri.removeprefix('file://')}")
        elif isinstance(block, schema.EmbeddedResourceContentBlock) and isinstance(
            block.resource, schema.TextResourceContents
        ):
            parts.append(f"\n\n{block.resource.uri}:\n{block.resource.text}\n\n")
    text = "".join(parts)
    if not text.strip():
        raise UsageError("the prompt has no text: type a task")
    return text


def _stop_reason(summary: JobSummary) -> schema.StopReason:
    """Return why the turn ended. Raises RequestError if the Job failed."""
    match summary.status:
        case "completed" | "stoppedByInteractiveTool":
            return "end_turn"
        case "stoppedByMaxSteps" | "stoppedByBudget":
            return "max_turn_requests"
        case "stoppedByInterrupt" | "running" | "queued":
            return "cancelled"
        case "stoppedByError":
            raise RequestError(-32000, summary.error or "the Job failed")
        case _:
            assert_never(summary.status)


# The agent on the process's stdin and stdout, until the editor closes them or a stop signal arrives.

_MESSAGE_ADAPTER: TypeAdapter[JsonObject] = TypeAdapter(JsonObject)


async def serve_acp(make_host: MakeHost, expert: str | None) -> None:
    """Serve one editor. stdout carries only the protocol; other output goes to stderr."""
    wire = ProtocolStdio.take_over()
    with cancel_on_stop_signal():
        async with open_sessions(make_host, expert) as sessions:
            # a cast, since the agent lacks optional methods: the SDK answers them with "method not found"
            await run_agent(cast("Agent", PerstackAgent(sessions)), _StdioTransport(wire))


class _StdioTransport:
    """The SDK's `Transport` over stdio. It uses threads, since an event loop cannot wait for files and /dev/null."""

    def __init__(self, wire: ProtocolStdio) -> None:
        self._wire = wire
        self._incoming = wire.start(_MESSAGE_ADAPTER.validate_json, "ACP")

    async def send(self, message: JsonObject) -> None:
        await self._wire.send(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    async def receive(self) -> JsonObject | None:
        return await anext(self._incoming, None)

    async def close(self) -> None:
        """Do nothing: the process's stdin and stdout stay open until it ends."""
