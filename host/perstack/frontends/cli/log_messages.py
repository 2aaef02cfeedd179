"""Checkpoints and their messages, for people."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.core.checkpoint import Checkpoint
from perstack.core.messages import (
    AnyMessage,
    ExpertMessage,
    InstructionMessage,
    TextPart,
    ThinkingPart,
    ToolMessage,
    text_of,
)
from perstack.core.runs.compacting import STANDS_FOR_OLDER
from perstack.frontends.cli.terminal import Screen, out
from perstack.frontends.shared.log_rows import arguments, run_label, tokens
from perstack.frontends.shared.words import STATUS_WORDS

_STANDING = {str(status): word for status, word in STATUS_WORDS.items()} | {"stoppedByDelegate": "waits for delegates"}


def print_checkpoint(screen: Screen, checkpoint: Checkpoint) -> None:
    """A checkpoint's facts, without its messages."""
    title = f"Checkpoint {checkpoint.id}"
    label = run_label(checkpoint.expert.key, checkpoint.run_id)
    out(screen.paint(title, bold=True), f"  {label}  {_STANDING.get(checkpoint.status, checkpoint.status)}")
    left = [f"[{'x' if todo.completed else ' '}] {todo.title}" for todo in checkpoint.todos]
    error = checkpoint.error
    for name, text in (
        ("Job", checkpoint.job_id),
        ("Run", checkpoint.run_id),
        ("Expert", f"{checkpoint.expert.key} {checkpoint.expert.version}"),
        ("step", str(checkpoint.step_number)),
        ("spent", tokens(checkpoint.usage)),
        ("context", _context(checkpoint)),
        ("messages", str(len(checkpoint.messages))),
        ("continues", checkpoint.continued_from.checkpoint_id if checkpoint.continued_from else ""),
        ("delegate", f"of {checkpoint.delegated_by.run_id}" if checkpoint.delegated_by else ""),
        *(("open call", f"{call.id} {call.tool_name}") for call in checkpoint.open_calls),
        *(("todo", todo) for todo in left),
        ("error", f"{error.name}: {error.message}" if error else ""),
    ):
        if text:
            out("  ", screen.paint(f"{name:<9}", dim=True), "  ", screen.fit(text, 13))


def print_messages(screen: Screen, messages: Sequence[AnyMessage]) -> None:
    """The messages whole, each under its author."""
    for message in messages:
        for title, text in _parts(message):
            out("\n", screen.paint(f"── {title} ──", bold=True))
            out(text)


def _parts(message: AnyMessage) -> list[tuple[str, str]]:
    if isinstance(message, ToolMessage):
        return [
            (
                f"{'error' if part.is_error else 'result'} of {part.tool_name} {part.tool_call_id}",
                text_of(part.contents),
            )
            for part in message.contents
        ]
    if isinstance(message, ExpertMessage):
        return _reply(message)
    text = text_of(message.contents)
    if isinstance(message, InstructionMessage):
        return [("instruction", text)]
    return [("in place of older messages" if text.startswith(STANDS_FOR_OLDER) else "query", text)]


def _reply(message: ExpertMessage) -> list[tuple[str, str]]:
    parts: list[tuple[str, str]] = []
    for part in message.contents:
        if isinstance(part, TextPart):
            parts.append(("Expert", part.text))
        elif isinstance(part, ThinkingPart):
            parts.append(("Expert's thinking", part.thinking))
        else:
            parts.append((f"call of {part.tool_name} {part.tool_call_id}", arguments(part)))
    return parts


def _context(checkpoint: Checkpoint) -> str:
    share = checkpoint.context_window_usage
    of = "" if share is None else f", {share:.0%} of what fits"
    return f"{checkpoint.context_tokens:,} tokens{of}" if checkpoint.context_tokens else ""
