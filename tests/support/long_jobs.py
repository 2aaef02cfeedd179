"""A Job of very many steps, whose log is written at once rather than step by step."""

from __future__ import annotations

import json
from pathlib import Path

from hosts import Bench, expert

from perstack.core.base.chain import EMPTY_LOG, open_line, seal
from perstack.testing.scripted import text, tool, turn

LONG = expert("writer", description="Writes haiku")


async def long_job(bench: Bench, steps: int, job_id: str = "long", said: str = "I look at it again.") -> None:
    """Write a completed Job. All steps but the last are alike, with a text, a call and its result."""
    script = [turn(tool("think", {"thought": "hm " * 30}), text=said), text("Done.")]
    host = bench.host(script, LONG)
    await host.run("writer", "Go", job_id=job_id)
    (log,) = await host.jobs.logs(job_id)
    await host.close()
    payloads = [json.loads(open_line(line).payload) for line in log.lines]
    ends = [at for at, event in enumerate(payloads) if event["type"] == "finishStep"]
    first = next(at for at, event in enumerate(payloads) if event["type"] == "startGeneration")
    step, last = payloads[first : ends[0] + 1], payloads[ends[0] + 1 :]
    events = payloads[:first]
    for number in range(1, steps):
        events += [_move_event(event, number, len(events) + at, number * 1000) for at, event in enumerate(step, 1)]
    events += [_move_event(event, steps, len(events) + at, steps * 1000) for at, event in enumerate(last, 1)]
    lines, _ = seal(
        EMPTY_LOG, [json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode() for event in events]
    )
    folder = next(bench.workspace.rglob(f"jobs/{job_id}"))
    (file,) = folder.rglob("events.jsonl")
    file.write_bytes(b"".join(line + b"\n" for line in lines))
    _remove_derived_files(folder)
    reader = bench.host(script, LONG)
    await reader.storage.put_summary(job_id, (await reader.job(job_id)).to_json())
    await reader.close()


def _remove_derived_files(folder: Path) -> None:
    """Remove the files derived from the previous log."""
    for path in (*folder.glob("*.json"), *folder.rglob("checkpoints/*.json")):
        path.unlink()


def _move_event(event: dict[str, object], step: int, seq: int, later: int) -> dict[str, object]:
    """Return the event moved to another place of its log."""
    event_id = f"{event['runId']}-{seq}"
    moved = {**event, "id": event_id, "stepNumber": step, "timestamp": int(str(event["timestamp"])) + later}
    return {**moved, "checkpointId": event_id} if "checkpointId" in event else moved
