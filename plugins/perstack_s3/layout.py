"""Where things are below the prefix. `{space}` is `jobs`, or the name of the space.

    perstack.json                                     the version of this layout
    {space}/markers/{job}                             the Job is there; names its incarnation
    {space}/leases/{job}                              who drives it
    {space}/summaries/{job}, {space}/entries/{job}    what lists are made of
    {space}/logs/{job}/{incarnation}/runs             ids of the Runs that have a log
    {space}/logs/{job}/{incarnation}/{run}/a{n}       the n-th append, from 0
    {space}/logs/{job}/{incarnation}/{run}/p{k}       appends 64k to 64k+63, merged
    {space}/blobs/{job}/{incarnation}/{sha256}
    {space}/deleting/{job}.{incarnation}              a deletion that has been decided on
    {space}/index/{entries|summaries}                 those objects in one: a cache of a cache

A Job that is deleted and made anew under its id has another incarnation, so nothing of the old one is met in the new.
"""

from __future__ import annotations

from perstack.core.ids import check_id, check_job_id
from perstack.dataclass import dataclass
from perstack.ports.storage import RunRef

MERGED = 64
"""How many appends one merged object has."""

VERSION = "perstack.json"
PROBE = "perstack-probe"


@dataclass(frozen=True, slots=True)
class Layout:
    """Names of the objects of one space. Ids are checked here: raises UsageError."""

    space: str

    def below(self, kind: str) -> str:
        """What all objects of a kind begin with."""
        return f"{self.space}/{kind}/"

    def of_job(self, kind: str, job_id: str) -> str:
        """The object of a kind that a Job has one of."""
        return f"{self.space}/{kind}/{check_job_id(job_id)}"

    def of_incarnation(self, kind: str, job_id: str, incarnation: str) -> str:
        """What all objects of a kind of one incarnation begin with."""
        return f"{self.space}/{kind}/{check_job_id(job_id)}/{incarnation}/"

    def blob(self, job_id: str, incarnation: str, sha256: str) -> str:
        """One blob."""
        return self.of_incarnation("blobs", job_id, incarnation) + check_id(sha256, "blob")

    def runs(self, job_id: str, incarnation: str) -> str:
        """The list of a Job's Runs."""
        return self.of_incarnation("logs", job_id, incarnation) + "runs"

    def append(self, run: RunRef, incarnation: str, number: int) -> str:
        """One append."""
        return f"{self.of_incarnation('logs', run.job_id, incarnation)}{check_id(run.run_id, 'run')}/a{number:010d}"

    def merged(self, run: RunRef, incarnation: str, number: int) -> str:
        """Many appends in one: `number` is the first of them divided by MERGED."""
        return f"{self.of_incarnation('logs', run.job_id, incarnation)}{check_id(run.run_id, 'run')}/p{number:010d}"

    def deleting(self, job_id: str, incarnation: str) -> str:
        """That a deletion has been decided on."""
        return f"{self.space}/deleting/{check_job_id(job_id)}.{incarnation}"

    def index(self, kind: str) -> str:
        """The objects of a kind in one."""
        return f"{self.space}/index/{kind}"
