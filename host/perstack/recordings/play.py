"""Play a recording: find the recorded reply or result for each request. No state is kept between requests.

A Run is found by its position in the Job's tree, a reply by its step, a result by its call. Since all replies are
recorded, so are all calls; only their outcomes can differ, which is checked before the next reply.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Literal, TypeVar, assert_never, cast

from pydantic import JsonValue

from perstack.core.base.records import JsonObject
from perstack.core.base.text import REDACTED
from perstack.core.definitions.settings import NOT_RECORDED
from perstack.core.definitions.skills import ToolSpec
from perstack.core.jobs.summary import RunPlace
from perstack.core.messages.messages import (
    ExpertMessage,
    Message,
    ProviderToolPart,
    ReplyPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    text_of,
)
from perstack.dataclass import dataclass
from perstack.errors import ProviderError, UsageError
from perstack.recordings import model
from perstack.recordings.make import digest_of_instruction

# Which tools run during playback, and which return their recorded results.

HowToRun = Literal["live", "recorded"]
ToolChoice = HowToRun | Mapping[str, HowToRun] | None
"""One choice for all tools; choices by pattern, `TOOL` or `SKILL/TOOL` with `*`; or None for the default."""

_CHOICES: tuple[HowToRun, ...] = ("live", "recorded")


@dataclass(frozen=True, slots=True)
class ChosenTools:
    """Choices by pattern; the first pattern that matches a tool decides."""

    patterns: tuple[tuple[str, HowToRun], ...] = ()

    def is_live(self, skill: str, tool: str, *, changes_files: bool = False) -> bool:
        """Return whether a tool really runs.

        Without a choice, tools that change files of the workspace run, so that a test finds the files. All others are
        replaced by the recording, so that tests need no models, servers, programs or input files.
        """
        for pattern, how in self.patterns:
            if fnmatchcase(f"{skill}/{tool}" if "/" in pattern else tool, pattern):
                return how == "live"
        return changes_files


DEFAULT_TOOLS = ChosenTools()


def chosen_tools(choice: JsonValue | ToolChoice, where: str) -> ChosenTools:
    """Parse the value of `tools`; `where` is its name in errors. Raises UsageError."""
    if choice is None:
        return DEFAULT_TOOLS
    choices = choice if isinstance(choice, Mapping) else {"*": choice}
    for name, how in choices.items():
        if how not in _CHOICES:
            setting = where if name == "*" else f"{where}.{name}"
            raise UsageError(f"{setting} is {how!r}: use `live`, `recorded`, or a table with one of them for each tool")
    return ChosenTools(tuple(cast("Mapping[str, HowToRun]", choices).items()))


_SaidT = TypeVar("_SaidT", model.SaidText, model.SaidForm, model.SaidApproval)

Purpose = Literal["reply", "result", "summary", "sample"]

_MAX_TEXT_CHARS = 200


def not_recorded(message: str) -> ProviderError:
    """Return the error for a request that the recording cannot answer; retrying does not help."""
    return ProviderError(message, name=NOT_RECORDED)


@dataclass(frozen=True, slots=True)
class AskedCall:
    """Call that runs next, at its place in the Job's tree."""

    place: RunPlace
    step: int
    call_id: str
    tool: str
    skill: str
    args: JsonObject
    changed: JsonObject | None = None  # arguments that a person has given the call in place of these


class _IndexedRun:
    """Run of the recording, with its replies and calls indexed."""

    def __init__(self, recorded_run: model.RecordedRun) -> None:
        self.run = recorded_run
        self.replies = {(reply.step, reply.kind): reply for reply in recorded_run.replies}
        self.calls = {(step, recorded_call.call): recorded_call for step, recorded_call in recorded_run.calls()}


class Player:
    """Source of recorded replies, results and answers."""

    def __init__(
        self, recording: model.Recording, name: str, tools: ChosenTools = DEFAULT_TOOLS, *, any_definition: bool = False
    ) -> None:
        """Set the recording, called `name` in errors; `any_definition` accepts changed instructions."""
        self.recording = recording
        self.name = name
        self.tools = tools
        self._any_definition = any_definition

    @cached_property
    def _runs(self) -> dict[RunPlace, _IndexedRun]:
        return {place: _IndexedRun(recorded_run) for place, recorded_run in self.recording.runs_by_place().items()}

    # Generations.

    def reply(self, place: RunPlace, purpose: Purpose, step: int, messages: Sequence[Message]) -> model.RecordedReply:
        """Return the recorded reply. Raises ProviderError without one, or if the number of messages differs."""
        if purpose == "sample":
            raise not_recorded(
                f"a tool of {place.expert_key} asks the model for a generation in step {step}, which {self.name} does"
                " not have: play that tool as `recorded`"
            )
        part = self._run_at(place)
        reply = part.replies.get((step, purpose))
        if purpose == "summary":
            if reply is None:
                raise not_recorded(f"{self._step_name(place, step)} has no summary in {self.name}")
            return reply
        if reply is None:
            last = max((number for number, kind in part.replies if kind != "summary"), default=0)
            end = f"it ends after step {last} ({part.run.status})" if last else "it has no reply"
            kind = "result" if purpose == "result" else "reply"
            raise not_recorded(f"{self._step_name(place, step)} has no {kind} in {self.name}: {end}")
        if reply.messages and reply.messages != len(messages):
            raise not_recorded(
                f"{self._step_name(place, step)}: the model would be sent {len(messages)} messages, where it was sent"
                f" {reply.messages} when {self.name} was recorded"
            )
        return reply

    def is_last_step(self, place: RunPlace, step: int) -> bool:
        """Return whether a Run has no reply after this step, so that a reply which was cut off was not continued."""
        part = self._find_run(place)
        return part is None or not any(other > step for other, _ in part.replies)

    def _find_run(self, place: RunPlace) -> _IndexedRun | None:
        exact = self._runs.get(place)
        if exact is not None:
            return exact
        candidates = ((other, part) for other, part in self._runs.items() if replace(other, query=place.query) == place)
        return next((part for other, part in candidates if _matches_masked(other.query, place.query)), None)

    def _run_at(self, place: RunPlace) -> _IndexedRun:
        part = self._find_run(place)
        if part is None:
            raise not_recorded(self._missing_run_message(place))
        recorded_expert = self.recording.experts.get(place.expert_key)
        is_same = (
            recorded_expert is None
            or not place.instruction
            or recorded_expert.instruction == digest_of_instruction(place.instruction)
        )
        if not is_same and not self._any_definition:
            raise not_recorded(
                f"the instruction of {place.expert_key} is not the one that {self.name} was recorded with: record it"
                ' again, or play it with `definition = "any"`'
            )
        return part

    def _missing_run_message(self, place: RunPlace) -> str:
        same_expert = [other for other in self._runs if other.expert_key == place.expert_key]
        description = f'a Run of {place.expert_key} with the query "{_shorten(place.query)}"'
        if place.calls:
            description += f", for the call {place.calls[-1]}"
        if not same_expert:
            names = _list_names(other.expert_key for other in self._runs)
            return f"{self.name} has no Run of {place.expert_key}; it has: {names}"
        if any((other.query, other.calls) == (place.query, place.calls) for other in same_expert):
            return f"{self.name} does not have {description} once more"
        queries = _list_names(f'"{_shorten(other.query)}"' for other in same_expert)
        return f"{self.name} does not have {description}; it has: {queries}"

    def check_results(self, place: RunPlace, step: int, results: Mapping[str, ToolResultPart | None]) -> None:
        """Raise ProviderError if the outcome of a call in this step, by its id, differs from the recording."""
        part = self._run_at(place)
        for call_id, result in results.items():
            recorded_call = part.calls.get((step, call_id))
            if result is None or recorded_call is None or recorded_call.failed == result.is_error:
                continue
            step_name = self._step_name(place, step)
            if result.is_error:
                difference = f'failed now ("{_shorten(text_of(result.contents))}") and did not'
            else:
                difference = (
                    f'did not fail now, but did ("{_shorten(_result_text(recorded_call))}")'
                    if recorded_call.result
                    else "did not fail now, but did"
                )
            raise not_recorded(
                f"{step_name}: {recorded_call.shown} {difference} when {self.name} was recorded:"
                " change back what differs, or record again"
            )

    # Tools.

    def result(self, asked_call: AskedCall) -> model.RecordedCall:
        """Return the recorded call with its result. Raises ProviderError if it is missing or had no result."""
        recorded_call = self._run_at(asked_call.place).calls.get((asked_call.step, asked_call.call_id))
        shown = model.format_call(asked_call.tool, asked_call.args)
        is_recorded = recorded_call is not None and (recorded_call.tool, recorded_call.args) == (
            asked_call.tool,
            asked_call.args,
        )
        if recorded_call is None or not is_recorded or recorded_call.changed_args != asked_call.changed:
            raise not_recorded(f"{self._step_name(asked_call.place, asked_call.step)}: {shown} is not in {self.name}")
        if recorded_call.result is None:
            reason = (
                "it was refused then" if recorded_call.kind == "refused" else "it had none when the Job was recorded"
            )
            raise not_recorded(
                f"{self._step_name(asked_call.place, asked_call.step)}: {shown} has no result in {self.name}: {reason}"
            )
        return recorded_call

    def file(self, sha256: str) -> bytes:
        """Return the bytes of an image or document of a result."""
        return b64decode(self.recording.blobs[sha256])

    def toolset(self, expert_key: str, skill: str) -> tuple[ToolSpec, ...] | None:
        """Return a skill's recorded tools; None if the skill is opened, because one of its tools really runs."""
        recorded_expert = self.recording.experts.get(expert_key)
        tools = [tool for tool in (() if recorded_expert is None else recorded_expert.tools) if tool.skill == skill]
        names = [tool.name for tool in tools] or ["*"]
        if any(self.tools.is_live(skill, name) for name in names):
            return None
        return tuple(map(_to_spec, tools))

    # People.

    def question(self, asked_call: AskedCall, answers: int) -> model.SaidForm | None:
        """Return the tool's next question after `answers` answers; None if it asks no more."""
        return self.answer_to(asked_call.place, asked_call.call_id, asked_call.step, model.SaidForm, answers)

    def answer_to(self, place: RunPlace, call_id: str, step: int, kind: type[_SaidT], number: int = 0) -> _SaidT | None:
        """Return a person's answer to a call, the `number`-th of its kind from 0; None if the recording has none."""
        part = self._find_run(place)
        recorded_call = None if part is None else part.calls.get((step, call_id))
        answers = [] if recorded_call is None else [answer for answer in recorded_call.said if isinstance(answer, kind)]
        return answers[number] if number < len(answers) else None

    def texts_before(self, place: RunPlace, step: int) -> tuple[str, ...]:
        """Return the texts that people posted to a Run before the generation of a step."""
        part = self._find_run(place)
        return () if part is None else tuple(told.text for told in part.run.told if told.step == step)

    def _step_name(self, place: RunPlace, step: int) -> str:
        return f"step {step} of {place.expert_key}"


def message_of(reply: model.RecordedReply) -> ExpertMessage:
    return ExpertMessage(contents=tuple(map(_to_reply_part, reply.reply)))


def _to_reply_part(
    part: model.RecordedText | model.RecordedThinking | model.RecordedCall | model.RecordedUse,
) -> ReplyPart:
    match part:
        case model.RecordedText():
            return TextPart(text=part.text)
        case model.RecordedThinking():
            return ThinkingPart(thinking=part.thinking)
        case model.RecordedCall():
            return ToolCallPart(tool_call_id=part.call, tool_name=part.tool, args=part.args, raw_args=part.raw)
        case model.RecordedUse():
            return ProviderToolPart(tool_name=part.use, args=part.args, result=part.result, is_error=part.failed)
        case _:
            assert_never(part)


def _to_spec(tool: model.RecordedTool) -> ToolSpec:
    return ToolSpec(
        name=tool.name,
        description=tool.description,
        input_schema=tool.input_schema or {"type": "object"},
        skill_name=tool.skill,
        effect=tool.effect,
    )


def _matches_masked(recorded: str, query: str) -> bool:
    """Return whether a query equals a recorded one in which secrets were masked."""
    first, *rest = recorded.split(REDACTED)
    if not rest or not query.startswith(first):
        return False
    position = len(first)
    for part in rest[:-1]:
        position = query.find(part, position)
        if position < 0:
            return False
        position += len(part)
    return len(query) - position >= len(rest[-1]) and query.endswith(rest[-1])


def _result_text(recorded_call: model.RecordedCall) -> str:
    return " ".join(part.text for part in recorded_call.result or () if isinstance(part, model.RecordedText))


def _list_names(names: Iterable[str]) -> str:
    unique = list(dict.fromkeys(names))
    return ", ".join(unique[:5]) + (f" and {len(unique) - 5} more" if len(unique) > 5 else "")


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_TEXT_CHARS else f"{line[:_MAX_TEXT_CHARS]} …"
