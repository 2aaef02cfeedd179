"""Good definition files, and how they are found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perstack.config.project_place import find_config
from perstack.core.definitions.settings import ProviderSetting
from perstack.core.definitions.skills import InteractiveSkill, McpSseSkill, McpStdioSkill, PluginSkill
from perstack.definition_files import load_project
from perstack.errors import DefinitionError

EVERYTHING = """
    model = "claude-sonnet-4-5"
    reasoningBudget = "medium"
    runtime = "local"
    maxSteps = 50
    maxRetries = 3
    timeout = 60000
    envPath = [".env", "secret/.env"]
    storage = "sqlite:perstack/state.db"

    [provider]
    providerName = "anthropic"
    [provider.setting]
    baseUrl = "https://proxy.example.com"
    headers = { "X-Team" = "a" }

    [experts."@org/lead"]
    version = "2.1.0"
    minRuntimeVersion = "v1.0"
    description = "Leads"
    instruction = "Lead."
    delegates = ["worker", "worker2@1.0.0"]
    tags = ["latest"]
    model = "claude-haiku-4-5"
    reasoningBudget = 2048
    maxSteps = 10
    maxRetries = 1
    timeout = 1000
    provider = { providerName = "openai" }

    [experts."@org/lead".skills."@perstack/base"]
    type = "mcpStdioSkill"
    command = "npx"
    packageName = "@perstack/base"
    pick = ["attemptCompletion", "todo"]

    [experts."@org/lead".skills.web]
    type = "mcpStdioSkill"
    description = "Search"
    rule = "Cite."
    command = "uvx"
    args = ["mcp-server-fetch"]
    omit = ["x*"]
    requiredEnv = ["KEY"]
    allowedDomains = ["api.example.com", "*.example.org"]
    lazyInit = true
    timeout = 5000

    [experts."@org/lead".skills.remote]
    type = "mcpSseSkill"
    endpoint = "https://api.example.com/mcp"
    headers = { Authorization = "Bearer x" }

    [experts."@org/lead".skills.near]
    type = "mcpSseSkill"
    endpoint = "http://localhost:8000/mcp"
    allowLocalNetwork = true

    [experts."@org/lead".skills.people]
    type = "interactiveSkill"
    [experts."@org/lead".skills.people.tools.askUser]
    description = "Ask"
    inputJsonSchema = '''
    {"type": "object", "properties": {"question": {"type": "string"}}}
    '''

    [experts."@org/lead".skills.mine]
    type = "pluginSkill"
    plugin = "my-plugin"
    settings = { depth = 3, names = ["a"] }

    [experts.worker]
    instruction = "Work."

    [experts.worker2]
    instruction = "Work."
"""


def test_every_key_of_a_project_is_read(write, tmp_path):
    loaded = load_project(write(EVERYTHING))
    project = loaded.project
    assert loaded.warnings == ()
    assert (project.model, project.reasoning_budget, project.runtime) == ("claude-sonnet-4-5", "medium", "local")
    assert (project.max_steps, project.max_retries, project.timeout) == (50, 3, 60000)
    assert project.storage == "sqlite:perstack/state.db"
    assert project.provider == ProviderSetting(
        provider_name="anthropic",
        setting={"baseUrl": "https://proxy.example.com", "headers": {"X-Team": "a"}},
    )
    assert project.path == str(tmp_path / "perstack.toml")
    assert list(project.experts) == ["@org/lead", "worker", "worker2"]


def test_every_key_of_an_expert_is_read(write):
    lead = load_project(write(EVERYTHING)).project.experts["@org/lead"]
    assert (lead.key, lead.version, lead.min_runtime_version) == ("@org/lead", "2.1.0", "v1.0")
    assert (lead.description, lead.instruction, lead.tags) == ("Leads", "Lead.", ("latest",))
    assert lead.delegates == ("worker", "worker2@1.0.0")
    assert (lead.model, lead.reasoning_budget) == ("claude-haiku-4-5", 2048)
    assert (lead.max_steps, lead.max_retries, lead.timeout) == (10, 1, 1000)
    assert lead.provider == ProviderSetting(provider_name="openai")


def test_the_four_kinds_of_skill_are_read_under_their_table_names(write):
    skills = {skill.name: skill for skill in load_project(write(EVERYTHING)).project.experts["@org/lead"].skills}
    assert list(skills) == ["@perstack/base", "web", "remote", "near", "people", "mine"]
    assert skills["web"] == McpStdioSkill(
        name="web",
        description="Search",
        rule="Cite.",
        command="uvx",
        args=("mcp-server-fetch",),
        omit=("x*",),
        required_env=("KEY",),
        allowed_domains=("api.example.com", "*.example.org"),
        lazy_init=True,
        timeout=5000,
    )
    assert skills["remote"] == McpSseSkill(
        name="remote", endpoint="https://api.example.com/mcp", headers={"Authorization": "Bearer x"}
    )
    assert skills["near"] == McpSseSkill(name="near", endpoint="http://localhost:8000/mcp", allow_local_network=True)
    assert skills["mine"] == PluginSkill(name="mine", plugin="my-plugin", settings={"depth": 3, "names": ["a"]})
    people = skills["people"]
    assert isinstance(people, InteractiveSkill)
    assert people.tools[0].name == "askUser"
    assert people.tools[0].input_schema == {"type": "object", "properties": {"question": {"type": "string"}}}


def test_an_expert_without_a_base_skill_is_given_none(write):
    assert load_project(write(EVERYTHING)).project.experts["worker"].skills == ()


def test_names_of_env_files_are_seen_from_the_definition_file(write, tmp_path):
    assert load_project(write(EVERYTHING)).project.env_path == (
        str(tmp_path / ".env"),
        str(tmp_path / "secret" / ".env"),
    )


def test_an_empty_file_is_an_empty_project(write):
    assert load_project(write("")).project.experts == {}


def test_a_byte_order_mark_and_windows_line_ends_are_taken(tmp_path):
    path = tmp_path / "perstack.toml"
    path.write_bytes(b'\xef\xbb\xbf[experts.a]\r\ninstruction = "x"\r\nbogusness = 1\r\n')
    assert [problem.line for problem in load_project(path).warnings] == [3]


@pytest.mark.parametrize("version", ["v1.0", "1.0", "v1", "1.0.0", "0.0.58", "v0.9-beta.1"])
def test_every_runtime_version_up_to_the_originals_is_met(write, version):
    text = f'[experts.a]\ninstruction = "x"\nminRuntimeVersion = "{version}"'
    assert load_project(write(text)).warnings == ()


def test_files_of_the_first_perstack_load_with_warnings_only(write, problems):
    found = problems("""
        model = "claude-sonnet-4-5"
        temperature = 0.3
        runtime = "perstack"
        perstackApiBaseUrl = "https://api.example.com"
        perstackBaseSkillCommand = ["npx", "-y", "@perstack/base"]
        network = { allowedDomains = ["a.example"] }

        [provider]
        providerName = "anthropic"

        envPath = [".env", ".env.local"]

        [experts."a"]
        version = "1.0.0"
        runtime = ["perstack", "cursor"]
        instruction = "x"
        [experts."a".skills."s"]
        type = "mcpSseSkill"
        endpoint = "https://api.example.com/mcp"
        allowedDomains = ["api.example.com"]
    """)
    assert {severity for severity, *_ in found} == {"warning"}
    assert [(line, key) for _, line, key, _ in found] == [
        (2, "temperature"),
        (4, "perstackApiBaseUrl"),
        (5, "perstackBaseSkillCommand"),
        (6, "network"),
        (11, "provider.envPath"),
        (15, "experts.a.runtime"),
        (20, "experts.a.skills.s.allowedDomains"),
    ]


def test_the_nearest_file_from_a_folder_upward_is_found(write, tmp_path):
    outer = write("")
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    assert find_config(deep) == outer
    inner = write("", "a/b/perstack.toml")
    assert find_config(deep) == inner
    assert find_config(tmp_path) == outer


def test_a_folder_of_that_name_is_no_definition_file(write, tmp_path):
    outer = write("")
    (tmp_path / "a" / "perstack.toml").mkdir(parents=True)
    assert find_config(tmp_path / "a") == outer


def test_nothing_is_found_where_there_is_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("perstack.config.project_place.CONFIG_NAME", "no-such-perstack.toml")
    assert find_config(tmp_path) is None


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DefinitionError, match=r"gone\.toml: cannot be read: No such file") as caught:
        load_project(tmp_path / "gone.toml")
    assert caught.value.exit_code == 2


def test_a_good_file_pays_for_no_line_numbers_and_no_suggestions(write):
    path = write(EVERYTHING)
    code = (
        "import sys, pathlib; before = set(sys.modules);"  # from 3.13 on pathlib itself imports glob
        "import perstack.definition_files as c; c.load_project(pathlib.Path(sys.argv[1]));"
        "heavy = {'perstack.toml_reader.key_lines', 'difflib', 'glob', 'dotenv'};"
        "print(sorted(heavy & (set(sys.modules) - before)))"
    )
    paths = os.pathsep.join(one for one in sys.path if one)
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, str(path)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.toml"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_files_that_the_original_ran_load_with_no_problem(path):
    loaded = load_project(path)
    assert loaded.warnings == ()
    assert loaded.project.experts
