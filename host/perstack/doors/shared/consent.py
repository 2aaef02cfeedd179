"""The page that a person reads before a call runs. One function computes it from the call, complete, for every door.

`page_of` reads the recorded call and the file that it would change. A page has every argument, the diff to the file,
the calls that each further answer covers, and at its end, next to the question, everything that runs: each simple
command, found by the parser that also decides rules. Nothing on it comes from other stored texts.

A door lays out the page. A door with little room uses `fitted`. If the page does not fit there, it cannot be agreed to
there: the door offers only a no, and the page says where it can be read in full. Change together: `page_of`, and the
digests that an approval is bound to (`engine.permissions.changed_files`).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import JsonValue

from perstack.core.base.text import approvable_line, approvable_text, count
from perstack.core.definitions.exec_grant import EXEC
from perstack.core.definitions.permissions import parse_rule
from perstack.core.definitions.skills import BASE_SKILL
from perstack.core.jobs.answer_reading import ALWAYS, ALWAYS_HERE
from perstack.core.runs.open_questions import OpenQuestion, count_blanks
from perstack.dataclass import dataclass
from perstack.doors.shared.call_diffs import FileEdit, edit_from_args, edit_in_workspace
from perstack.engine.permissions.changed_files import changed_path, content_digest

if TYPE_CHECKING:
    from perstack.doors.shared.live_project import PendingChange

RowKind = Literal["head", "argument", "note", "diff", "covers", "spent", "run"]

_LONG_LINES = 12  # minimum lines of a long argument; long ones come before the short ones, away from the question
_LONG_CHARS = 1_000
_CHANGED = "has changed since the rule was granted to this project, or was not recorded then"
_FAR_LINES = 24  # minimum lines of a page that repeats its head at its end


class Row(NamedTuple):
    """A part of a page, of one or more lines."""

    kind: RowKind
    text: str
    label: str = ""  # name of an argument

    @property
    def lines(self) -> list[str]:
        """The lines as plain text. Lines of a value are marked, so that none looks like a line of the page."""
        match self.kind:
            case "argument":
                return f"  {self.label}: {marked(self.text)}".split("\n")
            case "note" | "diff":
                return [f"  {self.text}"]
            case "run":
                return [f"  runs: {self.text}"]
            case _:
                return [self.text]


class Room(NamedTuple):
    """Size of the part of a page that a door can show."""

    lines: int
    chars: int


FORM = Room(60, 4_000)  # a dialog of an MCP client or an editor, which may not scroll
LIST = Room(40, 4_000)  # an item in a list
TERMINAL = Room(2_000, 200_000)  # the lines that a terminal can scroll back


@dataclass(frozen=True, slots=True)
class ConsentPage:
    """A page with everything that a person agrees to with a yes."""

    question_id: str
    rows: tuple[Row, ...]
    missing: str = ""  # reason why something may not be shown here; then nobody can agree to the call here
    where: str = ""  # command that shows the whole page and asks; empty for `perstack answer` with the question's id

    @property
    def lines(self) -> list[str]:
        return [line for row in self.rows for line in row.lines]

    def fitted(self, room: Room) -> FittedPage:
        """Return the page for a door: whole, or its beginning and end with a note where it can be read whole."""
        return fitted(self.lines, room, self.where or f"perstack answer {self.question_id}", self.missing)


class FittedPage(NamedTuple):
    """A page cut to a door's room. If it is not whole, the door offers no yes."""

    text: str
    is_whole: bool


def fitted(lines: Sequence[str], room: Room, where: str, missing: str = "") -> FittedPage:
    """Return a question for a door: whole, or its beginning and end with a note that the command `where` shows it.

    `missing` says what the lines leave out.
    """
    fits = len(lines) <= room.lines and sum(map(len, lines)) <= room.chars
    if fits and not missing:
        return FittedPage("\n".join(lines), is_whole=True)
    note = f"{missing or 'not everything is shown here'}, so it cannot be approved here; to see all of it: {where}"
    if fits:
        return FittedPage("\n".join((*lines, note)), is_whole=False)
    half_lines, width = room.lines // 2, max(80, room.chars // room.lines)
    left_out = f"… {count(max(0, len(lines) - 2 * half_lines), 'line')} and the ends of long lines are left out here …"
    shown_lines = (*lines[:half_lines], left_out, *lines[max(half_lines, len(lines) - half_lines) :])
    cut_lines = (line if len(line) <= width else f"{line[:width]} …" for line in shown_lines)
    return FittedPage("\n".join((*cut_lines, note)), is_whole=False)


def fitted_change(change: PendingChange, room: Room) -> FittedPage:
    """Return the question about a changed definition for a door."""
    lines = change.question.split("\n")
    return fitted(lines, room, f"perstack trust --config {shlex.quote(change.file)}")


def page_of(question: OpenQuestion, workspace: Path | None, spent: str = "") -> ConsentPage:
    """Return the page of a call that waits for approval, as it would run now.

    `workspace` has the file that the call changes; it is None if the reader may not see that file. `spent` tells what
    the Job has used so far.
    """
    change = _edit_of_call(question, workspace)
    head = approvable_line(question.text)
    arguments = [
        Row("argument", _value_text(value), approvable_line(name))
        for name, value in question.args.items()
        if name not in change.arguments
    ]
    details = (
        *sorted(arguments, key=_is_long, reverse=True),
        *(Row("note", note) for note in (_staleness(question, workspace), change.note) if note),
        *(Row("diff", line) for line in change.lines),
        *(Row("note", f"definition {approvable_line(line)}") for line in question.changes),
        *(Row("note", f"{approvable_line(path)} {_CHANGED}") for path in question.changed_files),
        *(Row("covers", f"{answer}: {calls}, {_extent_text(answer)}") for answer, calls in covered_calls(question)),
        *((Row("spent", f"so far: {spent}"),) if spent else ()),
    )
    commands = question.commands.items()
    runs = [Row("run", line if times == 1 else f"{line}  ({times:,} times)") for line, times in commands]
    is_far = sum(len(row.lines) for row in details) + len(runs) > _FAR_LINES
    repeated = (Row("head", head),) if is_far else ()
    is_hidden = workspace is None and changed_path(question.skill_name, question.tool_name, question.args) is not None
    missing = "the file is off limits to tools, and its change is not shown" if is_hidden else ""
    return ConsentPage(question.id, (Row("head", head), *details, *repeated, *runs), missing)


def _edit_of_call(question: OpenQuestion, workspace: Path | None) -> FileEdit:
    """Return the diff of a call of a file tool; empty for other skills, whose arguments may have another meaning."""
    if question.skill_name not in ("", BASE_SKILL):
        return FileEdit()
    if workspace is None:
        return edit_from_args(question.tool_name, question.args)
    return edit_in_workspace(workspace, question.tool_name, question.args)


def _staleness(question: OpenQuestion, workspace: Path | None) -> str:
    if not question.content or workspace is None:
        return ""
    current = content_digest(workspace, question.skill_name, question.tool_name, question.args)
    is_same = current == question.content
    return (
        ""
        if is_same
        else "the file has changed since the question was asked: this is the current diff, and a yes asks again"
    )


def covered_calls(question: OpenQuestion) -> tuple[tuple[str, str], ...]:
    """Return each answer that approves more than this call, with a description of the calls that it covers."""
    offers = [(approvable_line(rule), approvable_line(_describe_rule(rule))) for rule in question.offers]
    wider = ((f"{answer}: {rule}", description) for answer in (ALWAYS, ALWAYS_HERE) for rule, description in offers)
    return ((ALWAYS, "the same call again"), *wider)


def _extent_text(answer: str) -> str:
    return "in every Job of this project" if answer.startswith(ALWAYS_HERE) else "in this whole Job"


def _describe_rule(text: str) -> str:
    try:
        rule = parse_rule(text)
    except ValueError:
        return "every call that this rule matches"
    if rule.group is not None:
        work = "reads" if rule.group == "read" else "changes"
        return f"every call of a file tool that {work} {'a file' if rule.bare is None else rule.bare.text}"
    skill = "" if rule.skill is None else f" of skill {rule.skill.text}"
    calls = f"every call of {'delegate ' if rule.is_delegate else ''}{rule.tool.text}{skill}"
    if rule.bare is not None and rule.tool.text == EXEC:
        return f"{calls} in the workspace's top folder with {_describe_command(rule.bare.text)}"
    if rule.bare is not None:
        return f"{calls} that matches {rule.bare.text}"
    conditions = " and ".join(f"{name} matches {glob.text}" for name, glob in rule.named)
    return f"{calls} whose {conditions}" if conditions else calls


def _describe_command(text: str) -> str:
    """Describe what a command pattern allows; only rules of earlier versions describe more than one command."""
    from perstack.core.permissions.command_patterns import parse_command  # imported only for calls of programs

    with suppress(ValueError):
        if parse_command(text).words is not None:
            return f"exactly this command: {text}"
    return f"a command that matches {text}, and no option that it does not name"


def _value_text(value: JsonValue) -> str:
    return approvable_text(value if isinstance(value, str) else json.dumps(count_blanks(value), ensure_ascii=False))


def _is_long(row: Row) -> bool:
    return len(row.text) > _LONG_CHARS or row.text.count("\n") >= _LONG_LINES


def marked(text: str) -> str:
    """Return a text with all lines but the first marked, so that none looks like a line of this program."""
    return text.replace("\n", "\n    | ")
