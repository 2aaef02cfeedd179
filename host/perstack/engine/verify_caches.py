"""Checking what is derived from a Job's logs: job.json, run-setting.json, checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from perstack.core.base import Fact
from perstack.core.chain import Head
from perstack.core.checkpoint import CheckpointFile, run_setting
from perstack.core.ids import is_place, place_of
from perstack.core.job import Job, JobSummary
from perstack.core.taking_up import grows_apart
from perstack.core.verification import against, against_logs
from perstack.engine.derived import checkpoint_ids
from perstack.engine.logs.damage import DoesNotFollow
from perstack.engine.verify_state import Check
from perstack.ports.storage import KeepsCopies, RunRef, Storage

Files = Mapping[str, bytes]
"""The checkpoints that were put, by id."""


async def checkpoint_files(storage: Storage, job_id: str) -> Files:
    """All that were put."""
    files: dict[str, bytes] = {}
    if not isinstance(storage, KeepsCopies):
        return files
    for checkpoint_id in await checkpoint_ids(storage, job_id):
        data = await storage.checkpoint(job_id, checkpoint_id)
        if data is not None:
            files[checkpoint_id] = data
    return files


def checkpoint_anchors(files: Files) -> list[tuple[str, Head]]:
    """The places in logs that checkpoints keep."""
    found: list[tuple[str, Head]] = []
    for checkpoint_id, data in files.items():
        try:
            messages = CheckpointFile.model_validate_json(data).messages
        except ValidationError:
            continue
        if is_place(checkpoint_id):
            found.append((place_of(checkpoint_id)[1], Head(messages.through, messages.sha256)))
    return found


async def check_caches(check: Check, storage: Storage, summary: bytes | None, checkpoints: Files) -> None:
    """Compare them with the logs, if those are right themselves."""
    read = _read_summary(check, summary)
    if check.findings:
        return
    if isinstance(check.misfit, DoesNotFollow):
        check.found(check.misfit.ref.run_id, check.misfit.seq, check.misfit.reason)
        return
    if check.misfit is not None:
        words = "what it says cannot be derived from logs that do not read as a whole"
        check.passed_over("summary", "", 1, f"job.json: {words}")
        check.passed_over("caches", "", len(checkpoints) + len(check.heads), f"checkpoints and settings: {words}")
        return
    if summary is not None and read is not None:
        apart = any(grows_apart(run, check.states) for run in check.states.values())
        is_driven = apart or await storage.lease_info(check.job_id) is not None
        _check_summary(check, summary, read, is_driven=is_driven)
    if isinstance(storage, KeepsCopies):
        await _check_copies(check, storage, checkpoints)


async def _check_copies(check: Check, storage: KeepsCopies, checkpoints: Files) -> None:
    for run_id, run in check.states.items():
        data = await storage.run_setting(RunRef(check.job_id, run_id))
        if data is None:
            check.passed_over("caches", run_id, 0, "there is no run-setting.json; what it says is in the log")
        elif run_id not in check.unsealed:
            _compare(check, "run-setting.json", run_id, data, run_setting(run.start))
    for checkpoint_id, data in checkpoints.items():
        file = check.checkpoints.get(checkpoint_id)
        if file is None:
            check.found("", 0, f"checkpoint {checkpoint_id} is of no event in these logs")
        else:
            _compare(check, f"checkpoint {checkpoint_id}", file.run_id, data, file)


def _compare(check: Check, name: str, run_id: str, data: bytes, expected: Fact) -> None:
    check.caches += 1
    try:
        for words in against(data, expected):
            check.found(run_id, 0, f"{name} {words}")
    except ValueError:
        check.found(run_id, 0, f"{name} does not read; delete it: what it says is in the log")


def _read_summary(check: Check, written: bytes | None) -> JobSummary | None:
    if written is None:
        check.passed_over("summary", "", 1, "there is no job.json; what is shown is from the logs")
        return None
    try:
        return JobSummary.model_validate_json(written)
    except ValidationError:
        if check.unsealed:
            check.passed_over("summary", "", 1, "job.json is of another shape; nothing is taken from it")
        else:
            check.found("", 0, "job.json does not read; delete it: what it says is in the logs")
        return None


def _check_summary(check: Check, written: bytes, summary: JobSummary, *, is_driven: bool) -> None:
    job = Job(check.job_id)
    for run in check.states.values():
        job.take(run)
        job.heads[run.id] = run.head
    if not job.coordinators:
        return
    if summary.status == "running" or is_driven:
        check.passed_over("summary", "", 1, "job.json was written while the Job ran; what is shown is from the logs")
        return
    check.summaries += 1
    for words in against_logs(written, job):
        check.found("", 0, f"job.json {words}")
