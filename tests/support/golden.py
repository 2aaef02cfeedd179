"""Jobs that the original Perstack wrote, as test data, and functions to compare with them."""

from __future__ import annotations

from pathlib import Path

from perstack.core.base.chain import EMPTY_LOG, open_line, seal
from perstack.core.messages.messages import History
from perstack.core.runs.events import StartRun, parse_event
from perstack.core.runs.evolve import evolve
from perstack.core.runs.state import Run, begin
from perstack.ports.formats import ForeignJob
from perstack_original import models as theirs

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = ["b_files", "c_parallel_delegates", "d_interactive"]


def original(case: str) -> tuple[str, dict[str, list[theirs.Event]], list[theirs.OriginalCheckpoint]]:
    """Return Job id, events by Run, and checkpoints of a golden Job."""
    (job,) = (GOLDEN / case / "perstack" / "jobs").iterdir()
    runs = {
        run.name: [theirs.Event.model_validate_json(file.read_bytes()) for file in run.glob("event-*.json")]
        for run in (job / "runs").iterdir()
    }
    files = (job / "checkpoints").glob("*.json")
    return job.name, runs, [theirs.OriginalCheckpoint.model_validate_json(file.read_bytes()) for file in files]


def states(upgraded: ForeignJob) -> dict[str, Run]:
    """Return each Run's state after its last event, folded from lines as the host does."""
    last_runs: dict[str, Run] = {}
    runs_by_event: dict[str, Run] = {}
    for run_id, log in upgraded.logs.items():
        head = EMPTY_LOG
        for event in log:
            lines, head = seal(head, [event.to_json()])
            parsed = parse_event(open_line(lines[0]).payload)
            assert parsed == event
            if isinstance(parsed, StartRun):
                run_before = runs_by_event.get(parsed.continued_from.checkpoint_id) if parsed.continued_from else None
                last_runs[run_id] = begin(parsed, head, run_before)
            else:
                last_runs[run_id] = evolve(last_runs[run_id], parsed, head)
            runs_by_event[event.id] = last_runs[run_id]
    return last_runs


def plain(messages: History | tuple[theirs.Message, ...]) -> list[object]:
    """Return messages without ids, which only the original has, and without the instruction."""

    def strip(value: object) -> object:
        if isinstance(value, dict):
            fields = {key: strip(item) for key, item in value.items() if key != "id"}
            return {key: item for key, item in fields.items() if item not in (None, False)}
        return [strip(item) for item in value] if isinstance(value, list) else value

    dumped = [strip(message.model_dump(mode="json")) for message in messages]
    return [message for message in dumped if isinstance(message, dict) and message["type"] != "instructionMessage"]
