"""Playing a recording: which part of it answers what is asked now. Nothing is kept in memory between two questions.

A Run is found by its place in the Job's tree, a reply by its step, a result by the call that it stands beside. Because
every reply is the recorded one, the calls are too; what may differ is what becomes of them, and that is looked at
before the next reply is given.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal, TypeVar, assert_never

from perstack.core.base import JsonObject
from perstack.core.messages import (
    REDACTED,
    ExpertMessage,
    Message,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    text_of,
)
from perstack.core.overrides import NOT_RECORDED
from perstack.core.recording.make import digest_of_instruction
from perstack.core.recording.model import (
    RecordedCall,
    RecordedReply,
    RecordedRun,
    RecordedText,
    RecordedThinking,
    RecordedTool,
    Recording,
    SaidApproval,
    SaidForm,
    SaidText,
    shown_call,
)
from perstack.core.recording.tools import BY_DEFAULT, ChosenTools
from perstack.core.run_place import RunPlace
from perstack.core.tools import ToolSpec
from perstack.dataclass import dataclass
from perstack.errors import ProviderError

_S = TypeVar("_S", SaidText, SaidForm, SaidApproval)

Purpose = Literal["reply", "result", "summary", "sample"]

_LONGEST = 200


def not_recorded(message: str) -> ProviderError:
    """What was asked for is not in the recording; trying again does not help."""
    return ProviderError(message, name=NOT_RECORDED)


@dataclass(frozen=True, slots=True)
class AskedCall:
    """A call that is about to be run."""

    place: RunPlace
    step: int
    call_id: str
    tool: str
    skill: str
    args: JsonObject


class _Part:
    """One Run of the recording, with what is looked for in it."""

    def __init__(self, run: RecordedRun) -> None:
        self.run = run
        self.replies = {(reply.step, reply.kind): reply for reply in run.replies}
        self.calls = {(step, call.call): call for step, call in run.calls()}


class Player:
    """Answers from one recording."""

    def __init__(
        self, recording: Recording, name: str, tools: ChosenTools = BY_DEFAULT, *, any_definition: bool = False
    ) -> None:
        """`name` is the recording's in errors. `any_definition`: an instruction that was changed since is no error."""
        self.recording = recording
        self.name = name
        self.tools = tools
        self._any_definition = any_definition

    @cached_property
    def _runs(self) -> dict[RunPlace, _Part]:
        return {place: _Part(run) for place, run in self.recording.places().items()}

    # --- generations ----------------------------------------------------------------------------------------------

    def reply(self, place: RunPlace, purpose: Purpose, step: int, messages: Sequence[Message]) -> RecordedReply:
        """The reply to these messages. Raises ProviderError if there is none, or they are others than then."""
        if purpose == "sample":
            raise not_recorded(
                f"a tool of {place.expert_key} asks the model for a generation in step {step}, which {self.name} does"
                " not have: play that tool as `recorded`"
            )
        part = self._part(place)
        found = part.replies.get((step, purpose))
        if purpose == "summary":
            if found is None:
                raise not_recorded(f"{self._of(place, step)} has no summary in {self.name}")
            return found
        if found is None:
            last = max((number for number, kind in part.replies if kind != "summary"), default=0)
            end = f"it ends after step {last} ({part.run.status})" if last else "it has no reply"
            kind = "result" if purpose == "result" else "reply"
            raise not_recorded(f"{self._of(place, step)} has no {kind} in {self.name}: {end}")
        if found.messages and found.messages != len(messages):
            raise not_recorded(
                f"{self._of(place, step)}: the model would be sent {len(messages)} messages, where it was sent"
                f" {found.messages} when {self.name} was recorded"
            )
        return found

    def _found(self, place: RunPlace) -> _Part | None:
        found = self._runs.get(place)
        if found is not None:
            return found
        near = ((one, part) for one, part in self._runs.items() if replace(one, query=place.query) == place)
        return next((part for one, part in near if _is_hidden(one.query, place.query)), None)

    def _part(self, place: RunPlace) -> _Part:
        part = self._found(place)
        if part is None:
            raise not_recorded(self._no_run(place))
        expert = self.recording.experts.get(place.expert_key)
        is_same = (
            expert is None or not place.instruction or expert.instruction == digest_of_instruction(place.instruction)
        )
        if not is_same and not self._any_definition:
            raise not_recorded(
                f"the instruction of {place.expert_key} is not the one that {self.name} was recorded with: record it"
                ' again, or play it with `definition = "any"`'
            )
        return part

    def _no_run(self, place: RunPlace) -> str:
        near = [one for one in self._runs if one.expert_key == place.expert_key]
        what = f"a Run of {place.expert_key} with the query «{_short(place.query)}»"
        if place.calls:
            what += f", for the call {place.calls[-1]}"
        if not near:
            return (
                f"{self.name} has no Run of {place.expert_key}; it has: {_listed(one.expert_key for one in self._runs)}"
            )
        if any((one.query, one.calls) == (place.query, place.calls) for one in near):
            return f"{self.name} does not have {what} once more"
        return f"{self.name} does not have {what}; it has: {_listed(f'«{_short(one.query)}»' for one in near)}"

    def check_results(self, place: RunPlace, step: int, results: Mapping[str, ToolResultPart | None]) -> None:
        """Raises ProviderError if a call of this step, by its id, came to something else than in the recording."""
        part = self._part(place)
        for call_id, result in results.items():
            call = part.calls.get((step, call_id))
            if result is None or call is None or call.failed == result.is_error:
                continue
            of = self._of(place, step)
            if result.is_error:
                now = f"failed now («{_short(text_of(result.contents))}») and did not"
            else:
                now = (
                    f"did not fail now, but did («{_short(_text(call))}»)"
                    if call.result
                    else "did not fail now, but did"
                )
            raise not_recorded(
                f"{of}: {call.shown} {now} when {self.name} was recorded: change back what differs, or record again"
            )

    # --- tools ----------------------------------------------------------------------------------------------------

    def result(self, asked: AskedCall) -> RecordedCall:
        """The call as it was recorded, with its result. Raises ProviderError if it is not there, or had none."""
        call = self._part(asked.place).calls.get((asked.step, asked.call_id))
        shown = shown_call(asked.tool, asked.args)
        if call is None or (call.tool, call.args) != (asked.tool, asked.args):
            raise not_recorded(f"{self._of(asked.place, asked.step)}: {shown} is not in {self.name}")
        if call.result is None:
            why = "it was refused then" if call.kind == "refused" else "it had none when the Job was recorded"
            raise not_recorded(f"{self._of(asked.place, asked.step)}: {shown} has no result in {self.name}: {why}")
        return call

    def file(self, sha256: str) -> bytes:
        """The bytes of an image or a document of a result."""
        return b64decode(self.recording.blobs[sha256])

    def toolset(self, expert_key: str, skill: str) -> tuple[ToolSpec, ...] | None:
        """What a skill offers if it is not opened; None if it is, because one of its tools is really run."""
        expert = self.recording.experts.get(expert_key)
        tools = [tool for tool in (() if expert is None else expert.tools) if tool.skill == skill]
        names = [tool.name for tool in tools] or ["*"]
        if any(self.tools.is_live(skill, name) for name in names):
            return None
        return tuple(map(_spec, tools))

    # --- people ---------------------------------------------------------------------------------------------------

    def question(self, asked: AskedCall, answers: int) -> SaidForm | None:
        """What the tool asks before its result, after so many answers; None if that is nothing."""
        return self.said(asked.place, asked.call_id, asked.step, SaidForm, answers)

    def said(self, place: RunPlace, call_id: str, step: int, kind: type[_S], number: int = 0) -> _S | None:
        """What a person said to a call, the `number`-th of its kind; None if it is not in the recording."""
        part = self._found(place)
        call = None if part is None else part.calls.get((step, call_id))
        said = [] if call is None else [one for one in call.said if isinstance(one, kind)]
        return said[number] if number < len(said) else None

    def _of(self, place: RunPlace, step: int) -> str:
        return f"step {step} of {place.expert_key}"


def message_of(reply: RecordedReply) -> ExpertMessage:
    """The reply as the model gave it."""
    return ExpertMessage(contents=tuple(map(_part, reply.reply)))


def _part(part: RecordedText | RecordedThinking | RecordedCall) -> TextPart | ThinkingPart | ToolCallPart:
    match part:
        case RecordedText():
            return TextPart(text=part.text)
        case RecordedThinking():
            return ThinkingPart(thinking=part.thinking)
        case RecordedCall():
            return ToolCallPart(tool_call_id=part.call, tool_name=part.tool, args=part.args, raw_args=part.raw)
        case _:
            assert_never(part)


def _spec(tool: RecordedTool) -> ToolSpec:
    return ToolSpec(
        name=tool.name,
        description=tool.description,
        input_schema=tool.input_schema or {"type": "object"},
        skill_name=tool.skill,
        effect=tool.effect,
    )


def _is_hidden(recorded: str, query: str) -> bool:
    """Whether a query is what was recorded with secrets taken out."""
    first, *others = recorded.split(REDACTED)
    if not others or not query.startswith(first):
        return False
    place = len(first)
    for part in others[:-1]:
        place = query.find(part, place)
        if place < 0:
            return False
        place += len(part)
    return len(query) - place >= len(others[-1]) and query.endswith(others[-1])


def _text(call: RecordedCall) -> str:
    return " ".join(part.text for part in call.result or () if isinstance(part, RecordedText))


def _listed(names: Iterable[str]) -> str:
    each = list(dict.fromkeys(names))
    return ", ".join(each[:5]) + (f" and {len(each) - 5} more" if len(each) > 5 else "")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} …"
