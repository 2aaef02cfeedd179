"""Checkpoints and their messages, for people."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.core.checkpoint import Checkpoint
from perstack.core.messages import AnyMessage
from perstack.frontends.cli.terminal import Screen, out
from perstack.frontends.shared.checkpoints import MessagesDiff, facts_of, parts_of, standing_of
from perstack.frontends.shared.log_rows import run_label
from perstack.frontends.shared.words import count


def print_checkpoint(screen: Screen, checkpoint: Checkpoint) -> None:
    """A checkpoint's facts, without its messages."""
    title = f"Checkpoint {checkpoint.id}"
    label = run_label(checkpoint.expert.key, checkpoint.run_id)
    out(screen.paint(title, bold=True), f"  {label}  {standing_of(checkpoint)}")
    for name, text in facts_of(checkpoint):
        out("  ", screen.paint(f"{name:<9}", dim=True), "  ", screen.fit(text, 13))


def print_messages(screen: Screen, messages: Sequence[AnyMessage]) -> None:
    """The messages whole, each under its author."""
    for message in messages:
        for title, text in parts_of(message):
            out("\n", screen.paint(f"── {title} ──", bold=True))
            out(text)


def print_new(screen: Screen, found: MessagesDiff) -> None:
    """What the model sees no more since the step before, and what is new."""
    out("  ", screen.paint(f"{'since':<9}", dim=True), f"  {found.since or 'the beginning'}")
    if found.gone:
        out("\n", screen.paint(f"{count(len(found.gone), 'message')} no longer seen:", dim=True))
        print_messages(screen, found.gone)
        out("\n", screen.paint(f"{count(len(found.new), 'new message')}:", dim=True))
    print_messages(screen, found.new)
