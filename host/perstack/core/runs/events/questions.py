"""Define the events of questions to a person, of approvals, and of the answers to both."""

import json
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import override

from perstack.core.base.ids import By
from perstack.core.base.records import EMPTIED, TEXT, Arguments, IllegalEvent, JsonObject, Redactable, Text, falsy
from perstack.core.base.text import REDACTED
from perstack.core.base.usage import Charge, Usage
from perstack.core.definitions.exec_grant import subject_of
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.permissions import (
    DECISION_WORDS,
    STANDING_DECISIONS,
    UNATTENDED,
    Approval,
    ApprovalDecision,
    StandingApproval,
)
from perstack.core.runs.commands import Ask, AskApproval, Call, Command, RunTools
from perstack.core.runs.events.base import (
    LaterEvent,
    Repetition,
    add_spending,
    difference_of,
    is_emptied,
    open_call,
    open_call_difference,
    unexpected_event,
    with_saying,
    without_question,
)
from perstack.core.runs.facts import Answer, Question
from perstack.core.runs.log_rows import EventContext, LogRow, author_rows
from perstack.core.runs.open_questions import OpenQuestion, settling_args
from perstack.core.runs.state import Run
from perstack.dataclass import replace


def _unknown_question(args: JsonObject) -> JsonObject:
    return {"question": REDACTED} if args else {}


class CallInteractiveTool(LaterEvent):
    """A question to a person, by an interactive tool or by a tool that needs an answer to continue."""

    type: Literal["callInteractiveTool"] = "callInteractiveTool"
    tool_call_id: str
    tool_name: str
    skill_name: str
    args: Annotated[JsonObject, Redactable(_unknown_question)]
    approval: bool = Field(default=False, exclude_if=falsy)  # True: it asks for approval, not for information
    settles: bool = Field(default=False, exclude_if=falsy)  # True: what became of a call that was interrupted is asked
    question: Question | None = None  # question of a tool that has been called, and is called again with the answer
    usage: Usage | None = None
    assumed: Charge | None = None

    @property
    def open_question(self) -> OpenQuestion:
        argument = self.args.get("question")
        text = self.question.message if self.question else argument if isinstance(argument, str) else self.tool_name
        return OpenQuestion(
            id=self.id,
            run_id=self.run_id,
            expert_key=self.expert_key,
            tool_call_id=self.tool_call_id,
            tool_name=self.tool_name,
            skill_name=self.skill_name,
            text=text,
            args=self.args,
            requested_schema=self.question.requested_schema if self.question else None,
            approval=self.approval,
            asked_at=self.timestamp,
        )

    @override
    def repetitions(self, run: Run) -> Iterator[Repetition]:
        call, tool_question = open_call(run, self.tool_call_id), self.question
        yield Repetition("the tool", self.tool_name, call.decided.tool_name, True)
        yield Repetition("the skill", self.skill_name, call.decided.skill_name, True)
        args = call.part.args if tool_question is None else {"question": tool_question.message}
        args = settling_args(call.decided.tool_name, call.part.args) if self.settles else args
        is_unknown = is_emptied(self.args) or (
            is_emptied(call.part) if tool_question is None else is_emptied(tool_question)
        )
        yield Repetition("the arguments", self.args, args, True, is_emptied=is_unknown)
        if tool_question is None and not self.settles:
            yield Repetition("the kind of call", "interactive", call.decided.kind, True)

    def fold(self, run: Run) -> Run:
        """Record the question of a call. With several open questions the latest one is asked; the others wait."""
        call = open_call(run, self.tool_call_id)
        if self.settles and call.settlement != "ask":
            raise IllegalEvent(f"no person has to settle call {self.tool_call_id!r}")
        questions = {**without_question(run.questions, self.tool_call_id), self.tool_call_id: self.open_question}
        run = replace(run, asked_call_id=self.tool_call_id, questions=questions)
        if self.question is None:
            return run
        return replace(
            run,
            spending=add_spending(run, self.usage, self.assumed).end_call(self.tool_call_id),
            calls={**run.calls, self.tool_call_id: replace(call, tool_question=self.question)},
        )

    @override
    def difference(self, run: Run, command: Command | None) -> str | None:
        if isinstance(command, Ask):
            return difference_of(command.call.decided.id, self.tool_call_id, "asked call")
        if isinstance(command, RunTools):
            return open_call_difference([call.decided.id for call in command.calls], self.tool_call_id)
        return unexpected_event(self, run, command)

    def describe(self, context: EventContext) -> list[LogRow]:
        """Return the question; a tool's names its skill, for its text may claim any origin."""
        return [LogRow("asks", self._words(), "magenta", "question")]

    def _words(self) -> str:
        if self.question is not None:
            return f"skill {self.skill_name}, {self.tool_name}: {self.question.message}"
        question = self.args.get("question")
        return (
            question if isinstance(question, str) else f"{self.tool_name} {json.dumps(self.args, ensure_ascii=False)}"
        )


class AnswerQuestion(LaterEvent):
    """A person's answer to a tool's question; the tool is called again."""

    type: Literal["answerQuestion"] = "answerQuestion"
    tool_call_id: str
    answer: Answer
    by: By | None = None  # actor who answered; None in logs of earlier versions

    @override
    def repetitions(self, run: Run) -> Iterator[Repetition]:
        asked = open_call(run, self.tool_call_id).tool_question
        is_unknown = asked is not None and (is_emptied(asked) or is_emptied(self.answer.question))
        yield Repetition("the question", self.answer.question, asked, True, is_emptied=is_unknown)

    def fold(self, run: Run) -> Run:
        """Keep the answer for the repeated call."""
        call = open_call(run, self.tool_call_id)
        call = replace(call, tool_question=None, answers=(*call.answers, self.answer))
        content = self.answer.content
        text = json.dumps(content, ensure_ascii=False) if content else ""
        return with_saying(_with_call(run, call), self.id, text, self.by)

    @override
    def difference(self, run: Run, command: Command | None) -> str | None:
        if not isinstance(command, Ask):
            return unexpected_event(self, run, command)
        return difference_of(run.asked_call_id, self.tool_call_id, "answered call")

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        content = self.answer.content
        text = f"{self.answer.action} {json.dumps(content, ensure_ascii=False) if content else ''}".rstrip()
        return [LogRow("answered", text, "magenta"), *author_rows(self.by)]


class SettleCall(LaterEvent):
    """A person's decision about a call that was interrupted before its result was recorded."""

    type: Literal["settleCall"] = "settleCall"
    tool_call_id: str
    settlement: Literal["done", "retry", "tell"]
    text: Text = Field(default="", exclude_if=falsy)  # words for the model
    by: By | None = None

    def fold(self, run: Run) -> Run:
        """Record the decision: the call is then repeated, or gets a result that says what happened."""
        call = open_call(run, self.tool_call_id)
        if call.settlement != "ask":
            raise IllegalEvent(f"no person was asked to settle call {self.tool_call_id!r}")
        run = _with_call(run, replace(call, settlement=self.settlement, settled_with=self.text))
        return with_saying(run, self.id, self.text, self.by)

    @override
    def difference(self, run: Run, command: Command | None) -> str | None:
        if not isinstance(command, Ask):
            return unexpected_event(self, run, command)
        return difference_of(run.asked_call_id, self.tool_call_id, "settled call")

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        words = f": {self.text}" if self.text else ""
        return [LogRow("settled", f"{self.tool_call_id}: {self.settlement}{words}", "magenta"), *author_rows(self.by)]


def _with_call(run: Run, call: Call) -> Run:
    """Return the Run with the call changed, and without its question."""
    call_id = call.decided.id
    questions = without_question(run.questions, call_id)
    return replace(run, asked_call_id=None, questions=questions, calls={**run.calls, call_id: call})


class RequestApproval(LaterEvent):
    """A request for a person's approval of a call, which a rule requires before the call runs."""

    type: Literal["requestApproval"] = "requestApproval"
    tool_call_id: str
    tool_name: str
    skill_name: str = Field(default="", exclude_if=falsy)
    args: Arguments
    call_digest: str  # digest of skill, tool and arguments that the approval is bound to
    rule: Text
    # resolved paths, the only ones approved
    leads_to: Annotated[tuple[str, ...], TEXT] = Field(default=(), exclude_if=falsy)
    # rules that a person may approve for the whole Job
    offers: Annotated[tuple[str, ...], TEXT] = Field(default=(), exclude_if=falsy)
    # digest of the file that the call changes, `absent`, or why it cannot be read: what its diff was made from
    content: Annotated[str, EMPTIED] = Field(default="", exclude_if=falsy)
    again: Text = Field(default="", exclude_if=falsy)  # why it asks again about a call that was approved or changed
    # lines of the tool's definition that differ from the agreed one
    changes: Annotated[tuple[str, ...], EMPTIED] = Field(default=(), exclude_if=falsy)
    # files that have changed since the call was allowed in the project
    changed_files: Annotated[tuple[str, ...], TEXT] = Field(default=(), exclude_if=falsy)
    stage: str = Field(default="", exclude_if=falsy)  # stage that has a person asked; empty if it is `rules`

    def question(self, call: Call, expert: Expert) -> OpenQuestion:
        """Return the question. It shows the call that will run, and no other text of this event."""
        decided = call.decided
        rule = self.rule if self.rule == REDACTED else decided.rule
        skill = f" of skill {decided.skill_name}" if decided.skill_name else ""
        again = f"; asked again: {self.again}" if self.again else ""
        return OpenQuestion(
            id=self.id,
            run_id=self.run_id,
            expert_key=self.expert_key,
            tool_call_id=decided.id,
            tool_name=decided.tool_name,
            skill_name=decided.skill_name,
            text=f"{self.expert_key} wants to call {decided.tool_name}{skill}, which needs approval ({rule}){again}",
            args=call.part.args,
            approval=True,
            call_digest=call.digest,
            rule=rule,
            offers=self.offers,
            changes=self.changes,
            changed_files=self.changed_files,
            asked_at=self.timestamp,
            subject=subject_of(decided, expert),
            content=self.content,
        )

    @override
    def repetitions(self, run: Run) -> Iterator[Repetition]:
        call = open_call(run, self.tool_call_id)
        decided, is_unknown = call.decided, is_emptied(call.part)
        yield Repetition("the tool", self.tool_name, decided.tool_name, True)
        yield Repetition("the skill", self.skill_name, decided.skill_name, True)
        is_unknown_here = is_unknown or is_emptied(self.args)
        yield Repetition("the arguments", self.args, call.part.args, True, is_emptied=is_unknown_here)
        yield Repetition("the digest of the call", self.call_digest, call.digest, True, is_emptied=is_unknown)
        no_rule = is_emptied(self.rule) or is_emptied(decided.rule)
        yield Repetition("the rule", self.rule, decided.rule, True, is_emptied=no_rule)
        yield Repetition("the stage that asks", self.stage, decided.stage, True)

    def fold(self, run: Run) -> Run:
        """Ask for the approval of a call that waits for it, or again if the call has changed since its approval."""
        call = open_call(run, self.tool_call_id)
        if not (call.waits_for_approval or (self.again and call.may_be_asked_again)):
            raise IllegalEvent(f"call {self.tool_call_id!r} does not wait for approval")
        call = replace(
            call,
            requested=self.call_digest,
            leads_to=self.leads_to,
            offers=self.offers,
            content=self.content,
            approval=None,
        )
        question = self.question(call, run.start.expert)
        return replace(
            run,
            asked_call_id=self.tool_call_id,
            questions={**without_question(run.questions, self.tool_call_id), self.tool_call_id: question},
            calls={**run.calls, self.tool_call_id: call},
        )

    @override
    def difference(self, run: Run, command: Command | None) -> str | None:
        if self.again and isinstance(command, RunTools):
            call = next((call for call in command.calls if call.decided.id == self.tool_call_id), None)
            if call is None:
                return open_call_difference([call.decided.id for call in command.calls], self.tool_call_id)
            return difference_of(call.digest, self.call_digest, "digest of the call")
        return _approval_difference(self, run, command)

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        again = f"; again, because {self.again}" if self.again else ""
        text = f"approval of {self.tool_name} {json.dumps(self.args, ensure_ascii=False)} (rule {self.rule}){again}"
        return [LogRow("asks", text, "magenta", "approval")]


class DecideApproval(LaterEvent):
    """The decision on a call that waits for approval, by a person or because nobody can be asked."""

    type: Literal["decideApproval"] = "decideApproval"
    tool_call_id: str
    call_digest: str
    decision: ApprovalDecision
    by: By
    # rule approved for the Job; empty: only calls with this digest
    rule: Annotated[str, EMPTIED] = Field(default="", exclude_if=falsy)
    text: Text = Field(default="", exclude_if=falsy)

    @property
    def approval(self) -> Approval:
        """The decision without its context."""
        return Approval(decision=self.decision, rule=self.rule, text=self.text)

    def fold(self, run: Run) -> Run:
        """Apply a decision. It must match the request exactly: an equal digest, and a rule that was offered."""
        call = open_call(run, self.tool_call_id)
        if not call.waits_for_approval or call.requested is None:
            raise IllegalEvent(f"nobody was asked to approve call {self.tool_call_id!r}")
        if self.call_digest != call.requested:
            raise IllegalEvent(f"the approval is not for call {self.tool_call_id!r} as a person was asked about it")
        # The offers of a redacted request are unknown, so any rule is accepted.
        is_standing = self.decision in STANDING_DECISIONS
        if self.rule and not (is_standing and {self.rule, REDACTED} & set(call.offers)):
            raise IllegalEvent(f"the rule {self.rule!r} was not offered with call {self.tool_call_id!r}")
        call = replace(call, approval=self.approval, is_unattended=self.by.door == UNATTENDED)
        standing = StandingApproval(id=self.id, call_digest=self.call_digest, leads_to=call.leads_to, rule=self.rule)
        run = with_saying(_with_call(run, call), self.id, self.text, self.by)
        return replace(run, standing_approvals=(*run.standing_approvals, standing)) if is_standing else run

    @override
    def difference(self, run: Run, command: Command | None) -> str | None:
        return _approval_difference(self, run, command)

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        decision = DECISION_WORDS[self.decision]
        details = "; ".join(part for part in (self.rule and f"rule {self.rule}", self.text) if part)
        return [LogRow("decided", f"{decision}: {details}" if details else decision, "magenta"), *author_rows(self.by)]


def _approval_difference(event: RequestApproval | DecideApproval, run: Run, command: Command | None) -> str | None:
    if not isinstance(command, AskApproval):
        return unexpected_event(event, run, command)
    problem = difference_of(command.call.decided.id, event.tool_call_id, "call that waits for approval")
    return problem or difference_of(command.call.digest, event.call_digest, "digest of the call")


class StopRunByInteractiveTool(LaterEvent):
    """The stop of a Run that waits for a person's answer."""

    type: Literal["stopRunByInteractiveTool"] = "stopRunByInteractiveTool"
    checkpoint_id: str

    @override
    def difference(self, run: Run, command: Command | None) -> str | None:
        waits_for_delegate = any(call.delegation for call in run.open_calls)
        return None if run.asked_call_id or waits_for_delegate else "stopRunByInteractiveTool, where nothing was asked"

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        return [LogRow("waits", f"for an answer, checkpoint {self.checkpoint_id}", "magenta", "place")]


QuestionEvent = (
    CallInteractiveTool | AnswerQuestion | SettleCall | RequestApproval | DecideApproval | StopRunByInteractiveTool
)
