"""`perstack export`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from stored_damage import reseal
from terminal import Terminal

from perstack.core.jobs.checkpoints import Checkpoint

GOLDEN = Path(__file__).parents[2] / "golden"


def test_jsonl_is_the_events_as_they_are_in_order_of_time(team: Terminal) -> None:
    assert team.run("export", "team", "--format", "jsonl").out == team.run("log", "--json").out


def test_json_is_one_document_whose_messages_stand_once(team: Terminal) -> None:
    document = json.loads(team.call("export", "team", "--format", "json").out)
    assert list(document) == ["format", "job", "runs", "checkpoints", "messages"]
    assert (document["job"]["id"], document["job"]["status"], document["job"]["totalSteps"]) == ("team", "completed", 8)
    assert [run["id"] for run in document["runs"]] == list(document["messages"]) == ["team-1", "team-2", "team-3"]
    assert document["messages"]["team-2"][0]["type"] == "instructionMessage"


def test_every_checkpoint_can_be_put_together_from_the_document(team: Terminal) -> None:
    document = json.loads(team.call("export", "team", "--format", "json").out)
    assert document["checkpoints"]
    for facts in document["checkpoints"]:
        count = facts["messages"]["count"]
        messages = document["messages"][facts["runId"]][: count + 1]
        whole = Checkpoint.model_validate({**facts, "messages": messages})
        output = team.call("log", "--checkpoint", facts["id"], "--json").out
        assert whole == Checkpoint.model_validate_json(output)


def test_a_file_is_written_once_and_never_over_another(own_team: Terminal) -> None:
    first = own_team.call("export", "team", "--format", "json", "--to", "team.json")
    assert (first.code, first.out) == (0, "")
    assert json.loads((own_team.workspace / "team.json").read_text())["job"]["id"] == "team"
    result = own_team.call("export", "team", "--format", "jsonl", "--to", "team.json")
    assert result.code == 2
    assert "exists" in result.err
    nowhere = own_team.call("export", "team", "--format", "jsonl", "--to", "no/where.json")
    assert (nowhere.code, nowhere.err.count("\n")) == (2, 1)


def test_the_original_form_is_folders_that_are_read_as_the_same_job(own_team: Terminal) -> None:
    done = own_team.call("export", "team", "--format", "perstack", "--to", "out")
    assert (done.code, done.out) == (0, "")
    job = own_team.workspace / "out" / "jobs" / "team"
    assert {path.name for path in job.iterdir()} >= {"checkpoints", "runs"}
    for path in job.glob("runs/*/event-*.json"):
        assert json.loads(path.read_text())["jobId"] == "team"
    for path in job.glob("checkpoints/*.json"):
        assert json.loads(path.read_text())["messages"]
    result = own_team.call("log", "--storage", "file:out")
    assert result.lines[0].startswith("Job team  lead  completed")
    assert "  spent   8 steps, 610 + 62 tokens, cost unknown" in result.lines
    again = own_team.call("export", "team", "--format", "perstack", "--to", "out")
    assert (again.code, again.err.count("\n")) == (2, 1)


def test_a_job_of_the_original_is_exported_as_any_other(terminal: Terminal) -> None:
    shutil.copytree(GOLDEN / "c_parallel_delegates" / "perstack", terminal.workspace / "perstack")
    job = next(terminal.jobs().iterdir()).name
    for form in ("jsonl", "json"):
        assert terminal.call("export", job, "--format", form).code == 0
    assert terminal.call("export", job, "--format", "perstack", "--to", "out").code == 0
    assert terminal.call("verify", job).code == 0


def test_an_id_that_could_be_a_path_is_refused(team: Terminal) -> None:
    refused = team.call("export", "../team", "--format", "perstack", "--to", "out")
    assert refused.code == 2


def test_a_format_that_is_not_installed_is_named_with_those_that_are(team: Terminal) -> None:
    refused = team.call("export", "team", "--format", "pertsack", "--to", "out")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    available = "html, json, jsonl, otlp, otlp-content, perstack"
    assert f"no format 'pertsack' is installed; available: {available}" in refused.err
    assert not (team.workspace / "out").exists()


def test_the_original_form_wants_a_directory(team: Terminal) -> None:
    refused = team.call("export", "team", "--format", "perstack")
    assert refused.code == 2
    assert "--to" in refused.err


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"type":"callTools"', b'"type":"finishStep"'),
        (b'"type":"startRun"', b'"type":"finishRun"'),
        (b'"toolCallId":"', b'"toolCallId":"other-'),
        (b'"timestamp":', b'"timestamp":99999'),
        (b'{"a":1}', b'{"a":' + b"9" * 5000 + b"}"),
    ],
)
def test_an_edited_log_is_refused_or_exported_and_never_a_traceback(own_team: Terminal, old: bytes, new: bytes) -> None:
    reseal(own_team.log_of("team-1"), lambda payload: payload.replace(old, new))
    for form in ("perstack", "json"):
        result = own_team.call("export", "team", "--format", form, "--to", f"out-{form}")
        assert result.code in (0, 1)
        assert len(result.err.splitlines()) < 2
        assert (own_team.workspace / f"out-{form}").exists() is (result.code == 0)


@pytest.mark.parametrize("command", [("export", "team", "--format", "json"), ("receipt", "team")])
def test_the_earlier_name_of_the_option_is_an_error_that_names_the_new_one(
    own_team: Terminal, command: tuple[str, ...]
) -> None:
    result = own_team.call(*command, "--output", "a file.json")
    assert (result.code, result.out) == (2, "")
    assert result.err == f"error: perstack {command[0]}: --output is a format; write --to 'a file.json'\n"
    assert not (own_team.workspace / "a file.json").exists()
