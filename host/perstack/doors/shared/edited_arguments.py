"""Let a person edit the arguments of a call that waits for approval, in the editor that VISUAL or EDITOR names."""

from __future__ import annotations

import json
from typing import NamedTuple

from pydantic import JsonValue

from perstack.core.base.records import JsonObject
from perstack.core.jobs.answer_reading import changed_answer
from perstack.core.runs.open_questions import OpenQuestion
from perstack.errors import UsageError

_MAX_BYTES = 4 << 20


class EditedCall(NamedTuple):
    """The outcome of an edit."""

    answer: str = ""  # the answer with the changed arguments; empty without a change
    problem: str = "the arguments are unchanged"  # why there is no answer, for the person
    draft: str = ""  # the edited text, to correct a mistake in it


def edit_call(question: OpenQuestion, draft: str = "") -> EditedCall:
    """Open the arguments of a call, or an earlier draft, in the editor, and return the outcome. Blocks until it closes.

    The editor is `VISUAL`, `EDITOR`, or one that click finds.
    """
    import click  # imported late: doors without a terminal do not need it

    before = draft or arguments_text(question.args)
    try:
        after = click.edit(before, extension=".json")
    except click.ClickException as error:
        problem = f"the editor failed: {error.format_message()}; set EDITOR to another"
        return EditedCall(problem=problem, draft=draft)
    if after is None or not after.strip():
        return EditedCall(draft=draft)
    try:
        args = read_arguments(after)
    except UsageError as error:
        return EditedCall(problem=str(error), draft=after)
    return EditedCall() if args == question.args else EditedCall(changed_answer(args))


def arguments_text(args: JsonObject) -> str:
    """Return the arguments as indented JSON, with each invisible character as an escape."""
    text = json.dumps(args, ensure_ascii=False, indent=2)
    return "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text) + "\n"


def read_arguments(text: str) -> JsonObject:
    """Return the arguments in an edited text. Raises UsageError with the line of the first mistake."""
    if len(text.encode("utf-8", "replace")) > _MAX_BYTES:
        raise UsageError(f"the changed arguments have more than {_MAX_BYTES >> 20} MiB")
    try:
        value: JsonValue = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"the changed arguments, line {error.lineno}: {error.msg}") from error
    except RecursionError:
        raise UsageError("the changed arguments are nested too deeply") from None
    except ValueError:  # Python reads no number of more than 4,300 digits
        raise UsageError("the changed arguments have a number that is too long") from None
    if not isinstance(value, dict):
        raise UsageError("the changed arguments are not a JSON object")
    return value
