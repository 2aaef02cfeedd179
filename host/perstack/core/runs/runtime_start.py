"""The first event of work on a Job, apart from the other display events, so that a start builds no more models."""

from typing import ClassVar, Literal

from perstack.core.base.records import Record


class DisplayEvent(Record):
    """The common fields of events that are shown and never stored."""

    original_types: ClassVar[tuple[str, ...]] = ()  # its other names in the original Perstack

    type: str
    id: str
    timestamp: int
    job_id: str
    run_id: str


class InitializeRuntime(DisplayEvent):
    """The start of the host's work on a Job."""

    type: Literal["initializeRuntime"] = "initializeRuntime"
    runtime_version: str
    expert_key: str
    model: str
    provider: str
    max_steps: int | None = None
    storage: str = ""
