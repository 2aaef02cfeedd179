"""A driver without effects that answers every pending command from a stream of choices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from hypothesis import strategies as st

from perstack.core.base.chain import EMPTY_LOG, Head, link
from perstack.core.base.ids import By, event_id_of
from perstack.core.base.usage import Usage
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.permissions import Approval
from perstack.core.definitions.settings import Limits
from perstack.core.definitions.skills import DecidedCall
from perstack.core.messages.messages import ExpertMessage, TextPart, ToolCallPart
from perstack.core.runs.commands import (
    Ask,
    AskApproval,
    AwaitDelegates,
    Call,
    Command,
    DecideCalls,
    DecideChange,
    Generate,
    RunTools,
)
from perstack.core.runs.decide import (
    ApprovalSubject,
    SettledApproval,
    answer_event,
    approval_events,
    changed_call_event,
    events_of_command,
    question_events,
    request_event,
    start_call_event,
)
from perstack.core.runs.events import StartRun, StoredEvent
from perstack.core.runs.events.generations import FinishGeneration, StartGeneration
from perstack.core.runs.events.lifecycle import ResumeRun, StopRunByInterrupt
from perstack.core.runs.events.questions import AnswerQuestion, CallInteractiveTool
from perstack.core.runs.events.tool_calls import CallTools, FinishToolCall
from perstack.core.runs.evolve import evolve
from perstack.core.runs.facts import Answer, DelegateHead, Question
from perstack.core.runs.pending import pending
from perstack.core.runs.request_digest import request_digest, stored_tools
from perstack.core.runs.state import Run, begin

KINDS = ("tool", "todo", "clearTodo", "attemptCompletion", "delegate", "interactive", "refused")
NO_TOOLS = stored_tools(()).digest
Choose = Callable[[int], int]
"""Returns a number below its argument."""

START = {
    "query": "do it",
    "model": "m",
    "provider": "scripted",
    "instruction": "i",
    "expert": Expert(key="e", instruction="i"),
    "limits": Limits(),
}


def choices(numbers: Iterable[int]) -> Callable[[int], int]:
    """Return a chooser that uses these numbers, and then always 1."""
    stream = iter(numbers)
    return lambda below: next(stream, 1) % below


SCRIPTS = st.lists(st.integers(0, 1000), max_size=400).map(choices)
"""Random courses of a Run."""


class Simulation:
    """One Run, its log, and the choices that produced it."""

    def __init__(self, choose: Choose) -> None:
        self.choose = choose
        self.events: list[StoredEvent] = []
        self.states: list[Run] = []
        self.head: Head = EMPTY_LOG
        self.number_of_calls = 0
        self.ran: list[tuple[str, int]] = []
        """The calls that were run, each with its place in the log."""
        self.note(StartRun(**self.stamp(1), **START))

    @property
    def run(self) -> Run:
        return self.states[-1]

    def stamp(self, step: int | None = None) -> dict:
        return {
            "id": event_id_of("job-1", self.head.seq + 1),
            "timestamp": 1000 + self.head.seq,
            "job_id": "job",
            "run_id": "job-1",
            "expert_key": "e",
            "step_number": max(1, self.run.step) if step is None else step,
        }

    def note(self, event: StoredEvent) -> None:
        _, self.head = link(self.head, event.to_json())
        self.states.append(
            begin(event, self.head) if isinstance(event, StartRun) else evolve(self.run, event, self.head)
        )
        self.events.append(event)

    def checkpoint(self) -> dict:
        return {**self.stamp(), "checkpoint_id": event_id_of("job-1", self.head.seq + 1)}

    def note_all(self, events: Iterable[StoredEvent]) -> None:
        for event in events:
            self.note(event)

    def stamps(self, ahead: int = 0) -> dict:
        return {**self.stamp(), "id": event_id_of("job-1", self.head.seq + 1 + ahead)}

    def drive(self, most: int = 200) -> None:
        for _ in range(most):
            if self.choose(12) == 0 and self.run.status == "running":
                self.note(StopRunByInterrupt(**self.checkpoint()))
            command = pending(self.run)
            if command is None:
                if self.run.status == "completed":
                    return
                self.go_on()
                continue
            self.perform(command)

    def go_on(self) -> None:
        if self.run.asked_call_id is not None and self.run.status == "stoppedByInteractiveTool":
            self.note(ResumeRun(**self.checkpoint(), reason="answer"))
            call = self.run.calls[self.run.asked_call_id]
            if call.waits_for_approval:
                if self.choose(6) == 1:
                    changed = Approval(decision="once", changed={"query": f"n{len(self.events)}"})
                    self.note(answer_event(self.run, changed, self.stamps, By(user="ann")))
                    return
                decision = ("once", "job", "no")[self.choose(3)]
                wants_rule = decision == "job" and self.choose(2) == 1
                rule = "tool(*)" if wants_rule and "tool(*)" in call.offers else ""
                self.note(answer_event(self.run, Approval(decision=decision, rule=rule), self.stamps, None))
                return
            if call.tool_question is None:
                self.result(call.decided.id, call.decided.tool_name, "an answer")
                return
            answer = Answer(question=call.tool_question, action="accept")
            self.note(AnswerQuestion(**self.stamp(), tool_call_id=call.decided.id, answer=answer))
        else:
            self.note(ResumeRun(**self.checkpoint(), reason="interrupt"))

    def result(self, call_id: str, name: str, text: str, *, is_error: bool = False, delegate: bool = False) -> None:
        given = self.run.calls[call_id].delegation
        head = DelegateHead(run_id=given.run_id, seq=3, hash="h") if delegate and given is not None else None
        self.note(
            FinishToolCall(
                **self.stamp(),
                tool_call_id=call_id,
                tool_name=name,
                contents=(TextPart(text=text),),
                is_error=is_error,
                delegate=head,
            )
        )

    def perform(self, command: Command) -> None:
        match command:
            case Generate():
                event = StartGeneration(**self.stamp(command.step), final=command.final, tools_digest=NO_TOOLS)
                self.note(event.model_copy(update={"request_digest": request_digest(self.run, event)}))
                reply = self.reply(final=command.final)
                self.note(
                    FinishGeneration(
                        **self.stamp(),
                        usage=Usage.of(10, 2),
                        reply=reply.contents,
                        finish_reason=("stop", "stop", "stop", "length", "refusal", "paused")[self.choose(6)],
                        duration_ms=1,
                    )
                )
            case DecideCalls():
                self.note(CallTools(**self.stamp(), calls=tuple(self.decide(call) for call in command.calls)))
            case RunTools():
                call = command.calls[self.choose(len(command.calls))]
                if call.may_be_asked_again and self.choose(5) == 0:
                    self.note(request_event(call, ApprovalSubject(), self.stamps, "the file has changed"))
                    return
                if call.decided.asks and not call.began:
                    self.note(start_call_event(call, self.stamps))
                self.ran.append((call.decided.id, len(self.events)))
                if self.choose(4):
                    self.result(call.decided.id, call.decided.tool_name, "done")
                else:
                    self.ask(call, Question(message="sure?"))
            case AwaitDelegates():
                one = command.delegations[self.choose(len(command.delegations))]
                self.result(one.tool_call_id, one.tool_name, "from the delegate", delegate=True)
            case Ask():
                self.note_all(question_events(self.run, command.call, self.stamps, approval=False))
            case DecideChange():
                part = command.call.changed_part
                changed = replace(command.call, part=part)
                self.note(changed_call_event(changed, self.decide(part), ApprovalSubject(), self.stamps))
            case AskApproval():
                unattended = self.choose(8) == 0
                settled = SettledApproval(Approval(decision="no")) if unattended else None
                asks = approval_events(command.call, ApprovalSubject(offers=("tool(*)",)), self.stamps, settled)
                self.note_all(asks)
            case _:
                self.note_all(events_of_command(self.run, command, self.stamps, 2))

    def ask(self, call: Call, question: Question | None) -> None:
        decided = call.decided
        self.note(
            CallInteractiveTool(
                **self.stamp(),
                tool_call_id=decided.id,
                tool_name=decided.tool_name,
                skill_name=decided.skill_name,
                args=call.part.args if question is None else {"question": question.message},
                question=question,
                usage=Usage.of(3, 1) if question and self.choose(2) else None,
            )
        )

    def reply(self, *, final: bool) -> ExpertMessage:
        text = (TextPart(text="words"),) if self.choose(2) else ()
        if final:
            return ExpertMessage(contents=text)
        count = self.choose(5)
        return ExpertMessage(contents=(*text, *(self.call() for _ in range(count))))

    def call(self) -> ToolCallPart:
        self.number_of_calls += 1
        kind = KINDS[self.choose(len(KINDS))]
        args: dict = {}
        if kind == "todo":
            args = {"completedTodos": [0]} if self.choose(2) else {"newTodos": ["a"]}
        elif kind == "attemptCompletion" and self.choose(2):
            args = {"result": "the result"}
        return ToolCallPart(tool_call_id=f"c{self.number_of_calls}-{kind}", tool_name=kind, args=args)

    def decide(self, call: ToolCallPart) -> DecidedCall:
        kind = call.tool_name
        effect = ("readOnly", "idempotent", "sideEffect")[self.choose(3)] if kind == "tool" else "sideEffect"
        problem = "no such tool" if kind == "refused" else None
        decided = DecidedCall(id=call.tool_call_id, tool_name=kind, kind=kind, effect=effect, problem=problem)
        if kind in ("tool", "delegate") and self.choose(3) == 0:
            return decided.model_copy(update={"asks": True, "rule": kind})
        return decided
