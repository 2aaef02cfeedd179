"""Reports of verification: what is wrong, what could not be checked, and how much was checked.

Each line of a log is linked to the one before by a hash (`core/base/chain.py`). The engine reads the logs, and this
package judges them, in four modules:

- `verification_report.py` has the report, and compares stored heads with the logs.
- `cache_comparison.py` compares caches (job.json, entries, checkpoints) with what the logs give.
- `receipt_statements.py` has statements about heads of logs, to be stored where no writer of the logs has access.
- `event_redaction.py` removes texts from an event and checks what remains, while the chain stays intact.

A report covers only what was compared. Everything that was skipped is listed with the reason (`UncheckedKind`), so that
`ok` is never mistaken for complete. A new check adds its count to `Checked`, and a kind to `UncheckedKind` for when it
is impossible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Literal, TypeAlias

from perstack.audit.event_redaction import Redaction
from perstack.core.base.chain import Head
from perstack.dataclass import dataclass

Kind: TypeAlias = Literal["job", "task", "iterations", "schedule", "store"]  # `store`: everything outside the others
UncheckedKind: TypeAlias = Literal[
    "digests", "content", "heads", "runs", "summary", "caches", "blobs", "requests", "rules", "anchor", "receipt"
]
"""`digests`: events without one. `content`: events that this version does not know. `heads`: events after the last
position that something outside the log covers. `runs`: named Runs and Jobs that may never have started. `summary`:
job.json, or the entry of a task or schedule. `caches`: other files derived from logs. `blobs`: missing ones that only
the text of a result names. `requests`: requests to models in logs without their digests. `rules`: rulings that depend
on what no log contains. `anchor`, `receipt`: what these do not cover, and whether they can be trusted themselves."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault."""

    run_id: str  # the log; empty for the Job as a whole
    seq: int  # position in the log, from 1; 0 for the log as a whole
    message: str


@dataclass(frozen=True, slots=True)
class Unchecked:
    """Something that could not be checked, because there is nothing to compare it with."""

    kind: UncheckedKind
    run_id: str
    count: int
    message: str


@dataclass(frozen=True, slots=True)
class Checked:
    """Numbers of successful comparisons."""

    digests: int = 0  # events that match their digest, plus digests that match the chain
    heads: int = 0  # positions in logs compared with a hash stored outside
    summaries: int = 0  # summaries (job.json, entries) compared with the logs
    caches: int = 0  # other files compared with the logs: run-setting.json and checkpoints
    blobs: int = 0  # blobs named by events that exist and match their names
    requests: int = 0  # requests to models rebuilt by a replay and compared with their digests
    rulings: int = 0  # calls checked again by a replay against the rules in force


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a verification."""

    job_id: str
    runs: int
    events: int
    findings: tuple[Finding, ...]
    unchecked: tuple[Unchecked, ...] = ()
    checked: Checked = Checked()
    kind: Kind = "job"
    redactions: tuple[Redaction, ...] = ()

    @property
    def ok(self) -> bool:
        """True if there are no findings; what could not be checked does not count."""
        return not self.findings

    @property
    def is_complete(self) -> bool:
        """True if everything could be checked."""
        return not self.unchecked

    def to_json(self) -> dict[str, object]:
        """Return the JSON of `--json`."""
        return {
            "kind": self.kind,
            "jobId": self.job_id,
            "ok": self.ok,
            "complete": self.is_complete,
            "runs": self.runs,
            "events": self.events,
            "findings": [
                {"runId": finding.run_id, "seq": finding.seq, "message": finding.message} for finding in self.findings
            ],
            "unchecked": [
                {"kind": item.kind, "runId": item.run_id, "count": item.count, "message": item.message}
                for item in self.unchecked
            ],
            "checked": asdict(self.checked),
            "redactions": [redaction.to_json() for redaction in self.redactions],
        }


def compare_with_head(run_id: str, head: Head, chain: Mapping[int, str]) -> list[Finding]:
    """Return what is wrong with a log compared with a stored head; `chain`: hash at each position."""
    if head.seq not in chain:
        text = f"the log ends at {len(chain)}, but a head kept elsewhere says it had {head.seq} events"
        return [Finding(run_id, 0, text)]
    if chain[head.seq] != head.hash:
        return [Finding(run_id, head.seq, "the log was rewritten: its hash differs from a head kept elsewhere")]
    return []
