"""What every fact of a Run has in common, and who gives it."""

from typing import Protocol, TypedDict


class Stamp(TypedDict):
    """Where a fact stands, and when it was noted."""

    id: str
    timestamp: int
    job_id: str
    run_id: str
    expert_key: str
    step_number: int


class CheckpointStamp(Stamp):
    """Where a fact stands that makes a checkpoint."""

    checkpoint_id: str


class Stamps(Protocol):
    """Hands out the stamps of the facts that come next in a Run's log."""

    def __call__(self, ahead: int = 0) -> Stamp:
        """That of the next fact, or of the one so many places after it."""
        ...


def at_checkpoint(stamp: Stamp) -> CheckpointStamp:
    """The same for a fact that makes a checkpoint: it is called after the fact."""
    return {**stamp, "checkpoint_id": stamp["id"]}
