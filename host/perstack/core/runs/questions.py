"""The open questions of a Run, and how a person sees them."""

from itertools import islice

from pydantic import Field, JsonValue

from perstack.core.base.records import Fact, JsonObject, canonical_json, falsy
from perstack.core.base.text import approvable_text, counted_blanks

_MAX_ARGS_CHARS = 2_000  # maximum characters of a call's arguments in one line; `args` has them complete
_EXEC = "exec"
_MAX_COMMANDS = 50


class OpenQuestion(Fact):
    """A question that a person is being asked."""

    id: str
    run_id: str
    expert_key: str
    tool_call_id: str
    tool_name: str
    skill_name: str = ""
    text: str
    args: JsonObject = Field(default_factory=dict, exclude_if=falsy)
    requested_schema: JsonObject | None = None  # of the content, for a tool's question; None: a text
    approval: bool = Field(default=False, exclude_if=falsy)  # True if it asks for approval rather than for information
    call_digest: str = Field(default="", exclude_if=falsy)  # of a call that needs approval by a rule
    rule: str = Field(default="", exclude_if=falsy)
    offers: tuple[str, ...] = Field(default=(), exclude_if=falsy)  # that a person may approve for the whole Job
    changes: tuple[str, ...] = Field(default=(), exclude_if=falsy)  # differences of the tool's definition
    asked_at: int = 0

    @property
    def runs(self) -> tuple[str, ...]:
        """The simple commands of an `exec` call that needs approval, as the rules' parser finds them."""
        program, arguments = self.args.get("command"), self.args.get("args", [])
        if not self.call_digest or self.tool_name != _EXEC or not isinstance(program, str) or not program:
            return ()
        from perstack.core.permissions.decisions import display_lines  # imported only for calls of programs

        words = arguments if isinstance(arguments, list) else []
        argv = [program, *(word for word in words if isinstance(word, str))]
        lines = [approvable_text(line).replace("\n", "\\n") for line in islice(display_lines(argv), _MAX_COMMANDS + 1)]
        short = [
            line if len(line) <= _MAX_ARGS_CHARS else f"{line[:_MAX_ARGS_CHARS]} …" for line in lines[:_MAX_COMMANDS]
        ]
        return (*short, "… and more") if len(lines) > _MAX_COMMANDS else tuple(short)

    @property
    def shown(self) -> str:
        """The question as a person sees it; a tool's starts with its skill, for its text may claim any origin."""
        if self.call_digest:
            runs = "".join(f" [{line}]" for line in self.runs)
            args = approvable_text(canonical_json(count_blanks(self.args)).decode("utf-8", "replace"))
            text = approvable_text(self.text).replace("\n", " ")
            return f"{text}{runs}: {args if len(args) <= _MAX_ARGS_CHARS else f'{args[:_MAX_ARGS_CHARS]} …'}"
        is_of_tool = self.requested_schema is not None and self.skill_name
        return f"skill {self.skill_name}: {self.text}" if is_of_tool else self.text


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
