"""Define the events of a generation and of the step that it begins.

An event described as "on disk before" an action is synced before that action.
"""

import json
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import AliasChoices, Field
from typing_extensions import override

from perstack.core.base.records import EMPTIED, TEXT, IllegalEvent, JsonObject, Text, falsy
from perstack.core.base.text import duration
from perstack.core.base.usage import NO_USAGE, Charge, Usage, unreported_charge
from perstack.core.definitions.tool_definitions import merged_definitions
from perstack.core.messages.adaptations import Adaptations, in_words, new_adaptations, problem_of
from perstack.core.messages.messages import (
    ExpertMessage,
    FinishReason,
    ProviderToolPart,
    ReplyPart,
    ResultContent,
    TextPart,
    ThinkingPart,
    UserMessage,
)
from perstack.core.runs.commands import Command, Compact, EndStep, Generate
from perstack.core.runs.context_window import context_after_generation, context_of_request, is_inferred
from perstack.core.runs.events.base import (
    LaterEvent,
    Repetition,
    add_spending,
    difference_of,
    open_call,
    running_difference,
    settle_reservation,
    unexpected_event,
)
from perstack.core.runs.facts import ErrorInfo
from perstack.core.runs.log_rows import EventContext, LogRow, tokens
from perstack.core.runs.retries_and_fallbacks import (
    REFUSAL,
    REST_MS,
    SwitchReason,
    is_primary_due,
    models_of,
    next_model,
    reason_to_switch,
)
from perstack.core.runs.state import Phase, Run, forget_measurements
from perstack.dataclass import replace


class StartGeneration(LaterEvent):
    """The start of a call of the model."""

    is_progress = False
    is_quiet = True
    type: Literal["startGeneration"] = "startGeneration"
    final: bool = Field(default=False, exclude_if=falsy)  # True if the model gets no tools and only writes the result
    # texts of skills about their tools, or the reason why a skill has none; None if unchanged
    guidance: Annotated[str | None, TEXT] = None
    # reasons why skills, and tools of the provider, are not available, by their names; empty if unchanged
    unreachable: Annotated[dict[str, str], EMPTIED] = Field(default_factory=dict, exclude_if=falsy)
    provider_settings: JsonObject | None = None  # settings that affect replies, without secrets; None if unchanged
    tools_digest: str | None = None  # digest of the offered tools, which are a blob of the Job: `request_digest.py`
    request_digest: str | None = None  # digest of the whole request; None in earlier logs
    max_tokens: int | None = None  # maximum of the reply by the budget; None if the user's setting is lower
    reserved: Charge | None = None  # most that this attempt may cost, until the cost is known; only with a budget
    # digests of the definitions of offered tools that no earlier event has, by skill and tool
    definitions: dict[str, dict[str, str]] = Field(default_factory=dict, exclude_if=falsy)

    @override
    def repetitions(self, run: Run) -> Iterator[Repetition]:
        step = run.step + 1 if run.phase is Phase.READY else max(1, run.step)
        yield Repetition("the step", self.step_number, step, True)

    def fold(self, run: Run) -> Run:
        """Begin the step, or another attempt at its reply."""
        return replace(
            run,
            spending=run.spending.reserve(self.reserved),
            step=self.step_number,
            is_final_generation=self.final,
            guidance=run.guidance if self.guidance is None else self.guidance,
            provider_settings=run.provider_settings if self.provider_settings is None else self.provider_settings,
            reply_token_limit=self.max_tokens,
            context=context_of_request(run, self.tools_digest, has_new_guidance=self.guidance is not None),
            is_switched=False,
            definitions=merged_definitions(run.definitions, self.definitions),
        )

    @override
    def difference(self, run: Run, command: Command | None) -> str | None:
        if not isinstance(command, Generate):
            return unexpected_event(self, run, command)
        return difference_of(command.step, self.step_number, "step") or difference_of(
            command.final, self.final, "final"
        )

    def describe(self, context: EventContext) -> list[LogRow]:
        """Return the skills that cannot be reached; the generation itself on request."""
        rows = [LogRow("missing", reason, "red") for reason in self.unreachable.values()]
        if context.full:
            rows.append(LogRow("generates", "only the result's text is to be written" if self.final else ""))
        return rows


class FinishGeneration(LaterEvent):
    """A reply of the model."""

    type: Literal["finishGeneration"] = "finishGeneration"
    usage: Usage
    reply: tuple[ReplyPart, ...]  # text, thinking, tool calls and provider tools, in the model's order
    finish_reason: FinishReason
    context_window: int | None = None  # tokens that the model's context can hold; None if unknown
    duration_ms: int = Field(default=0, exclude_if=falsy)
    unreported: bool = Field(default=False, exclude_if=falsy)  # True: the whole reservation is charged
    over_reserved: Charge | None = None  # amount by which `usage` exceeds the reservation; only with a budget
    # reason why the reply is unusable although the model completed it; None if it is usable
    problem: ErrorInfo | None = Field(default=None, exclude_if=falsy)
    # query that asks the model to continue this reply, which was cut at its limit; empty if it is not continued
    continuation: Text = Field(default="", exclude_if=falsy)

    @property
    def message(self) -> ExpertMessage:
        return ExpertMessage(contents=self.reply)

    def fold(self, run: Run) -> Run:
        """Append the reply, which is the result if it has no calls and is not paused."""
        reply = self.message
        is_paused = self.finish_reason == "paused" and not reply.tool_calls and not run.is_final_generation
        reserved = run.spending.reserved
        spending = add_spending(
            run, self.usage, unreported_charge(reserved, self.usage) if reserved and self.unreported else None
        )
        run = replace(
            run,
            spending=spending if reserved is None else replace(spending, reserved=None),
            has_generated=True,
            budget_cut_tokens=None,
            context=context_after_generation(
                run, self.usage, self.context_window, is_one_pass=not reply.provider_tools
            ),
        )
        if self.finish_reason == "length" and run.reply_token_limit is not None and not reply.tool_calls:
            return replace(run, budget_cut_tokens=run.reply_token_limit)
        if self.continuation:
            query = UserMessage(contents=(TextPart(text=self.continuation),))
            messages = run.messages.append(reply, self.id).append(query, f"{self.id}-continue")
            return replace(
                run, messages=messages, phase=Phase.SETTLED, unfinished_text=run.unfinished_text + reply.text
            )
        problem = self.problem or _problem_of(reply, self.finish_reason)
        if problem is not None:
            # The reply stays in the log but not in the messages, so the next attempt starts from unchanged messages.
            return replace(run, unusable_reply=problem)
        messages = run.messages.append(reply, self.id)
        if is_paused:  # no result: the next step sends the reply back, and the model continues it
            return replace(run, messages=messages, phase=Phase.SETTLED)
        if run.is_final_generation or not reply.tool_calls:
            result = run.unfinished_text + reply.text
            return replace(
                run, messages=messages, phase=Phase.SETTLED, is_declared_done=True, result=result, unfinished_text=""
            )
        return replace(run, messages=messages, phase=Phase.REPLIED, unfinished_text="")

    @override
    def difference(self, run: Run, command: Command | None) -> str | None:
        if self.continuation and not may_continue(run, self.message, self.finish_reason):
            return "finishGeneration with a continuation of a reply that may not be continued"
        return _generation_difference(self, run, command)

    def describe(self, context: EventContext) -> list[LogRow]:
        """Return the thoughts, provider tools and texts; the usage on request, or if the reply is not whole."""
        parts = self.message.contents
        rows = [
            LogRow("thinks", part.thinking, "dim", "thought")
            for part in parts
            if isinstance(part, ThinkingPart) and part.thinking
        ]
        for part in parts:
            if isinstance(part, TextPart) and part.text:
                rows.append(LogRow("says", part.text, item="text"))
            elif isinstance(part, ProviderToolPart):
                rows += _provider_tool_rows(part)
        is_incomplete = self.finish_reason in ("length", "refusal", "other")
        if is_incomplete or context.full:
            text = f"{self.finish_reason}, {duration(self.duration_ms)}, {tokens(self.usage)}"
            rows.append(LogRow("replied", text, "yellow" if is_incomplete else "dim"))
        if self.continuation:
            rows.append(LogRow("continues", "the reply, which was cut at its limit, by another request", "yellow"))
        return rows


CONTINUATION = (
    "Your reply was cut off because it reached the most tokens that one reply may have. Continue where you stopped:"
    " write only what is missing, without repeating or introducing anything."
)


def may_continue(run: Run, reply: ExpertMessage, reason: FinishReason) -> bool:
    """Return True if the model may be asked to continue a cut reply: one with text, and not a continuation itself."""
    is_by_budget = run.reply_token_limit is not None
    is_cut = reason == "length" and not reply.tool_calls and not is_by_budget
    return is_cut and bool(reply.text.strip()) and not run.unfinished_text


_NO_CALL = "the reply ends for a tool call (finish reason `toolCalls`), but there is none in it, only a text"


def empty_reply(reply: ExpertMessage, reason: FinishReason, *, final: bool) -> ErrorInfo | None:
    """Return the error of a reply with neither text nor call, such as thinking alone; None for other replies.

    A reply that ends for its calls needs one, since a text before a lost call is not an answer; a `final` reply needs a
    text. Replies that were cut, refused, or paused after they had begun, are not judged here.
    """
    if reason in ("length", "refusal") or (reason == "paused" and reply.contents) or (reply.tool_calls and not final):
        return None
    has_text = any(character.isprintable() and not character.isspace() for character in reply.text)
    if has_text and (final or reason != "toolCalls" or reply.provider_tools):
        return None
    if has_text:
        return ErrorInfo(name="EmptyReply", message=_NO_CALL, is_retryable=True)
    thinking = sum(len(part.thinking) for part in reply.contents if isinstance(part, ThinkingPart))
    kinds = (
        (f"{thinking:,} characters of thinking", thinking),
        ("blanks", reply.text),
        ("calls, which were not asked for", reply.tool_calls),
        ("results of the provider's tools", reply.provider_tools),
    )
    found = " and ".join(name for name, content in kinds if content) or "nothing"
    needed = "no text" if final else "neither text nor a tool call"
    return ErrorInfo(
        name="EmptyReply",
        message=f"the reply has {needed}: the model wrote {found} and ended it (finish reason `{reason}`)",
        is_retryable=True,
    )


def _problem_of(reply: ExpertMessage, reason: FinishReason) -> ErrorInfo | None:
    """Return why a reply without calls is unusable: it is empty, cut off or a refusal. None if it is usable."""
    if reply.tool_calls:
        return None
    if reason == "paused" and not reply.contents:
        return ErrorInfo(name="EmptyReply", message="the provider paused before the model had written anything")
    if reason == "length":
        return ErrorInfo(
            name="OutputLimit",
            message="the reply was cut off at the most tokens that one reply may have: allow more with `maxTokens` in"
            " [provider.setting], or ask for less at once",
        )
    if reason == "refusal":
        text = " ".join(reply.text.split())[:500]
        return ErrorInfo(name="Refusal", message="the model declined to answer" + (f": {text}" if text else ""))
    return None


def _provider_tool_rows(part: ProviderToolPart) -> list[LogRow]:
    rows: list[LogRow] = []
    if not part.is_rest:
        call_text = f"{part.tool_name} {json.dumps(part.args, ensure_ascii=False) if part.args else ''}".rstrip()
        rows.append(LogRow("calls", f"{call_text} (the provider runs it)", "cyan", "call"))
    if part.result:
        word, colour = ("error", "red") if part.is_error else ("result", "")
        rows.append(LogRow(word, part.result, colour, "result"))
    return rows


def _generation_difference(event: LaterEvent, run: Run, command: Command | None) -> str | None:
    if not isinstance(command, Generate):
        return unexpected_event(event, run, command)
    return None if run.phase is Phase.GENERATING else f"{event.type} without startGeneration"


class Retry(LaterEvent):
    """A failed generation that is tried again."""

    is_progress = False
    type: Literal["retry"] = "retry"
    error: ErrorInfo
    attempt: int  # number of the failed attempt, from 1
    delay_ms: int
    usage: Usage | None = None
    uncharged: bool = Field(default=False, exclude_if=falsy)  # True if the endpoint refused it: nothing is charged
    overflow: int | None = None  # tokens that the model's context holds, if the request exceeded it
    most_tries: int | None = Field(default=None, exclude_if=falsy)  # maximum tries of this generation; None if unknown
    most_ms: int | None = Field(default=None, exclude_if=falsy)  # time for all tries together; None if unknown

    def fold(self, run: Run) -> Run:
        """Settle the failed attempt; an overflow reveals the size of the window."""
        if run.phase is not Phase.GENERATING and not run.context.summarising:
            raise IllegalEvent("retry without a running generation")
        spending = add_spending(run, self.usage).settle(is_charged=not self.uncharged)
        run = replace(run, spending=spending)
        if self.overflow is None:
            return run
        return replace(run, context=replace(run.context, learned=self.overflow, overflow=self.error))

    @override
    def difference(self, run: Run, command: Command | None) -> str | None:
        if isinstance(command, Compact):
            return None if run.context.summarising else "retry without startCompaction"
        return _generation_difference(self, run, command)

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        if self.overflow is not None:
            window_note = f"; the context holds {self.overflow:,} tokens"
            if is_inferred(self.error):
                window_note = "; the request may be too large: it is sent once more with less of the history"
            return [LogRow("retries", self.error.words + window_note, "yellow")]
        total = "" if self.most_tries is None else f" of {self.most_tries}"
        limit = "" if self.most_ms is None else f", all within {duration(self.most_ms)}"
        next_try = f"try {self.attempt + 1}{total} after {duration(self.delay_ms)}{limit}"
        return [LogRow("retries", next_try, "yellow"), LogRow("because", self.error.words, "yellow")]


class AdaptRequest(LaterEvent):
    """A lasting change of the requests to one model that its endpoint needs: parts in another form, or left out."""

    is_progress = False
    type: Literal["adaptRequest"] = "adaptRequest"
    model: str  # the model whose endpoint needs it, as `provider/model`
    adaptations: Adaptations
    error: ErrorInfo | None = Field(default=None, exclude_if=falsy)  # the refusal; None if adapted before sending
    uncharged: bool = Field(default=False, exclude_if=falsy)  # True if nothing is charged for the refused attempt
    tool_call_id: str = Field(default="", exclude_if=falsy)  # the call whose tool asks the model; "" for the Run itself

    @property
    @override
    def media(self) -> tuple[ResultContent, ...]:
        """The smaller images and documents that are sent in place of the originals."""
        return tuple(item.blob for item in self.adaptations if item.blob is not None)

    @override
    def repetitions(self, run: Run) -> Iterator[Repetition]:
        if not run.context.summarising:  # another model may write the summary, and the state does not name it
            yield Repetition("the model", self.model, run.active_model)

    @property
    def words(self) -> str:
        """The change as a phrase, such as `without the field stream_options (PROVIDER/MODEL refused it)`."""
        cause = "needs it" if self.error is None else "refused it"
        return f"{in_words(self.adaptations)} ({self.model} {cause})"

    def fold(self, run: Run) -> Run:
        """Keep the adaptations for all later requests to the model, and settle the refused attempt."""
        if self.tool_call_id:
            open_call(run, self.tool_call_id)
        elif run.phase is Phase.CALLING:
            raise IllegalEvent("adaptRequest names no call, while calls run")
        elif self.error is not None and run.phase is not Phase.GENERATING and not run.context.summarising:
            raise IllegalEvent("adaptRequest after a refusal, without a running generation")
        known = run.adaptations_by_model.get(self.model, ())
        if new_adaptations(known, self.adaptations) != self.adaptations:
            raise IllegalEvent("adaptRequest repeats an adaptation")
        problem = next(filter(None, map(problem_of, self.adaptations)), None if self.adaptations else "nothing")
        if problem is not None:
            raise IllegalEvent(f"adaptRequest names {problem}")
        run = replace(run, adaptations_by_model={**run.adaptations_by_model, self.model: known + self.adaptations})
        if self.error is None or self.tool_call_id:  # the call's result has the cost of generations for its tool
            return run
        return settle_reservation(run, is_charged=not self.uncharged)

    @override
    def difference(self, run: Run, command: Command | None) -> str | None:
        if self.tool_call_id:
            return running_difference(self, self.tool_call_id, run, command)
        if isinstance(command, Compact):
            return None if self.error is None or run.context.summarising else "adaptRequest without startCompaction"
        if self.error is None:
            return None if isinstance(command, Generate) else unexpected_event(self, run, command)
        return _generation_difference(self, run, command)

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        cause = "" if self.error is None else f": {self.error.message}"
        return [LogRow("adapts", f"sends requests {self.words}{cause}", "yellow")]


class SwitchModel(LaterEvent):
    """A switch to the next fallback model, or back to the primary one."""

    is_progress = False
    reasons: ClassVar[dict[SwitchReason, str]] = {
        "overloaded": "overloaded",
        "rateLimit": "its rate limit is used up",
        "quota": "its quota is used up",
        "refusal": "it refused",
        "timeout": "it took too long",
        "unreachable": "it cannot be reached",
        "circuitOpen": "it failed again and again",
        "serverError": "its server failed",
        "notConfigured": "it cannot be used here",
        "triedAgain": "the primary model is tried again",
    }
    type: Literal["switchModel"] = "switchModel"
    before: str = Field(serialization_alias="from", validation_alias=AliasChoices("from", "before"))
    to: str
    reason: SwitchReason
    error: ErrorInfo | None = Field(default=None, exclude_if=falsy)  # failure of the previous model
    context_window: int | None = Field(default=None, exclude_if=falsy)
    uncharged: bool = Field(default=False, exclude_if=falsy)  # True if the endpoint refused the attempt

    @property
    def words(self) -> str:
        """The switch as a phrase, such as `from A to B: overloaded`."""
        return f"from {self.before} to {self.to}: {self.reasons[self.reason]}"

    def fold(self, run: Run) -> Run:
        """Make another of the Run's models the active one."""
        names = models_of(run.start)
        if self.before != run.active_model or self.to not in names or self.to == run.active_model:
            raise IllegalEvent(f"switchModel from {self.before} to {self.to}, where {run.active_model} generates")
        is_first = self.to == names[0]
        return replace(
            settle_reservation(run, is_charged=not self.uncharged),
            fallback_model="" if is_first else self.to,
            # An unavailable model has not failed: keep the failure before it.
            fallback_cause=run.fallback_cause if self.reason == "notConfigured" else self.error,
            primary_retry_at_ms=0 if is_first else self.timestamp + REST_MS,
            unusable_reply=None,
            budget_cut_tokens=None,
            # Another model counts tokens differently and has another window, so all measurements are void.
            context=forget_measurements(run.context, self.context_window),
            is_switched=run.phase is Phase.GENERATING,
        )

    def difference(self, run: Run, command: Command | None) -> str | None:
        """Compare the model and the reason. The failed attempt that caused the switch is not in the log."""
        if self.reason == "triedAgain":
            if self.to != models_of(run.start)[0] or not is_primary_due(run, self.timestamp):
                return (
                    f"switchModel to {self.to}, where {run.active_model} generates until the first model is tried again"
                )
            return None
        expected = next_model(run)
        if self.to != expected:
            return f"switchModel to {self.to}, where the next model is {expected or 'none'}"
        if self.error is not None and reason_to_switch(self.error) != self.reason:
            return f"switchModel because of {self.reason}, after {self.error.name}"
        if self.reason == "refusal" and (run.unusable_reply is None or run.unusable_reply.name != REFUSAL):
            return "switchModel because of a refusal, where the model has not refused"
        return None

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        cause = "" if self.error is None else f" ({self.error.message})"
        return [LogRow("switches", f"{self.words}{cause}", "yellow")]


class FinishStep(LaterEvent):
    """The end of a step, which makes a checkpoint."""

    original_types = ("continueToNextStep",)
    type: Literal["finishStep"] = "finishStep"
    checkpoint_id: str
    usage: Usage

    @override
    def repetitions(self, run: Run) -> Iterator[Repetition]:
        yield Repetition("the usage", self.usage, run.spending.step_usage)

    def fold(self, run: Run) -> Run:
        return replace(run, calls={}, spending=replace(run.spending, step_usage=NO_USAGE))

    @override
    def difference(self, run: Run, command: Command | None) -> str | None:
        if not isinstance(command, EndStep):
            return unexpected_event(self, run, command)
        # a Run that begins with an answer ends a step of the Run that it continues, so it may still be at step 0
        problem = difference_of(max(1, run.step), self.step_number, "step")
        return problem or difference_of(run.spending.step_usage, self.usage, "usage")

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        # the id comes first: users copy it, so it must not be cut off
        took = "" if context.step_ms is None else f"{duration(context.step_ms)}, "
        return [LogRow("step", f"{self.checkpoint_id}: {took}{tokens(self.usage)}", "dim", "place")]


GenerationEvent = StartGeneration | FinishGeneration | Retry | AdaptRequest | SwitchModel | FinishStep
