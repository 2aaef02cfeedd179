"""Asking the client's user whether to use a changed definition that would execute something new."""

from __future__ import annotations

from dataclasses import replace

import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from perstack.core.base.records import Fact, JsonObject
from perstack.doors.mcp.elicitation import asks_by_returning, can_ask
from perstack.doors.mcp.project import Call, ServerState
from perstack.doors.mcp.tools import JOB_TOOLS, TASK_TOOLS
from perstack.doors.shared.questions import CHOICES, agrees
from perstack.engine.permissions.live_project import Held

_INPUT = "trust"
_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {_INPUT: {"type": "string", "title": "Use it", "enum": [*CHOICES]}},
    "required": [_INPUT],
}


class _State(Fact):
    """The state that the client returns with the answer."""

    trust: str  # the digest of the change that it was shown


async def with_consent(call: Call) -> Call | types.InputRequiredResult:
    """Return the call once the definition is settled, or the result that asks the user about a change.

    Only calls that drive a Job ask, one at a time, and only clients that can show a form. Raises StorageError.
    """
    before = _returned(call)
    if before is not None:
        await _settle(call.state, before, (call.params.input_responses or {}).get(_INPUT))
        params = call.params.model_copy(update={"request_state": None, "input_responses": None})
        return replace(call, params=params)
    live = call.state.definitions.live
    held = live.open_change
    if held is None or live.is_asked or not can_ask(call.context) or not _drives(call.params.name):
        return call
    if asks_by_returning(call.context):
        if call.params.request_state is not None:
            return call  # it brings the answer to another question
        form = types.ElicitRequestFormParams(message=held.question, requested_schema=_SCHEMA)
        state = _State(trust=held.digest).to_json().decode()
        return types.InputRequiredResult(input_requests={_INPUT: types.ElicitRequest(params=form)}, request_state=state)
    live.is_asked = True
    try:
        await _settle(call.state, held.digest, await _reply(call, held))
    finally:
        live.is_asked = False
    return call


def _drives(name: str) -> bool:
    tool = JOB_TOOLS.get(name)
    return name not in TASK_TOOLS if tool is None else tool.annotations.destructive_hint is True


async def _reply(call: Call, held: Held) -> object:
    try:
        return await call.context.session.elicit_form(
            held.question, _SCHEMA, related_request_id=call.context.request_id
        )
    except MCPError:
        return None


async def _settle(state: ServerState, digest: str, reply: object) -> None:
    said = (
        (reply.content or {}).get(_INPUT)
        if isinstance(reply, types.ElicitResult) and reply.action == "accept"
        else None
    )
    if not agrees(said):
        state.definitions.live.refuse(digest)
    elif state.definitions.agree(digest):
        await state.clients.definitions_changed()


def _returned(call: Call) -> str | None:
    """Return the digest of the change that the call brings an answer about; None if it brings none."""
    try:
        return _State.model_validate_json(call.params.request_state or "").trust
    except ValidationError:
        return None
