"""The server scenarios of the public MCP conformance suite, against `perstack mcp --http`, in both eras.

The suite calls tools and prompts of its own names. Where an Expert can do what a scenario wants of a tool, the project
has one of that name. `conformance-failures.toml` names the scenarios that do not pass, with the reason of each. It may
only shrink: a scenario that is named and passes fails the test, like one that is not named and does not pass.
"""

from __future__ import annotations

import os
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from conformance_suite import RUNS, command_of, outcome_of
from http_server import forwarded, serving
from terminal import Terminal, reply

pytestmark = pytest.mark.others

QUERIES = Path(__file__).parents[2] / "support" / "conformance_query.mjs"
FAILURES: dict[str, Any] = tomllib.loads(
    (Path(__file__).parent / "conformance-failures.toml").read_text(encoding="utf-8")
)
SAY = [reply("This is a simple text response for testing.")]
NAME = reply("", ("askUser", {"question": "What is your name?"}))
STEPS = [*(reply("", ("think", {"thought": "hm"})) for _ in range(3)), reply("Done.")]
EXPERTS = {
    "test_simple_text": SAY,
    "test_simple_prompt": SAY,
    "test_prompt_with_arguments": SAY,
    "test_error_handling": [],
    "test_tool_with_progress": STEPS,
    "test_tool_with_logging": STEPS,
    "test_logging_tool": STEPS,
}
ASKING = {
    "test_elicitation": [NAME, reply("Hello.")],
    "test_streaming_elicitation": [NAME, reply("Hello.")],
    "test_input_required_result_elicitation": [NAME, reply("Hello.")],
    "test_input_required_result_request_state": [NAME, reply("Hello.")],
    "test_input_required_result_tampered_state": [NAME, reply("Hello.")],
}
"""Experts with a tool that asks the person, and their turns."""
OPTIONS = ("option1", "option2", "option3")
TITLED = [{"const": "value1", "title": "First"}, {"const": "value2", "title": "Second"}]
FORMS = {
    "test_elicitation_sep1034_defaults": [
        {
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
            "verified": {"type": "boolean", "default": True},
        }
    ],
    "test_elicitation_sep1330_enums": [
        {
            "untitledSingle": {"type": "string", "enum": OPTIONS},
            "titledSingle": {"type": "string", "oneOf": TITLED},
            "legacyEnum": {"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["One", "Two"]},
            "untitledMulti": {"type": "array", "items": {"type": "string", "enum": OPTIONS}},
            "titledMulti": {"type": "array", "items": {"anyOf": TITLED}},
        }
    ],
    "test_input_required_result_multi_round": [{"name": {"type": "string"}}, {"color": {"type": "string"}}],
}
"""Experts with a tool that has forms filled in while it runs, and the fields of each form."""
TOOL = """
[experts.{name}.skills.user]
type = "interactiveSkill"
[experts.{name}.skills.user.tools.askUser]
inputJsonSchema = '{{"type": "object", "properties": {{"question": {{"type": "string"}}}}, "required": ["question"]}}'
"""


@pytest.fixture
def fixtures(terminal: Terminal) -> Terminal:
    toml = "".join(f'[experts.{name}]\ninstruction = "[[{name}]]"\n' for name in (*EXPERTS, *ASKING))
    toml += "".join(TOOL.format(name=name) for name in ASKING)
    toml += tomli_w.dumps({"experts": {name: filling(name, forms) for name, forms in FORMS.items()}})
    filled = {name: [reply("", ("fill", {})), reply("Hello.")] for name in FORMS}
    terminal.env |= {
        "PERSTACK_PLUGINS": "perstack.testing.plugin,questionnaire",
        "PYTHONPATH": str(QUERIES.parent),
    }
    return terminal.project(toml, **{f"[[{name}]]": turns for name, turns in (EXPERTS | ASKING | filled).items()})


def filling(name: str, forms: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the definition of an Expert that has forms filled in."""
    schemas = [{"type": "object", "properties": fields} for fields in forms]
    skill = {"type": "pluginSkill", "plugin": "questionnaire", "settings": {"forms": schemas}}
    return {"instruction": f"[[{name}]]", "skills": {"forms": skill}}


@pytest.mark.timeout(350)  # the first time, the suites are installed
@pytest.mark.parametrize("run", RUNS)
def test_all_scenarios_pass_but_those_that_are_named_with_a_reason(fixtures: Terminal, run: str) -> None:
    version, *options = RUNS[run]
    command = command_of(version, "--import", str(QUERIES))
    place = fixtures.workspace / "socket"
    env = {"PATH": os.environ["PATH"], "HOME": str(fixtures.workspace)}
    # the suite can show no token
    with serving(fixtures, "--http", f"unix:{place}"), forwarded(place) as url:
        outcome = outcome_of(run, options, [*command, "server", "--url", url], env, fixtures.workspace / "results")
    assert {"dns-rebinding-protection", "tools-call-simple-text"} & outcome.passed, outcome.text
    assert sorted(outcome.failed) == sorted(FAILURES["failing"].get(run, ())), outcome.text


def test_every_failure_is_one_of_a_run_and_has_a_reason() -> None:
    assert FAILURES["failing"].keys() <= RUNS.keys()
    assert FAILURES["reasons"].keys() == set(chain(*FAILURES["failing"].values()))
    assert all(len(reason) > 20 for reason in FAILURES["reasons"].values())
    text = (Path(__file__).parents[3] / "docs" / "mcp.md").read_text(encoding="utf-8")
    assert not [name for name in FAILURES["reasons"] if f"`{name}`" not in text]
