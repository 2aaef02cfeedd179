"""Where google-vertex sends to, and what is told before anything is sent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from wire_vertex import NOWHERE, PLACE, account_file

import perstack.http_providers.provider
from perstack.errors import DefinitionError, MissingCredential, UsageError
from perstack.ports.provider import ProviderConfig
from perstack_vertex import LOCATIONS, PROJECTS
from perstack_vertex.credentials import FILE
from perstack_vertex.plugin import FACTORY, perstack_providers
from perstack_vertex.provider import VertexSettings, endpoint_of, place_of


def _url(env: dict[str, str], **setting: Any) -> str:
    settings = VertexSettings.model_validate(setting)
    place = place_of(settings, env)
    return endpoint_of(settings, env, place).url(place.path_of("google", "g h", "generate"))


def _create(setting: dict[str, Any], env: dict[str, str] | None = None) -> Any:
    return FACTORY.create(ProviderConfig(setting, {**NOWHERE, **(env or {})}))


@pytest.mark.parametrize(
    ("location", "host"),
    [
        ("europe-west4", "europe-west4-aiplatform.googleapis.com"),
        ("global", "aiplatform.googleapis.com"),
        ("us", "aiplatform.us.rep.googleapis.com"),
        ("eu", "aiplatform.eu.rep.googleapis.com"),
    ],
)
def test_the_address_is_that_of_the_location(location: str, host: str) -> None:
    path = f"/v1/projects/p/locations/{location}/publishers/google/models/g%20h:generate"
    assert _url({}, project="p", location=location) == f"https://{host}{path}"


@pytest.mark.parametrize("base", ["https://gate.example/vertex", "https://gate.example/vertex/v1"])
def test_another_address_is_given_the_version_if_it_has_none(base: str) -> None:
    wanted = "https://gate.example/vertex/v1/projects/p/locations/l/publishers/google/models/g%20h:generate"
    assert _url({}, baseUrl=base, project="p", location="l") == wanted
    assert _url({"GOOGLE_VERTEX_BASE_URL": base}, project="p", location="l") == wanted


def test_a_version_of_ones_own_is_kept() -> None:
    assert _url({}, baseUrl="https://gate.example/v1beta1", **PLACE).startswith("https://gate.example/v1beta1/projects")


def test_project_and_location_come_from_the_settings_then_from_the_first_variable_that_is_set() -> None:
    env = {name: f"p{number}" for number, name in enumerate(PROJECTS)}
    env |= {name: f"l{number}" for number, name in enumerate(LOCATIONS)}
    for number, (project, location) in enumerate(zip(PROJECTS, LOCATIONS, strict=True)):
        assert f"/projects/p{number}/locations/l{number}/" in _url(env)
        del env[project], env[location]
        assert "/projects/mine/locations/here/" in _url(env, project="mine", location="here")


@pytest.mark.parametrize(
    ("setting", "named"),
    [({}, "GOOGLE_CLOUD_PROJECT"), ({"project": "p"}, "GOOGLE_CLOUD_LOCATION"), (PLACE, FILE)],
)
def test_what_is_missing_is_named(setting: dict[str, Any], named: str) -> None:
    with pytest.raises(MissingCredential, match=named):
        _create(setting)


def test_a_file_of_credentials_that_is_not_there_is_named() -> None:
    with pytest.raises(MissingCredential, match=f"{FILE}: there is no file /no/where.json"):
        _create(PLACE, {FILE: "/no/where.json"})


def test_a_missing_library_is_named_with_what_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = {FILE: account_file(tmp_path, "https://nowhere.example"), PROJECTS[0]: "p", LOCATIONS[0]: "l"}
    monkeypatch.setattr(perstack.http_providers.provider, "find_spec", lambda name: None)
    with pytest.raises(MissingCredential, match=r"pip install 'perstack\[vertex\]'"):
        _create({}, env)
    assert not FACTORY.is_configured(env)
    assert _create({"headers": {"Authorization": "Bearer of-a-gateway"}}, env), "it makes its tokens itself"


@pytest.mark.parametrize(
    "setting", [{"location": "evil.example/"}, {"project": "../p"}, {"baseUrl": "http://a.example"}]
)
def test_a_setting_that_cannot_be_is_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=f"provider.setting.{next(iter(setting))}"):
        _create({**PLACE, **setting})


def test_a_variable_that_cannot_be_is_named() -> None:
    with pytest.raises(UsageError, match=r"CLOUD_ML_REGION: 'evil\.example/#' is not a location"):
        _create({"project": "p"}, {"CLOUD_ML_REGION": "evil.example/#"})


def test_the_plugin_registers_a_provider_that_project_and_location_configure() -> None:
    (factory,) = perstack_providers()
    assert (factory.name, factory.priority) == ("google-vertex", 70)
    assert factory.is_configured({"GOOGLE_CLOUD_PROJECT": "p", "GOOGLE_CLOUD_LOCATION": "l"})
    assert not factory.is_configured({"GOOGLE_CLOUD_PROJECT": "p", "GOOGLE_CLOUD_LOCATION": " "})
    assert "GOOGLE_CLOUD_PROJECT" in factory.how_to_configure


def test_creating_a_provider_imports_nothing_heavy(tmp_path: Path) -> None:
    config = ({**PLACE}, {FILE: account_file(tmp_path, "https://nowhere.example")})
    code = f"""
import sys
from perstack.ports.provider import ProviderConfig
from perstack_vertex.plugin import FACTORY
FACTORY.create(ProviderConfig(*{config!r}))
print([name for name in ("google.auth", "requests", "httpx", "cryptography") if name in sys.modules])
"""
    paths = ":".join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": paths}, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.strip() == "[]", done.stderr
