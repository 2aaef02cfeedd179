"""Ids that are read are checked like typed ids: another user's log never determines a path."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from stored_damage import reseal
from terminal import Terminal

FORGERIES = [
    (b'"jobId":"team"', b'"jobId":"../../escaped"'),
    (b'"jobId":"team"', b'"jobId":"/tmp/escaped"'),
    (b'"runId":"team-1"', b'"runId":"../team-9"'),
    (b'"runId":"team-1"', b'"runId":"other-1"'),
    (b'"runId":"team-2"', b'"runId":"../../../escaped-2"'),
    (b'"id":"team-1-', b'"id":"team-9-'),
]


def forge(terminal: Terminal, run_id: str, old: bytes, new: bytes) -> None:
    """Change a log, recompute its hash chain, and remove the cached summary."""
    path = terminal.log_of(run_id)
    reseal(path, lambda payload: payload.replace(old, new))
    (path.parents[2] / "job.json").unlink()


def files_below(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*")}


@pytest.mark.parametrize(("old", "new"), FORGERIES)
def test_an_export_writes_nothing_outside_its_folder_whatever_a_log_says(
    own_team: Terminal, old: bytes, new: bytes
) -> None:
    forge(own_team, "team-1", old, new)
    around = own_team.workspace.parent
    before = files_below(around)
    for form in ("perstack", "json"):
        result = own_team.call("export", "team", "--format", form, "--to", str(own_team.workspace / f"out.{form}"))
        assert (result.code, result.out) == (1, "")
        assert "its ids name another place" in result.err
        assert len(result.err.splitlines()) == 1
    assert files_below(around) - before == set()


@pytest.mark.parametrize(("old", "new"), FORGERIES)
def test_one_job_that_names_another_place_is_one_row_and_hurts_no_other(
    own_team: Terminal, old: bytes, new: bytes
) -> None:
    other = own_team.run("run", "lead", "q", "--provider", "scripted", "--job-id", "sound")
    forge(own_team, "team-1", old, new)
    rows = {job["id"]: job for job in own_team.call("jobs", "--json").events}
    assert set(rows) == {"team", "sound"}
    assert "its ids name another place" in rows["team"]["error"]
    assert (other.code, rows["sound"]["status"]) == (0, "completed")


def test_a_summary_that_names_another_job_is_not_believed(own_team: Terminal) -> None:
    path = own_team.log_of("team-1").parents[2] / "job.json"
    kept = json.loads(path.read_bytes())
    path.write_text(json.dumps({**kept, "id": "../elsewhere", "query": "forged"}))
    (job,) = own_team.call("jobs", "--json").events
    assert (job["id"], job["query"]) == ("team", kept["query"])
