"""`perstack delete` and `perstack prune`."""

from __future__ import annotations

import json

import pytest
from processes import start, wait_until
from terminal import ASKING, TEAM, Terminal, reply

PROJECT = TEAM + ASKING


@pytest.fixture
def jobs(terminal: Terminal) -> Terminal:
    terminal.project(
        PROJECT,
        lead=[{"text": "done"}],
        guest=[reply("", ("askUser", {"question": "Which?"})), reply("done")],
    )
    for job, expert in (("one", "lead"), ("two", "lead"), ("three", "lead"), ("asks", "guest")):
        assert terminal.call("run", expert, "go", "--job-id", job).code in {0, 3}
    return terminal


def job_ids(terminal: Terminal, *words: str) -> list[str]:
    return [json.loads(line)["id"] for line in terminal.call("jobs", "--json", "--all", *words).lines]


def test_jobs_are_deleted_by_id_once_somebody_agrees(jobs: Terminal) -> None:
    refused = jobs.call("delete", "one", "two")
    assert (refused.code, refused.out) == (2, "")
    assert "2 Jobs would be deleted permanently" in refused.err
    result = jobs.call("delete", "one", "tw", "one", "--yes")
    assert (result.code, result.out, result.err) == (0, "deleted 2 Jobs\n", "")
    assert job_ids(jobs) == ["asks", "three"]
    assert jobs.call("log", "--job", "one").code == 2
    missing = jobs.call("delete", "three", "nothing", "--yes")
    assert (missing.code, job_ids(jobs)) == (2, ["asks", "three"])


def test_a_job_that_is_driven_is_kept(jobs: Terminal) -> None:
    definition = jobs.workspace / "perstack.toml"
    definition.write_text(definition.read_text() + '\n[permissions]\nallow = ["exec"]\n')
    jobs.script(lead=[reply("", ("exec", {"command": "sh", "args": ["-c", "touch began; sleep 60"]}))])
    with start(jobs, "run", "lead", "go", "--job-id", "busy") as process:
        wait_until(lambda: (jobs.workspace / "began").exists(), "the command runs")
        result = jobs.call("delete", "busy", "one", "--yes", "--json")
        assert result.code == 1
        found = json.loads(result.out)
        assert (found["deleted"], list(found["kept"])) == (["one"], ["busy"])
        process.kill()


def test_prune_removes_what_fits_every_condition_and_shows_it_first(jobs: Terminal) -> None:
    assert jobs.call("prune").code == 2
    result = jobs.call("prune", "--keep-last", "1", "--dry-run")
    assert result.code == 0
    assert [line.split()[0] for line in result.lines] == ["Job", "two", "one"]
    assert job_ids(jobs) == ["asks", "three", "two", "one"]
    assert jobs.call("prune", "--older-than", "1d", "--yes").out == "no such Jobs\n"
    assert jobs.call("prune", "--keep-last", "1", "--expert", "lead", "--yes").out == "deleted 2 Jobs\n"
    assert job_ids(jobs) == ["asks", "three"]


def test_prune_keeps_what_waits_for_a_person_unless_told(jobs: Terminal) -> None:
    assert jobs.call("prune", "--keep-last", "0", "--yes").out == "deleted 3 Jobs\n"
    assert job_ids(jobs) == ["asks"]
    assert jobs.call("prune", "--keep-last", "0", "--include-waiting", "--yes").out == "deleted 1 Job\n"
    assert job_ids(jobs) == []


def test_jobs_are_listed_by_how_they_stand_whose_they_are_and_since_when(jobs: Terminal) -> None:
    assert job_ids(jobs, "--status", "waiting") == ["asks"]
    assert job_ids(jobs, "--expert", "lead", "--since", "1h") == ["three", "two", "one"]
    assert job_ids(jobs, "--since", "2000-01-01") == job_ids(jobs)
    assert job_ids(jobs, "--since", "2999-01-01") == []
    assert job_ids(jobs, "--status", "completed", "--status", "waiting", "--expert", "guest") == ["asks"]
    assert jobs.call("jobs", "--status", "failed").out == "no Jobs like that\n"
    assert jobs.call("jobs", "--status", "gone").code == 2


def test_run_due_and_prune_remove_what_is_not_retained(jobs: Terminal) -> None:
    (jobs.workspace / "perstack.toml").write_text(f"[retention]\nkeepLast = 2\n{PROJECT}")
    assert job_ids(jobs) == ["asks", "three", "two", "one"]
    due = jobs.call("task", "run-due", "--json")
    assert (due.code, due.events) == (0, [{"did": "deleted", "jobId": "one"}])
    assert job_ids(jobs) == ["asks", "three", "two"]
    (jobs.workspace / "perstack.toml").write_text(f"[retention]\nkeepLast = 1\n{PROJECT}")
    assert jobs.call("prune", "--dry-run").lines[1].split()[0] == "two"
    assert jobs.call("prune", "--yes").out == "deleted 1 Job\n"
    assert job_ids(jobs) == ["asks", "three"]
    assert jobs.call("task", "run-due").out == ""
    (jobs.workspace / "perstack.toml").write_text('[retention]\nstatus = ["gone"]\nolderThan = "soon"\n')
    refused = jobs.call("validate")
    assert refused.code == 2
    assert "perstack.toml:2: error: retention.status: has 'gone': use running, completed" in refused.out


def test_what_was_deleted_is_no_finding_where_an_anchor_knows_of_it(jobs: Terminal) -> None:
    (jobs.workspace / "perstack.toml").write_text(f'[audit]\nanchor = "file:away/heads.jsonl"\n{PROJECT}')
    assert jobs.call("run", "lead", "go", "--job-id", "kept").code == 0
    assert jobs.call("delete", "kept", "--yes").code == 0
    assert jobs.call("verify", "--all").code == 0
