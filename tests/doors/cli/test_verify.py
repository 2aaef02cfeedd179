"""`perstack verify` and `perstack replay`."""

from __future__ import annotations

import asyncio
import json
import re
from shutil import copytree, rmtree

import pytest
from stored_damage import reseal
from terminal import Terminal, reply

from golden import CASES, GOLDEN
from perstack.audit.redact import redact_event
from perstack.core.base.chain import EMPTY_LOG, format_line, open_line, seal
from perstack.core.base.ids import By
from perstack_filesystem.storage import FilesystemStorage


def test_a_whole_job_verifies_and_replays(team: Terminal) -> None:
    for command in ("verify", "replay"):
        result = team.run(command, "team")
        assert result.code == 0, result.err
        assert result.out.startswith("Job team: 44 events of 3 Runs checked, every ")
        assert team.call(command).out == result.out


def test_an_edited_event_is_found_with_its_file_and_line(own_team: Terminal) -> None:
    path = own_team.log_of("team-2")
    path.write_bytes(path.read_bytes().replace(b"first part", b"other part"))
    result = own_team.call("verify")
    assert result.code == 1
    assert f"{path}, line 1," in result.out
    assert result.lines[-1].startswith("Job team: ")


def test_a_cut_tail_is_found_against_the_heads_kept_elsewhere(own_team: Terminal) -> None:
    path = own_team.log_of("team-2")
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    result = own_team.call("verify", "--json")
    report = json.loads(result.out)
    assert (result.code, report["ok"], report["jobId"], report["runs"]) == (1, False, "team", 3)
    assert [finding["runId"] for finding in report["findings"]] == ["team-2"]
    assert "had 10 events" in report["findings"][0]["message"]


def test_a_log_that_was_rewritten_whole_is_found(own_team: Terminal) -> None:
    reseal(own_team.log_of("team-2"), lambda payload: payload.replace(b"A part.", b"A plot."))
    result = own_team.call("verify")
    assert result.code == 1
    assert "rewritten" in result.out


def test_replay_finds_a_decision_that_the_loop_would_not_make(own_team: Terminal) -> None:
    reseal(
        own_team.log_of("team-2"),
        lambda payload: payload.replace(b'"text":"A part.","totalUsage"', b'"text":"A plot.","totalUsage"'),
    )
    result = own_team.call("replay")
    assert result.code == 1
    assert result.lines[0].startswith("team-2, event 10: text 'A plot.'")
    assert result.lines[-1] == "Job team: 44 events of 3 Runs checked, 1 finding"


@pytest.mark.parametrize(
    ("run_id", "old", "new", "event", "differs"),
    [
        ("team-2", b'"query":"first part"', b'"query":"other part"', 2, "message 1 differs"),
        ("team-2", b'"thought":"hm"', b'"thought":"ha"', 7, "message 2 differs"),
        ("team-1", b'"text":"I plan."', b'"text":"I play."', 7, "message 2 differs"),
        ("team-1", b'"text":"A part."', b'"text":"A plot."', 15, "message 5 differs"),
        ("team-3", b"You help.", b"You hope.", 2, "the instruction differs"),
        ("team-1", b'"model":"scripted"', b'"model":"stripped"', 2, "the model or its settings differ"),
    ],
)
def test_replay_names_what_the_model_was_not_sent(
    own_team: Terminal, run_id: str, old: bytes, new: bytes, event: int, differs: str
) -> None:
    assert old in own_team.log_of(run_id).read_bytes()
    reseal(own_team.log_of(run_id), lambda payload: payload.replace(old, new))
    result = own_team.call("replay")
    assert result.code == 1
    assert result.lines[0].startswith(f"{run_id}, event {event}: generation of step ")
    assert differs in result.lines[0]


def test_replay_names_tools_that_are_others_than_those_that_were_offered(own_team: Terminal) -> None:
    offered = {run_id: tools_digest(own_team, run_id) for run_id in ("team-1", "team-2")}
    reseal(own_team.log_of("team-2"), lambda payload: payload.replace(offered["team-2"], offered["team-1"]))
    result = own_team.call("replay")
    assert (result.code, result.lines[0].endswith("the tools differ")) == (1, True)


def tools_digest(terminal: Terminal, run_id: str) -> bytes:
    match = re.search(rb'"toolsDigest":"([^"]+)"', terminal.log_of(run_id).read_bytes())
    assert match
    return match[1]


def test_requests_without_a_digest_of_ours_are_told_and_no_finding(own_team: Terminal) -> None:
    for run_id, pattern, new in (
        ("team-1", rb',"toolsDigest":"[^"]+","requestDigest":"[^"]+"', b""),
        ("team-2", rb'"requestDigest":"v1:', b'"requestDigest":"v9:'),
    ):
        path = own_team.log_of(run_id)
        head, lines = EMPTY_LOG, []
        for line in path.read_bytes().splitlines():
            sealed, head = seal(head, [re.sub(pattern, new, open_line(line).payload)])
            lines += sealed
        path.write_bytes(b"\n".join(lines) + b"\n")
    result = own_team.call("replay")
    assert result.code == 0
    assert result.lines[0] == "not checked: team-1, 1 event: of tools that the log does not describe"
    assert [line.split(":")[1] for line in result.lines[1:3]] == [" team-1, 4 events", " team-2, 2 events"]
    assert "the log has no digest of what the model was sent" in result.lines[1]
    assert result.lines[3].endswith("among these, every decision and request matches the log")
    report = json.loads(own_team.call("replay", "--json").out)
    assert (report["ok"], report["complete"], report["checked"]["requests"]) == (True, False, 2)


def test_a_redacted_event_is_named_with_who_did_it_and_why(own_team: Terminal) -> None:
    storage = FilesystemStorage(own_team.workspace / "perstack")
    by = By(user="alice", door="cli")
    asyncio.run(redact_event(storage, "team-2-5", reason="a password", by=by))
    verified = own_team.call("verify")
    assert verified.code == 0, verified.out
    assert re.search(r"redacted: team-2, event 5 \(finishToolCall\), by alice, cli, .*: a password", verified.out)
    (named,) = json.loads(own_team.call("verify", "--json").out)["redactions"]
    assert (named["runId"], named["seq"], named["by"], named["reason"]) == ("team-2", 5, "alice, cli", "a password")
    replayed = own_team.call("replay")
    assert replayed.code == 0
    assert "not checked: team-2, 7 events: what was decided from event 5 on depends on redacted" in replayed.out
    assert "redacted  finishToolCall: its content was redacted" in own_team.call("log").out
    (own_team.jobs() / "team" / "job.json").unlink()
    assert own_team.call("jobs", "--json").events[0]["status"] == "completed"


def test_an_event_cannot_be_forged_by_saying_that_it_is_redacted(own_team: Terminal) -> None:
    path = own_team.log_of("team-2")
    lines = path.read_bytes().splitlines()
    sealed = open_line(lines[4])
    forged = sealed.payload.replace(b"hm", b"no")[:-1] + b',"redacted":true}'
    lines[4] = format_line(forged, sealed.digest, sealed.hash)
    path.write_bytes(b"\n".join(lines) + b"\n")
    for command in ("verify", "replay"):
        result = own_team.call(command)
        assert result.code == 1
        assert "it is marked as redacted, but still has content" in result.out
    refused = own_team.call("run", "lead", "more", "--continue-job", "team", "--provider", "scripted")
    assert (refused.code, refused.out) == (1, "")
    assert "it is marked as redacted, but still has content" in refused.err


def test_a_redacted_line_that_nobody_accounts_for_is_a_finding(own_team: Terminal) -> None:
    path = own_team.log_of("team-2")
    lines = path.read_bytes().splitlines()
    sealed = open_line(lines[4])
    redacted = b'{"type":"finishToolCall","id":"team-2-5","redacted":true}'
    lines[4] = format_line(redacted, sealed.digest, sealed.hash)
    path.write_bytes(b"\n".join(lines) + b"\n")
    for command in ("verify", "replay"):
        result = own_team.call(command)
        assert result.code == 1
        assert result.lines[0].startswith(
            "team-2, event 5: its content was removed, and no redactEvent accounts for it"
        )
    assert own_team.call("log").code == 0
    (own_team.jobs() / "team" / "job.json").unlink()
    assert own_team.call("jobs", "--json").events[0]["status"] == "stoppedByError"


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("totalSteps",), 99, "says totalSteps is 99, the logs say 8"),
        (("usage", "totalTokens"), 1, "says usage.totalTokens is 1, the logs say 672"),
        (("usageByExpert", "helper", "totalTokens"), 1, "says usageByExpert.helper.totalTokens is 1, the logs say 12"),
        (("usageByExpert",), {}, "says usageByExpert.helper is nothing, the logs say {"),
        (("labels",), {"team": "a"}, 'says labels is {"team": "a"}, the logs say nothing'),
        (("text",), "All is lost.", 'says text is "All is lost.", the logs say "All is done."'),
        (("text",), None, 'says text is nothing, the logs say "All is done."'),
        (("totalSteps",), None, "says totalSteps is nothing, the logs say 8"),
        (("usage",), None, 'says usage is nothing, the logs say {"'),
        (("error",), "a lie", 'says error is "a lie", the logs say nothing'),
        (("runs", 1, "steps"), 5, "says team-2.steps is 5, the logs say 2"),
        (("startedAt",), 1, "says startedAt is 1, the logs say "),
    ],
)
def test_a_summary_that_says_something_else_than_the_logs_is_found(
    own_team: Terminal, path: tuple[str | int, ...], value: object, words: str
) -> None:
    file = own_team.jobs() / "team" / "job.json"
    job = json.loads(file.read_text())
    *way, last = path
    place = job
    for step in way:
        place = place[step]
    place[last] = value
    file.write_text(json.dumps({key: one for key, one in job.items() if one is not None}))
    result = own_team.call("verify")
    assert result.code == 1
    assert f"Job team: job.json {words}" in result.out


def test_a_name_in_a_summary_is_as_it_was_written_or_the_job_reads_the_same_without_it(own_team: Terminal) -> None:
    file = own_team.jobs() / "team" / "job.json"
    written, shown = file.read_text(), own_team.call("jobs", "--json").out
    # what the first version wrote; from one that it did not, nothing can be missed
    for name in ("totalSteps", "maxSteps", "usage", "totalTokens", "inputTokens", "startedAt", "finishedAt", "text"):
        assert f'"{name}":' in written
        file.write_text(written.replace(f'"{name}":', f'"{name.swapcase()}":'))
        same = own_team.call("jobs", "--json").out == shown
        assert same or own_team.call("verify").code == 1, name


def test_a_summary_that_is_none_is_found_and_may_be_deleted(own_team: Terminal) -> None:
    file = own_team.jobs() / "team" / "job.json"
    file.write_text("[]")
    result = own_team.call("verify")
    assert (result.code, "job.json cannot be parsed; delete it" in result.out) == (1, True)
    file.unlink()
    assert own_team.call("verify").code == 0


def test_a_value_that_this_version_does_not_write_is_found(own_team: Terminal) -> None:
    file = own_team.jobs() / "team" / "job.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "laterField": [1]}))
    result = own_team.call("verify")
    assert result.code == 1
    assert "Job team: job.json says laterField is [1], the logs say nothing" in result.out


def test_how_much_was_checked_is_counted(team: Terminal) -> None:
    report = json.loads(team.call("verify", "--json").out)
    assert (report["ok"], report["complete"], report["unchecked"]) == (True, True, [])
    heads = 2 + 3 + 4  # of two delegates, of three Runs, of their checkpoints
    expected = {"digests": 44, "heads": heads, "summaries": 1, "caches": 3 + 4, "blobs": 2, "requests": 0, "rulings": 0}
    assert report["checked"] == expected


def test_what_the_original_wrote_is_not_vouched_for(terminal: Terminal) -> None:
    copytree(GOLDEN / CASES[0] / "perstack", terminal.workspace / "perstack")
    runs = next(terminal.jobs().iterdir()) / "runs"
    event = next(path for path in sorted(runs.rglob("event-*.json")) if "startRun" in path.name)
    event.write_text(event.read_text().replace('"startRun"', '"startRun" '))
    result = terminal.call("verify")
    assert result.code == 0, "nothing was found"
    assert "the original Perstack wrote it, without digests" in result.out
    assert result.lines[-1].endswith("read, but there is nothing to check them against")
    report = json.loads(terminal.call("verify", "--json").out)
    assert (report["ok"], report["complete"], report["checked"]["digests"]) == (True, False, 0)
    assert {one["kind"] for one in report["unchecked"]} >= {"digests"}
    assert sum(one["count"] for one in report["unchecked"] if one["kind"] == "digests") == report["events"]


def test_of_a_job_that_went_on_here_only_what_is_sealed_is_vouched_for(terminal: Terminal) -> None:
    copytree(GOLDEN / CASES[0] / "perstack", terminal.workspace / "perstack")
    terminal.agreed()
    job_id = next(terminal.jobs().iterdir()).name
    key = terminal.call("jobs", "--json").events[0]["expertKey"]
    terminal.project(f'[experts."{key}"]\ninstruction = "You go on."\n', **{key: [{**reply("and on"), "repeat": True}]})
    assert terminal.call("run", key, "more", "--continue-job", job_id, "--provider", "scripted").code == 0
    result = terminal.call("verify")
    assert result.code == 0, result.out
    assert "of them checked; among these, every digest" in result.lines[-1]
    report = json.loads(terminal.call("verify", "--json").out)
    assert 0 < report["checked"]["digests"] < report["events"]


def test_a_run_without_its_log_is_found(own_team: Terminal) -> None:
    rmtree(own_team.log_of("team-3").parent)
    assert own_team.call("verify").code == 1


def test_an_unknown_job_is_wrong_usage(team: Terminal) -> None:
    for command in ("verify", "replay"):
        result = team.call(command, "nowhere")
        assert (result.code, result.out) == (2, "")


def test_a_job_with_a_second_result_of_a_call_is_not_driven(own_team: Terminal) -> None:
    log = own_team.log_of("team-1")
    payloads = [open_line(line).payload for line in log.read_bytes().splitlines()]
    (first, *_) = [seq for seq, payload in enumerate(payloads, 1) if payload.startswith(b'{"type":"finishToolCall"')]
    ids = (f'"team-1-{seq}"'.encode() for seq in (first, first + 1))
    head, lines = EMPTY_LOG, list[bytes]()
    for payload in (*payloads[:first], payloads[first - 1].replace(*ids, 1)):
        sealed, head = seal(head, [payload])
        lines += sealed
    log.write_bytes(b"\n".join((*lines, b"")))
    (log.parents[2] / "job.json").unlink()
    words = f"event {first + 1}: it cannot follow the events before it (finishToolCall cannot follow where the "
    assert own_team.call("verify").code == 1
    for command in (("run", "--continue-job", "team", "lead", "more"), ("resume", "team")):
        result = own_team.call(*command)
        assert result.code == 1, command
        assert words in result.err
        assert result.err.count("\n") == 1
