"""What a check of logs comes to: what does not hold, what could not be checked, and how much was.

A check vouches for what it has compared and for nothing else. What it had to pass over is named, with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

from pydantic import JsonValue

from perstack.core.job import Job, JobSummary, OpenQuestion, RunSummary, summarize
from perstack.core.usage import Usage

UncheckedKind: TypeAlias = Literal["digests", "content", "summary", "requests"]
"""`digests`: events that carry none. `content`: events that were taken out, or that this version does not know.
`summary`: job.json. `requests`: what models were sent, in a log that has no digest of it."""


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
    """Ends of logs that were compared with a hash kept elsewhere."""
    summaries: int = 0
    """Files with totals that were compared with what the logs add up to."""
    requests: int = 0
    """Requests to models that a replay has built again and compared with their digests."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was checked, and what was found."""

    job_id: str
    runs: int
    events: int
    findings: tuple[Finding, ...]
    unchecked: tuple[Unchecked, ...] = ()
    checked: Checked = Checked()

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
        }


_KNOWN = {
    field.alias or name
    for model in (JobSummary, RunSummary, OpenQuestion, Usage)
    for name, field in model.model_fields.items()
}
_FREE = ("labels", "usageByExpert")
"""Where keys are no names of fields."""
_SHOWN = ("text", "error", "question")
"""What is left out of job.json where there is none, and must be in it where there is."""


def against_logs(written: bytes, job: Job) -> list[str]:
    """What the summary of a Job that has stopped says, where its logs say something else. Raises ValueError if it is no
    summary.

    Only what is written is compared: an older version wrote less, a newer one writes more.
    """
    JobSummary.model_validate_json(written)
    found: JsonValue = json.loads(written)
    expected: JsonValue = json.loads(summarize(job, is_driven=False).to_json())
    missing = [
        f"says nothing of {name}" for name in _SHOWN if name in _as_dict(expected) and name not in _as_dict(found)
    ]
    return [*missing, *_differences("", found, expected)]


def _differences(place: str, found: JsonValue, expected: JsonValue) -> Iterator[str]:
    if isinstance(found, dict) and isinstance(expected, dict):
        is_free = place in _FREE or place.startswith("asking")
        for key in [*found, *(sorted(expected.keys() - found.keys()) if is_free else ())]:
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
