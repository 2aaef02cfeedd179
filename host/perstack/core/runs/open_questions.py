"""The open questions of a Run, and how a person sees them."""

from collections import Counter
from collections.abc import Mapping
from typing import Literal

from pydantic import Field, JsonValue

from perstack.core.base.records import JsonObject, Record, canonical_json, falsy
from perstack.core.base.text import approvable_line, counted_blanks
from perstack.core.definitions.skills import Subject

_MAX_SUMMARY_CHARS = 2_000  # one line identifies a call; the page of consent shows all of it
_MAX_SUMMARY_COMMANDS = 20


# The question about a call whose process ended before its result was recorded.

WAS_DONE, DO_AGAIN, LEAVE_IT = "it was done", "do it again", "no"
"""The answers to that question. Any other text, and a text after `no:`, is passed to the model."""


def settling_args(tool_name: str, args: JsonObject) -> JsonObject:
    """Return the arguments of a question to a person about an interrupted call, in the form of a model's question."""
    return {
        "question": f"{tool_name} began, and its process ended before it had a result. What became of this call?",
        "options": [WAS_DONE, DO_AGAIN, LEAVE_IT],
        "allowOther": True,
        "call": args,
    }


def settlement_of(answer: str) -> tuple[Literal["done", "retry", "tell"], str]:
    """Return the decision about an interrupted call in a person's answer, and the text for the model."""
    if answer in (WAS_DONE, DO_AGAIN):
        return "done" if answer == WAS_DONE else "retry", ""
    word, _, reason = answer.partition(":")
    return "tell", reason.strip() if word.strip().casefold() == LEAVE_IT else answer


class OpenQuestion(Record):
    """A question that a person is being asked."""

    id: str
    run_id: str
    expert_key: str
    tool_call_id: str
    tool_name: str
    skill_name: str = ""
    text: str
    args: JsonObject = Field(default_factory=dict, exclude_if=falsy)
    requested_schema: JsonObject | None = None  # schema of the answer to a tool; None if the answer is a text
    approval: bool = Field(default=False, exclude_if=falsy)  # True if it asks for approval rather than for information
    call_digest: str = Field(default="", exclude_if=falsy)  # digest of a call that a rule requires approval for
    rule: str = Field(default="", exclude_if=falsy)
    offers: tuple[str, ...] = Field(default=(), exclude_if=falsy)  # rules that a person may approve for the whole Job
    changes: tuple[str, ...] = Field(default=(), exclude_if=falsy)  # differences of the tool's definition
    # files changed since the call was allowed in the project
    changed_files: tuple[str, ...] = Field(default=(), exclude_if=falsy)
    asked_at: int = 0

    # meaning of the arguments, and state of the file that the call changes; from the log, never from a cache
    subject: Subject | None = Field(default=None, exclude=True)
    content: str = Field(default="", exclude=True)

    @property
    def commands(self) -> Mapping[str, int]:
        """Number of times that each simple command runs, in order, as found by the parser that decides rules."""
        if not self.call_digest or self.subject is None:
            return {}
        # imported only for calls that need approval
        from perstack.core.permissions.decide_call import display_lines
        from perstack.core.permissions.policy_calls import PolicyCall

        argv = PolicyCall(self.tool_name, args=self.args, subject=self.subject).command
        return Counter(map(approvable_line, display_lines(argv))) if argv and argv[0] else {}

    @property
    def shown(self) -> str:
        """The question in one line, which may be cut. A tool's begins with its skill, as its text may claim another."""
        if self.call_digest:
            lines = [line if count == 1 else f"{line} ({count:,} times)" for line, count in self.commands.items()]
            more = [f"… and {len(lines) - _MAX_SUMMARY_COMMANDS:,} more"] if len(lines) > _MAX_SUMMARY_COMMANDS else []
            runs = "".join(f" [{_cut(line)}]" for line in (*lines[:_MAX_SUMMARY_COMMANDS], *more))
            args = approvable_line(canonical_json(count_blanks(self.args)).decode("utf-8", "replace"))
            return f"{approvable_line(self.text)}{runs}: {_cut(args)}"
        is_of_tool = self.requested_schema is not None and self.skill_name
        return f"skill {self.skill_name}: {self.text}" if is_of_tool else self.text


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SUMMARY_CHARS else f"{text[:_MAX_SUMMARY_CHARS]} …"


def count_blanks(value: JsonValue) -> JsonValue:
    """Return the value with `counted_blanks` applied to all of its texts."""
    match value:
        case str():
            return counted_blanks(value)
        case list():
            return [count_blanks(item) for item in value]
        case dict():
            return {counted_blanks(name): count_blanks(item) for name, item in value.items()}
        case _:
            return value
