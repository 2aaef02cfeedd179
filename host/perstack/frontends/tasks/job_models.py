"""What is given over HTTP to submit a Job."""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated

from pydantic import Field

from perstack.core.ids import check_job_id
from perstack.core.job import JobSummary
from perstack.frontends.shared.arguments import Arguments


class Submission(Arguments):
    """A Job for workers to drive."""

    expert: Annotated[str, Field(min_length=1, description="The Expert's key.")]
    query: Annotated[str, Field(min_length=1)]
    at: Annotated[int | None, Field(description="Not before this time, in milliseconds since 1970.")] = None
    priority: Annotated[int, Field(description="Higher first.")] = 0
    labels: Annotated[dict[str, str], Field(description="To find it by, and for workers that take only some.")] = Field(
        default_factory=dict[str, str]
    )
    job_id: Annotated[
        str | None, Field(description="The new Job's id; the same request again is no second Job then.")
    ] = None

    def id_by(self, key: str | None) -> str | None:
        """The id that the Job is to have; `key` is the request's Idempotency-Key. Raises UsageError for a bad one."""
        if self.job_id is not None:
            return check_job_id(self.job_id)
        return f"http-{sha256(key.encode()).hexdigest()[:32]}" if key else None

    def is_of(self, job: JobSummary) -> bool:
        """Whether a Job is what is asked for."""
        return (job.expert_key, job.query, job.labels) == (self.expert, self.query, self.labels)
