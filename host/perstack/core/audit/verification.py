"""Reports of verification: what is wrong, what could not be checked, and how much was checked.

Each line of a log is linked to the one before by a hash (`core/base/chain.py`). The engine reads the logs, and this
package judges them, in three modules:

- `verification.py` has the report, and compares caches (job.json, checkpoints) and stored heads with the logs.
- `receipts.py` has statements about the heads of logs that are stored outside, where no writer of the logs has access.
- `redaction.py` removes texts from an event and checks what remains, while the chain stays intact.

A report covers only what was compared. Everything that was skipped is listed with the reason (`UncheckedKind`), so that
`ok` is never mistaken for complete. Fields that older versions did not write are tolerated. A new check adds its count
to `Checked`, and a kind to `UncheckedKind` for when it is impossible.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Literal, TypeAlias

from pydantic import JsonValue
from pydantic_core import from_json

from perstack.core.audit.redaction import Redaction
from perstack.core.base.chain import Head
from perstack.core.base.records import Fact
from perstack.core.base.usage import Usage
from perstack.core.jobs.job import Job
from perstack.core.jobs.summary import JobSummary, RunSummary, summarize
from perstack.core.runs.questions import OpenQuestion
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

    digests: int = 0  # events compared with their digest, and digests with the chain
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
            "findings": [{"runId": one.run_id, "seq": one.seq, "message": one.message} for one in self.findings],
            "unchecked": [
                {"kind": one.kind, "runId": one.run_id, "count": one.count, "message": one.message}
                for one in self.unchecked
            ],
            "checked": asdict(self.checked),
            "redactions": [one.to_json() for one in self.redactions],
        }


_KNOWN = {
    field.alias or name
    for model in (JobSummary, RunSummary, OpenQuestion, Usage)
    for name, field in model.model_fields.items()
}
_FREE = ("labels", "usageByExpert")  # paths whose keys are not names of fields
_EVER = frozenset((
    "text", "error", "question", "pauseReason", "runs", "steps", "totalSteps", "maxSteps", "usage", "inputTokens",
    "outputTokens", "totalTokens", "startedAt", "updatedAt", "finishedAt", "delegatedBy", "continuedFrom",
))  # fmt: skip
"""Fields that every version has written if they have a value: if one is missing, it would read as empty."""


def compare_summary_with_logs(written: bytes, job: Job) -> list[str]:
    """Return the differences between a stopped Job's summary and its logs. Raises ValueError if it is no summary."""
    JobSummary.model_validate_json(written)
    found: JsonValue = json.loads(written)
    return list(_differences("", found, json.loads(summarize(job, is_driven=False).to_json())))


def _differences(place: str, found: JsonValue, expected: JsonValue) -> Iterator[str]:
    if isinstance(found, dict) and isinstance(expected, dict):
        is_free = place in _FREE or place.startswith("asking")
        missing = sorted(key for key in expected.keys() - found.keys() if is_free or key in _EVER)
        for key in [*found, *missing]:
            if is_free or key in _KNOWN:
                yield from _differences(f"{place}.{key}".lstrip("."), found.get(key), expected.get(key))
    elif isinstance(found, list) and isinstance(expected, list) and place == "runs":
        yield from _different_runs(found, expected)
    elif found != expected and not (expected is None and not found):
        yield f"says {place} is {_short(found)}, the logs say {_short(expected)}"


def _different_runs(found: list[JsonValue], expected: list[JsonValue]) -> Iterator[str]:
    """Compare by id: Runs that ran concurrently may be listed in another order."""
    there = {_as_dict(run).get("id"): run for run in expected}
    for run in found:
        run_id = _as_dict(run).get("id")
        if run_id not in there:
            yield f"lists a Run {_short(run_id)}, which has no log"
        else:
            yield from _differences(str(run_id), run, there.pop(run_id))
    yield from (f"does not list the Run {run_id}" for run_id in there)


def _as_dict(value: JsonValue) -> Mapping[str, JsonValue]:
    return value if isinstance(value, dict) else {}


def _short(value: JsonValue) -> str:
    text = "nothing" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:79] + "…"


def cache_contradictions(written: bytes, expected: Fact) -> list[str]:
    """Return how a cache contradicts its log; missing fields do not. Raises ValueError for a cache of another kind."""
    type(expected).model_validate_json(written)
    found: JsonValue = json.loads(written)
    derived: JsonValue = json.loads(expected.to_json())
    known = {field.alias or name for name, field in type(expected).model_fields.items()}
    added = [key for key, value in _as_dict(found).items() if key in known and value and key not in _as_dict(derived)]
    return [
        *_contradictions("", found, derived),
        *(f"says {key} is {_short(_as_dict(found)[key])}, the log says nothing" for key in added),
    ]


def _contradictions(place: str, found: JsonValue, derived: JsonValue) -> Iterator[str]:
    if isinstance(found, dict) and isinstance(derived, dict):
        for key in found.keys() & derived.keys():
            yield from _contradictions(f"{place}.{key}".lstrip("."), found[key], derived[key])
    elif isinstance(found, list) and isinstance(derived, list) and len(found) == len(derived):
        for index, (one, other) in enumerate(zip(found, derived, strict=True)):
            yield from _contradictions(f"{place}.{index}", one, other)
    elif found != derived:
        yield f"says {place} is {_short(found)}, the log says {_short(derived)}"


def with_head(summary: bytes, head: Head) -> bytes:
    """Return a summary, a JSON object, with the end of its log added."""
    return b'%b,"headSeq":%d,"headHash":"%b"}' % (summary[:-1], head.seq, head.hash.encode())


def head_in(summary: bytes) -> Head | None:
    """Return the end of the log that a summary names; None if it names none, as older versions did not."""
    try:
        found: JsonValue = from_json(summary)
    except ValueError:
        return None
    seq, chained = _as_dict(found).get("headSeq"), _as_dict(found).get("headHash")
    return Head(seq, chained) if isinstance(seq, int) and isinstance(chained, str) and seq > 0 else None


def compare_with_head(run_id: str, anchor: Head, chain: Mapping[int, str]) -> list[Finding]:
    """Return what is wrong with a log compared with a stored head; `chain`: hash at each position."""
    if anchor.seq not in chain:
        text = f"the log ends at {len(chain)}, but a head kept elsewhere says it had {anchor.seq} events"
        return [Finding(run_id, 0, text)]
    if chain[anchor.seq] != anchor.hash:
        return [Finding(run_id, anchor.seq, "the log was rewritten: its hash differs from a head kept elsewhere")]
    return []
