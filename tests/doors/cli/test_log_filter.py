"""`perstack log --filter`, `--context`, `--summary` and `--pretty`."""

from __future__ import annotations

import json

from terminal import Terminal


def test_a_filter_chooses_events_by_their_fields_and_narrows_the_kinds(team: Terminal) -> None:
    result = team.call("log", "--filter", '.runId == "team-1" && .stepNumber >= 2 && .stepNumber < 4', "--json")
    assert {(event["runId"], event["step"]) for event in result.events} == {("team-1", 2), ("team-1", 3)}
    narrowed = team.call("log", "--tools", "--filter", ".isError == true", "--json")
    assert [event["toolName"] for event in narrowed.events] == ["nosuch"]


def test_events_and_fields_have_their_original_names_too(team: Terminal) -> None:
    completed = team.call("log", "--filter", '.type == "completeRun"', "--json")
    assert [event["type"] for event in completed.events] == ["finishRun"] * 3
    assert team.call("log", "--type", "completeRun", "--json").out == completed.out
    base = team.call("log", "--filter", '.toolCalls[].skillName == "@perstack/base"', "--json")
    assert {event["type"] for event in base.events} == {"callTools"}
    thought = team.call("log", "--filter", '.toolCalls[].args.thought == "hm"', "--json")
    assert {event["runId"] for event in thought.events} == {"team-2", "team-3"}


def test_a_quiet_event_is_shown_if_the_filter_finds_it(team: Terminal) -> None:
    output = team.call("log", "--filter", '.type == "startGeneration" && .runId == "team-2"').out
    assert output.count("generates") == 2


def test_the_context_is_the_events_around_each_and_a_sign_marks_what_was_looked_for(team: Terminal) -> None:
    lines = team.call("log", "--json").lines
    (found,) = (at for at, line in enumerate(lines) if '"isError":true' in line)
    assert team.call("log", "--errors", "--context", "2", "--json").lines == lines[found - 2 : found + 3]
    rows = team.call("log", "--errors", "--context", "1").lines
    assert [row for row in rows if "3>error     nosuch" in row]
    assert rows[-1].startswith("> matches the filter")
    assert len([row for row in rows if "#1    3 " in row]) == 3, rows
    # without a choice, every event is looked for
    assert "> what" not in team.call("log", "--context", "1").out


def test_a_summary_counts_the_chosen_events(team: Terminal) -> None:
    result = team.call("log", "--summary")
    assert "44 events: 1 error, 7 tool calls, 2 delegations" in result.lines
    assert "       5  callTools" in result.lines
    told = json.loads(team.call("log", "--summary", "--json", "--filter", '.runId == "team-2"').out)
    assert told["job"]["id"] == "team"
    assert told["summary"] == {
        "totalEvents": 10,
        "errorCount": 0,
        "toolCallCount": 1,
        "delegationCount": 0,
        "stepRange": {"min": 1, "max": 2},
        "types": told["summary"]["types"],
    }
    assert sum(told["summary"]["types"].values()) == 10


def test_pretty_json_is_the_same_json_indented(team: Terminal) -> None:
    last = team.call("log", "--take", "1", "--json").out
    pretty = team.call("log", "--take", "1", "--pretty").out
    assert pretty.startswith('{\n  "type": "finishRun",\n')
    assert json.loads(pretty) == json.loads(last)
    checkpoint = team.call("log", "--checkpoint", "team-1-14", "--json", "--pretty").out
    assert json.loads(checkpoint)["id"] == "team-1-14"
    assert checkpoint.startswith("{\n")


def test_a_malformed_filter_is_one_error_that_points_at_the_column(team: Terminal) -> None:
    refused = team.call("log", "--filter", '.type = "x"')
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("error: --filter: column 7: unexpected '='")
    assert len(refused.err.splitlines()) == 1


def test_choices_of_events_do_not_go_with_a_checkpoint_or_a_tree(team: Terminal) -> None:
    for option in (["--filter", ".step == 1"], ["--context", "1"], ["--summary"]):
        assert team.call("log", "--messages", *option).code == 2
        assert team.call("log", "--tree", *option).code == 2
    assert team.call("log", "--follow", "--summary").code == 2
