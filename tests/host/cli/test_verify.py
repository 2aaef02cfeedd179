"""`perstack verify` and `perstack replay`."""

from __future__ import annotations

import json
from shutil import rmtree

from terminal import Terminal

from perstack.core.chain import EMPTY_LOG, line_of, open_line, seal


def reseal(terminal: Terminal, run_id: str, old: bytes, new: bytes) -> None:
    """Change a log and make its chain whole again, as somebody might who knows how."""
    path = terminal.log_of(run_id)
    head, lines = EMPTY_LOG, []
    for line in path.read_bytes().splitlines():
        sealed, head = seal(head, [open_line(line).payload.replace(old, new)])
        lines += sealed
    path.write_bytes(b"\n".join(lines) + b"\n")


def test_a_whole_job_verifies_and_replays(team: Terminal) -> None:
    for command in ("verify", "replay"):
        shown = team.run(command, "team")
        assert shown.code == 0, shown.err
        assert shown.out.startswith("Job team: 44 events of 3 Runs checked, every ")
        assert team.call(command).out == shown.out


def test_an_edited_event_is_found_with_its_file_and_line(own_team: Terminal) -> None:
    path = own_team.log_of("team-2")
    path.write_bytes(path.read_bytes().replace(b"first part", b"other part"))
    shown = own_team.call("verify")
    assert shown.code == 1
    assert f"{path}, line 1," in shown.out
    assert shown.lines[-1].startswith("Job team: ")


def test_a_cut_tail_is_found_against_the_heads_kept_elsewhere(own_team: Terminal) -> None:
    path = own_team.log_of("team-2")
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    shown = own_team.call("verify", "--json")
    report = json.loads(shown.out)
    assert (shown.code, report["ok"], report["jobId"], report["runs"]) == (1, False, "team", 3)
    assert [finding["runId"] for finding in report["findings"]] == ["team-2"]
    assert "had 10 events" in report["findings"][0]["message"]


def test_a_log_that_was_rewritten_whole_is_found(own_team: Terminal) -> None:
    reseal(own_team, "team-2", b"A part.", b"A plot.")
    shown = own_team.call("verify")
    assert shown.code == 1
    assert "rewritten" in shown.out


def test_replay_finds_a_decision_that_the_loop_would_not_make(own_team: Terminal) -> None:
    reseal(own_team, "team-2", b'"text":"A part.","totalUsage"', b'"text":"A plot.","totalUsage"')
    shown = own_team.call("replay")
    assert shown.code == 1
    assert shown.lines[0].startswith("team-2, event 10: text 'A plot.'")
    assert shown.lines[-1] == "Job team: 44 events of 3 Runs checked, 1 finding"


def test_a_redacted_event_verifies_and_is_named_where_its_content_is_needed(own_team: Terminal) -> None:
    path = own_team.log_of("team-2")
    lines = path.read_bytes().splitlines()
    sealed = open_line(lines[4])
    redacted = b'{"type":"finishToolCall","id":"team-2-5","redacted":true}'
    lines[4] = line_of(redacted, sealed.digest, sealed.hash)
    path.write_bytes(b"\n".join(lines) + b"\n")
    assert own_team.call("verify").code == 0
    replayed = own_team.call("replay")
    assert replayed.code == 1
    assert replayed.lines[0].startswith("team-2, event 5: its content was taken out")
    assert own_team.call("log").code == 0
    (own_team.jobs() / "team" / "job.json").unlink()
    assert own_team.call("jobs", "--json").events[0]["status"] == "stoppedByError"


def test_a_run_without_its_log_is_found(own_team: Terminal) -> None:
    rmtree(own_team.log_of("team-3").parent)
    assert own_team.call("verify").code == 1


def test_an_unknown_job_is_wrong_usage(team: Terminal) -> None:
    for command in ("verify", "replay"):
        shown = team.call(command, "nowhere")
        assert (shown.code, shown.out) == (2, "")
