"""docs/providers.md says what the providers take, and nothing else."""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from docs_tables import PrintedTable
from media_limits_page import PRINTED as MEDIA_LIMITS
from pages import keep_part
from profiles_page import PRINTED as PROFILES_TABLE

import perstack_anthropic.provider
import perstack_bedrock
import perstack_bedrock.credentials
import perstack_bedrock.plugin
import perstack_bedrock.settings
import perstack_google
import perstack_google.plugin
import perstack_google.provider
import perstack_openai.endpoints
import perstack_vertex
import perstack_vertex.credentials
import perstack_vertex.plugin
import perstack_vertex.provider
from perstack.core.definitions.models import ModelTier
from perstack.core.definitions.skills import ToolSpec
from perstack.core.messages.messages import History, TextPart, UserMessage
from perstack.http_providers.endpoint import EndpointSettings
from perstack.http_providers.errors import error_name, is_retryable
from perstack.ports.provider import GenerationRequest, ProviderConfig
from perstack_anthropic.messages_api import encode
from perstack_anthropic.plugin import FACTORY as ANTHROPIC
from perstack_anthropic.settings import AnthropicSettings
from perstack_bedrock.plugin import FACTORY as BEDROCK
from perstack_bedrock.settings import BedrockSettings
from perstack_google.plugin import FACTORY as GOOGLE
from perstack_google.request import GoogleSettings
from perstack_google.request import encode as encode_google
from perstack_openai.chat_completions import encode_chat
from perstack_openai.dialect import Dialect
from perstack_openai.endpoints import AzureSettings, CompatibleSettings, OpenAISettings
from perstack_openai.plugin import FACTORIES as OPENAI
from perstack_openai.profiles import PLAIN, PROFILES, profile_named
from perstack_openai.responses_api import encode_responses
from perstack_vertex.plugin import FACTORY as VERTEX
from perstack_vertex.provider import VertexSettings

FACTORIES = (
    ANTHROPIC, GOOGLE, *OPENAI, BEDROCK, VERTEX,
)  # fmt: skip
PAGE = (Path(__file__).parents[2] / "docs" / "providers.md").read_text()


def _rows(after: str) -> list[list[str]]:
    """The cells of the first table after a line of the page."""
    lines = PAGE[PAGE.index(after) :].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| ---"))
    rows: list[list[str]] = []
    for line in lines[start + 1 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def _keys(after: str) -> set[str]:
    return {row[0].strip("`") for row in _rows(after)}


def _aliases(model: type[EndpointSettings]) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


def test_the_settings_are_those_of_the_models() -> None:
    common = _aliases(EndpointSettings)
    assert _keys("Every provider:") == common
    assert _keys("Further keys of `anthropic`:") == _aliases(AnthropicSettings) - common
    assert _keys("Further keys of `google`:") == _aliases(GoogleSettings) - common
    assert _keys("Further keys of `amazon-bedrock`:") == _aliases(BedrockSettings) - common
    assert _keys("Further keys of `google-vertex`:") == _aliases(VertexSettings) - common
    compatible = _aliases(CompatibleSettings)
    assert _keys("[compatible endpoint](#compatible-endpoints):") == compatible - common
    assert _keys("Further keys of `openai`:") == _aliases(OpenAISettings) - compatible
    assert _keys("Further keys of `azure-openai`:") == _aliases(AzureSettings) - compatible


def test_the_variables_are_those_that_are_read() -> None:
    readers = (
        perstack_anthropic.provider,
        perstack_bedrock.credentials,
        perstack_bedrock.plugin,
        perstack_bedrock.settings,
        perstack_bedrock,
        perstack_google.plugin,
        perstack_google.provider,
        perstack_google,
        perstack_openai.endpoints,
        perstack_vertex.credentials,
        perstack_vertex.plugin,
        perstack_vertex.provider,
        perstack_vertex,
    )
    source = "".join(map(inspect.getsource, readers))
    vendors = "ANTHROPIC|AWS|AZURE|CLOUD|CLOUDSDK|GCLOUD|GEMINI|GOOGLE|NO_GCE|OPENAI"
    read = set(re.findall(rf'"((?:{vendors})_[A-Z0-9_]+)"', source))
    of_profiles = {name for profile in PROFILES for name in (*profile.keys, *profile.address_variables)}
    assert _keys("## Environment") - of_profiles == read - of_profiles
    assert of_profiles == {name for row in _rows("<!-- profiles -->") for name in re.findall("`(.+?)`", row[2])}


@pytest.mark.parametrize("printed", [PROFILES_TABLE, MEDIA_LIMITS], ids=lambda printed: printed.name)
def test_a_table_is_the_one_that_the_rows_make(printed: PrintedTable) -> None:
    wanted = printed.table()
    assert keep_part("docs/providers.md", printed.printed(), wanted) == wanted, "write it again: make matrix"


PERSTACK = {
    "anthropic": ("baseUrl headers", "ANTHROPIC_API_KEY ANTHROPIC_BASE_URL"),
    "google": ("baseUrl headers", "GOOGLE_GENERATIVE_AI_API_KEY GOOGLE_GENERATIVE_AI_BASE_URL"),
    "openai": (
        "baseUrl organization project name headers",
        "OPENAI_API_KEY OPENAI_BASE_URL OPENAI_ORGANIZATION OPENAI_PROJECT",
    ),
    "deepseek": ("baseUrl headers", "DEEPSEEK_API_KEY DEEPSEEK_BASE_URL"),
    "ollama": ("baseUrl headers", "OLLAMA_BASE_URL"),
    "azure-openai": (
        "resourceName apiVersion baseUrl headers useDeploymentBasedUrls",
        "AZURE_API_KEY AZURE_RESOURCE_NAME AZURE_API_VERSION AZURE_BASE_URL",
    ),
    "amazon-bedrock": ("region", "AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_REGION"),
    "google-vertex": (
        "project location baseUrl headers",
        "GOOGLE_VERTEX_PROJECT GOOGLE_VERTEX_LOCATION GOOGLE_VERTEX_BASE_URL GOOGLE_APPLICATION_CREDENTIALS",
    ),
}
"""Settings and variables of the original's reference, «Providers and Models»."""


@pytest.mark.parametrize("name", PERSTACK)
def test_the_settings_and_variables_of_the_original_are_taken(name: str) -> None:
    settings, variables = (words.split() for words in PERSTACK[name])
    values = {"baseUrl": "https://a.example", "headers": {"X-Team": "blue"}, "useDeploymentBasedUrls": True}
    setting: dict[str, Any] = {key: values.get(key, "a") for key in settings}
    env = {variable: "https://a.example" if "URL" in variable else "a" for variable in variables}
    env |= {key: __file__ for key in env if key.endswith("CREDENTIALS")}
    (factory,) = [one for one in FACTORIES if one.name == name]
    assert factory.create(ProviderConfig(setting, env))
    assert factory.create(ProviderConfig({}, env)), "two lines of perstack.toml are all that has to change"
    assert set(variables) <= _keys("## Environment")


def test_the_models_and_keys_are_those_of_the_factories() -> None:
    named = [row[0].strip("`") for row in _rows("# Providers over HTTP")]
    in_order = [factory for factory in sorted(FACTORIES, key=lambda factory: factory.priority) if factory.name in named]
    assert named == [factory.name for factory in in_order]
    assert {factory.name for factory in FACTORIES} - {*named} <= {profile.name for profile in PROFILES}
    for factory in in_order:
        (row,) = [row for row in _rows("# Providers over HTTP") if row[0] == f"`{factory.name}`"]
        assert row[3].startswith("none" if factory.default_model is None else f"`{factory.default_model}`")
        assert row[2] == "none" or all(key in factory.how_to_configure for key in re.findall("`(.+?)`", row[2]))


@pytest.mark.parametrize(
    "example", [one for block in PAGE.split("```toml\n")[1:] if "provider" in (one := block.split("```")[0])]
)
def test_each_example_makes_a_provider(example: str) -> None:
    project = tomllib.loads(example)
    (factory,) = [one for one in FACTORIES if one.name == project["provider"]["providerName"]]
    env = {"AZURE_API_KEY": "k", "GOOGLE_APPLICATION_CREDENTIALS": __file__}
    assert factory.create(ProviderConfig(project["provider"].get("setting", {}), env))
    assert project["model"]


async def _no_blobs(sha256: str) -> bytes:
    raise AssertionError(sha256)


def _request(model: str, budget: Any, *tools: ToolSpec) -> GenerationRequest:
    messages = History((UserMessage(contents=(TextPart(text="hi"),)),))
    return GenerationRequest(model, "You.", messages, tools, _no_blobs, reasoning_budget=budget)


@pytest.mark.parametrize("row", _rows("## reasoningBudget")[1:6], ids=lambda row: row[0])
def test_each_budget_is_sent_as_the_table_says(row: list[str]) -> None:
    budget, tokens, effort, openai_effort, deepseek_effort, ollama_effort = (cell.strip("`") for cell in row)
    older = json.loads(encode(_request("claude-opus-4-6", budget), AnthropicSettings(), {}))
    newer = json.loads(encode(_request("claude-sonnet-5", budget), AnthropicSettings(), {}))
    compatible = json.loads(encode_chat(_request("any", budget), Dialect(profile=PLAIN), {}))
    responses = json.loads(encode_responses(_request("any", budget), Dialect(), {}))
    deepseek = json.loads(encode_chat(_request("any", budget), Dialect(profile=profile_named("deepseek")), {}))
    ollama = json.loads(encode_chat(_request("any", budget), Dialect(profile=profile_named("ollama")), {}))
    assert compatible["reasoning_effort"] == responses["reasoning"]["effort"] == openai_effort
    assert deepseek["thinking"]["type"] == ("disabled" if deepseek_effort == "thinking disabled" else "enabled")
    assert deepseek.get("reasoning_effort", "thinking disabled") == deepseek_effort
    assert ollama["reasoning_effort"] == ollama_effort
    if tokens == "thinking disabled":
        assert older["thinking"] == newer["thinking"] == {"type": "disabled"}
    else:
        assert older["thinking"]["budget_tokens"] == int(tokens)
        assert newer["output_config"]["effort"] == effort


@pytest.mark.parametrize("row", _rows("Google's models:")[1:6], ids=lambda row: row[0])
def test_each_budget_is_sent_to_google_as_its_table_says(row: list[str]) -> None:
    budget, tokens, level = (cell.strip("`") for cell in row)
    older, newer = (
        json.loads(encode_google(_request(model, budget), GoogleSettings(), {}))["generationConfig"]["thinkingConfig"]
        for model in ("gemini-2.5-flash", "gemini-3.8-flash")
    )
    assert (older["thinkingBudget"], newer["thinkingLevel"]) == (int(tokens), level)


def test_each_status_has_the_name_and_the_retries_of_the_table() -> None:
    for names, when, again in _rows("## Errors"):
        for status in map(int, re.findall(r"\b[45]\d\d\b", when)):
            if names == "`QuotaExceeded`":
                continue  # by the words of the vendor: tests of `test_client.py`
            if names != "`ContextOverflow`":
                assert f"`{error_name(status)}`" in names
            assert is_retryable(status) == (again == "yes")


def test_the_models_by_tier_are_those_of_the_factories() -> None:
    tiers: tuple[ModelTier, ...] = ("low", "middle", "high")
    with_tiers = {factory.name: factory for factory in FACTORIES if factory.low_model or factory.high_model}
    rows = {row[0].strip("`"): row[1:] for row in _rows("## Models by tier")}
    assert rows == {name: [f"`{factory.model_of(tier)}`" for tier in tiers] for name, factory in with_tiers.items()}
