"""What a server asks for while it is at work on a call: answers of a person, generations of the Run's model."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Sequence
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

from perstack.core.base import JsonObject
from perstack.core.checking import schema_problem
from perstack.core.messages import BlobPart, ExpertMessage, Message, ResultContent, TextPart, UserMessage
from perstack.core.questions import Answer, Question
from perstack.core.schema_keywords import Meter
from perstack.errors import PerstackError, ProviderError, SkillError
from perstack.ports.skill import BlobStore, SampleRequest
from perstack_mcp.failures import words
from perstack_mcp.open_calls import OpenCall, OpenCalls

_SCHEMA_STEPS = 20_000
"""For the schema of a question, of which the fields are few and flat."""

_STOPS = {"stop": "endTurn", "length": "maxTokens"}


class Requests:
    """Answers a server's requests, each for the call that it belongs to."""

    def __init__(self, calls: OpenCalls, show: Callable[[str], None]) -> None:
        self._calls = calls
        self._show = show

    async def elicit(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        """A person's answer if there is one; else the call ends with the question, or it is declined."""
        question = question_of(params)
        problem = schema_problem(question.requested_schema, Meter(_SCHEMA_STEPS))
        if problem is not None:
            return ErrorData(code=INVALID_PARAMS, message=f"the question cannot be asked: {problem}")
        if not any(one.call.may_ask or one.call.answers for one in self._calls.candidates()):
            return ElicitResult(action="decline")
        owner = await self._calls.owner(is_question=True)
        answer = owner.answer(question) if owner is not None else None
        if answer is not None:
            return _reply(answer)
        if owner is None or not owner.call.may_ask:
            return ElicitResult(action="decline")
        await owner.give_up(question)
        return ElicitResult(action="cancel")

    async def sample(
        self, context: ClientRequestContext, params: CreateMessageRequestParams
    ) -> CreateMessageResult | ErrorData:
        """A generation. What goes wrong with it is shown to the person; the server learns only that it did."""
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
            with owner.patient():
                sample = await owner.call.sample(
                    SampleRequest(messages, params.system_prompt or "", params.max_tokens, params.temperature)
                )
        except PerstackError as error:
            self._show(f"(the model that the server asked for did not reply: {words(error)})")
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
    """In URL mode the address is part of the message, and a yes or no is all that is asked."""
    if isinstance(params, ElicitRequestURLParams):
        return Question(message=f"{params.message}\n{params.url}")
    return Question(message=params.message, requested_schema=cast("JsonObject", params.requested_schema))


def demanded(error: MCPError, one: OpenCall) -> Question | None:
    """What a person has to do on the web before the call may be made again, if the server says so (2025-11-25).

    Raises SkillError if nobody can be asked, or if it was declined.
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
            raise SkillError(f"{one.call.tool_name}: declined by the person: {words(error)}")
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
    return tuple(TextPart(text=block.text if isinstance(block, TextContent) else _unknown(block)) for block in blocks)


async def _part(block: SamplingMessageContentBlock, blobs: BlobStore) -> ResultContent:
    if isinstance(block, TextContent):
        return TextPart(text=block.text)
    if not isinstance(block, ImageContent):
        return TextPart(text=_unknown(block))
    try:
        data = b64decode(block.data, validate=True)
    except ValueError as error:
        raise ValueError("an image is not base64") from error
    return BlobPart(sha256=await blobs.put(data), mime_type=block.mime_type, size=len(data))


def _unknown(block: SamplingMessageContentBlock) -> str:
    raise ValueError(f"content of type {block.type} is not taken here")
