"""Requests of a server during a call: answers of a person, and generations of the Run's model."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import cast

from mcp.client import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    URL_ELICITATION_REQUIRED,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitationRequiredErrorData,
    ElicitRequestParams,
    ElicitRequestURLParams,
    ElicitResult,
    ErrorData,
    ImageContent,
    SamplingMessage,
    SamplingMessageContentBlock,
    TextContent,
)
from pydantic import ValidationError

from perstack.core.base.records import JsonObject
from perstack.core.messages.messages import BlobPart, ExpertMessage, Message, ResultContent, TextPart, UserMessage
from perstack.core.runs.facts import Answer, Question
from perstack.core.schemas.json_schema import Meter, schema_problem
from perstack.errors import PerstackError, ProviderError, SkillError
from perstack.media.file_headers import with_true_type
from perstack.ports.skill import BlobStore, SampleRequest, ToolCall, ToolResult
from perstack_mcp.server_interface import describe

# Assignment of a server's requests to its active calls.
#
# With streamable HTTP, and in stateless protocol revisions, a request arrives within its call. On a pipe nothing
# identifies the call, unless the server names it in `_meta`: the request belongs to the only active call, or waits
# until there is only one. If every active call asks in this way, each gets one of the questions, whose text says that
# its call is uncertain. No call is repeated: the server gets each answer by the id of its own question. If a call ends
# while its assigned question is open, the question belonged to another call, which then asks it.
#
# A call that has asked the person is held open until it is repeated with the answer, which the server then gets, or
# until the connection is closed. While held it is not active.

CALL_KEY = "perstack/callId"  # key of the call's id in `_meta`

_CURRENT_CALL: ContextVar[PendingCall | None] = ContextVar("perstack_mcp_call", default=None)

_UNCLEAR_NOTE = "\n(The server does not say which of its calls asks: "


class AskedQuestion:
    """A server's question, and the future of its answer; None once its call has ended without one."""

    def __init__(self, tool_question: Question) -> None:
        self.question = tool_question
        self.reply: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
        self.owner: PendingCall | None = None  # the call that returns with this question to ask the person
        self.answered_by: PendingCall | None = None  # the call that already has an answer to it
        self.is_uncertain = False  # True if it may belong to another call

    def describe_owners(self, calls: Sequence[PendingCall]) -> None:
        """Add to the question's text that any of these calls may be asking it."""
        names = "; ".join(f"{pending.tool_call.tool_name} of {pending.tool_call.expert_key}" for pending in calls)
        self.question = self.question.model_copy(update={"message": f"{self.question.message}{_UNCLEAR_NOTE}{names})"})
        self.is_uncertain = True

    def set_reply(self, pending_call: PendingCall, answer: Answer | None) -> None:
        """Set the answer, unless the question has one or belongs to another call."""
        if self.owner is pending_call and not self.reply.done():
            self.reply.set_result(answer)


class PendingCall:
    """A call that a server is working on."""

    def __init__(self, tool_call: ToolCall, idle: float) -> None:
        """Start the idle timeout."""
        self.tool_call = tool_call
        self.idle = idle
        # timeout that ends the call after `idle` seconds without activity of the server
        self.limit = asyncio.timeout(idle)
        self.asked_question: asyncio.Future[AskedQuestion] = asyncio.get_running_loop().create_future()
        """Set when the call must return with a question for the person."""
        self.is_held = False  # True while the server waits for the person's answer
        self.is_uncertain = False  # True once it was assigned a question that may belong to another call
        self.is_over = False  # True once its outcome was returned
        self.has_reacted = False  # True once the server has shown activity for it
        self.work: asyncio.Task[ToolResult | Question] | None = None
        self._holds = 0
        self._answers = list(tool_call.answers)

    def resume(self, tool_call: ToolCall) -> bool:
        """Answer the question of a held call, which is repeated with the answer.

        Return False if `tool_call` has no answer.

        If the call has ended in the meantime, its outcome is returned; it is not made again, as it may have had its
        effect.
        """
        asked_question = self.asked_question.result()
        self._answers += tool_call.answers[len(self.tool_call.answers) :]
        answer = self.answer(asked_question.question)
        if answer is None and not self.has_ended:
            return False
        self.tool_call, self.is_held, self.limit = tool_call, False, asyncio.timeout(self.idle)
        if not self.has_ended:
            self.asked_question = asyncio.get_running_loop().create_future()
        if not self.has_ended or asked_question.is_uncertain:
            asked_question.set_reply(self, answer)
        return True

    @property
    def has_ended(self) -> bool:
        """True once the server has answered the call."""
        return self.work is not None and self.work.done() and not self.work.cancelled()

    async def end(self) -> None:
        """Cancel the call at the server, which is notified before its question is answered."""
        if self.work is not None:
            self.work.cancel()
            await asyncio.wait({self.work})
            if not self.work.cancelled():
                self.work.exception()  # nobody waits for its answer any more
        self.close()

    def close(self) -> None:
        """End the call, and give up the question that it is asking, if any."""
        self.is_over = True
        if self.asked_question.done():
            self.asked_question.result().set_reply(self, None)

    def on_activity(self) -> None:
        """Restart the idle timeout after activity of the server."""
        self.has_reacted = True
        if self._holds == 0 and self._is_watched:
            self.limit.reschedule(asyncio.get_running_loop().time() + self.idle)

    @property
    def _is_watched(self) -> bool:
        return not self.is_held and not self.is_over and not self.limit.expired()

    @contextmanager
    def timeout_suspended(self) -> Generator[None]:
        """Suspend the idle timeout while the server waits for us."""
        self._holds += 1
        if self._is_watched:
            self.limit.reschedule(None)
        try:
            yield
        finally:
            self._holds -= 1
            self.on_activity()

    def has_answer(self, tool_question: Question) -> bool:
        """Return whether a person has answered this question of the call."""
        return any(_is_same_question(answer.question, tool_question) for answer in self._answers)

    def answer(self, tool_question: Question) -> Answer | None:
        """Return the answer to a question; None without one. Repeated questions get their answers in order."""
        matching_answer = next(
            (answer for answer in self._answers if _is_same_question(answer.question, tool_question)), None
        )
        if matching_answer is not None:
            self._answers.remove(matching_answer)
        return matching_answer

    def ask(self, asked_question: AskedQuestion) -> None:
        """Return from the call with the question."""
        asked_question.owner = self
        self.asked_question.set_result(asked_question)


def _is_same_question(answered: Question, asked_question: Question) -> bool:
    """Return whether two questions are equal, apart from a note that the call is uncertain."""
    answered_text, schema = answered.message, answered.requested_schema
    has_same_text = answered_text == asked_question.message or answered_text.startswith(
        asked_question.message + _UNCLEAR_NOTE
    )
    return has_same_text and schema == asked_question.requested_schema


class OpenCalls:
    """Active calls of one connection."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._calls: list[PendingCall] = []
        self._held_calls: list[PendingCall] = []  # calls waiting for a person's answer, which are not active
        self._unassigned: list[AskedQuestion] = []  # questions that may belong to several calls
        self._changed = asyncio.Event()

    @contextmanager
    def register(self, pending: PendingCall) -> Generator[None]:
        """Register a call for the duration of the block."""
        token = _CURRENT_CALL.set(pending)
        self._calls.append(pending)
        self.drop(pending)
        self.reassign_question()
        try:
            yield
        finally:
            _CURRENT_CALL.reset(token)
            self._calls.remove(pending)
            if pending.is_held:
                self._held_calls.append(pending)
                self.reassign_question()
            else:
                pending.close()
            self._wake_waiters()

    def drop(self, pending: PendingCall) -> None:
        """Forget that a call is held: it is active again, or has ended."""
        if pending in self._held_calls:
            self._held_calls.remove(pending)
        self._wake_waiters()

    def reassign_question(self) -> None:
        """Let an active call ask the open question of a call that has ended: the question was another's."""
        for pending in self._held_calls:
            asked_question = pending.asked_question.result()
            other_call = next((call for call in self._candidates_for(None) if call.is_uncertain), None)
            is_misplaced = (
                asked_question.is_uncertain and asked_question.owner is pending and not asked_question.reply.done()
            )
            if other_call is not None and pending.has_ended and is_misplaced:
                other_call.ask(asked_question)

    async def wait_until_active(self) -> None:
        """Wait while every call to which a request may belong waits for the answer to an earlier one."""
        current_call = _CURRENT_CALL.get()
        while not self.candidates() and any(
            current_call in (None, pending) for pending in (*self._calls, *self._held_calls)
        ):
            await self._changed.wait()

    def candidates(self) -> list[PendingCall]:
        """Return the calls to which a request that has just arrived may belong."""
        return self._candidates_for(_CURRENT_CALL.get())

    def _candidates_for(self, current_call: PendingCall | None) -> list[PendingCall]:
        return [
            pending for pending in self._calls if current_call in (None, pending) and not pending.asked_question.done()
        ]

    async def owner(self, asked_question: AskedQuestion | None, key: object = None) -> PendingCall | None:
        """Return the call that a request belongs to, by its key if the server names one; None if that stays uncertain.

        Other calls get half the idle timeout to end. A question that may belong to any call is assigned when all ask.
        """
        while True:
            if asked_question is not None:
                await self.wait_until_active()
            candidates = self.candidates()
            candidates = [pending for pending in candidates if pending.tool_call.key == key] or candidates
            for pending in candidates:
                pending.on_activity()
            if len(candidates) < 2:
                return next(iter(candidates), None)
            try:
                async with asyncio.timeout(candidates[0].idle / 2):
                    await self._wait_until_one_candidate(candidates, asked_question)
            except TimeoutError:
                self._show("(the server's request is declined: it does not say which of its calls it belongs to)")
                return None
            if asked_question is not None and (asked_question.owner or asked_question.answered_by) is not None:
                return asked_question.owner or asked_question.answered_by

    async def _wait_until_one_candidate(
        self, candidates: list[PendingCall], asked_question: AskedQuestion | None
    ) -> None:
        """Wait until at most one of the candidates is active, or the question has an owner."""
        if asked_question is not None:
            self._unassigned.append(asked_question)
            self._assign_if_all_ask()
        try:
            while asked_question is None or asked_question in self._unassigned:
                active = self._candidates_for(None)
                if len([pending for pending in candidates if pending in active]) < 2:
                    return
                await self._changed.wait()
                self._assign_if_all_ask()
        finally:
            if asked_question in self._unassigned:
                self._unassigned.remove(asked_question)

    def _assign_if_all_ask(self) -> None:
        """Give each active call a question once all of them ask, preferring one that a person has answered for it."""
        calls = self._candidates_for(None)
        if not 2 <= len(calls) <= len(self._unassigned):
            return
        questions, uncertain = self._unassigned, list[AskedQuestion]()
        self._unassigned = questions[len(calls) :]
        for asked_question in questions[: len(calls)]:
            same_questions = [pending for pending in questions if pending.question == asked_question.question]
            answered = [pending for pending in calls if pending.has_answer(asked_question.question)]
            if len(same_questions) == len(answered) == 1:
                asked_question.answered_by = answered[0]
                calls.remove(answered[0])
            else:
                uncertain.append(asked_question)
        if len(calls) > 1:
            for asked_question in uncertain:
                asked_question.describe_owners(calls)
            for pending in calls:
                pending.is_uncertain = True
        for asked_question, pending in zip(uncertain, calls, strict=True):
            pending.ask(asked_question)
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


_MAX_SCHEMA_STEPS = 20_000  # maximum validation steps for a question's schema, whose fields are few and flat

_STOPS = {"stop": "endTurn", "length": "maxTokens"}


class Requests:
    """Handler of a server's requests, each for the call that it belongs to."""

    def __init__(self, calls: OpenCalls, show: Callable[[str], None]) -> None:
        self._calls = calls
        self._show = show

    async def elicit(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        """Answer a question: with the person's recorded answer, by ending the call to ask, or by declining."""
        tool_question = question_of(params)
        problem = schema_problem(tool_question.requested_schema, Meter(_MAX_SCHEMA_STEPS))
        if problem is not None:
            return ErrorData(code=INVALID_PARAMS, message=f"the question cannot be asked: {problem}")
        await self._calls.wait_until_active()
        if not any(pending.tool_call.may_ask or pending.tool_call.answers for pending in self._calls.candidates()):
            return ElicitResult(action="decline")
        asked_question = AskedQuestion(tool_question)
        pending_call = await self._calls.owner(asked_question, (context.meta or {}).get(CALL_KEY))
        if pending_call is not None and asked_question.owner is None:
            answer = pending_call.answer(tool_question)
            if answer is not None:
                return _convert_answer(answer)
            if pending_call.tool_call.may_ask:
                pending_call.ask(asked_question)
        if asked_question.owner is None:
            return ElicitResult(action="decline")
        answer = await asked_question.reply
        return ElicitResult(action="cancel") if answer is None else _convert_answer(answer)

    async def sample(
        self, context: ClientRequestContext, params: CreateMessageRequestParams
    ) -> CreateMessageResult | ErrorData:
        """Generate with the Run's model. Failures are shown to the person, not to the server."""
        if params.tools:
            return ErrorData(code=INVALID_PARAMS, message="tools in sampling are not offered")
        pending_call = await self._calls.owner(None, (context.meta or {}).get(CALL_KEY))
        if pending_call is None or pending_call.tool_call.sample is None:
            return ErrorData(code=INVALID_REQUEST, message="sampling is offered only during a call that allows it")
        try:
            messages = [await _convert_message(pending, pending_call.tool_call.blobs) for pending in params.messages]
        except ValueError as error:
            return ErrorData(code=INVALID_PARAMS, message=str(error))
        try:
            with pending_call.timeout_suspended():
                sample = await pending_call.tool_call.sample(
                    SampleRequest(messages, params.system_prompt or "", params.max_tokens, params.temperature)
                )
        except PerstackError as error:
            self._show(f"(the model that the server asked for did not reply: {describe(error)})")
            status = error.status_code if isinstance(error, ProviderError) else None
            return ErrorData(
                code=INTERNAL_ERROR, message=f"the model did not reply{f': status {status}' if status else ''}"
            )
        return CreateMessageResult(
            role="assistant",
            content=TextContent(type="text", text=sample.reply.text),
            model=sample.model,
            stop_reason=_STOPS.get(sample.finish_reason, sample.finish_reason),
        )


def question_of(params: ElicitRequestParams) -> Question:
    """Convert a request to a question. In URL mode the address is part of the message, and the answer is yes or no."""
    if isinstance(params, ElicitRequestURLParams):
        return Question(message=f"{params.message}\n{params.url}")
    return Question(message=params.message, requested_schema=cast("JsonObject", params.requested_schema))


def required_question(error: MCPError, pending: PendingCall) -> Question | None:
    """Return the question to answer before the call is repeated (URL elicitation, 2025-11-25); None for other errors.

    Raises SkillError if nobody can be asked, or the person declined.
    """
    if error.code != URL_ELICITATION_REQUIRED:
        return None
    try:
        elicitations = ElicitationRequiredErrorData.model_validate(error.data).elicitations
    except ValidationError:
        return None
    for tool_question in map(question_of, elicitations):
        answer = pending.answer(tool_question)
        if answer is None and pending.tool_call.may_ask:
            return tool_question
        if answer is None or answer.action != "accept":
            raise SkillError(f"{pending.tool_call.tool_name}: declined by the person: {describe(error)}")
    return None


def _convert_answer(answer: Answer) -> ElicitResult | ErrorData:
    if answer.action != "accept" or not answer.question.requested_schema:
        return ElicitResult(action=answer.action)
    try:
        return ElicitResult.model_validate({"action": "accept", "content": answer.content})
    except ValidationError:
        return ErrorData(code=INVALID_PARAMS, message="the form asks for values that a form cannot hold")


async def _convert_message(message: SamplingMessage, blobs: BlobStore) -> Message:
    if message.role == "assistant":
        return ExpertMessage(contents=_convert_texts(message.content_as_list))
    return UserMessage(contents=tuple([await _convert_part(block, blobs) for block in message.content_as_list]))


def _convert_texts(blocks: Sequence[SamplingMessageContentBlock]) -> tuple[TextPart, ...]:
    return tuple(
        TextPart(text=block.text if isinstance(block, TextContent) else _reject_block(block)) for block in blocks
    )


async def _convert_part(block: SamplingMessageContentBlock, blobs: BlobStore) -> ResultContent:
    if isinstance(block, TextContent):
        return TextPart(text=block.text)
    if not isinstance(block, ImageContent):
        return TextPart(text=_reject_block(block))
    try:
        data = b64decode(block.data, validate=True)
    except ValueError as error:
        raise ValueError("an image is not base64") from error
    part = BlobPart(sha256=await blobs.put(data), mime_type=block.mime_type, size=len(data))
    return with_true_type(part, data)


def _reject_block(block: SamplingMessageContentBlock) -> str:
    raise ValueError(f"content of type {block.type} is not accepted here")
