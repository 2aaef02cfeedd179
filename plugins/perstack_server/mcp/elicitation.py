"""Questions to the client's user, asked as the client's protocol revision requires.

Up to 2025-11-25 the client receives `elicitation/create` during the call. From 2026-07-28 on the call returns that
input is required, and the client calls again with the answer and the state that it was given, which names the question.
The state need not be signed, since a caller may answer any question, and it stays valid if the server restarts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeAlias, assert_never

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import JsonValue, TypeAdapter, ValidationError

from perstack.core.base.ids import place_of
from perstack.core.base.records import JsonObject
from perstack.core.runs.open_questions import OpenQuestion
from perstack.dataclass import dataclass
from perstack.doors.shared.question_forms import CHOICES, Form, agrees, form_of
from perstack.errors import UsageError

Context: TypeAlias = ServerRequestContext[Any, Any]  # the SDK's context; its type parameters are irrelevant here

_INPUT = "answer"
DECISION = "decision"  # kind of a question that asks for a person's decisions
_LISTS_SINCE = "2025-11-25"


_STATE = TypeAdapter(dict[str, str])  # state that the client returns with the answer: id of the question by its kind


@dataclass(frozen=True, slots=True)
class PendingAnswer:
    """The answer that a repeated call brings."""

    question_id: str  # the question that the client showed; another one may be open by now
    reply: types.ElicitResult | None

    @property
    def job_id(self) -> str:
        return place_of(self.question_id)[0]


ASKS: ContextVar[bool] = ContextVar("ASKS", default=False)  # True in a call whose client shows questions


def can_ask(context: Context) -> bool:
    """Return whether the client shows forms."""
    capabilities = context.session.client_capabilities
    elicitation = capabilities.elicitation if capabilities is not None else None
    # a client that names no mode has forms, the only mode before 2025-11-25
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def uses_returned_questions(context: Context) -> bool:
    """Return whether questions are returned as a result instead of being asked during the call."""
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


async def ask_now(context: Context, question: OpenQuestion, workspace: Path | None) -> str | None:
    """Return the answer; None if the user or the client declines to give one."""
    form = form_of(question, workspace, has_lists=context.protocol_version >= _LISTS_SINCE)
    try:
        reply = await context.session.elicit_form(form.message, form.schema, related_request_id=context.request_id)
    except MCPError:
        return None
    return _answer_of_reply(form, question, reply)


def ask_by_result(question: OpenQuestion, workspace: Path | None) -> types.InputRequiredResult:
    """Return the result that asks the client to call again with the answer."""
    form = form_of(question, workspace)
    return _input_required(_INPUT, form.message, form.schema, {"question": question.id})


def returned_answer(params: types.CallToolRequestParams) -> PendingAnswer | None:
    """Return the answer that a repeated call brings to a Job's question; None for other calls.

    Raises MCPError for a state that is not from this server.
    """
    if params.request_state is None or _id_in_state(params, DECISION) is not None:
        return None
    question_id = _id_in_state(params, "question") or ""
    try:
        place_of(question_id)
    except UsageError as error:
        raise MCPError(
            types.INVALID_PARAMS, "requestState was not given by this server: call again without it"
        ) from error
    reply = (params.input_responses or {}).get(_INPUT)
    return PendingAnswer(question_id, reply if isinstance(reply, types.ElicitResult) else None)


def answer_in(question: OpenQuestion, reply: types.ElicitResult, workspace: Path | None) -> str | None:
    """Return the reply to the form of `ask_by_result` as `Host.answer` takes it; None without an answer."""
    return _answer_of_reply(form_of(question, workspace), question, reply)


def _answer_of_reply(form: Form, question: OpenQuestion, reply: types.ElicitResult) -> str | None:
    """Return the reply as `Host.answer` takes it; None without an answer.

    A tool that asks, unlike a model, handles a refusal itself, so it gets "decline". Declining an approval is a no.
    """
    match reply.action:
        case "accept":
            content: Mapping[str, JsonValue] = json.loads(json.dumps(reply.content or {}))
            return form.answer(content)
        case "decline":
            return "decline" if question.requested_schema is not None or question.approval else None
        case "cancel":
            return None
        case _:
            assert_never(reply.action)


def _id_in_state(params: types.CallToolRequestParams, kind: str) -> str | None:
    """Return the id of the question in the returned state; None if the call answers no question of this kind."""
    try:
        return _STATE.validate_json(params.request_state or "").get(kind)
    except ValidationError:
        return None


def _input_required(key: str, message: str, schema: JsonObject, state: dict[str, str]) -> types.InputRequiredResult:
    request = types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))
    return types.InputRequiredResult(input_requests={key: request}, request_state=_STATE.dump_json(state).decode())


@dataclass(frozen=True, slots=True)
class AgreementForm:
    """A form with which the user agrees to a shown text, which a digest identifies."""

    key: str  # the name of the field, of the request and of the state
    title: str

    @property
    def schema(self) -> JsonObject:
        """The form's schema: one choice of yes or no."""
        field: JsonObject = {"type": "string", "title": self.title, "enum": [*CHOICES]}
        return {"type": "object", "properties": {self.key: field}, "required": [self.key]}

    async def ask_now(self, context: Context, message: str) -> bool:
        """Return whether the user agrees. A client that cannot ask counts as a no."""
        try:
            reply = await context.session.elicit_form(message, self.schema, related_request_id=context.request_id)
        except MCPError:
            return False
        return self._is_agreement(reply)

    def ask_by_result(self, message: str, digest: str) -> types.InputRequiredResult:
        """Return the result that asks the client to call again with the answer."""
        return _input_required(self.key, message, self.schema, {self.key: digest})

    def returned_decision(self, params: types.CallToolRequestParams) -> tuple[str, bool] | None:
        """Return the digest that a repeated call answers about, and whether the user agreed; None for other calls."""
        digest = _id_in_state(params, self.key)
        return None if digest is None else (digest, self._is_agreement((params.input_responses or {}).get(self.key)))

    def _is_agreement(self, reply: object) -> bool:
        if not isinstance(reply, types.ElicitResult) or reply.action != "accept":
            return False
        return agrees((reply.content or {}).get(self.key))
