"""What has happened in a Job, drawn. Who types there means the input."""

from __future__ import annotations

from textual import events
from textual.message import Message

from perstack.frontends.tui.view.transcript import Transcript
from perstack.frontends.tui.widgets.nodes import NodesView


class TranscriptView(NodesView[Transcript]):
    """A transcript."""

    class Typed(Message):
        """A character was typed here that is meant for the input."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def on_key(self, event: events.Key) -> None:
        """Who types here means the input."""
        if event.is_printable and event.character is not None and event.key != "space":
            event.stop()
            self.post_message(self.Typed(event.character))
