"""The history of a Job, folded from its events into branches of items, one a Run. Pure: times come from the events."""

from __future__ import annotations

from typing import assert_never

from perstack.core.definitions.experts import Expert
from perstack.core.runs import display_events, events, step_events
from perstack.core.runs.messages import TextPart, ThinkingPart, text_of
from perstack.doors.shared.activity import JobActivity, LogLine
from perstack.doors.shared.event_text import run_label
from perstack.doors.tui.view.items import ActivityItem, CallItem, MessageItem, NoteItem, RunBranch, Stream
from perstack.doors.tui.view.styled_text import Style
from perstack.doors.tui.view.tree import TreeItem

_STYLES: dict[str, Style] = {"yellow": "warn", "red": "bad", "green": "good", "magenta": "ask", "dim": "dim"}


class Transcript:
    """The items that the events so far add up to."""

    def __init__(self) -> None:
        """Start without events."""
        self.live = JobActivity()
        self.root = RunBranch("", "")  # the Coordinator's Runs in order, with Runs of delegates below their calls
        self._lanes: dict[str, RunBranch] = {}
        self._calls: dict[tuple[str, str], CallItem] = {}  # calls without a result, by Run and id
        self._approvals: dict[tuple[str, str], str] = {}  # the rule of each waiting call, by Run and call
        self._last_text: dict[str, str] = {}
        self._ended_at = ""  # the event that completed the Coordinator's latest Run

    # --- display --------------------------------------------------------------------------------------------------

    def tick(self) -> bool:
        """Invalidate the running items, whose durations change with time. Return whether anything is running."""
        for lane in self.live.lanes.values():
            shown = self._lanes.get(lane.run_id)
            if shown is not None:
                shown.changed()
                for item in shown.items[-1:]:
                    item.changed()
        for call in self._calls.values():
            call.changed()
        return bool(self.live.lanes)

    def greet(self, expert: Expert | None) -> None:
        """Add the Expert's description to an empty transcript."""
        if expert is not None and not self.root.items:
            self.root.add(MessageItem(expert.description or "It is ready.", mark=expert.key, style="dim"))

    def remark(self, word: str, text: str, style: Style = "warn") -> None:
        """Add a message of this program at the end."""
        self.root.add(NoteItem(word, text, style))

    def rest(self) -> bool:
        """Mark everything as stopped, since no process drives the Job. Return whether anything was running."""
        was_at_work = bool(self.live.lanes)
        for run_id, lane in self._lanes.items():
            self._quiet(run_id)
            if lane.status == "call" and lane is not self.root:
                lane.status = "warn"
                lane.changed()
        for call in self._calls.values():
            if call.began is not None:
                call.began, call.waits = None, "has no result: it was interrupted"
                call.changed()
        self.live.stop()
        self._say_when_asked()
        return was_at_work

    # --- events ---------------------------------------------------------------------------------------------------

    def take(self, event: events.Event) -> list[LogLine]:  # noqa: C901 - one case for each kind of event
        """Apply an event and return its log rows."""
        told = self.live.apply(event)
        match event:
            case (
                display_events.InitializeRuntime()
                | display_events.SkillStarting()
                | display_events.SkillConnected()
                | display_events.SkillStderr()
            ):
                pass
            case display_events.SkillDisconnected():
                if event.reason:
                    self.remark("skill", f"{event.skill_name} has ended: {event.reason}")
            case (
                display_events.WaitForEndpoint()
                | display_events.StreamText()
                | display_events.StreamReasoning()
                | display_events.ToolProgress()
            ):
                self._shows(event)
            case events.StartRun():
                self._start(event, told)
            case step_events.FinishGeneration():
                self._reply(event, told)
            case step_events.CallTools():
                self._called(event)
            case step_events.StartToolCall():
                call = self._calls.get((event.run_id, event.tool_call_id))
                if call is not None:
                    call.began, call.waits = event.timestamp, ""
                    call.changed()
            case step_events.RequestApproval():
                self._approvals[event.run_id, event.tool_call_id] = event.rule
            case step_events.DecideApproval():
                self._approvals.pop((event.run_id, event.tool_call_id), None)
                call = self._calls.get((event.run_id, event.tool_call_id))
                if call is not None:
                    call.waits = ""
                    call.changed()
                self._rows(event.run_id, told)
            case step_events.FinishToolCall():
                self._result(event, told)
            case step_events.CallDelegate():
                self._delegates(event)
            case events.FinishRun():
                self._finish(event, told)
            case step_events.CallInteractiveTool():
                self._rows(event.run_id, told)
            case (
                events.ErrorRun()
                | events.StopRunByExceededMaxSteps()
                | events.StopRunByExceededBudget()
                | events.StopRunByInterrupt()
                | events.StopRunByInteractiveTool()
            ):
                self._stopped(event, told)
            case step_events.StartGeneration():
                self._rows(event.run_id, told)
                lane = self._lane(event.run_id, event.expert_key)
                lane.steps = max(lane.steps, event.step_number)
                lane.status = "call"
            case step_events.Retry() | step_events.SwitchModel() | events.ResumeRun():
                self._quiet(event.run_id)
                self._rows(event.run_id, told)
            case step_events.FinishStep() | events.StopRunByDelegate() | step_events.StartSample():
                pass
            case (
                step_events.AnswerQuestion()
                | events.WidenPermissions()
                | step_events.AttemptCompletion()
                | step_events.ShrinkResults()
                | step_events.StartCompaction()
                | step_events.CompactHistory()
                | step_events.RecordSnapshot()
                | events.RejectResult()
                | events.QueueRun()
                | events.CloseRun()
                | events.StartRewind()
                | events.FinishRewind()
                | events.RedactEvent()
            ):
                self._rows(event.run_id, told)
            case _:
                assert_never(event)
        self._say_when_asked()
        if event.run_id:
            self._does(event.run_id)
        return told

    def _say_when_asked(self) -> None:
        """Update the words of calls that wait for approval: a followed Job asks only when all its Runs have stopped."""
        for key, rule in self._approvals.items():
            when = " when the other delegates have stopped" if self.live.asks_later(key[0]) else ""
            call, words = self._calls.get(key), f"needs your approval{when} ({rule})"
            if call is not None and call.waits != words:
                call.began, call.waits = None, words
                call.changed()

    def _lane(self, run_id: str, expert_key: str) -> RunBranch:
        lane = self._lanes.get(run_id)
        if lane is None:
            lane = self._lanes[run_id] = self.root
            if not self.root.label:
                self.root.label = run_label(expert_key, run_id)
        return lane

    def _add(self, run_id: str, node: TreeItem) -> None:
        """Add an item at the end of a Run, replacing its activity."""
        lane = self._lanes.get(run_id, self.root)
        self._drop_doing(lane)
        if isinstance(node, MessageItem | Stream):
            node.has_gap = bool(lane.items) and not isinstance(lane.items[-1], MessageItem)
        lane.add(node)

    def _drop_doing(self, lane: RunBranch) -> None:
        if lane.items and isinstance(lane.items[-1], ActivityItem):
            lane.drop_last()

    def _does(self, run_id: str) -> None:
        lane, live = self._lanes.get(run_id), self.live.lanes.get(run_id)
        if lane is None:
            return
        last = lane.items[-1] if lane.items else None
        words = "" if live is None or live.work or live.text else live.doing
        if isinstance(last, ActivityItem):
            if last.words == words:
                return
            lane.drop_last()
        if (
            words and live is not None and not isinstance(last, RunBranch)
        ):  # a delegate's branch shows what it waits for
            lane.add(ActivityItem(words, live.since))

    def _shows(
        self,
        event: display_events.WaitForEndpoint
        | display_events.StreamText
        | display_events.StreamReasoning
        | display_events.ToolProgress,
    ) -> None:
        match event:
            case display_events.WaitForEndpoint():
                self._lane(event.run_id, event.expert_key)
            case display_events.ToolProgress():
                call = self._calls.get((event.run_id, event.tool_call_id))
                if call is not None:
                    call.progress = event.message
                    call.changed()
            case display_events.StreamText() | display_events.StreamReasoning():
                is_thought = isinstance(event, display_events.StreamReasoning)
                lane = self._lane(event.run_id, event.expert_key)
                last = lane.items[-1] if lane.items else None
                if not isinstance(last, Stream) or last.is_thought is not is_thought:
                    last = Stream(is_thought=is_thought)
                    self._add(event.run_id, last)
                last.hears(event.delta)
            case _:
                assert_never(event)

    def _quiet(self, run_id: str) -> None:
        """Remove the streamed text of a reply that is complete now or never will be."""
        lane = self._lanes.get(run_id, self.root)
        while lane.items and isinstance(lane.items[-1], Stream | ActivityItem):
            lane.drop_last()

    def _rows(self, run_id: str, told: list[LogLine]) -> None:
        for one in told:
            self._add(run_id, NoteItem(one.row.word, one.row.text, _STYLES.get(one.row.colour, "dim")))

    def _start(self, event: events.StartRun, told: list[LogLine]) -> None:
        lane = self._lanes.get(event.run_id)
        if lane is None and event.delegated_by is not None:
            lane = self._below(event.delegated_by.run_id, event.run_id, event.expert_key, event.query)
        if lane is None:
            lane = self._lane(event.run_id, event.expert_key)
            self._add(event.run_id, MessageItem(event.query, mark="❯", style="strong"))
        lane.began = event.timestamp
        place = event.continued_from
        goes_on = place is not None and place.checkpoint_id == self._ended_at and not place.answers
        self._rows(event.run_id, [one for one in told[1:] if not (goes_on and one.row.word == "continues")])

    def _below(self, parent_id: str, run_id: str, expert_key: str, query: str) -> RunBranch:
        lane = self._lanes[run_id] = RunBranch(run_id, run_label(expert_key, run_id), query)
        self._add(parent_id, lane)
        return lane

    def _reply(self, event: step_events.FinishGeneration, told: list[LogLine]) -> None:
        self._lane(event.run_id, event.expert_key)
        self._quiet(event.run_id)
        for part in event.message.contents:
            if isinstance(part, ThinkingPart) and part.thinking.strip():
                self._add(event.run_id, MessageItem(part.thinking, is_thought=True))
            elif isinstance(part, TextPart) and part.text.strip():
                self._add(event.run_id, MessageItem(part.text))
                self._last_text[event.run_id] = part.text
        self._rows(event.run_id, [one for one in told if one.row.word == "replied"])

    def _called(self, event: step_events.CallTools) -> None:
        live = self.live.lanes.get(event.run_id)
        for decided in event.calls:
            if decided.kind in ("delegate", "interactive", "attemptCompletion"):
                continue
            part = None if live is None else live.calls.get(decided.id)
            is_run = live is not None and decided.id in live.work
            call = CallItem(decided.tool_name, part, event.timestamp if is_run else None)
            call.is_own = decided.kind in ("todo", "clearTodo")
            self._calls[event.run_id, decided.id] = call
            self._add(event.run_id, call)

    def _result(self, event: step_events.FinishToolCall, told: list[LogLine]) -> None:
        call = self._calls.pop((event.run_id, event.tool_call_id), None)
        self._approvals.pop((event.run_id, event.tool_call_id), None)
        if call is not None:
            call.result, call.error, call.took = text_of(event.contents), event.is_error, event.duration_ms
            call.began, call.waits = None, ""
            call.changed()
            self._rows(event.run_id, told[1:])
            return
        lane = None if event.delegate is None else self._lanes.get(event.delegate.run_id)
        if lane is None:
            self._rows(event.run_id, told)
            return
        lane.status = "bad" if event.is_error else "good"
        lane.ended = lane.ended or event.timestamp
        lane.is_open = lane.is_open and event.is_error
        lane.changed()

    def _delegates(self, event: step_events.CallDelegate) -> None:
        for one in event.delegates:
            if one.run_id not in self._lanes:
                self._below(event.run_id, one.run_id, one.expert_key, one.query)

    def _finish(self, event: events.FinishRun, told: list[LogLine]) -> None:
        lane = self._lane(event.run_id, event.expert_key)
        if event.text.strip() and event.text != self._last_text.get(event.run_id):
            self._add(event.run_id, MessageItem(event.text))
        self._rows(event.run_id, told[1:])
        lane.ended, lane.status = event.timestamp, "good"
        if lane is self.root:
            self._ended_at = event.id
        lane.changed()

    def _break_off(self, run_id: str) -> None:
        """Keep the streamed part of a reply that the user interrupted. No log has it."""
        lane = self._lanes.get(run_id, self.root)
        self._drop_doing(lane)
        last = lane.items[-1] if lane.items else None
        if isinstance(last, Stream) and not last.is_thought and last.text.strip():
            lane.drop_last()
            self._add(run_id, MessageItem(f"{last.text.rstrip()} …", style="dim"))

    def _stopped(self, event: events.Event, told: list[LogLine]) -> None:
        if isinstance(event, events.StopRunByInterrupt):
            self._break_off(event.run_id)
        self._quiet(event.run_id)
        self._rows(event.run_id, [one for one in told if one.row.word != "waits"])
        lane = self._lanes.get(event.run_id)
        if lane is not None and lane is not self.root:
            lane.status = "bad" if isinstance(event, events.ErrorRun) else "ask" if _asks(event) else "warn"
            lane.changed()
        for key in [key for key in self._calls if key[0] == event.run_id]:
            call = self._calls[key]
            if call.began is not None:
                call.began, call.waits = None, "has no result: it was interrupted"
                call.changed()


def _asks(event: events.Event) -> bool:
    return isinstance(event, events.StopRunByInteractiveTool)
