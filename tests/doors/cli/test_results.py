"""Structured results from the command line: the option, the key, and errors in a schema."""

from __future__ import annotations

import json

import pytest
from terminal import Terminal, reply

CITY = {"type": "object", "properties": {"people": {"type": "integer"}}, "required": ["people"]}
SCRIPTED = ("--provider", "scripted")


def project(terminal: Terminal, schema: str | None, *replies: str, key: str = "output") -> Terminal:
    line = "" if schema is None else f"{key} = '''{schema}'''\n"
    return terminal.project(
        f'[experts.solo]\ninstruction = "Count."\n{line}', solo=[reply(answer) for answer in replies]
    )


def test_the_result_stands_as_json_beside_the_text_in_events_and_job_json(terminal: Terminal) -> None:
    project(terminal, json.dumps(CITY), "many", '{"people": 3}')
    result = terminal.call("run", "solo", "q", *SCRIPTED, "--job-id", "job")
    assert result.code == 0
    assert result.events[-1]["result"] == {"people": 3}
    assert json.loads(terminal.call("jobs", "--json").out.splitlines()[0])["result"] == {"people": 3}
    log = terminal.call("log", "--job", "job").out
    assert "the result: it is not JSON" in log
    assert terminal.call("replay", "job").code == 0


def test_a_job_with_a_corrected_result_is_exported_in_the_originals_form(terminal: Terminal) -> None:
    project(terminal, json.dumps(CITY), "many", '{"people": 3}')
    terminal.call("run", "solo", "q", *SCRIPTED, "--job-id", "job")
    exported = terminal.call("export", "job", "--format", "perstack", "--to", "copy")
    assert exported.code == 0, exported.err
    (last,) = (terminal.workspace / "copy").rglob("event-*-completeRun.json")
    assert json.loads(last.read_text())["text"] == '{"people": 3}'


def test_a_schema_in_a_file_takes_the_place_of_the_experts_own(terminal: Terminal) -> None:
    project(terminal, json.dumps(CITY), '{"ok": true}')
    (terminal.workspace / "schema.json").write_text('{"required": ["ok"]}')
    result = terminal.call("run", "solo", "q", *SCRIPTED, "--output-schema", "schema.json")
    assert (result.code, result.events[-1]["result"]) == (0, {"ok": True})


def test_a_run_whose_results_do_not_fit_fails_with_what_is_wrong(terminal: Terminal) -> None:
    project(terminal, json.dumps(CITY), '{"people": "many"}', '{"people": "some"}')
    result = terminal.call("run", "solo", "q", *SCRIPTED)
    assert result.code == 1
    assert "the result does not fit the schema that was asked for" in result.err
    assert "at people: 'some' is not of type 'integer'" in result.err


WRONG_SCHEMAS = {
    "": "must not be empty",
    "[": "is not JSON",
    '{"a": 1, "a": 2}': 'has the key "a" twice in one object',
    '{"a": NaN}': "is not JSON",
    "true": "must be the JSON schema of an object",
    '{"type": "array"}': 'write "type": "object", not "array"',
    '{"properties": 3}': "its schema is invalid at properties",
    '{"$ref": "https://example.com/schema.json"}': "refers to https://example.com/schema.json, which is not in it",
    '{"properties": {"a": {"$ref": "file:///etc/passwd"}}}': "refers to file:///etc/passwd, which is not in it",
    '{"$ref": "#"}': "refers to itself without end",
    '{"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}': "without end",
    '{"properties": {"a": {"pattern": "(?=x)"}}}': "pattern (?=x) is not checked",
    json.dumps({"description": "x" * 5_000_000}): "has 5,000,0",
    '{"a": ' * 3000 + "1" + "}" * 3000: "is not JSON",
}


@pytest.mark.parametrize("key", ["output", "returns"])
def test_a_schema_that_cannot_be_used_is_an_error_with_file_line_and_key(terminal: Terminal, key: str) -> None:
    for schema, words in WRONG_SCHEMAS.items():
        if len(schema) > 4_000_000:
            continue
        project(terminal, schema, key=key)
        checked = terminal.call("validate")
        assert checked.code == 2, schema[:100]
        line = next(line for line in checked.out.splitlines() if f"experts.solo.{key}" in line)
        assert "perstack.toml:3: error" in line
        assert words in line, (schema[:100], line)
        assert "Traceback" not in checked.err


def test_a_schema_in_a_file_that_cannot_be_used_is_wrong_usage(terminal: Terminal) -> None:
    project(terminal, None, "x")
    for schema, words in WRONG_SCHEMAS.items():
        (terminal.workspace / "schema.json").write_text(schema)
        ran = terminal.call("run", "solo", "q", *SCRIPTED, "--output-schema", "schema.json")
        assert (ran.code, ran.out) == (2, "")
        assert words.replace("must not be empty", "is not JSON") in ran.err, (schema[:100], ran.err)
    result = terminal.call("run", "solo", "q", *SCRIPTED, "--output-schema", "gone.json")
    assert (result.code, "gone.json: no such file" in result.err) == (2, True)


def test_a_success_without_the_effect_that_was_declared_is_marked_for_a_person(terminal: Terminal) -> None:
    terminal.project('[experts.solo]\ninstruction = "Write."\neffects = true\n', solo=[reply("All is written!")])
    result = terminal.call("run", "solo", "q", *SCRIPTED, "--job-id", "job")
    assert (result.code, result.events[-1]["withoutEffect"]) == (0, True)
    assert "warning: solo: no call had an effect" in result.err
    assert "no call had an effect" in terminal.call("log", "--job", "job").out
