"""File format of recordings: one JSON file of a Job, made to be read, reviewed and edited by people.

The package makes a recording from a Job's events (make.py, with secrets masked), and plays it in place
of models, servers and people (play.py), so that a test repeats a Job without a network. Playback runs the ordinary
engine: only replies and results come from the recording; decisions are made again and compared.

A text of several lines is a list of its lines in the file, so that a change of one line is a diff of one line. A new
key needs a field here, its value in make.py, its use in play.py, and a row on the page about recordings, which a test
compares with these models. A change that older versions cannot read needs another `FORMAT`.
"""

import json
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Annotated, Literal, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    PlainSerializer,
    Tag,
    ValidationError,
)
from pydantic.alias_generators import to_camel

from perstack.core.base.records import JsonObject, falsy, first_problem, read_json
from perstack.core.base.usage import NO_USAGE, Usage
from perstack.core.definitions.job_status import JobStatus
from perstack.core.definitions.permissions import Approval
from perstack.core.definitions.skills import Effect, ToolKind
from perstack.core.jobs.summary import RunPlace
from perstack.core.messages.messages import FinishReason
from perstack.errors import UsageError

FORMAT: Literal["perstack-recording/1"] = "perstack-recording/1"
MAX_RECORDING_BYTES = 32 * 1024 * 1024
MAX_BLOB_BYTES = 12 * 1024 * 1024  # maximum size of all images and documents in a recording, before base64

_MAX_ITEMS = 100_000  # maximum length of any list
_MAX_CALL_DEPTH = 200
_MAX_SHOWN_CHARS = 160
_LINE_WIDTH = 118


def _join_lines(value: object) -> object:
    if not isinstance(value, list):
        return value
    lines = cast("list[object]", value)
    texts = [line for line in lines if isinstance(line, str)]
    return "\n".join(texts) if len(texts) == len(lines) else lines


def _split_lines(text: str) -> str | list[str]:
    return text.split("\n") if "\n" in text else text


Text = Annotated[str, BeforeValidator(_join_lines), PlainSerializer(_split_lines)]


class Piece(BaseModel):
    """Base of a recording's parts: camelCase; unknown keys are errors, so that misspelt ones are noticed."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, defer_build=True
    )


class RecordedText(Piece):
    """Text of a reply or a result."""

    text: Text


class RecordedThinking(Piece):
    """Model's reasoning, if its vendor returns it as readable text."""

    thinking: Text


class RecordedFile(Piece):
    """Image or document of a result; its bytes are in `Recording.blobs`."""

    blob: str  # sha256 in hex
    mime_type: str
    size: int = Field(ge=0, le=MAX_RECORDING_BYTES)
    name: str | None = None


class SaidText(Piece):
    """Person's answer to an interactive tool."""

    text: Text


class SaidForm(Piece):
    """Question of a running tool, with the person's answer."""

    question: Text
    requested_schema: JsonObject = Field(default_factory=dict, exclude_if=falsy)
    action: Literal["accept", "decline", "cancel"] | None = None  # None: nobody had answered when the Job was recorded
    content: JsonObject = Field(default_factory=dict, exclude_if=falsy)


class SaidApproval(Piece):
    """Person's decision about a call that needed approval."""

    decision: Literal["once", "job", "no"]
    rule: str = Field(default="", exclude_if=falsy)
    words: Text = Field(default="", exclude_if=falsy)
    changed: JsonObject | None = None  # all arguments, as the person changed them

    @property
    def approval(self) -> Approval:
        return Approval(decision=self.decision, rule=self.rule, text=self.words, changed=self.changed)


def _key_of(*keys: str) -> Discriminator:

    def kind(value: object) -> str | None:
        if isinstance(value, Mapping):
            return next((key for key in keys if key in value), None)
        return next((key for key in keys if hasattr(value, key)), None)

    return Discriminator(
        kind,
        custom_error_type="unknown_part",
        custom_error_message=f"none of the known kinds: it needs one of the keys {', '.join(keys)}",
    )


ResultPart = Annotated[
    Annotated[RecordedText, Tag("text")] | Annotated[RecordedFile, Tag("blob")], _key_of("text", "blob")
]
Said = Annotated[
    Annotated[SaidText, Tag("text")] | Annotated[SaidForm, Tag("question")] | Annotated[SaidApproval, Tag("decision")],
    _key_of("text", "question", "decision"),
]


class RecordedCall(Piece):
    """Tool call of a reply, with its outcome."""

    call: str
    tool: str
    args: JsonObject = Field(default_factory=dict, exclude_if=falsy)
    raw: str | None = None  # text that the model wrote in place of a JSON object
    skill: str = Field(default="", exclude_if=falsy)
    kind: ToolKind = Field(default="tool", exclude_if=lambda value: value == "tool")
    said: tuple[Said, ...] = Field(default=(), exclude_if=falsy, max_length=_MAX_ITEMS)  # by people, in order
    result: tuple[ResultPart, ...] | None = Field(default=None, max_length=_MAX_ITEMS)
    """Result of a tool. None without one, and for calls whose result playback makes again: of the loop itself, of
    delegates, and refusals."""
    failed: bool = Field(default=False, exclude_if=falsy)  # True if the model saw an error
    usage: Usage | None = None  # usage of generations that the tool itself asked for

    @property
    def changed_args(self) -> JsonObject | None:
        """The arguments that a person gave the call in place of the model's; None if nobody did."""
        changes = [said.changed for said in self.said if isinstance(said, SaidApproval) and said.changed is not None]
        return changes[-1] if changes else None

    @property
    def shown(self) -> str:
        """The call in one line: `readTextFile(path=notes.txt)`."""
        return format_call(self.tool, self.args if self.raw is None else {"…": self.raw})


class RecordedUse(Piece):
    """Use of a tool that the model's provider has run itself."""

    use: str  # name of the tool
    args: JsonObject = Field(default_factory=dict, exclude_if=falsy)
    result: Text = Field(default="", exclude_if=falsy)
    failed: bool = Field(default=False, exclude_if=falsy)


ReplyPart = Annotated[
    Annotated[RecordedText, Tag("text")]
    | Annotated[RecordedThinking, Tag("thinking")]
    | Annotated[RecordedCall, Tag("call")]
    | Annotated[RecordedUse, Tag("use")],
    _key_of("call", "use", "thinking", "text"),
]


class RecordedReply(Piece):
    """Reply of one generation."""

    step: int = Field(ge=0, le=10**9)
    kind: Literal["reply", "result", "summary"] = Field(default="reply", exclude_if=lambda value: value == "reply")
    """`result`: the final generation without tools. `summary`: a summary of older turns, from compaction."""
    messages: int = Field(default=0, ge=0, le=10**9, exclude_if=falsy)  # messages sent to the model; 0: not compared
    model: str = Field(default="", exclude_if=falsy)  # `provider/model`, if it is not the Run's
    reply: tuple[ReplyPart, ...] = Field(max_length=_MAX_ITEMS)
    finish_reason: FinishReason = Field(default="stop", exclude_if=lambda value: value == "stop")
    usage: Usage = Field(default=NO_USAGE, exclude_if=lambda value: value == NO_USAGE)
    context_window: int | None = Field(default=None, ge=0, le=10**12)

    @property
    def calls(self) -> tuple[RecordedCall, ...]:
        return tuple(part for part in self.reply if isinstance(part, RecordedCall))


class CalledBy(Piece):
    """Call, in another Run, that started a delegate."""

    run: int = Field(ge=0, le=_MAX_ITEMS)  # index of that Run in `runs`, from 0
    call: str


class ToldText(Piece):
    """Text that a person posted to the Run before the generation of a step."""

    step: int
    text: Text


class RecordedRun(Piece):
    """Run of the recorded Job."""

    expert: str
    query: Text
    called_by: CalledBy | None = None  # id of the parent; None for a Coordinator
    model: str = Field(default="", exclude_if=falsy)  # `provider/model`
    status: str = "completed"
    attached: tuple[RecordedFile | RecordedText, ...] = Field(default=(), exclude_if=falsy, max_length=_MAX_ITEMS)
    replies: tuple[RecordedReply, ...] = Field(default=(), max_length=_MAX_ITEMS)
    told: tuple[ToldText, ...] = Field(default=(), exclude_if=falsy, max_length=_MAX_ITEMS)

    def calls(self) -> tuple[tuple[int, RecordedCall], ...]:
        """Return every call with its step."""
        return tuple((reply.step, recorded_call) for reply in self.replies for recorded_call in reply.calls)


class RecordedTool(Piece):
    """Tool as the model saw it; its skill is not opened during playback."""

    skill: str = Field(default="", exclude_if=falsy)
    name: str
    description: Text = Field(default="", exclude_if=falsy)
    input_schema: JsonObject = Field(default_factory=dict)
    effect: Effect = "sideEffect"


class RecordedExpert(Piece):
    """Expert as of the recording."""

    instruction: str  # digest of its instruction
    # tools, without the base skill's
    tools: tuple[RecordedTool, ...] = Field(default=(), exclude_if=falsy, max_length=_MAX_ITEMS)


class Recording(Piece):
    """Recording of one Job, which need not have ended."""

    format: Literal["perstack-recording/1"] = FORMAT
    job: str
    perstack: str = ""  # version of perstack that made the recording
    status: JobStatus = "completed"  # status of the Job when it was recorded
    experts: dict[str, RecordedExpert] = Field(default_factory=dict[str, RecordedExpert])
    runs: tuple[RecordedRun, ...] = Field(max_length=_MAX_ITEMS)
    blobs: dict[str, str] = Field(default_factory=dict[str, str], exclude_if=falsy)  # base64, by sha256 in hex

    def to_bytes(self) -> bytes:
        """Return the file: indented JSON in a fixed order, so that a Job always gives equal bytes."""
        data: JsonObject = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        return _indented_json(data).encode("utf-8", "replace") + b"\n"

    def runs_by_place(self) -> dict[RunPlace, RecordedRun]:
        """Return the Runs by their position in the Job's tree."""
        paths: list[tuple[str, ...]] = []
        numbers: dict[RunPlace, int] = {}
        runs_by_place: dict[RunPlace, RecordedRun] = {}
        for recorded_run in self.runs:
            caller = recorded_run.called_by
            paths.append(() if caller is None else (*paths[caller.run], caller.call))
            place = RunPlace(recorded_run.expert, recorded_run.query, paths[-1])
            number = numbers[place] = numbers.get(place, -1) + 1
            runs_by_place[replace(place, number=number)] = recorded_run
        return runs_by_place


def _indented_json(value: JsonValue, indent: str = "", preceding_chars: int = 0) -> str:
    """Return indented JSON. A value is on one line if it fits there, after `preceding_chars` characters."""
    line = json.dumps(value, ensure_ascii=False)
    is_short = preceding_chars + len(indent) + len(line) <= _LINE_WIDTH
    if is_short or not value or not isinstance(value, dict | list):
        return line
    deeper_indent = f"{indent} "
    if isinstance(value, list):
        items = [_indented_json(item, deeper_indent) for item in value]
    else:
        names = ((f"{json.dumps(name, ensure_ascii=False)}: ", item) for name, item in value.items())
        items = [f"{name}{_indented_json(item, deeper_indent, len(name))}" for name, item in names]
    rows = ",\n".join(f"{deeper_indent}{row}" for row in items)
    opening, closing = "[]" if isinstance(value, list) else "{}"
    return f"{opening}\n{rows}\n{indent}{closing}"


def format_call(tool: str, args: JsonObject) -> str:
    """Return a call in one line, in the form of permission rules: `exec(command=ls, args=["-l"])`."""
    parts = (f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in args.items())
    line = " ".join(", ".join(parts).split())
    return f"{tool}({line if len(line) <= _MAX_SHOWN_CHARS else line[:_MAX_SHOWN_CHARS] + ' …'})"


def parse_recording(data: bytes, name: str) -> Recording:
    """Parse a recording, called `name` in errors. Raises UsageError: one line with the place and a remedy."""
    remedy = "record the Job again"
    if len(data) > MAX_RECORDING_BYTES:
        raise UsageError(f"{name}: a recording has at most {MAX_RECORDING_BYTES >> 20} MiB: {remedy}")
    try:
        value = read_json(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name}: not a recording ({_one_line(str(error))}): {remedy}") from error
    format_name = value.get("format") if isinstance(value, dict) else None
    if format_name != FORMAT:
        format_problem = (
            f"its `format` is {_one_line(json.dumps(format_name))[:60]}"
            if format_name is not None
            else "it has no `format`"
        )
        raise UsageError(f"{name}: not a recording that this version reads ({format_problem}, not {FORMAT}): {remedy}")
    try:
        recording = Recording.model_validate(value)
    except (ValidationError, RecursionError) as error:
        raise UsageError(f"{name}: {_describe_error(error)}: correct that place, or {remedy}") from error
    problem = _find_contradiction(recording)
    if problem is not None:
        raise UsageError(f"{name}: {problem}: correct that place, or {remedy}")
    return recording


def _describe_error(error: ValidationError | RecursionError) -> str:
    if not isinstance(error, ValidationError):
        return "it is nested too deeply"
    return ": ".join(_one_line(part)[:200] for part in first_problem(error))


def _find_contradiction(recording: Recording) -> str | None:
    """Return the first reference to a later Run, or to a missing or wrong blob, with its place; None without one."""
    depths: list[int] = []
    for number, recorded_run in enumerate(recording.runs):
        called_by = recorded_run.called_by
        if called_by is not None and called_by.run >= number:
            return f"runs.{number}.calledBy.run: {called_by.run} is not an earlier Run"
        depths.append(0 if called_by is None else depths[called_by.run] + 1)
        if depths[-1] > _MAX_CALL_DEPTH:
            return f"runs.{number}.calledBy: more than {_MAX_CALL_DEPTH} Runs, each called by the one before it"
    required_blobs = {
        part.blob
        for recorded_run in recording.runs
        for _, recorded_call in recorded_run.calls()
        for part in recorded_call.result or ()
        if isinstance(part, RecordedFile)
    }
    missing = sorted(required_blobs - recording.blobs.keys())
    if missing:
        return f"blobs: {_one_line(missing[0])[:70]}, which a result names, is missing"
    for name, text in recording.blobs.items():
        try:
            matches_name = sha256(b64decode(text, validate=True)).hexdigest() == name
        except (NotBase64, ValueError):
            matches_name = False
        if not matches_name:
            return f"blobs.{_one_line(name)[:70]}: not the bytes of that sha256 in base64"
    return None


def _one_line(text: str) -> str:
    return " ".join(text.split())
