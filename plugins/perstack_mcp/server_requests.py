"""Requests of a server during a call: answers of a person, and generations of the Run's model."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

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

from perstack.core.base.json_schema import Meter, schema_problem
from perstack.core.base.records import JsonObject
from perstack.core.runs.facts import Answer, Question
from perstack.core.runs.messages import BlobPart, ExpertMessage, Message, ResultContent, TextPart, UserMessage
from perstack.errors import PerstackError, ProviderError, SkillError
from perstack.ports.skill import BlobStore, SampleRequest, ToolCall, ToolResult
from perstack_mcp.server_interface import describe

# Assignment of a server's requests to its active calls.
#
# With streamable HTTP, and in stateless protocol revisions, a request arrives within its call. On a pipe nothing
# identifies the call: the request belongs to the only active call, or waits until there is only one. If every active
# call waits like this, all of them are cancelled and repeated one at a time.
#
# A call that has asked the person is held open until it is made again with the answer, which the server then gets, or
# until the connection is closed. Meanwhile it is not active.

_OWN: ContextVar[PendingCall | None] = ContextVar("perstack_mcp_call", default=None)


class PendingCall:
    """Call that a server is working on."""

    def __init__(self, call: ToolCall, idle: float) -> None:
        """Start the idle timeout."""
        self.call = call
        self.idle = idle
        self.limit = asyncio.timeout(idle)  # timeout that ends the call after `idle` seconds without a sign of life
        self.abandoned: asyncio.Future[Question | None] = asyncio.get_running_loop().create_future()
        """Set when the call must end early: to the question for the person, or to None to repeat the call alone."""
        self.is_over = asyncio.Event()
        self.is_held = False  # True while the server waits for the person's answer
        self.work: asyncio.Task[ToolResult | Question] | None = None
        self._holds = 0
        self._answers = list(call.answers)
        self._reply: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def resume(self, call: ToolCall) -> bool:
        """Answer the question of a held call, which is made again with the answer; without one, return False.

        A call that has ended meanwhile has its outcome, and is not made again: it may have had its effect.
        """
        question = self.abandoned.result()
        self._answers += call.answers[len(self.call.answers) :]
        answer = self.answer(question) if question is not None else None
        has_ended = self.work is not None and self.work.done()
        if answer is None and not has_ended:
            return False
        self.call, self.is_held, self.limit = call, False, asyncio.timeout(self.idle)
        if answer is not None and not has_ended:
            reply, self._reply = self._reply, asyncio.get_running_loop().create_future()
            self.abandoned = asyncio.get_running_loop().create_future()
            reply.set_result(answer)
        return True

    async def end(self) -> None:
        """Cancel the call at the server, which is notified before its question is answered."""
        if self.work is not None:
            self.work.cancel()
            await asyncio.wait({self.work})
            if not self.work.cancelled():
                self.work.exception()  # nobody waits for it any more
        self.is_over.set()

    def on_activity(self) -> None:
        """Restart the idle timeout after a sign of life."""
        if self._holds == 0 and not self.is_held and not self.limit.expired():
            self.limit.reschedule(asyncio.get_running_loop().time() + self.idle)

    @contextmanager
    def timeout_suspended(self) -> Generator[None]:
        """Suspend the idle timeout while the server waits for us."""
        self._holds += 1
        if not self.is_held and not self.limit.expired():
            self.limit.reschedule(None)
        try:
            yield
        finally:
            self._holds -= 1
            if not self.is_over.is_set():
                self.on_activity()

    def answer(self, question: Question) -> Answer | None:
        """Return the answer to a question; None without one. Repeated questions get their answers in order."""
        found = next((one for one in self._answers if one.question == question), None)
        if found is not None:
            self._answers.remove(found)
        return found

    async def ask(self, question: Question) -> Answer | None:
        """Return from the call with the question, and wait for the answer; None once the server knows of its end."""
        reply = self._reply
        if not self.abandoned.done():
            self.abandoned.set_result(question)
        ending = asyncio.create_task(self.is_over.wait())
        both: set[asyncio.Future[Any]] = {reply, ending}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
        return reply.result() if reply.done() else None


class OpenCalls:
    """Active calls of one connection."""

    def __init__(self, show: Callable[[str], None]) -> None:
        """Start without calls."""
        self._show = show
        self._calls: list[PendingCall] = []
        self._held: list[PendingCall] = []  # calls waiting for a person's answer, which are not active
        self._waiting = 0
        self._changed = asyncio.Event()

    @contextmanager
    def register(self, one: PendingCall) -> Generator[None]:
        """Register a call for the duration of the block."""
        before = _OWN.set(one)
        self._calls.append(one)
        self.drop(one)
        try:
            yield
        finally:
            _OWN.reset(before)
            self._calls.remove(one)
            if one.is_held:
                self._held.append(one)
            else:
                one.is_over.set()
            self._notify()

    def drop(self, one: PendingCall) -> None:
        """Forget that a call is held: it is active again, or has ended."""
        if one in self._held:
            self._held.remove(one)
        self._notify()

    async def until_active(self) -> None:
        """Wait while every call to which a request may belong waits for the answer to an earlier one."""
        own = _OWN.get()
        while not self.candidates() and any(own in (None, one) for one in self._held):
            await self._changed.wait()

    def candidates(self) -> list[PendingCall]:
        """Return the calls to which a request that has just arrived may belong."""
        own = _OWN.get()
        return [one for one in self._calls if own in (None, one)]

    async def owner(self, *, is_question: bool) -> PendingCall | None:
        """Return the call of a request, once others had half the idle timeout to end; None if it stays unclear."""
        candidates = self.candidates()
        for one in candidates:
            one.on_activity()
        if len(candidates) < 2:
            return next(iter(candidates), None)
        self._waiting += is_question
        try:
            async with asyncio.timeout(candidates[0].idle / 2):
                return await self._wait_for_single(candidates)
        except TimeoutError:
            self._show("(what the server asks for is declined: it is not clear which of its calls it is for)")
            return None
        finally:
            self._waiting -= is_question

    async def _wait_for_single(self, candidates: list[PendingCall]) -> PendingCall | None:
        while True:
            self._abandon_all_if_waiting()
            left = [one for one in candidates if one in self._calls and not one.abandoned.done()]
            if len(left) == 1:
                return left[0]
            if not left:
                for one in candidates:
                    # an answer that arrives before the cancellation would be used by the server
                    await one.is_over.wait()
                return None
            await self._changed.wait()

    def _abandon_all_if_waiting(self) -> None:
        at_work = [one for one in self._calls if not one.abandoned.done()]
        if self._waiting < len(at_work) or len(at_work) < 2:
            return
        for one in at_work:
            one.abandoned.set_result(None)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


_MAX_SCHEMA_STEPS = 20_000  # validation steps for a question's schema, whose fields are few and flat

_STOPS = {"stop": "endTurn", "length": "maxTokens"}


class Requests:
    """Answers to a server's requests, each for the call that it belongs to."""

    def __init__(self, calls: OpenCalls, show: Callable[[str], None]) -> None:
        """Assign requests to `calls`."""
        self._calls = calls
        self._show = show

    async def elicit(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        """Answer a question: with the person's recorded answer, by ending the call to ask, or by declining."""
        question = question_of(params)
        problem = schema_problem(question.requested_schema, Meter(_MAX_SCHEMA_STEPS))
        if problem is not None:
            return ErrorData(code=INVALID_PARAMS, message=f"the question cannot be asked: {problem}")
        await self._calls.until_active()
        if not any(one.call.may_ask or one.call.answers for one in self._calls.candidates()):
            return ElicitResult(action="decline")
        owner = await self._calls.owner(is_question=True)
        answer = owner.answer(question) if owner is not None else None
        if answer is not None:
            return _reply(answer)
        if owner is None or not owner.call.may_ask:
            return ElicitResult(action="decline")
        answer = await owner.ask(question)
        return ElicitResult(action="cancel") if answer is None else _reply(answer)

    async def sample(
        self, context: ClientRequestContext, params: CreateMessageRequestParams
    ) -> CreateMessageResult | ErrorData:
        """Generate with the Run's model. Failures are shown to the person, not to the server."""
        if params.tools:
            return ErrorData(code=INVALID_PARAMS, message="tools in sampling are not offered")
        owner = await self._calls.owner(is_question=False)
        if owner is None or owner.call.sample is None:
            return ErrorData(code=INVALID_REQUEST, message="sampling is offered during a call that allows it only")
        try:
            messages = [await _message(one, owner.call.blobs) for one in params.messages]
        except ValueError as error:
            return ErrorData(code=INVALID_PARAMS, message=str(error))
        try:
            with owner.timeout_suspended():
                sample = await owner.call.sample(
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


def required_question(error: MCPError, one: PendingCall) -> Question | None:
    """Return the question to answer before the call is repeated (URL elicitation, 2025-11-25); None for other errors.

    Raises SkillError if nobody can be asked, or the person declined.
    """
    if error.code != URL_ELICITATION_REQUIRED:
        return None
    try:
        wanted = ElicitationRequiredErrorData.model_validate(error.data).elicitations
    except ValidationError:
        return None
    for question in map(question_of, wanted):
        answer = one.answer(question)
        if answer is None and one.call.may_ask:
            return question
        if answer is None or answer.action != "accept":
            raise SkillError(f"{one.call.tool_name}: declined by the person: {describe(error)}")
    return None


def _reply(answer: Answer) -> ElicitResult | ErrorData:
    if answer.action != "accept" or not answer.question.requested_schema:
        return ElicitResult(action=answer.action)
    try:
        return ElicitResult.model_validate({"action": "accept", "content": answer.content})
    except ValidationError:
        return ErrorData(code=INVALID_PARAMS, message="the form asks for values that a form cannot hold")


async def _message(message: SamplingMessage, blobs: BlobStore) -> Message:
    if message.role == "assistant":
        return ExpertMessage(contents=_texts(message.content_as_list))
    return UserMessage(contents=tuple([await _part(block, blobs) for block in message.content_as_list]))


def _texts(blocks: Sequence[SamplingMessageContentBlock]) -> tuple[TextPart, ...]:
    return tuple(
        TextPart(text=block.text if isinstance(block, TextContent) else _reject_block(block)) for block in blocks
    )


async def _part(block: SamplingMessageContentBlock, blobs: BlobStore) -> ResultContent:
    if isinstance(block, TextContent):
        return TextPart(text=block.text)
    if not isinstance(block, ImageContent):
        return TextPart(text=_reject_block(block))
    try:
        data = b64decode(block.data, validate=True)
    except ValueError as error:
        raise ValueError("an image is not base64") from error
    return BlobPart(sha256=await blobs.put(data), mime_type=block.mime_type, size=len(data))


def _reject_block(block: SamplingMessageContentBlock) -> str:
    raise ValueError(f"content of type {block.type} is not taken here")
