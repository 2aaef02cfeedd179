"""Asking the client's user whether to use a changed definition that would execute something new."""

from __future__ import annotations

from dataclasses import replace

import mcp_types as types

from perstack.doors.mcp.elicitation import AgreementForm, asks_by_returning, can_ask
from perstack.doors.mcp.project import ClientCall, ServedProject
from perstack.doors.mcp.tools import JOB_TOOLS, TASK_TOOLS

_FORM = AgreementForm("trust", "Use it")


async def with_consent(call: ClientCall) -> ClientCall | types.InputRequiredResult:
    """Return the call, or the result that asks the user about a changed definition first. Raises StorageError."""
    before = _FORM.returned(call.params)
    if before is not None:
        await _settle(call.state, *before)
        params = call.params.model_copy(update={"request_state": None, "input_responses": None})
        return replace(call, params=params)
    live = call.state.definitions.live
    held = live.open_change
    if held is None or live.is_asked or not can_ask(call.context) or not _drives(call.params.name):
        return call
    if asks_by_returning(call.context):
        if call.params.request_state is not None:
            return call  # it brings the answer to another question
        return _FORM.ask_by_result(held.question, held.digest)
    live.is_asked = True
    try:
        await _settle(call.state, held.digest, await _FORM.ask_now(call.context, held.question))
    finally:
        live.is_asked = False
    return call


def _drives(name: str) -> bool:
    tool = JOB_TOOLS.get(name)
    return name not in TASK_TOOLS if tool is None else tool.annotations.destructive_hint is True


async def _settle(state: ServedProject, digest: str, agreed: bool) -> None:
    if not agreed:
        state.definitions.live.refuse(digest)
    elif state.definitions.agree(digest):
        await state.clients.definitions_changed()
