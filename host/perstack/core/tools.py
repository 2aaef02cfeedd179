"""Tools as the loop knows them, and what was decided about a call."""

import re
from typing import Annotated, Literal

from pydantic import Field

from perstack.core.base import Fact, JsonObject, falsy
from perstack.core.keys import NOT_EMPTY, Key

ToolKind = Literal["tool", "todo", "clearTodo", "attemptCompletion", "delegate", "interactive", "refused"]
"""Who answers a call: a skill, the loop itself (todo, clearTodo, attemptCompletion), another Run, or a person.
`refused`: nobody, the call is wrong and the model is told why."""

Effect = Literal["readOnly", "idempotent", "sideEffect"]
"""What a repetition would do. Only the first two are run again after a crash."""

COUNTED_CALLS: frozenset[ToolKind] = frozenset(("tool", "delegate"))
"""The calls that a budget counts: those that have somebody work."""

LOOP_KINDS: frozenset[ToolKind] = frozenset(("todo", "clearTodo", "attemptCompletion", "interactive", "refused"))
"""The calls that nobody works on: the loop or a person answers them."""

NO_ARGUMENTS: JsonObject = {"type": "object", "properties": {}}

LEGAL_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


_Arguments = Annotated[tuple[Annotated[str, NOT_EMPTY], ...], Field(exclude_if=falsy)]
_Argument = Annotated[str, NOT_EMPTY, Field(exclude_if=falsy)]


class Subject(Fact):
    """Which arguments say what a tool is let loose on: what a permission rule's bare glob means."""

    paths: Annotated[_Arguments, Key("the arguments that are paths in the workspace, or lists of them")] = ()
    urls: Annotated[_Arguments, Key("those that are addresses, or lists of them")] = ()
    script: Annotated[_Argument, Key("the one that a shell reads: a whole command line")] = ""
    program: Annotated[_Argument, Key("the one that names a program to run")] = ""
    arguments: Annotated[_Argument, Key("the list of that program's arguments")] = ""
    folder: Annotated[_Argument, Key("where it runs: a path in the workspace, which `paths` are seen from")] = ""
    variables: Annotated[_Argument, Key("the object of variables that the program gets besides")] = ""
    is_nothing: Annotated[bool, Field(exclude_if=falsy)] = False
    """Whether it does nothing at all, so that no rule is ever about it."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every argument that it names."""
        one_each = (self.script, self.program, self.arguments, self.folder, self.variables)
        return (*self.paths, *self.urls, *filter(None, one_each))


class ToolSpec(Fact):
    """A tool that a model may be offered."""

    name: str
    """As the model sees it: legal for every provider, unique within one Run."""
    description: str = ""
    input_schema: JsonObject = Field(default_factory=lambda: NO_ARGUMENTS)
    skill_name: str = ""
    kind: ToolKind = "tool"
    effect: Effect = "sideEffect"
    approval: bool = Field(default=False, exclude_if=falsy)
    """Of an interactive tool: a person is asked to approve of something."""
    polling: bool = Field(default=False, exclude_if=falsy)
    """Made for waiting: that it is called again and again is no loop."""
    pin: bool = Field(default=False, exclude_if=falsy)
    """Whether its results are never left out when the context is nearly full."""
    target: str | None = None
    """The Expert's key, for a delegate; the server's own name of the tool, if `name` had to differ."""
    subject: Subject | None = None


class DecidedCall(Fact):
    """What the host made of one tool call of a reply. Its arguments stand in the reply."""

    id: str
    tool_name: str
    skill_name: str = Field(default="", exclude_if=lambda value: not value)
    kind: ToolKind = Field(default="tool", exclude_if=lambda value: value == "tool")
    effect: Effect = Field(default="sideEffect", exclude_if=lambda value: value == "sideEffect")
    polling: bool = Field(default=False, exclude_if=falsy)
    """Made for waiting: that it is called again and again is no loop."""
    pin: bool = Field(default=False, exclude_if=falsy)
    """Whether its result is never left out when the context is nearly full."""
    problem: str | None = None
    """For `refused`: what the model sees."""
    target: str | None = None
    rule: str = Field(default="", exclude_if=falsy)
    """The permission rule that denies it, or asks for a person's approval."""
    asks: bool = Field(default=False, exclude_if=falsy)
    """Whether a person has to approve of it before it is run."""
    opens: tuple[str, ...] = Field(default=(), exclude_if=falsy)
    """Protected paths that a rule names, which this call may use, relative to the workspace."""
    approved_by: str = Field(default="", exclude_if=falsy)
    """The event with the approval of this Job that covers it already."""
    ways: dict[str, tuple[str, ...]] = Field(default_factory=dict[str, tuple[str, ...]], exclude_if=falsy)
    """Where the paths led that rules were asked about, of those that led elsewhere than they say: through a link."""


def legal_tool_name(name: str) -> str:
    """The nearest name that every provider takes: `@org/name` becomes `org_name`."""
    cleaned = re.sub(r"[^a-zA-Z0-9_-]+", "_", name).strip("_")[:64]
    return cleaned or "tool"
