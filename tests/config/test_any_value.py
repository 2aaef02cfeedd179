"""Whatever stands wherever: a project, or problems that each have a place; never another error."""

from __future__ import annotations

import json
import tomllib
from datetime import date

from hypothesis import given, settings
from hypothesis import strategies as st

from perstack.errors import DefinitionError
from perstack.trust.definition_files import load_project

GOOD = tomllib.loads("""
    model = "m"
    reasoningBudget = "low"
    runtime = "local"
    maxSteps = 5
    envPath = [".env"]
    include = []
    [provider]
    providerName = "openai"
    setting.headers.a = "b"
    [experts.a]
    version = "1.0.0"
    minRuntimeVersion = "v1.0"
    instruction = "x"
    delegates = ["b@1.0.0"]
    tags = ["t"]
    [experts.a.provider]
    providerName = "openai"
    [experts.a.skills.one]
    type = "mcpStdioSkill"
    packageName = "p"
    allowedDomains = ["a.example"]
    lazyInit = true
    [experts.a.skills.two]
    type = "mcpSseSkill"
    endpoint = "https://a.example"
    headers = { a = "b" }
    [experts.a.skills.three]
    type = "interactiveSkill"
    [experts.a.skills.three.tools.ask]
    inputJsonSchema = "{}"
    [experts.a.skills.four]
    type = "pluginSkill"
    plugin = "p"
    settings = { a = [1, { b = 2 }] }
    [experts.b]
    instruction = "x"
""")

SCALARS = (
    st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=8)
    | st.sampled_from(["a", "b", "a@1.0.0", "mcpSseSkill", "interactiveSkill", "docker", "https://[", "{", "[1]", "*"])
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.booleans()
    | st.dates()
)
NAMES = st.sampled_from(["a", "type", "tools", "experts", "instruction", "inputJsonSchema"]) | st.text(
    "ab@/.", max_size=4
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=5
)


def places(value, path=()):
    yield path
    if isinstance(value, dict):
        for name, one in value.items():
            yield from places(one, (*path, name))


def replaced(value, path, new):
    if not path:
        return new
    return {name: replaced(one, path[1:], new) if name == path[0] else one for name, one in value.items()}


def inline(value):
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case date():
            return value.isoformat()
        case dict():
            return "{" + ", ".join(f"{inline(name)} = {inline(one)}" for name, one in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(inline, value)) + "]"
        case _:
            return repr(value)


@settings(deadline=None)
@given(st.sampled_from([path for path in places(GOOD) if path]), VALUES)
def test_a_value_of_any_kind_in_any_place_gives_a_project_or_problems_with_lines(tmp_path_factory, path, value):
    spoilt = replaced(GOOD, path, value)
    file = tmp_path_factory.mktemp("any") / "perstack.toml"
    file.write_text("".join(f"{inline(name)} = {inline(one)}\n" for name, one in spoilt.items()), encoding="utf-8")
    try:
        problems = load_project(file).warnings
    except DefinitionError as error:
        problems = error.problems
        assert any(problem.severity == "error" for problem in problems)
    assert all(problem.line is not None and problem.key and problem.message for problem in problems)
