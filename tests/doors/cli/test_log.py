"""`perstack log`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from terminal import Terminal, reply

from perstack.core.base.chain import EMPTY_LOG, open_line, seal
from perstack.core.jobs.checkpoints import Checkpoint
from perstack.testing.scripted import ANY_EXPERT


def stored_lines(terminal: Terminal, run_id: str) -> list[str]:
    return terminal.log_of(run_id).read_text().splitlines()


def damage(path: Path, line: int, old: bytes, new: bytes) -> None:
    lines = path.read_bytes().split(b"\n")
    assert old in lines[line - 1]
    lines[line - 1] = lines[line - 1].replace(old, new)
    path.write_bytes(b"\n".join(lines))


def words(out: str) -> list[tuple[str, str]]:
    """Return label and word of each row."""
    rows = re.findall(r"^\d\d:\d\d:\d\d (\S+) +\d+ (.{9})", out, re.MULTILINE)
    return [(label, word.strip()) for label, word in rows]


def test_the_latest_job_is_shown_by_default_summary_first(team: Terminal) -> None:
    result = team.call("log")
    assert result.code == 0
    assert result.lines[0].startswith("Job team  lead  completed after ")
    assert "  query   Do both parts" in result.lines
    assert "  spent   8 of at most 100 steps, 610 + 62 tokens, cost unknown" in result.lines
    assert "  Runs    lead#1 4 steps, helper#2 2 steps, helper#3 2 steps" in result.lines
    assert "  result  All is done." in result.lines


def test_events_of_all_runs_are_in_order_of_time_each_with_its_expert_and_run(team: Terminal) -> None:
    rows = words(team.call("log").out)
    assert rows[0] == ("lead#1", "query")
    assert rows[-1] == ("lead#1", "completed")
    asked = rows.index(("lead#1", "delegates"))
    for helper in ("helper#2", "helper#3"):
        assert [word for label, word in rows if label == helper] == [
            "query", "model", "calls", "result", "step", "says", "step", "completed",
        ]  # fmt: skip
        assert asked < rows.index((helper, "query")) < rows.index((helper, "completed"))
    answered = max(i for i, row in enumerate(rows) if row == ("helper#2", "completed"))
    assert ("lead#1", "result") in rows[answered:]


def test_a_row_says_what_happened(team: Terminal) -> None:
    out = team.call("log").out
    for text in (
        "thinks    Two parts.",
        "says      I plan.",
        'calls     todo {"newTodos": ["one", "two"]}',
        "delegates helper#2: first part",
        "result    helper#2: A part.",
        "error     nosuch: There is no tool 'nosuch'",
        "completed All is done.",
    ):
        assert text in out
    assert re.search(r"step      team-1-6: \d+ ms, 100 \+ 10 tokens", out)


def test_json_is_exactly_the_stored_lines(team: Terminal) -> None:
    every = [line for run in ("team-1", "team-2", "team-3") for line in stored_lines(team, run)]
    result = team.run("log", "--json")
    assert sorted(result.lines) == sorted(every)
    times = [json.loads(line)["timestamp"] for line in result.lines]
    assert times == sorted(times)
    assert team.call("log", "--run", "team-2", "--json").lines == stored_lines(team, "team-2")


@pytest.mark.parametrize(
    ("steps", "expected"),
    [("2", {2}), (">2", {3, 4}), ("<2", {1}), (">=2", {2, 3, 4}), ("<=2", {1, 2}), ("2-3", {2, 3}), ("9", set())],
)
def test_steps_narrow_the_events(team: Terminal, steps: str, expected: set[int]) -> None:
    result = team.call("log", "--run", "team-1", "--step", steps, "--json")
    assert {event["step"] for event in result.events} == expected


@pytest.mark.parametrize("steps", ["x", ">2-3", "-", "1-", "=5"])
def test_steps_that_are_none_are_a_usage_error(team: Terminal, steps: str) -> None:
    result = team.call("log", "--step", steps)
    assert (result.code, result.out) == (2, "")
    assert "write it as" in result.err


def test_types_choose_events_and_an_unknown_one_is_refused_with_those_there_are(team: Terminal) -> None:
    result = team.call("log", "--type", "startRun,finishRun", "--type", "callDelegate", "--json")
    assert [event["type"] for event in result.events].count("startRun") == 3
    assert {event["type"] for event in result.events} == {"startRun", "finishRun", "callDelegate"}
    refused = team.call("log", "--type", "finishrun")
    assert refused.code == 2
    assert "finishRun" in refused.err


def test_a_type_that_is_left_out_as_a_rule_is_shown_when_it_is_asked_for(team: Terminal) -> None:
    assert ("lead#1", "generates") not in words(team.call("log").out)
    assert set(words(team.call("log", "--type", "startGeneration", "--run", "team-1").out)) == {("lead#1", "generates")}


def test_errors_are_failed_calls_failed_runs_and_retries(terminal: Terminal) -> None:
    terminal.project(
        '[experts.a]\ninstruction = "i"\n',
        a=[
            reply("", ("nosuch", {})),
            {"error": {"status": 529, "message": "overloaded", "retryAfter": 0}},
            {"error": {"status": 400, "message": "bad words"}},
        ],
    )
    assert terminal.call("run", "a", "q", "--provider", "scripted").code == 1
    result = terminal.call("log", "--errors", "--json")
    assert [event["type"] for event in result.events] == ["finishToolCall", "retry", "errorRun"]
    assert "  error   bad words" in terminal.call("log").out
    assert "perstack resume" in terminal.call("log").out


def test_tools_and_delegations_choose_their_events_and_kinds_add_up(team: Terminal) -> None:
    tools = team.call("log", "--tools", "--json").events
    assert {event["type"] for event in tools} == {"callTools", "finishToolCall"}
    between = team.call("log", "--delegations", "--json").events
    assert {(event["type"], event["runId"]) for event in between} == {
        ("callDelegate", "team-1"),
        ("stopRunByDelegate", "team-1"),
        ("startRun", "team-2"),
        ("startRun", "team-3"),
        ("finishRun", "team-2"),
        ("finishRun", "team-3"),
        ("finishToolCall", "team-1"),
    }
    results = [event for event in between if event["type"] == "finishToolCall"]
    assert [event["toolName"] for event in results] == ["helper", "helper"]
    events = team.call("log", "--tools", "--delegations", "--json").events
    assert len(events) == len({event["id"] for event in (*tools, *between)})


def test_a_failed_delegation_counts_as_delegation(terminal: Terminal) -> None:
    terminal.project(
        '[experts.a]\ninstruction = "i"\ndelegates = ["b"]\n[experts.b]\ninstruction = "i"\n',
        a=[reply("", ("b", {"query": "try"})), reply("So be it.")],
        b=[{"error": {"status": 400, "message": "no"}}],
    )
    assert terminal.call("run", "a", "q", "--provider", "scripted").code == 0
    events = terminal.call("log", "--delegations", "--json").events
    assert [event["type"] for event in events if event["runId"].endswith("-1")] == [
        "callDelegate", "stopRunByDelegate", "finishToolCall",
    ]  # fmt: skip
    assert "errorRun" in [event["type"] for event in events]


def test_the_newest_events_are_taken_and_a_line_says_how_to_see_more(team: Terminal) -> None:
    lines = team.call("log", "--json").lines
    assert team.call("log", "--json", "--take", "3").lines == lines[-3:]
    assert team.call("log", "--json", "--take", "3", "--offset", "2").lines == lines[-5:-2]
    result = team.call("log", "--take", "2")
    assert words(result.out)[-1] == ("lead#1", "completed")
    assert re.fullmatch(r"\d+ earlier events: see more with --offset 2, or all with --take 0", result.lines[-1])
    assert "earlier" not in team.call("log", "--take", "0").out


def test_a_hundred_events_are_taken_by_default_and_only_they_are_parsed(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perstack.core.runs import events
    from perstack.doors.shared import log_view as log_entries

    terminal.project(
        '[experts.a]\ninstruction = "i"\nmaxRepeats = 0\n',
        a=[{**reply("", ("think", {"thought": "hm"})), "repeat": 60}, reply("Done.")],
    )
    assert terminal.call("run", "a", "q", "--provider", "scripted").code == 0
    parsed: list[bytes] = []

    def count(payload: bytes) -> events.StoredEvent:
        parsed.append(payload)
        return events.parse_event(payload)

    monkeypatch.setattr(log_entries, "parse_event", count)
    result = terminal.call("log")
    assert "earlier events" in result.lines[-1]
    assert len(parsed) <= 150  # the hundred, and the replies that calls are explained from


def test_a_checkpoint_is_shown_whole_as_json(team: Terminal) -> None:
    result = team.call("log", "--checkpoint", "team-1-6", "--messages", "--json")
    checkpoint = Checkpoint.model_validate_json(result.out)
    assert (checkpoint.id, checkpoint.step_number, checkpoint.expert.key) == ("team-1-6", 1, "lead")
    assert [message.type for message in checkpoint.messages] == [
        "instructionMessage", "userMessage", "expertMessage", "toolMessage",
    ]  # fmt: skip
    assert [todo.title for todo in checkpoint.todos] == ["one", "two"]
    assert team.call("log", "--checkpoint", "team-1-6", "--json").out == result.out


def test_a_checkpoint_is_shown_to_people_with_its_messages_on_request(team: Terminal) -> None:
    result = team.call("log", "--checkpoint", "team-2-6")
    assert result.lines[0] == "Checkpoint team-2-6  helper#2  proceeding"
    assert "  delegate   of team-1" in result.lines
    assert "first part" not in result.out
    assert "── query ──\nfirst part\n" in team.call("log", "--checkpoint", "team-2-6", "--messages").out


def test_messages_alone_are_those_of_the_coordinators_latest_checkpoint(team: Terminal) -> None:
    result = team.call("log", "--messages")
    assert result.lines[0] == "Checkpoint team-1-24  lead#1  completed"
    assert result.out.endswith("── Expert ──\nAll is done.\n")
    assert team.call("log", "--messages", "--run", "team-3").lines[0].startswith("Checkpoint team-3-10 ")
    last = json.loads(team.call("log", "--messages", "--json", "--take", "1").out)["messages"]
    assert [message["type"] for message in last] == ["expertMessage"]


def test_options_that_choose_events_do_not_go_with_messages(team: Terminal) -> None:
    refused = team.call("log", "--messages", "--errors")
    assert (refused.code, refused.out) == (2, "")
    assert "leave them out" in refused.err


@pytest.mark.parametrize(
    "args",
    [
        ("--job", "nowhere"),
        ("--job", "../team"),
        ("--run", "team-9"),
        ("--run", "team/1"),
        ("--checkpoint", "team-1-999"),
        ("--checkpoint", "no checkpoint"),
        ("--job", "team", "--run", "other-1"),
    ],
)
def test_an_id_that_does_not_exist_or_is_none_is_one_line_and_status_2(team: Terminal, args: tuple[str, ...]) -> None:
    result = team.call("log", *args)
    assert (result.code, result.out) == (2, "")
    assert re.fullmatch(r"error: .+\n", result.err)


def test_without_any_job_it_says_how_to_start_one(terminal: Terminal) -> None:
    result = terminal.call("log")
    assert result.code == 2
    assert "perstack run" in result.err


def test_a_broken_definition_is_no_hindrance(own_team: Terminal) -> None:
    (own_team.workspace / "perstack.toml").write_text("[experts.lead]\n")
    result = own_team.call("log")
    assert result.code == 0
    assert "searched for in file:perstack" in result.err
    assert own_team.call("log", "--storage", "file:perstack").err == ""


def test_a_damaged_log_is_shown_as_far_as_it_reads_and_the_damage_is_named(own_team: Terminal) -> None:
    path = own_team.log_of("team-1")
    damage(path, 12, b"A part", b"A lie!")
    result = own_team.call("log")
    assert result.code == 1
    assert ("lead#1", "delegates") in words(result.out)
    assert ("helper#3", "completed") in words(result.out)
    assert ("lead#1", "completed") not in words(result.out)
    assert re.fullmatch(rf"damaged: {re.escape(str(path))}, line 12, .+\n", result.err)
    as_json = own_team.call("log", "--json", "--run", "team-1")
    assert (as_json.code, len(as_json.lines)) == (1, 11)


def test_a_damaged_log_without_a_summary_is_shown_all_the_same(own_team: Terminal) -> None:
    damage(own_team.log_of("team-1"), 12, b"A part", b"A lie!")
    (own_team.jobs() / "team" / "job.json").unlink()
    result = own_team.call("log")
    assert result.code == 1
    assert "failed" in result.lines[0]
    assert ("lead#1", "delegates") in words(result.out)
    listed = own_team.call("jobs", "--json")
    assert (listed.code, listed.events[0]["status"]) == (0, "stoppedByError")
    assert "line 12" in listed.events[0]["error"]


def test_a_checkpoint_before_the_damage_is_whole(own_team: Terminal) -> None:
    damage(own_team.log_of("team-1"), 12, b"A part", b"A lie!")
    assert own_team.call("log", "--checkpoint", "team-1-6", "--json").code == 0
    result = own_team.call("log", "--messages")
    assert result.code == 1
    assert result.lines[0].startswith("Checkpoint team-1-11 ")
    assert "damaged: " in result.err


def test_a_log_damaged_from_its_first_line_on_is_an_error_of_one_line(own_team: Terminal) -> None:
    damage(own_team.log_of("team-1"), 1, b"Do both", b"Do none")
    (own_team.jobs() / "team" / "job.json").unlink()
    result = own_team.call("log", "--run", "team-1")
    assert result.code == 1
    assert "line 1," in result.err
    assert "Traceback" not in result.err


def test_an_event_of_a_newer_version_is_shown_as_it_is(own_team: Terminal) -> None:
    path = own_team.log_of("team-2")
    payloads = [open_line(line).payload for line in path.read_bytes().splitlines()]
    payloads.append(payloads[-1].replace(b'"finishRun"', b'"celebrateRun"'))
    head, lines = EMPTY_LOG, []
    for payload in payloads:
        sealed, head = seal(head, [payload])
        lines += sealed
    path.write_bytes(b"\n".join(lines) + b"\n")
    result = own_team.call("log", "--run", "team-2")
    assert result.code == 0
    assert result.lines[-1].split()[3] == "celebrateRun"
    refused = own_team.call("export", "team", "--format", "json")
    assert refused.code == 1
    assert re.fullmatch(r"error: team-2, event 11: a newer version has written it, .*\n", refused.err)


def test_a_job_that_waits_shows_its_question_and_how_to_answer(waiting: Terminal) -> None:
    result = waiting.call("log")
    assert "  asks    Tea or coffee?" in result.lines
    assert '  next    perstack answer ask "ANSWER"' in result.lines
    assert ("guest#1", "asks") in words(result.out)
    answered = waiting.call("run", "guest", "Tea", "--continue-job", "ask", "-i", "--provider", "scripted")
    assert answered.code == 0, answered.err
    assert "result    askUser: Tea" in waiting.call("log").out


def test_a_terminal_gets_colours_and_lines_of_its_width_and_a_pipe_neither(terminal: Terminal) -> None:
    terminal.project('[experts.a]\ninstruction = "i"\n', a=[reply("word " * 100)])
    assert terminal.call("run", "a", "q", "--provider", "scripted").code == 0
    seen = terminal.look("log", columns=60)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", seen)
    assert seen != plain
    assert max(map(len, plain.splitlines())) == 60
    assert "…" in plain
    piped = terminal.run("log").out
    assert "\x1b" not in piped
    assert ("word " * 100).strip() in piped
    assert ("word " * 100).strip() in re.sub(r"\s+", " ", terminal.look("log", "-v", columns=60))


def test_of_a_long_expert_name_the_end_is_left_out_and_never_the_runs_number(terminal: Terminal) -> None:
    terminal.project(
        '[experts."@acme/a-very-long-name-for-one"]\ninstruction = "i"\n', **{ANY_EXPERT: [reply("Done.")]}
    )
    assert terminal.call("run", "@acme/a-very-long-name-for-one", "q", "--provider", "scripted").code == 0
    (label,) = {label for label, _ in words(terminal.call("log").out)}
    assert label == "@acme/a-very-long-nam…#1"


def test_escape_sequences_of_a_model_do_not_reach_the_terminal(terminal: Terminal) -> None:
    terminal.project('[experts.a]\ninstruction = "i"\n', a=[reply("\x1b[2Jgone\x07\r\nand back")])
    assert terminal.call("run", "a", "q", "--provider", "scripted").code == 0
    for args in ((), ("-v",), ("--messages",)):
        out = terminal.call("log", *args).out
        assert "gone" in out
        assert not {"\x1b", "\x07", "\r"} & set(out)


def test_a_reader_that_has_seen_enough_is_no_error(team: Terminal) -> None:
    command = f"{sys.executable} -m perstack log --json --take 0 | head -n 1"
    done = subprocess.run(
        ["sh", "-c", command], cwd=team.workspace, env=team.env, capture_output=True, timeout=60, check=True
    )
    assert done.stdout.count(b"\n") == 1
    assert done.stderr == b""


def test_a_skill_that_could_not_be_reached_is_shown_with_the_reason(terminal: Terminal) -> None:
    skill = '[experts.a.skills.gone]\ntype = "mcpStdioSkill"\ncommand = "no-such-command"\n'
    terminal.project('[experts.a]\ninstruction = "i"\n' + skill, a=[reply("ok")])
    assert terminal.call("run", "a", "q", "--provider", "scripted").code == 0
    for args in ((), ("--errors",)):
        (row,) = [line for line in terminal.call("log", *args).lines if " missing " in line]
        assert "skill 'gone' could not be connected to: no-such-command was not found" in row
    assert "missing" not in terminal.call("log", "--tools").out
