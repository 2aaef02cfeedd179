"""Where amazon-bedrock sends to, how its models differ, and what is told before anything is sent."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore.session import Session
from hypothesis import given
from hypothesis import strategies as st
from provider_suite import request_of
from wire_bedrock import BEDROCK, MODEL, NOWHERE

import perstack.http_providers.provider
from perstack.core.definitions.settings import ReasoningBudget
from perstack.errors import DefinitionError, MissingCredential, UsageError
from perstack.ports.provider import ProviderConfig
from perstack_bedrock.plugin import FACTORY, perstack_providers
from perstack_bedrock.request import encode
from perstack_bedrock.settings import BASE_URLS, BedrockSettings, access_of

TOKEN = {"AWS_BEARER_TOKEN_BEDROCK": "a-token"}
PAIR = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "s"}


def _base_url(env: dict[str, str], **setting: Any) -> str:
    return access_of(BedrockSettings.model_validate(setting), {**NOWHERE, **TOKEN, **env}, "x").endpoint.base_url


def _create(setting: dict[str, Any], env: dict[str, str] | None = None) -> Any:
    return FACTORY.create(ProviderConfig(setting, {**NOWHERE, **(env or {})}))


@pytest.mark.parametrize("region", ["us-east-1", "ap-northeast-1", "us-gov-west-1", "cn-north-1", "eusc-de-east-1"])
def test_the_address_is_the_one_that_awss_own_client_has(region: str) -> None:
    client = Session().create_client(
        "bedrock-runtime", region_name=region, aws_access_key_id="a", aws_secret_access_key="s"
    )
    assert _base_url({}, region=region) == client.meta.endpoint_url
    client.close()


def test_the_region_comes_from_the_settings_then_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[default]\nregion = us-west-2\n")
    env = {"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-west-3", "AWS_CONFIG_FILE": str(tmp_path / "config")}
    assert ".eu-central-1." in _base_url(env, region="eu-central-1")
    for name, region in (("AWS_REGION", "eu-west-1"), ("AWS_DEFAULT_REGION", "eu-west-3")):
        assert f".{region}." in _base_url(env)
        del env[name]
    assert ".us-west-2." in _base_url(env)


def test_another_address_is_taken_from_the_settings_then_from_the_environment() -> None:
    env = {name: f"https://vpce{number}.example/" for number, name in enumerate(BASE_URLS)}
    assert _base_url(env) == "https://vpce0.example", "a token needs no region there"
    assert _base_url({BASE_URLS[1]: env[BASE_URLS[1]]}) == "https://vpce1.example"
    assert _base_url(env, baseUrl="https://gate.example/bedrock") == "https://gate.example/bedrock"


@pytest.mark.parametrize(
    ("setting", "env", "named"),
    [
        ({}, TOKEN, "AWS_REGION"),
        ({}, PAIR, "AWS_REGION"),
        ({"baseUrl": "https://gate.example"}, PAIR, "AWS_REGION"),
        ({"region": "eu-west-1"}, {}, "AWS_BEARER_TOKEN_BEDROCK, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ({"region": "eu-west-1"}, {"AWS_BEARER_TOKEN_BEDROCK": " "}, "AWS_BEARER_TOKEN_BEDROCK"),
        (
            {"region": "eu-west-1"},
            {"AWS_ACCESS_KEY_ID": "a"},
            "has only half of the key pair: also set AWS_SECRET_ACCESS_KEY",
        ),
    ],
)
def test_what_is_missing_is_named(setting: dict[str, Any], env: dict[str, str], named: str) -> None:
    with pytest.raises(MissingCredential, match=named):
        _create(setting, env)


def test_a_missing_library_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perstack.http_providers.provider, "find_spec", lambda name: None)
    with pytest.raises(MissingCredential, match=r"pip install 'perstack\[bedrock\]'"):
        _create({}, {**TOKEN, "AWS_REGION": "eu-west-1"})
    assert not FACTORY.is_configured({**TOKEN, "AWS_REGION": "eu-west-1"})


@pytest.mark.parametrize(
    "setting",
    [{"region": "evil.example/"}, {"profile": ""}, {"api": "chat"}, {"baseUrl": "http://a.example"}, {"project": "p"}],
)
def test_a_setting_that_cannot_be_is_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=f"provider.setting.{next(iter(setting))}"):
        _create({"region": "eu-west-1", **setting}, TOKEN)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"AWS_REGION": "evil.example/#"}, r"'evil\.example/#' is not a region"),
        ({"AWS_REGION": "eu-west-1", BASE_URLS[1]: "http://a.example"}, BASE_URLS[1]),
    ],
)
def test_a_variable_that_cannot_be_is_named(env: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        _create({}, {**TOKEN, **env})


def test_a_profile_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[default]\nregion = us-west-2\n")
    env = {**TOKEN, "AWS_CONFIG_FILE": str(tmp_path / "config")}
    for setting, more in (({"profile": "gone"}, {}), ({}, {"AWS_PROFILE": "gone"})):
        with pytest.raises(UsageError, match="gone"):
            _create(setting, {**env, **more})


def test_a_file_of_awss_that_cannot_be_read_is_told_on_one_line(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("no section\n")
    with pytest.raises(UsageError, match="AWS's configuration cannot be used") as caught:
        _create({}, {**TOKEN, "AWS_CONFIG_FILE": str(tmp_path / "config")})
    assert "\n" not in str(caught.value)


def test_a_server_on_this_machine_and_a_gateway_need_no_credentials() -> None:
    assert _create({"baseUrl": "http://localhost:1"})
    assert _create({"baseUrl": "https://gate.example", "headers": {"Authorization": "Bearer of-a-gateway"}})


def test_the_plugin_registers_a_provider_that_a_key_and_a_region_or_a_profile_configure() -> None:
    (factory,) = perstack_providers()
    assert (factory.name, factory.priority, factory.default_model) == ("amazon-bedrock", 60, None)
    assert factory.is_configured({**TOKEN, "AWS_REGION": "eu-west-1"})
    assert factory.is_configured({**PAIR, "AWS_DEFAULT_REGION": "eu-west-1"})
    assert factory.is_configured({"AWS_PROFILE": "work"})
    assert not factory.is_configured(TOKEN)
    assert not factory.is_configured({"AWS_REGION": "eu-west-1"})
    assert "AWS_BEARER_TOKEN_BEDROCK" in factory.how_to_configure


def test_creating_a_provider_with_keys_imports_nothing_heavy() -> None:
    config = ({}, {**NOWHERE, **PAIR, "AWS_REGION": "eu-west-1"})
    code = f"""
import sys
from perstack.ports.provider import ProviderConfig
from perstack_bedrock.plugin import FACTORY
FACTORY.create(ProviderConfig(*{config!r}))
print([name for name in ("botocore.session", "botocore.auth", "httpx") if name in sys.modules])
"""
    paths = ":".join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": paths}, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.strip() == "[]", done.stderr


# --- models -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "budget", "fields", "most"),
    [
        (MODEL, None, None, None),
        (MODEL, "none", {"thinking": {"type": "disabled"}}, None),
        (MODEL, "minimal", {"thinking": {"type": "enabled", "budget_tokens": 1024}}, 32_000),
        (MODEL, "high", {"thinking": {"type": "enabled", "budget_tokens": 24_576}}, 32_768),
        (MODEL, 5000, {"thinking": {"type": "enabled", "budget_tokens": 5000}}, 32_000),
        (
            "anthropic.claude-opus-4-8-v1:0",
            "medium",
            {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "medium"}},
            None,
        ),
        ("amazon.nova-2-lite-v1:0", "none", {"reasoningConfig": {"type": "disabled"}}, None),
        (
            "amazon.nova-2-lite-v1:0",
            "high",
            {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": "high"}},
            None,
        ),
        ("openai.gpt-oss-120b-1:0", "none", {"reasoning_effort": "low"}, None),
        ("openai.gpt-oss-120b-1:0", 10_000, {"reasoning_effort": "medium"}, None),
        ("meta.llama4-scout-17b-instruct-v1:0", "high", None, None),
    ],
)
def test_a_budget_is_sent_as_the_models_family_takes_it(
    model: str, budget: ReasoningBudget | None, fields: dict[str, Any] | None, most: int | None
) -> None:
    request = replace(request_of(BEDROCK), model=model, reasoning_budget=budget)
    body = json.loads(encode(request, BedrockSettings(), {}))
    assert body.get("additionalModelRequestFields") == fields
    assert body.get("inferenceConfig", {}).get("maxTokens") == most


@given(
    st.sampled_from(["minimal", "low", "medium", "high"]) | st.integers(1, 200_000),
    st.none() | st.integers(1, 200_000),
    st.none() | st.integers(1, 200_000),
)
def test_thinking_always_leaves_a_token_for_the_reply_and_never_gets_fewer_than_the_api_takes(
    budget: Any, setting: int | None, asked: int | None
) -> None:
    request = replace(request_of(BEDROCK), model=MODEL, reasoning_budget=budget, max_tokens=asked)
    body = json.loads(encode(request, BedrockSettings(max_tokens=setting), {}))
    most, thinking = body["inferenceConfig"]["maxTokens"], body["additionalModelRequestFields"]["thinking"]
    assert most <= min(one for one in (setting, asked, 208_192) if one is not None)
    if thinking["type"] == "enabled":
        assert 1024 <= thinking["budget_tokens"] < most
    else:
        assert most <= 1024
