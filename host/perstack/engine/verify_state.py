"""What a check of a Job has found out so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from perstack.core.chain import Head
from perstack.core.checkpoint import CheckpointFile
from perstack.core.events import StartGeneration, StartRun
from perstack.core.redaction import Redaction
from perstack.core.runs.state import Run
from perstack.core.verification import Checked, Finding, Report, Unchecked, UncheckedKind
from perstack.dataclass import dataclass
from perstack.errors import Damaged, NotFound


@dataclass(slots=True)
class Check:
    """What is known of a Job so far."""

    job_id: str
    unsealed: Mapping[str, str]
    """The Runs whose events have no digests of their own, and which program wrote them."""
    heads: dict[str, dict[int, str]] = field(default_factory=dict[str, "dict[int, str]"])
    """Of each log the hash at each place."""
    anchors: list[tuple[str, Head]] = field(default_factory=list[tuple[str, Head]])
    """The places in logs that something outside of them vouches for."""
    starts: dict[str, StartRun] = field(default_factory=dict[str, StartRun])
    named: dict[str, tuple[str, int, str]] = field(default_factory=dict[str, "tuple[str, int, str]"])
    """The delegates that were decided on: by which Run, at which place, for which call."""
    answered: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """The calls, of which Run, that have a result."""
    blobs: dict[str, tuple[str, int, int | None]] = field(default_factory=dict[str, "tuple[str, int, int | None]"])
    """The blobs that are named: by which Run, at which place, with which size, if that is said."""
    trees: dict[str, tuple[str, int]] = field(default_factory=dict[str, "tuple[str, int]"])
    """The snapshots: by which Run, at which place."""
    definitions: dict[str, tuple[str, int]] = field(default_factory=dict[str, "tuple[str, int]"])
    """What a Job was left to workers with: by which Run, at which place."""
    naming: dict[str, list[tuple[str, int]]] = field(default_factory=dict[str, "list[tuple[str, int]]"])
    """All the places that name each."""
    removed: dict[str, tuple[str, int]] = field(default_factory=dict[str, "tuple[str, int]"])
    """The blobs that a redaction took away: of which Run, and where it says so."""
    offers: list[tuple[str, int, StartGeneration]] = field(default_factory=list[tuple[str, int, StartGeneration]])
    """The generations that name the tools which the model was offered: of which Run, at which place."""
    states: dict[str, Run] = field(default_factory=dict[str, Run])
    """The ends of the Runs, as far as their events follow."""
    misfit: Damaged | NotFound | None = None
    """Why one of them is not that of its whole log, if one is not."""
    checkpoints: dict[str, CheckpointFile] = field(default_factory=dict[str, CheckpointFile])
    """What the checkpoints that were put ought to say."""
    digests: int = 0
    summaries: int = 0
    caches: int = 0
    right_blobs: int = 0
    findings: list[Finding] = field(default_factory=list[Finding])
    unchecked: list[Unchecked] = field(default_factory=list[Unchecked])
    redactions: list[Redaction] = field(default_factory=list[Redaction])

    def names_blob(self, name: str, run_id: str, seq: int, size: int | None = None) -> None:
        """An event names a blob, and its size if it says that."""
        self.blobs.setdefault(name, (run_id, seq, size))
        self.naming.setdefault(name, []).append((run_id, seq))

    def found(self, run_id: str, seq: int, message: str) -> None:
        """Something does not hold."""
        self.findings.append(Finding(run_id, seq, message))

    def passed_over(self, kind: UncheckedKind, run_id: str, count: int, message: str) -> None:
        """Something cannot be checked."""
        self.unchecked.append(Unchecked(kind, run_id, count, message))

    def report(self) -> Report:
        """All of it."""
        return Report(
            self.job_id,
            len(self.heads),
            sum(len(chain) for chain in self.heads.values()),
            tuple(dict.fromkeys(self.findings)),
            tuple(self.unchecked),
            Checked(self.digests, len(self.anchors), self.summaries, self.caches, self.right_blobs),
            redactions=tuple(self.redactions),
        )
