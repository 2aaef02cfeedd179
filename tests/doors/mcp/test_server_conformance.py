"""The server scenarios of the public MCP conformance suite, against `perstack mcp --http`, in both eras.

The suite calls tools and prompts of its own names. Where an Expert can do what a scenario wants of a tool, the project
has one of that name. `conformance-failures.toml` names the scenarios that do not pass, with the reason of each. It may
only shrink: a scenario that is named and passes fails the test, like one that is not named and does not pass.
"""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from http_server import forwarded, serving
from npm import installed
from terminal import SECONDS, Terminal, reply

pytestmark = pytest.mark.others

QUERIES = Path(__file__).parents[2] / "support" / "conformance_query.mjs"
KNOWN: dict[str, dict[str, str]] = tomllib.loads(
    (Path(__file__).parent / "conformance-failures.toml").read_text(encoding="utf-8")
)
RUNS = {
    "0.1.16": ("0.1.16",),
    "0.2.0-alpha.12 up to 2025-11-25": ("0.2.0-alpha.12", "--spec-version", "2025-11-25"),
    "0.2.0-alpha.12 at 2026-07-28": ("0.2.0-alpha.12", "--spec-version", "2026-07-28"),
}
SAY = [reply("This is a simple text response for testing.")]
NAME = reply("", ("askUser", {"question": "What is your name?"}))
EXPERTS = {
    "test_simple_text": SAY,
    "test_simple_prompt": SAY,
    "test_prompt_with_arguments": SAY,
    "test_error_handling": [],
    "test_tool_with_progress": [*(reply("", ("think", {"thought": "hm"})) for _ in range(3)), reply("Done.")],
}
ASKING = {
    "test_elicitation": [NAME, reply("Hello.")],
    "test_streaming_elicitation": [NAME, reply("Hello.")],
    "test_input_required_result_elicitation": [NAME, reply("Hello.")],
    "test_input_required_result_request_state": [NAME, reply("Hello.")],
    "test_input_required_result_tampered_state": [NAME, reply("Hello.")],
}
"""Those with a tool that asks the person."""
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
"""Those with a tool at work that has forms filled in, and the fields of each form."""
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
    """The definition of an Expert that has forms filled in."""
    schemas = [{"type": "object", "properties": fields} for fields in forms]
    skill = {"type": "pluginSkill", "plugin": "questionnaire", "settings": {"forms": schemas}}
    return {"instruction": f"[[{name}]]", "skills": {"forms": skill}}


@pytest.mark.timeout(350)  # the first time, the suites are installed
@pytest.mark.parametrize("run", RUNS)
def test_all_scenarios_pass_but_those_that_are_named_with_a_reason(fixtures: Terminal, run: str) -> None:
    version, *options = RUNS[run]
    suite = installed(f"conformance-{version}", (f"@modelcontextprotocol/conformance@{version}",), ("conformance",))
    node = installed("node", ("node@24.9.0",), ("node",)) / "node"
    command = [str(node), "--import", str(QUERIES), str(suite / "conformance"), "server", "--suite", "all", *options]
    place = fixtures.workspace / "socket"
    # the suite can show no token
    with serving(fixtures, "--http", f"unix:{place}"), forwarded(place) as url:
        done = subprocess.run(
            [*command, "--url", url, "--output-dir", str(fixtures.workspace / "results")],
            env={"PATH": os.environ["PATH"], "HOME": str(fixtures.workspace)},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    summary = done.stdout.partition("=== SUMMARY ===")[2]
    passed = set(re.findall(r"^✓ (\S+): [1-9]", summary, re.MULTILINE))
    failed = set(re.findall(r"^✗ (\S+):", summary, re.MULTILINE))
    assert {"dns-rebinding-protection", "tools-call-simple-text"} <= passed, done.stdout + done.stderr
    assert failed == KNOWN[run].keys(), summary


def test_every_failure_is_one_of_a_run_and_has_a_reason() -> None:
    assert KNOWN.keys() == RUNS.keys()
    assert all(len(reason) > 20 for failures in KNOWN.values() for reason in failures.values())
