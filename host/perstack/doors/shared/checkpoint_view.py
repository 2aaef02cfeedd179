"""A checkpoint for display: its facts, its messages, and the messages that are new since the previous step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from perstack.compaction.summary_texts import COMPACTED_MARK
from perstack.core.jobs.checkpoints import Checkpoint
from perstack.core.messages.messages import (
    AnyMessage,
    ExpertMessage,
    InstructionMessage,
    ProviderToolPart,
    ResultContent,
    TextPart,
    ThinkingPart,
    ToolMessage,
    text_of,
)
from perstack.core.runs.log_rows import arguments, tokens
from perstack.doors.shared.log_view import places_in
from perstack.doors.shared.status_phrases import STATUS_WORDS
from perstack.host import Host

_STATUSES = {str(status): word for status, word in STATUS_WORDS.items()} | {"stoppedByDelegate": "waits for delegates"}


class MessagesDiff(NamedTuple):
    """The difference between the messages of two checkpoints."""

    since: str | None  # the last checkpoint of the previous step; None for a Job's first step
    gone: tuple[AnyMessage, ...]  # messages of the earlier step that were removed, shortened, or replaced by a summary
    new: tuple[AnyMessage, ...]


def status_of_checkpoint(checkpoint: Checkpoint) -> str:
    """Return the Run's status at the checkpoint as text."""
    return _STATUSES.get(checkpoint.status, checkpoint.status)


def facts_of(checkpoint: Checkpoint) -> list[tuple[str, str]]:
    """Return the checkpoint's facts except its messages, as pairs of name and text."""
    todo_lines = [f"[{'x' if todo.completed else ' '}] {todo.title}" for todo in checkpoint.todos]
    error = checkpoint.error
    facts = (
        ("Job", checkpoint.job_id),
        ("Run", checkpoint.run_id),
        ("Expert", f"{checkpoint.expert.key} {checkpoint.expert.version}"),
        ("step", str(checkpoint.step_number)),
        ("spent", tokens(checkpoint.usage)),
        ("context", _context(checkpoint)),
        ("messages", str(len(checkpoint.messages))),
        ("continues", checkpoint.continued_from.checkpoint_id if checkpoint.continued_from else ""),
        ("delegate", f"of {checkpoint.delegated_by.run_id}" if checkpoint.delegated_by else ""),
        *(
            ("open call", f"{checkpoint_call.id} {checkpoint_call.tool_name}")
            for checkpoint_call in checkpoint.open_calls
        ),
        *(("todo", todo) for todo in todo_lines),
        ("error", f"{error.name}: {error.message}" if error else ""),
    )
    return [(name, text) for name, text in facts if text]


def parts_of(message: AnyMessage) -> list[tuple[str, str]]:
    """Return the parts of a message as pairs of author and text."""
    if isinstance(message, ToolMessage):
        return [
            (
                f"{'error' if part.is_error else 'result'} of {part.tool_name} {part.tool_call_id}",
                _joined_text(part.contents),
            )
            for part in message.contents
        ]
    if isinstance(message, ExpertMessage):
        return _reply(message)
    text = _joined_text(message.contents)
    if isinstance(message, InstructionMessage):
        return [("instruction", text)]
    return [("instead of older messages" if text.startswith(COMPACTED_MARK) else "query", text)]


def _joined_text(contents: Iterable[ResultContent]) -> str:
    """Return the parts of one message with an empty line between them: for a model they are separate."""
    return "\n\n".join(text_of((part,)).strip("\n") for part in contents)


async def new_messages(host: Host, checkpoint: Checkpoint) -> MessagesDiff:
    """Return the messages that are new since the previous step, which may be in the Run that this one continues.

    Raises NotFound and StorageError.
    """
    previous_id = await _previous_checkpoint(host, checkpoint)
    old = () if previous_id is None else (await host.jobs.checkpoint(previous_id, job_id=checkpoint.job_id)).messages
    removed, new = difference(old, checkpoint.messages)
    return MessagesDiff(previous_id, removed, new)


def difference(
    old: Sequence[AnyMessage], new: Sequence[AnyMessage]
) -> tuple[tuple[AnyMessage, ...], tuple[AnyMessage, ...]]:
    """Return the messages only in `old`, and those only in `new`. Of equal messages the later ones count as new."""
    first = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), None)
    first = min(len(old), len(new)) if first is None else first
    return _difference(old[first:], new[first:]), _difference(new[first:], old[first:])


def _difference(messages: Sequence[AnyMessage], others: Sequence[AnyMessage]) -> tuple[AnyMessage, ...]:
    remaining = Counter(message.to_json() for message in others)
    result: list[AnyMessage] = []
    for message in messages:
        key = message.to_json()
        if remaining[key]:
            remaining[key] -= 1
        else:
            result.append(message)
    return tuple(result)


async def _previous_checkpoint(host: Host, checkpoint: Checkpoint) -> str | None:
    """Return the last checkpoint of an earlier step: checkpoints of one step hardly differ."""
    (log,) = await host.jobs.logs(checkpoint.job_id, run_id=checkpoint.run_id)
    earlier = [
        checkpoint_ref.id for checkpoint_ref in places_in(log) if checkpoint_ref.entry.step < checkpoint.step_number
    ]
    if earlier:
        return earlier[-1]
    return None if checkpoint.continued_from is None else checkpoint.continued_from.checkpoint_id


def _reply(message: ExpertMessage) -> list[tuple[str, str]]:
    parts: list[tuple[str, str]] = []
    for part in message.contents:
        if isinstance(part, TextPart):
            parts.append(("Expert", part.text))
        elif isinstance(part, ThinkingPart):
            parts.append(("Expert's thinking", part.thinking))
        elif isinstance(part, ProviderToolPart):
            parts.append((f"{part.tool_name}, run by the provider", part.shown))
        else:
            parts.append((f"call of {part.tool_name} {part.tool_call_id}", arguments(part)))
    return parts


def _context(checkpoint: Checkpoint) -> str:
    share = checkpoint.context_window_usage
    suffix = "" if share is None else f", {share:.0%} of the context window"
    return f"{checkpoint.context_tokens:,} tokens{suffix}" if checkpoint.context_tokens else ""
