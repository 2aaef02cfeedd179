"""Define the events of tool calls: the decision about each, its start, its one result, and its delegate.

An event described as "on disk before" an action is synced before that action.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import override

from perstack.core.base.ids import By, number_of_run
from perstack.core.base.records import TEXT, IllegalEvent, Redactable, falsy
from perstack.core.base.text import REDACTED, count, duration
from perstack.core.base.usage import Charge, Usage
from perstack.core.definitions.expert_changes import ExpertChange
from perstack.core.definitions.skills import COUNTED_CALLS, DecidedCall
from perstack.core.messages.messages import ResultContent, TextPart, ToolResultPart, text_of
from perstack.core.runs.commands import (
    Ask,
    AwaitDelegates,
    Call,
    Command,
    Complete,
    DecideCalls,
    RecordResult,
    RunTools,
    StartDelegates,
    query_of,
)
from perstack.core.runs.context_window import remember_called_tools
from perstack.core.runs.events.base import (
    LaterEvent,
    Repetition,
    add_spending,
    difference_of,
    is_emptied,
    open_call,
    open_call_difference,
    running_difference,
    unexpected_event,
    with_result,
    with_saying,
    without_question,
)
from perstack.core.runs.facts import (
    DelegateHead,
    DelegateReport,
    Delegation,
    Todo,
    apply_todo,
    ids_of,
    is_repeat_warning,
    remaining_todos,
    todos_json,
)
from perstack.core.runs.log_rows import EventContext, LogRow, arguments, author_rows, run_label
from perstack.core.runs.repeats import warning_after
from perstack.core.runs.state import Run, completion_result, latest_reply, snapshot_due_after
from perstack.dataclass import replace


class CallTools(LaterEvent):
    """The decision about each call of the reply. Synced before any call with a side effect starts."""

    type: Literal["callTools"] = "callTools"
    calls: tuple[DecidedCall, ...]

    @override
    def repetitions(self, run: Run) -> Iterator[Repetition]:
        names = {part.tool_call_id: part.tool_name for part in latest_reply(run).tool_calls}
        for decided in self.calls:
            name = names.get(decided.id, decided.tool_name)
            if name != decided.tool_name:
                yield Repetition(f"the tool of call {decided.id}", decided.tool_name, name, True)

    def fold(self, run: Run) -> Run:
        """Open the calls of the reply."""
        parts = {part.tool_call_id: part for part in latest_reply(run).tool_calls}
        if sorted(decided.id for decided in self.calls) != sorted(parts):
            raise IllegalEvent("callTools is not about the calls of the reply")
        counted = sum(decided.kind in COUNTED_CALLS for decided in self.calls)
        return replace(
            run,
            spending=replace(run.spending, tool_calls=run.spending.tool_calls + counted),
            calls={decided.id: Call(parts[decided.id], decided) for decided in self.calls},
            is_tightened=False,
            context=remember_called_tools(run, self.calls),
        )

    @override
    def difference(self, run: Run, command: Command | None) -> str | None:
        if not isinstance(command, DecideCalls):
            return unexpected_event(self, run, command)
        return difference_of(
            [part.tool_call_id for part in command.calls], [decided.id for decided in self.calls], "calls"
        )

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        # a delegate's query and a user's question have their own events
        calls = [decided for decided in self.calls if context.full or decided.kind not in ("delegate", "interactive")]
        return [
            LogRow("calls", f"{decided.tool_name} {arguments(context.calls.get(decided.id))}".rstrip(), "cyan", "call")
            for decided in calls
        ]


class StartToolCall(LaterEvent):
    """The start of an approved call. On disk before the call starts, if it may have a side effect."""

    is_progress = False
    type: Literal["startToolCall"] = "startToolCall"
    tool_call_id: str
    call_digest: str  # digest computed again from the call right before it runs

    def fold(self, run: Run) -> Run:
        call = open_call(run, self.tool_call_id)
        if call.approval is None or call.approval.denies or self.call_digest != call.requested:
            raise IllegalEvent(f"call {self.tool_call_id!r} starts without an approval of exactly this call")
        return replace(run, calls={**run.calls, self.tool_call_id: replace(call, began=True)})

    @override
    def difference(self, run: Run, command: Command | None) -> str | None:
        return running_difference(self, self.tool_call_id, run, command)

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        return [LogRow("calls", f"what was approved: {self.call_digest}")] if context.full else []


class StartSample(LaterEvent):
    """With a budget: a tool's request for a generation by the Run's model. On disk before the model is called."""

    is_progress = False
    type: Literal["startSample"] = "startSample"
    tool_call_id: str
    reserved: Charge  # maximum cost, charged until the call has its result or asks a question

    def fold(self, run: Run) -> Run:
        """Reserve the maximum cost."""
        open_call(run, self.tool_call_id)
        return replace(run, spending=run.spending.reserve_sample(self.tool_call_id, self.reserved))

    @override
    def difference(self, run: Run, command: Command | None) -> str | None:
        return running_difference(self, self.tool_call_id, run, command)

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        text = f"the model for a tool; {self.reserved.tokens:,} tokens are reserved"
        return [LogRow("calls", text)] if context.full else []


def _placeholder(contents: tuple[ResultContent, ...]) -> tuple[ResultContent, ...]:
    return (TextPart(text=REDACTED),) if contents else ()


def _keep_own_warning(warning: str) -> str:
    return warning if is_repeat_warning(warning) else REDACTED


class FinishToolCall(LaterEvent):
    """The one result of a call."""

    original_types = ("resolveToolResults", "finishAllToolCalls")
    type: Literal["finishToolCall"] = "finishToolCall"
    tool_call_id: str
    tool_name: str
    contents: Annotated[tuple[ResultContent, ...], Redactable(_placeholder)]
    is_error: bool = Field(default=False, exclude_if=falsy)
    duration_ms: int = Field(default=0, exclude_if=falsy)
    delegate: DelegateHead | None = None
    report: DelegateReport | None = None  # the outcome of a delegate's Run; None in logs of earlier versions
    usage: Usage | None = None  # usage of the generations that the tool itself requested
    assumed: Charge | None = None  # charge for generations whose endpoint reported no usage; only with a budget
    by: By | None = None  # actor who answered, if a person gave this result; None in logs of earlier versions
    warning: Annotated[str | None, Redactable(_keep_own_warning)] = None
    secrets: int = Field(default=0, exclude_if=falsy)  # highest N of an assigned `[secret:N]`
    change: ExpertChange | None = None  # what the call changed of the Run's own skills and delegates

    @property
    def named_runs(self) -> tuple[str, ...]:
        return () if self.delegate is None else (self.delegate.run_id,)

    @property
    def media(self) -> tuple[ResultContent, ...]:
        return self.contents

    @property
    def shown_contents(self) -> tuple[ResultContent, ...]:
        """The contents as the model sees them: with the delegate's report and the warning, if any."""
        report = None if self.report is None else self.report.text
        if report is None and self.warning is None:
            return self.contents
        return (*self.contents, *(TextPart(text=text) for text in (report, self.warning) if text is not None))

    def _part(self, contents: tuple[ResultContent, ...]) -> ToolResultPart:
        return ToolResultPart(
            tool_call_id=self.tool_call_id, tool_name=self.tool_name, contents=contents, is_error=self.is_error
        )

    def _warning(self, run: Run) -> str | None:
        return warning_after(run, self.tool_call_id, lambda: self._part(self.contents))

    def with_warning(self, run: Run) -> "FinishToolCall":
        """Return the result with a warning to the model if it ends a step at half of the allowed repetitions."""
        warning = self._warning(run)
        return self if warning is None else self.model_copy(update={"warning": warning})

    @override
    def repetitions(self, run: Run) -> Iterator[Repetition]:
        call = open_call(run, self.tool_call_id)
        yield Repetition("the tool", self.tool_name, call.decided.tool_name, True)
        if self.change is not None:
            yield Repetition("the tool that changes the Expert", self.change.tool, call.decided.tool_name, True)
        if self.delegate is not None:
            delegation = call.delegation
            yield Repetition("the delegate", self.delegate.run_id, delegation and delegation.run_id, True)

    def fold(self, run: Run) -> Run:
        call = open_call(run, self.tool_call_id)
        if self.warning is not None or self.report is not None:
            call = replace(call, warning=self.warning, has_report=self.report is not None)
        todos = run.todos
        if call.decided.kind == "todo":
            todos = apply_todo(run.todos, call.part.args)
        elif call.decided.kind == "clearTodo":
            todos = ()
        run = with_saying(run, self.id, text_of(self.contents), self.by)
        return replace(
            with_result(run, call, self._part(_with_note(self.shown_contents, call)), self.id),
            spending=add_spending(run, self.usage, self.assumed).end_call(self.tool_call_id),
            todos=todos,
            snapshot_due=snapshot_due_after(run, call),
            last_secret_number=max(run.last_secret_number, self.secrets),
            effect_count=run.effect_count + self._effect_count(call),
            asked_call_id=None if run.asked_call_id == self.tool_call_id else run.asked_call_id,
            questions=without_question(run.questions, self.tool_call_id),
            expert_changes=run.expert_changes if self.change is None else (*run.expert_changes, self.change),
        )

    def _effect_count(self, call: Call) -> int:
        """Return how many calls with an effect this result reports: the call itself, or those of its delegate."""
        has_acted = call.decided.kind == "tool" and call.decided.effect != "readOnly" and not self.is_error
        is_own = has_acted and self.change is None  # a tool that was added has done nothing yet
        return int(is_own) + (0 if self.report is None else self.report.effects)

    def difference(self, run: Run, command: Command | None) -> str | None:
        """Compare the call and the warning; of a call without a side effect also the text."""
        if run.is_tightened and self.is_error:
            return None  # rules added later forbid the call
        if isinstance(command, Ask):
            # in an unattended Job nobody is asked
            asked = command.call.decided.id if run.asked_call_id is None and self.is_error else run.asked_call_id
            return difference_of(asked, self.tool_call_id, "answered call")
        if isinstance(command, RunTools):
            problem = running_difference(self, self.tool_call_id, run, command)
        elif isinstance(command, AwaitDelegates):
            problem = open_call_difference(
                [delegation.tool_call_id for delegation in command.delegations], self.tool_call_id
            )
        elif isinstance(command, RecordResult):
            problem = difference_of(command.call.decided.id, self.tool_call_id, "call")
            problem = problem or difference_of(command.text, text_of(self.contents), "result")
        else:
            return unexpected_event(self, run, command)
        return problem or difference_of(self._warning(run), self.warning, "warning")

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        took = f" ({duration(self.duration_ms)})" if self.duration_ms else ""
        name = run_label(self.tool_name, self.delegate.run_id) if self.delegate else self.tool_name
        text = f"{name}{took}: {text_of(self.contents)}"
        rows = [LogRow("error", text, "red", "result") if self.is_error else LogRow("result", text, item="result")]
        if self.report is not None:
            rows.append(LogRow("report", self.report.text, "yellow" if self.report.without_effect else ""))
        if self.warning is not None:
            rows.append(LogRow("warning", self.warning, "yellow"))
        return rows + author_rows(self.by)


def _with_note(contents: tuple[ResultContent, ...], call: Call) -> tuple[ResultContent, ...]:
    """Return the contents, preceded by a note if a person has changed the call."""
    return (TextPart(text=call.change_note), *contents) if call.change_note else contents


class CallDelegate(LaterEvent):
    """The assignment of delegate Runs, with their ids, before they start."""

    type: Literal["callDelegate"] = "callDelegate"
    delegates: tuple[Delegation, ...]

    @property
    def named_runs(self) -> tuple[str, ...]:
        return tuple(delegation.run_id for delegation in self.delegates)

    @override
    def repetitions(self, run: Run) -> Iterator[Repetition]:
        for delegation in self.delegates:
            call = open_call(run, delegation.tool_call_id)
            query, is_unknown = query_of(call), is_emptied(call.part)
            yield Repetition("the kind of call", "delegate", call.decided.kind, True)
            yield Repetition("the delegate", delegation.run_id, (call.delegation or delegation).run_id, True)
            yield Repetition("the delegate's tool", delegation.tool_name, call.decided.tool_name, True)
            yield Repetition("the Expert", delegation.expert_key, call.decided.target or call.decided.tool_name, True)
            yield Repetition(
                "the query", delegation.query, query, True, is_emptied=is_unknown or is_emptied(delegation.query)
            )

    def fold(self, run: Run) -> Run:
        """Assign its delegate to each call."""
        calls = dict(run.calls)
        for delegation in self.delegates:
            call = open_call(run, delegation.tool_call_id)
            calls[delegation.tool_call_id] = replace(call, delegation=delegation)
        numbers = (number_of_run(delegation.run_id) for delegation in self.delegates)
        return replace(run, calls=calls, last_number=max(run.last_number, *numbers))

    @override
    def difference(self, run: Run, command: Command | None) -> str | None:
        if not isinstance(command, StartDelegates):
            return unexpected_event(self, run, command)
        calls = [call.decided.id for call in command.calls]
        return difference_of(calls, [delegation.tool_call_id for delegation in self.delegates], "delegated calls")

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        return [
            LogRow(
                "delegates",
                f"{run_label(delegation.expert_key, delegation.run_id)}: {delegation.query}",
                "cyan",
                "delegate",
            )
            for delegation in self.delegates
        ]


class StopRunByDelegate(LaterEvent):
    """The stop of a Run that waits for its delegates."""

    is_quiet = True
    type: Literal["stopRunByDelegate"] = "stopRunByDelegate"
    checkpoint_id: str

    @override
    def difference(self, run: Run, command: Command | None) -> str | None:
        return None if any(call.delegation for call in run.open_calls) else "stopRunByDelegate without delegates"

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        return [LogRow("waits", f"for its delegates, checkpoint {self.checkpoint_id}", item="place")]


class AttemptCompletion(LaterEvent):
    """The model's statement that it is done. It is rejected while todos remain."""

    type: Literal["attemptCompletion"] = "attemptCompletion"
    tool_call_id: str
    remaining_todos: tuple[Todo, ...] = Field(default=(), exclude_if=falsy)
    result: Annotated[str | None, TEXT] = None

    @override
    def repetitions(self, run: Run) -> Iterator[Repetition]:
        call = open_call(run, self.tool_call_id)
        remaining = remaining_todos(run.todos)
        is_unknown = is_emptied(self.remaining_todos) or is_emptied(remaining)
        yield Repetition("the kind of call", "attemptCompletion", call.decided.kind, True)
        if run.start.runtime_version:  # the original Perstack, whose Runs have none, completes with open todos
            yield Repetition("which todos remain", ids_of(self.remaining_todos), ids_of(remaining))
            yield Repetition("what remains", self.remaining_todos, remaining, is_emptied=is_unknown)
        result = completion_result(run, call)
        yield Repetition("the result", self.result, result, is_emptied=is_emptied(call.part) or is_emptied(self.result))

    def fold(self, run: Run) -> Run:
        """Accept the statement, or give the model the remaining todos."""
        call = open_call(run, self.tool_call_id)
        remaining = self.remaining_todos
        text = todos_json(remaining, "remainingTodos") if remaining else "{}"
        result = ToolResultPart(
            tool_call_id=self.tool_call_id, tool_name=call.decided.tool_name, contents=(TextPart(text=text),)
        )
        run = with_result(run, call, result, self.id)
        return (
            run
            if remaining
            else replace(run, is_declared_done=True, result=self.result if run.result is None else run.result)
        )

    @override
    def difference(self, run: Run, command: Command | None) -> str | None:
        if not isinstance(command, Complete):
            return unexpected_event(self, run, command)
        return (
            difference_of(command.call.decided.id, self.tool_call_id, "call")
            or difference_of(command.remaining, self.remaining_todos, "remaining todos")
            or difference_of(command.result, self.result, "result")
        )

    def describe(self, context: EventContext) -> list[LogRow]:
        """Return the remaining todos; an accepted statement on request."""
        if self.remaining_todos:
            titles = "; ".join(todo.title for todo in self.remaining_todos)
            return [LogRow("not done", f"{count(len(self.remaining_todos), 'todo')} left: {titles}", "yellow")]
        return [LogRow("is done", self.result or "")] if context.full else []


ToolCallEvent = (
    CallTools | StartToolCall | StartSample | FinishToolCall | CallDelegate | StopRunByDelegate | AttemptCompletion
)
