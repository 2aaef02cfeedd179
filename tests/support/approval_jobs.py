"""Common parts of tests of approvals: Jobs under permission rules."""

from __future__ import annotations

import json
from collections.abc import Callable

from hosts import Bench, expert, wait_for

from perstack.audit.verification_report import Report
from perstack.core.base.chain import EMPTY_LOG, open_line, seal
from perstack.core.base.ids import By
from perstack.core.definitions.permissions import Permissions
from perstack.core.jobs.summary import JobSummary
from perstack.host import Host
from perstack.testing.scripted import text, tool

ME = By(user="ann", door="python")
ASK_WRITE = Permissions(ask=("appendTextFile",))


def append(name: str, line: str = "x\n"):
    return tool("appendTextFile", {"path": name, "text": line})


TEAM = {
    "[[boss]]": [tool("hand", {"query": "go"}), text("done")],
    "[[hand]]": [append("a.txt"), text("written")],
}


def exec_(*words: str):
    return tool(
        "exec", {"command": words[0], "args": [*words[1:]], "cwd": "", "env": {}, "stdout": True, "stderr": True}
    )


def hosted(bench: Bench, script, *experts, rules: Permissions | None = None, **overrides) -> Host:
    """Return a Host whose project has these rules."""
    host = bench.host(script, *(experts or (expert("a"),)), **overrides)
    host.use(host.project.model_copy(update={"permissions": rules}))
    return host


def files(bench: Bench, *names: str) -> None:
    for name in names:
        (bench.workspace / name).write_text("")


def answer(host: Host, job: JobSummary, said: str, **more) -> JobSummary:
    assert job.asking is not None
    return wait_for(host.answer(said, question_id=job.asking.id, by=ME, **more))


def forge(bench: Bench, change: Callable[[dict], None], run: str = "job-1") -> None:
    """Change events of a log and recompute its hash chain, as a skilled attacker could."""
    path = bench.workspace / "perstack" / "jobs" / "job" / "runs" / run / "events.jsonl"
    payloads = []
    for line in path.read_bytes().splitlines():
        event = json.loads(open_line(line).payload)
        change(event)
        payloads.append(json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode())
    lines, _ = seal(EMPTY_LOG, payloads)
    path.write_bytes(b"\n".join((*lines, b"")))


def messages_of(report: Report) -> list[str]:
    return [finding.message for finding in report.findings]
