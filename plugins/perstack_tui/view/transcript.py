"""The history of a Job, folded from its events into a branch of items for each Run.

Pure: times come from the events.
"""

from __future__ import annotations

from types import UnionType

from perstack.core.definitions.experts import Expert
from perstack.core.messages.messages import ProviderToolPart, TextPart, ThinkingPart
from perstack.core.runs import display_events, events
from perstack.core.runs.facts import RunEvent
from perstack.core.runs.log_rows import RowItem
from perstack.doors.shared.activity import CallActivity, JobActivity, LogLine
from perstack_tui.view.items import ActivityItem, CallItem, MessageItem, NoteItem, RunBranch, Stream
from perstack_tui.view.styled_text import Style
from perstack_tui.view.tree import TreeItem

_STYLES: dict[str, Style] = {"yellow": "warn", "red": "bad", "green": "good", "magenta": "ask", "dim": "dim"}

_ROWS_WITH_ITEM: frozenset[RowItem | None] = frozenset(  # rows that need no note, since an item shows their content
    ("query", "model", "thought", "text", "call", "delegate", "approval", "place", "end")
)

_MAX_RENDERED_TEXTS = 1_000  # maximum texts of models whose Markdown is rendered, which takes about a millisecond each


class Transcript:
    """The items of a Job, built from its events so far."""

    def __init__(self) -> None:
        self.live = JobActivity()
        self.root = RunBranch()  # the Coordinator's Runs in order, with Runs of delegates below their calls
        self._branches: dict[str, RunBranch] = {}
        self._calls: dict[tuple[str, str], CallItem] = {}  # calls without a result, by Run and id
        self._completion_id = ""  # id of the event that completed the Coordinator's latest Run
        self._text_count = 0  # number of models' texts so far

    # --- display --------------------------------------------------------------------------------------------------

    def tick(self) -> bool:
        """Invalidate the running items, whose durations change. Return True if a Run is running."""
        for run_id in self.live.lanes:
            branch = self._branch(run_id)
            branch.mark_changed()
            for item in branch.items[-1:]:
                item.mark_changed()
        for call_item in self._calls.values():
            call_item.mark_changed()
        return bool(self.live.lanes)

    def greet(self, expert: Expert | None) -> None:
        """Add the Expert's description to an empty transcript."""
        if expert is not None and not self.root.items:
            self.root.add(MessageItem(expert.description or "It is ready.", mark=expert.key, style="dim"))

    def add_message(self, word: str, text: str, style: Style = "warn") -> None:
        """Add a message of this program at the end."""
        self.root.add(NoteItem(word, text, style))

    def stop_all(self) -> bool:
        """Mark all items as stopped, since no process drives the Job. Return whether any was running."""
        was_at_work = bool(self.live.lanes)
        self.live.stop()
        for branch in {self.root, *self._branches.values()}:
            _drop_last_items(branch, Stream | ActivityItem)
            branch.mark_changed()
        self._update_calls()
        return was_at_work

    # --- events ---------------------------------------------------------------------------------------------------

    def apply(self, event: events.Event) -> list[LogLine]:  # noqa: C901 - one case for each kind of event with an item
        """Apply an event and return its log rows."""
        lines = self.live.apply(event)
        rows = [line for line in lines if line.row.item not in _ROWS_WITH_ITEM]
        if isinstance(event, RunEvent):
            self._end_stream(event)
        match event:
            case display_events.SkillDisconnected() if event.reason:
                self.add_message("skill", f"{event.skill_name} has ended: {event.reason}")
            case display_events.StreamText() | display_events.StreamReasoning():
                self._apply_stream(event)
            case events.StartRun():
                rows = self._apply_start(event, rows)
            case events.FinishGeneration():
                self._apply_reply(event)
                rows = [line for line in rows if line.row.item != "result"]
            case events.CallTools():
                self._on_call_tools(event)
            case events.CallDelegate():
                for delegation in event.delegates:
                    self._add_branch(event.run_id, delegation.run_id)
            case events.FinishToolCall():
                rows = self._apply_result(event, rows)
            case events.FinishRun():
                self._apply_finish(event)
            case _:
                pass
        for line in rows:
            self._add(event.run_id, NoteItem(line.row.word, line.row.text, _STYLES.get(line.row.colour, "dim")))
        is_streamed = isinstance(event, display_events.StreamText | display_events.StreamReasoning)
        self._update_calls("" if is_streamed else event.run_id)  # a streamed text changes no call
        if event.run_id:
            self._show_activity(event.run_id)
        return lines

    def _branch(self, run_id: str) -> RunBranch:
        return self._branches.get(run_id, self.root)

    def _update_calls(self, run_id: str | None = None) -> None:
        """Update the open calls of a Run, of all Runs without `run_id`, and those whose approval is now asked later."""
        for (owner_run_id, _), item in self._calls.items():
            asks_later = item.activity.rule is not None and self.live.is_asked_later(owner_run_id)
            if run_id in (owner_run_id, None) or asks_later is not item.asks_later:
                item.asks_later = asks_later
                item.mark_changed()

    def _add(self, run_id: str, node: TreeItem) -> None:
        """Add an item at the end of a Run, replacing its activity."""
        branch = self._branch(run_id)
        _drop_last_items(branch, ActivityItem)
        if isinstance(node, MessageItem | Stream):
            node.has_gap = bool(branch.items) and not isinstance(branch.items[-1], MessageItem)
        branch.add(node)

    def _show_activity(self, run_id: str) -> None:
        branch, run_activity = self._branch(run_id), self.live.lanes.get(run_id)
        branch.mark_changed()
        last = branch.items[-1] if branch.items else None
        activity = "" if run_activity is None or run_activity.work or run_activity.text else run_activity.doing
        if isinstance(last, ActivityItem):
            if last.words == activity:
                return
            branch.drop_last()
        # the delegate's own branch shows what is waited for
        if activity and run_activity is not None and not isinstance(last, RunBranch):
            branch.add(ActivityItem(activity, run_activity.since))

    def _apply_stream(self, event: display_events.StreamText | display_events.StreamReasoning) -> None:
        is_thought = isinstance(event, display_events.StreamReasoning)
        branch = self._branch(event.run_id)
        last = branch.items[-1] if branch.items else None
        if not isinstance(last, Stream) or last.is_thought is not is_thought:
            last = Stream(is_thought=is_thought)
            self._add(event.run_id, last)
        last.append(event.delta)

    def _end_stream(self, event: RunEvent) -> None:
        """Remove the streamed text once its reply is complete or was given up."""
        branch, activity = self._branch(event.run_id), self.live.run(event.run_id)
        if activity is None or activity.text:
            return
        _drop_last_items(branch, ActivityItem)
        last = branch.items[-1] if branch.items else None
        if isinstance(event, events.StopRunByInterrupt) and isinstance(last, Stream) and not last.is_thought:
            branch.drop_last()
            if last.text.strip():  # no event will have the interrupted text, so keep it as a message
                self._add(event.run_id, MessageItem(f"{last.text.rstrip()} …", style="dim"))
        _drop_last_items(branch, Stream)

    def _apply_start(self, event: events.StartRun, rows: list[LogLine]) -> list[LogLine]:
        if event.delegated_by is not None:
            self._add_branch(event.delegated_by.run_id, event.run_id)
        else:
            self._add(event.run_id, MessageItem(event.query, mark="❯", style="strong"))
        origin = event.continued_from
        continues_last = origin is not None and origin.checkpoint_id == self._completion_id and not origin.answers
        return [line for line in rows if not (continues_last and line.row.word == "continues")]

    def _add_branch(self, parent_id: str, run_id: str) -> None:
        if run_id not in self._branches:
            branch = self._branches[run_id] = RunBranch(self.live.run(run_id))
            self._add(parent_id, branch)

    def _apply_reply(self, event: events.FinishGeneration) -> None:
        for part in event.message.contents:
            if isinstance(part, ThinkingPart) and part.thinking.strip():
                self._add(event.run_id, MessageItem(part.thinking, is_thought=True))
            elif isinstance(part, TextPart) and part.text.strip():
                self._add_text(event.run_id, part.text)
            elif isinstance(part, ProviderToolPart):
                call_activity = CallActivity(
                    part.tool_name, part.call, "tool", result=part.result, is_error=part.is_error
                )
                self._add(event.run_id, CallItem(call_activity))

    def _add_text(self, run_id: str, text: str) -> None:
        """Add a text of the model, with its Markdown rendered unless there are already too many texts."""
        self._text_count += 1
        self._add(run_id, MessageItem(text, is_markdown=self._text_count <= _MAX_RENDERED_TEXTS))

    def _on_call_tools(self, event: events.CallTools) -> None:
        activity = self.live.run(event.run_id)
        for decided_call in event.calls:
            call_activity = None if activity is None else activity.calls.get(decided_call.id)
            if call_activity is not None and decided_call.kind not in ("delegate", "interactive", "attemptCompletion"):
                item = self._calls[event.run_id, decided_call.id] = CallItem(call_activity)
                self._add(event.run_id, item)

    def _apply_result(self, event: events.FinishToolCall, rows: list[LogLine]) -> list[LogLine]:
        item = self._calls.pop((event.run_id, event.tool_call_id), None)
        if item is not None:
            item.mark_changed()
            return [line for line in rows if line.row.item != "result"]
        branch = None if event.delegate is None else self._branches.get(event.delegate.run_id)
        if branch is None:
            return rows
        branch.is_open = branch.is_open and event.is_error
        branch.mark_changed()
        return []

    def _apply_finish(self, event: events.FinishRun) -> None:
        activity = self.live.run(event.run_id)
        if event.text.strip() and (activity is None or event.text != activity.last_text):
            self._add_text(event.run_id, event.text)
        if event.run_id not in self._branches:
            self._completion_id = event.id


def _drop_last_items(branch: RunBranch, kinds: type[TreeItem] | UnionType) -> None:
    """Remove the items of these kinds at the end of a branch."""
    while branch.items and isinstance(branch.items[-1], kinds):
        branch.drop_last()
