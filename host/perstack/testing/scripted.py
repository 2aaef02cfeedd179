"""A scripted model, for tests of Experts, of plugins and of the host.

In Python, for a test of one Expert:

    provider = ScriptedProvider([turn(tool("readTextFile", {"path": "notes.txt"})), text("Two notes.")])
    host = Host(plugins=[provider], …)           # its provider name is "scripted"
    …
    assert provider.requests[1].messages[-1] …

For several Experts, map each to its turns: `{"writer": [...], "[[reviewer]]": [...]}`. A key is an Expert's key, a text
in its instruction, or `*` for any Expert. Or pass a function from the request to a Turn.

From the command line: `PERSTACK_PLUGINS=perstack.testing.plugin perstack run … --provider scripted`, with the script's
path in `[provider.setting] script = "script.json"` or in PERSTACK_SCRIPT:

    {"experts": {"[[writer]]": {"turns": [{"tools": [{"name": "todo", "input": {}}]}, {"text": "Done."}]}}}

The request determines the next turn: its number is the number of replies in the request's messages or of steps before
its own, whichever is larger. So a Run that is resumed in another process continues at the right place. Failing turns
are not replies: each is played once per process and Run, when the reply after it is due.
"""

import asyncio
import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import assert_never

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from pydantic.alias_generators import to_camel
from typing_extensions import override

from perstack.core.base.records import JsonObject, first_problem
from perstack.core.base.usage import Usage
from perstack.core.messages.messages import (
    ExpertMessage,
    FinishReason,
    Message,
    ProviderToolPart,
    ReplyPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from perstack.errors import ProviderError, UsageError
from perstack.ports.hooks import hookimpl
from perstack.ports.provider import ANY_TOOL, Delta, Generation, GenerationRequest, Provider, ProviderFactory
from perstack.system.files import read_regular

ANY_EXPERT = "*"
_UNLIMITED = 1 << 62


class _ScriptModel(BaseModel):
    """Base of a script's models: snake_case or camelCase keys. Unknown keys are refused, so that typos are noticed."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, defer_build=True
    )


class ToolUse(_ScriptModel):
    """A tool call. An `input` that is not an object is sent unchanged, like the invalid JSON of a real model."""

    name: str
    input: JsonValue = Field(default_factory=dict)
    id: str | None = None


class ProviderUse(_ScriptModel):
    """A use of a tool that the provider runs itself."""

    name: str
    input: JsonObject = Field(default_factory=dict)
    result: str = ""
    is_error: bool = False


class Cost(_ScriptModel):
    """Token counts of a turn; the total is input plus output."""

    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cached_input_tokens: int = 0


class Failure(_ScriptModel):
    """A failing turn. Without a status it is a broken connection."""

    message: str = "the script says so"
    status: int | None = None
    name: str = "ProviderError"
    retry_after: float | None = None  # seconds
    retryable: bool | None = None  # overrides the status; None: 408, 409, 429 and 5xx are retryable
    context_window: int | None = None  # only for `ContextOverflow`: context size in tokens, if the endpoint reports it
    may_not_fit: bool = False  # True if the endpoint gives no reason, so that the request may be too large

    def as_error(self) -> ProviderError:
        """Return the error that a provider raises for this failure."""
        by_status = self.status is None or self.status in (408, 409, 429) or self.status >= 500
        return ProviderError(
            self.message,
            name=self.name,
            status_code=self.status,
            is_retryable=by_status if self.retryable is None else self.retryable,
            retry_after=self.retry_after,
            context_window=self.context_window,
            may_not_fit=self.may_not_fit,
        )


class Turn(_ScriptModel):
    """One reply or one failure. With both text and error, the reply breaks off after the text."""

    text: str = ""
    thinking: str = ""
    provider_tools: tuple[ProviderUse, ...] = ()
    tools: tuple[ToolUse, ...] = ()
    usage: Cost = Cost()
    delay_ms: float = 0  # duration of the turn in milliseconds; its first delta is sent before the delay
    error: Failure | None = None
    finish_reason: FinishReason | None = None  # default: `toolCalls` if there are any, otherwise `stop`
    repeat: bool | int = 1  # number of times this turn is played; True repeats it forever


class ExpertScript(_ScriptModel):
    """The part of a script for one Expert."""

    turns: tuple[Turn, ...]
    repeat: bool | int = 1  # number of times all of its turns are played; True repeats them forever


class Script(_ScriptModel):
    """The turns of each Expert."""

    experts: dict[str, ExpertScript]


TurnLike = Turn | ToolUse | str  # a turn; a single tool call or text is also accepted as a turn

ScriptLike = Script | Sequence[TurnLike] | Mapping[str, Sequence[TurnLike]] | Callable[[GenerationRequest], TurnLike]


def tool(name: str, arguments: JsonValue = None, *, id: str | None = None) -> ToolUse:
    """Return a call of tool `name`."""
    return ToolUse(name=name, input={} if arguments is None else arguments, id=id)


def turn(
    *tools: ToolUse,
    text: str = "",
    thinking: str = "",
    usage: Cost | tuple[int, int] | None = None,
    delay_ms: float = 0,
    finish_reason: FinishReason | None = None,
    repeat: bool | int = 1,
) -> Turn:
    """Return a reply with thinking, text and tool calls. `usage` may be (input tokens, output tokens)."""
    cost = (
        usage
        if isinstance(usage, Cost)
        else Cost(input_tokens=(usage or (0, 0))[0], output_tokens=(usage or (0, 0))[1])
    )
    return Turn(
        text=text,
        thinking=thinking,
        tools=tools,
        usage=cost,
        delay_ms=delay_ms,
        finish_reason=finish_reason,
        repeat=repeat,
    )


def text(content: str, *, usage: Cost | tuple[int, int] | None = None, delay_ms: float = 0) -> Turn:
    """Return a reply without tool calls, which ends a Run."""
    return turn(text=content, usage=usage, delay_ms=delay_ms)


def fail(
    status: int | None = None,
    message: str = "the script says so",
    *,
    name: str = "ProviderError",
    retry_after: float | None = None,
    retryable: bool | None = None,
    context_window: int | None = None,
    may_not_fit: bool = False,
    repeat: bool | int = 1,
) -> Turn:
    """Return a failing generation: with an HTTP status or, without one, with a broken connection."""
    failure = Failure(
        message=message,
        status=status,
        name=name,
        retry_after=retry_after,
        retryable=retryable,
        context_window=context_window,
        may_not_fit=may_not_fit,
    )
    return Turn(error=failure, repeat=repeat)


_MAX_BYTES = 64 << 20


def load_script(path: Path) -> Script:
    """Read a script file. Raises UsageError with the problem."""
    try:
        return Script.model_validate_json(read_regular(path, _MAX_BYTES))
    except OSError as error:
        raise UsageError(f"the script of provider `scripted` cannot be read: {error}") from error
    except ValidationError as error:
        place, message = first_problem(error)
        raise UsageError(f"{path}: {place}: {message}") from error


class _Schedule:
    """Index of a script: finds the reply with a number, and the failures before it, without walking the script."""

    def __init__(self, part: ExpertScript) -> None:
        self._ends: list[int] = []
        self._replies: list[Turn] = []
        self._failures: dict[int, list[Turn]] = {}
        self._rounds = _repetition_count(part.repeat)
        played = 0
        for turn_spec in part.turns:
            if turn_spec.error is not None:
                self._failures.setdefault(played, []).append(turn_spec)
                continue
            played = min(_UNLIMITED, played + _repetition_count(turn_spec.repeat))
            self._ends.append(played)
            self._replies.append(turn_spec)
        self._length = played

    def reply(self, number: int) -> Turn | None:
        if self._is_over(number):
            return None
        return self._replies[bisect_right(self._ends, number % self._length)]

    def failure(self, number: int, played: int) -> Turn | None:
        for failing_turn in self._failures_before(number):
            if played < _repetition_count(failing_turn.repeat):
                return failing_turn
            played -= _repetition_count(failing_turn.repeat)
        return None

    def _is_over(self, number: int) -> bool:
        return number >= self._length * self._rounds

    def _failures_before(self, number: int) -> list[Turn]:
        trailing = self._failures.get(self._length, [])
        if self._is_over(number):
            return trailing
        place = number % self._length
        due = self._failures.get(place, [])
        return [*trailing, *due] if number and not place else due


def _repetition_count(repeat: bool | int) -> int:
    if isinstance(repeat, bool):
        return _UNLIMITED if repeat else 1
    return repeat


class _Progress:
    """State of one Run: number of messages counted, and failures played."""

    __slots__ = ("counted", "failures", "part", "replies")

    def __init__(self, part: str) -> None:
        self.part = part
        self.counted = 0
        self.replies = 0
        self.failures: dict[int, int] = {}

    def count(self, messages: Sequence[Message]) -> int:
        """Return the number of replies in `messages`, examining only messages that are new since the last call."""
        if len(messages) < self.counted:
            self.counted = self.replies = 0
        new_messages = messages[self.counted :]
        self.replies += sum(isinstance(message, ExpertMessage) for message in new_messages)
        self.counted += len(new_messages)
        return self.replies


class ScriptedProvider(Provider, ProviderFactory):
    """A provider that plays a script. It is also a plugin: pass it to `Host(plugins=[...])` as provider `scripted`."""

    name = "scripted"
    priority = 0
    default_model: str | None = "scripted"
    has_one_model = True
    how_to_configure = "pass it to Host(plugins=[...])"
    tools = (ANY_TOOL,)

    def __init__(self, script: ScriptLike, *, request_log: Path | None = None) -> None:
        """Prepare the script. With `request_log`, append each request to that file as a line of JSON."""
        self.requests: list[GenerationRequest] = []  # all requests in order
        self._decide = script if callable(script) else None
        self._schedules = {} if callable(script) else _schedules(script)
        self._progress: dict[str, _Progress] = {}
        self._request_log = request_log

    @override
    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        self.requests.append(request)
        if self._request_log is not None:
            _append_request(self._request_log, request)
        number, turn_spec = self._next_turn(request)
        await _perform(turn_spec, on_delta)
        if turn_spec.error is not None:
            raise turn_spec.error.as_error()
        return _generation(turn_spec, number)

    @override
    async def close(self) -> None:
        pass  # nothing to close

    @override
    def is_configured(self, env: Mapping[str, str]) -> bool:
        return True

    @override
    def create(self, config: object) -> "ScriptedProvider":
        return self

    @hookimpl
    def perstack_providers(self) -> Sequence[ProviderFactory]:
        """Return provider `scripted`."""
        return [self]

    def _next_turn(self, request: GenerationRequest) -> tuple[int, Turn]:
        if self._decide is not None:
            return request.step, _as_turn(self._decide(request))
        progress = self._progress_of(request)
        # each step has a reply, even if compaction removed it from the messages; a summary is not a step
        earlier_replies = 0 if request.purpose == "summary" else request.step - 1
        number = max(progress.count(request.messages), earlier_replies)
        schedule = self._schedules[progress.part]
        played_failures = progress.failures.get(number, 0)
        failure = schedule.failure(number, played_failures)
        if failure is not None:
            progress.failures[number] = played_failures + 1
            return number, failure
        reply = schedule.reply(number)
        if reply is None:
            raise ProviderError(
                f"the script has no turn {number + 1} for {progress.part} (Expert {request.expert_key}, "
                f"step {request.step}): add one, or `repeat` the last",
                name="ScriptEnded",
            )
        return number, reply

    def _progress_of(self, request: GenerationRequest) -> _Progress:
        progress = self._progress.get(request.run_id)
        if progress is None:
            progress = _Progress(self._part_of(request))
            if request.run_id:
                self._progress[request.run_id] = progress
        return progress

    def _part_of(self, request: GenerationRequest) -> str:
        if request.expert_key in self._schedules:
            return request.expert_key
        for marker in self._schedules:
            if marker in request.instruction:
                return marker
        if ANY_EXPERT in self._schedules:
            return ANY_EXPERT
        raise ProviderError(
            f"the script has no part for Expert {request.expert_key}: its keys are {', '.join(self._schedules)}",
            name="NotInScript",
        )


def _schedules(script: Script | Sequence[TurnLike] | Mapping[str, Sequence[TurnLike]]) -> dict[str, _Schedule]:
    if isinstance(script, Script):
        return {key: _Schedule(part) for key, part in script.experts.items()}
    parts = script if isinstance(script, Mapping) else {ANY_EXPERT: script}
    return {key: _Schedule(ExpertScript(turns=tuple(_as_turn(item) for item in turns))) for key, turns in parts.items()}


def _as_turn(item: TurnLike) -> Turn:
    match item:
        case Turn():
            return item
        case ToolUse():
            return turn(item)
        case str():
            return text(item)
        case _:
            assert_never(item)


async def _perform(turn_spec: Turn, on_delta: Callable[[Delta], None]) -> None:
    """Emit the turn's deltas: the first one, then the delay, then the others."""
    deltas = [Delta("reasoning", word) for word in _split_words(turn_spec.thinking)]
    deltas += [Delta("text", word) for word in _split_words(turn_spec.text)]
    for delta in deltas[:1]:
        on_delta(delta)
    if turn_spec.delay_ms:
        await asyncio.sleep(turn_spec.delay_ms / 1000)
    for delta in deltas[1:]:
        on_delta(delta)


def _split_words(content: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+$", content)


def _generation(turn_spec: Turn, number: int) -> Generation:
    contents: list[ReplyPart] = []
    if turn_spec.thinking:
        contents.append(ThinkingPart(thinking=turn_spec.thinking))
    contents.extend(
        ProviderToolPart(tool_name=use.name, args=use.input, result=use.result, is_error=use.is_error)
        for use in turn_spec.provider_tools
    )
    if turn_spec.text:
        contents.append(TextPart(text=turn_spec.text))
    contents.extend(_tool_call(use, f"call_{number}_{index}") for index, use in enumerate(turn_spec.tools))
    cost = turn_spec.usage
    usage = Usage.of(
        cost.input_tokens, cost.output_tokens, reasoning=cost.reasoning_tokens, cached=cost.cached_input_tokens
    )
    return Generation(
        reply=ExpertMessage(contents=tuple(contents)),
        usage=usage.model_copy(update={"provider_tools": Counter(use.name for use in turn_spec.provider_tools)}),
        finish_reason=turn_spec.finish_reason or ("toolCalls" if turn_spec.tools else "stop"),
    )


def _tool_call(use: ToolUse, default_id: str) -> ToolCallPart:
    call_id = default_id if use.id is None else use.id
    if isinstance(use.input, dict):
        return ToolCallPart(tool_call_id=call_id, tool_name=use.name, args=use.input)
    raw = use.input if isinstance(use.input, str) else json.dumps(use.input)
    return ToolCallPart(tool_call_id=call_id, tool_name=use.name, raw_args=raw)


def _append_request(path: Path, request: GenerationRequest) -> None:
    line: JsonObject = {
        "model": request.model,
        "expertKey": request.expert_key,
        "runId": request.run_id,
        "step": request.step,
        "instruction": request.instruction,
        "tools": [spec.name for spec in request.tools],
        "allowTools": request.allow_tools,
        "reasoningBudget": request.reasoning_budget,
        "messages": [message.model_dump(mode="json", by_alias=True, exclude_none=True) for message in request.messages],
    }
    with path.open("a", encoding="utf-8") as log:
        log.write(json.dumps(line, ensure_ascii=False) + "\n")
