"""What a check of a store comes to: what does not hold, what could not be checked, and how much was.

A check vouches for what it has compared and for nothing else. What it had to pass over is named, with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Literal, TypeAlias

from pydantic import JsonValue
from pydantic_core import from_json

from perstack.core.base import Fact
from perstack.core.chain import Head
from perstack.core.job import Job, JobSummary, RunSummary, summarize
from perstack.core.redaction import Redaction
from perstack.core.runs.asking import OpenQuestion
from perstack.core.usage import Usage
from perstack.dataclass import dataclass

Kind: TypeAlias = Literal["job", "task", "iterations", "schedule", "store"]
"""What a report is about; `store`: what is in none of the others."""
UncheckedKind: TypeAlias = Literal[
    "digests", "content", "heads", "runs", "summary", "caches", "requests", "rules", "anchor", "receipt"
]
"""`digests`: events that carry none. `content`: events that this version does not know. `heads`: events after the last
place that something outside their log vouches for. `runs`: Runs and Jobs that are named, and may never have begun.
`summary`: job.json, or the entry of a task or schedule. `caches`: what else is derived from logs.
`requests`: what models were sent, in a log that has no digest of it. `rules`: what permission rules made of calls,
where that depends on what no log has. `anchor`, `receipt`: what those do not
vouch for, and whether they can be trusted themselves."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that does not hold."""

    run_id: str
    """The log that it is about; empty for the Job as a whole."""
    seq: int
    """The place in the log, from 1; 0 for the log as a whole."""
    message: str


@dataclass(frozen=True, slots=True)
class Unchecked:
    """One thing that may be right or wrong: nothing is there to compare it with."""

    kind: UncheckedKind
    run_id: str
    """The log that it is about; empty for the Job as a whole."""
    count: int
    """Of how many events, or files."""
    message: str


@dataclass(frozen=True, slots=True)
class Checked:
    """How much was compared with what."""

    digests: int = 0
    """Events whose content was compared with its digest, and whose digest with the chain."""
    heads: int = 0
    """Places in logs that were compared with a hash kept elsewhere."""
    summaries: int = 0
    """Summaries (job.json, entries) that were compared with what the logs add up to."""
    caches: int = 0
    """Other files that were compared with what the logs say: run-setting.json and checkpoints."""
    blobs: int = 0
    """Blobs that events name, which are there and are what their name says."""
    requests: int = 0
    """Requests to models that a replay has built again and compared with their digests."""
    rulings: int = 0
    """Calls that a replay has held to the rules in force again."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was checked, and what was found."""

    job_id: str
    runs: int
    events: int
    findings: tuple[Finding, ...]
    unchecked: tuple[Unchecked, ...] = ()
    checked: Checked = Checked()
    kind: Kind = "job"
    """What `job_id` is the id of."""
    redactions: tuple[Redaction, ...] = ()
    """The events whose content was taken out."""

    @property
    def ok(self) -> bool:
        """Whether nothing was found. What could not be checked is not in it."""
        return not self.findings

    @property
    def is_complete(self) -> bool:
        """Whether there was something to compare everything with."""
        return not self.unchecked

    def to_json(self) -> dict[str, object]:
        """As `--json` shows it."""
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
_FREE = ("labels", "usageByExpert")
"""Where keys are not names of fields."""
_EVER = frozenset((
    "text", "error", "question", "pauseReason", "runs", "steps", "totalSteps", "maxSteps", "usage", "inputTokens",
    "outputTokens", "totalTokens", "startedAt", "updatedAt", "finishedAt", "delegatedBy", "continuedFrom",
))  # fmt: skip
"""What every version has written where there is any: without its name it would be read as if there were none."""


def against_logs(written: bytes, job: Job) -> list[str]:
    """What the summary of a Job that has stopped says, where its logs say something else. Raises ValueError if it is no
    summary.

    Of what is not written only that is missed which every version wrote: an older one wrote less, a newer one more.
    """
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
    """By their ids: Runs that went on at once may be listed in another order."""
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


def against(written: bytes, expected: Fact) -> list[str]:
    """What a cache says, where its log says something else. Raises ValueError if it is none of that kind.

    What is missing in it is none of this: an older version wrote less.
    """
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
    """A summary, a JSON object, that also says where its log ended."""
    return b'%b,"headSeq":%d,"headHash":"%b"}' % (summary[:-1], head.seq, head.hash.encode())


def head_in(summary: bytes) -> Head | None:
    """Where a summary says that its log ended; None if it does not, as one of an older version."""
    try:
        found: JsonValue = from_json(summary)
    except ValueError:
        return None
    seq, chained = _as_dict(found).get("headSeq"), _as_dict(found).get("headHash")
    return Head(seq, chained) if isinstance(seq, int) and isinstance(chained, str) and seq > 0 else None


def against_head(run_id: str, anchor: Head, chain: Mapping[int, str]) -> list[Finding]:
    """What is wrong with a log, of which the hash at each place is given, if it ended there when a head was kept."""
    if anchor.seq not in chain:
        text = f"the log ends at {len(chain)}, but a head kept elsewhere says it had {anchor.seq} events"
        return [Finding(run_id, 0, text)]
    if chain[anchor.seq] != anchor.hash:
        return [Finding(run_id, anchor.seq, "the log was rewritten: its hash differs from a head kept elsewhere")]
    return []
