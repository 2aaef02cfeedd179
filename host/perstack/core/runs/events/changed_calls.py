"""Define the events of a call that a person approved with other arguments, and that the host then judges again."""

import json
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import override

from perstack.core.base.ids import By
from perstack.core.base.records import EMPTIED, TEXT, Arguments, IllegalEvent, Text, falsy
from perstack.core.definitions.permissions import Approval, call_digest
from perstack.core.definitions.skills import DecidedCall
from perstack.core.runs.commands import AskApproval, ChangedArguments, Command, DecideChange
from perstack.core.runs.events.base import (
    LaterEvent,
    Repetition,
    difference_of,
    is_emptied,
    open_call,
    unexpected_event,
    without_question,
)
from perstack.core.runs.log_rows import EventContext, LogRow, author_rows
from perstack.core.runs.state import Run
from perstack.dataclass import replace


class ChangeCall(LaterEvent):
    """A person's approval of a call with other arguments than it was asked with."""

    type: Literal["changeCall"] = "changeCall"
    tool_call_id: str
    call_digest: str  # digest of the call as it was asked
    args: Arguments  # all arguments, as changed
    by: By

    def fold(self, run: Run) -> Run:
        """Keep the change until the host has decided about the changed call."""
        call = open_call(run, self.tool_call_id)
        if not call.waits_for_approval or call.requested is None:
            raise IllegalEvent(f"nobody was asked to approve call {self.tool_call_id!r}")
        if self.call_digest != call.requested:
            raise IllegalEvent(f"the change is not for call {self.tool_call_id!r} as a person was asked about it")
        changed = replace(call, change=ChangedArguments(self.args, self.by))
        return replace(
            run,
            asked_call_id=None,
            questions=without_question(run.questions, self.tool_call_id),
            calls={**run.calls, self.tool_call_id: changed},
        )

    @override
    def difference(self, run: Run, command: Command | None) -> str | None:
        if not isinstance(command, AskApproval):
            return unexpected_event(self, run, command)
        problem = difference_of(command.call.decided.id, self.tool_call_id, "call that waits for approval")
        return problem or difference_of(command.call.digest, self.call_digest, "digest of the call")

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        return [LogRow("changed", json.dumps(self.args, ensure_ascii=False), "magenta"), *author_rows(self.by)]


class DecideChangedCall(LaterEvent):
    """The decision about a changed call by the rules in force. It replaces the decision about the original call.

    With a `problem` the change is dropped, and the person is asked about the original call again.
    """

    type: Literal["decideChangedCall"] = "decideChangedCall"
    tool_call_id: str
    problem: Text = Field(default="", exclude_if=falsy)
    decided: DecidedCall | None = None  # None with a problem
    approved: bool = Field(default=False, exclude_if=falsy)  # True if the change is also the approval
    call_digest: str = ""  # digest of the changed call
    leads_to: Annotated[tuple[str, ...], TEXT] = Field(default=(), exclude_if=falsy)  # resolved paths
    # state of the file that the changed call changes
    content: Annotated[str, EMPTIED] = Field(default="", exclude_if=falsy)

    @override
    def repetitions(self, run: Run) -> Iterator[Repetition]:
        call = open_call(run, self.tool_call_id)
        if self.decided is None or call.change is None:
            return
        yield Repetition("the tool", self.decided.tool_name, call.decided.tool_name, True)
        yield Repetition("the call", self.decided.id, self.tool_call_id, True)
        decided, args = self.decided, call.change.args
        digest = call_digest(decided.skill_name, decided.tool_name, args, decided.definition)
        yield Repetition("the digest of the call", self.call_digest, digest, True, is_emptied=is_emptied(args))

    def fold(self, run: Run) -> Run:
        """Replace the call by the changed one, or drop the change."""
        call = open_call(run, self.tool_call_id)
        change = call.change
        if change is None:
            raise IllegalEvent(f"nobody has changed call {self.tool_call_id!r}")
        is_decided = self.decided is not None
        if is_decided is bool(self.problem) or (self.approved and not (self.decided and self.decided.asks)):
            raise IllegalEvent(f"the decision about the changed call {self.tool_call_id!r} contradicts itself")
        if self.decided is None:
            call = replace(call, change=None, requested=None, change_problem=self.problem)
            return replace(run, calls={**run.calls, self.tool_call_id: call})
        call = replace(
            call,
            part=call.changed_part,
            decided=self.decided,
            change=None,
            change_problem="",
            asked_args=call.part.args if call.asked_args is None else call.asked_args,
            changed_by=change.by,
            requested=self.call_digest if self.approved else None,
            leads_to=self.leads_to,
            offers=(),
            content=self.content,
            approval=Approval(decision="once") if self.approved else None,
        )
        return replace(run, calls={**run.calls, self.tool_call_id: call})

    @override
    def difference(self, run: Run, command: Command | None) -> str | None:
        if not isinstance(command, DecideChange):
            return unexpected_event(self, run, command)
        return difference_of(command.call.decided.id, self.tool_call_id, "changed call")

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        if self.problem:
            return [LogRow("refused", f"the change: {self.problem}", "yellow")]
        if self.decided is not None and self.decided.kind == "refused":
            return [LogRow("refused", self.decided.problem or "", "yellow")]
        return [LogRow("calls", f"what was changed: {self.call_digest}")] if context.full else []


ChangedCallEvent = ChangeCall | DecideChangedCall
