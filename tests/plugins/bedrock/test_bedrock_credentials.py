"""Who asks at Amazon Bedrock: keys, profiles, programs and tokens, and signatures that are checked without botocore."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aws_signature import signer_of
from hosts import Seen, expert, project_of
from provider_suite import error_of, request_of, using
from wire import Said
from wire_bedrock import BEDROCK, NOWHERE

import perstack_bedrock.credentials
from perstack.core.definitions.settings import ProviderSetting
from perstack.errors import MissingCredential, ProviderError
from perstack.host import Host
from perstack.ports.provider import Provider
from perstack.testing.fake_endpoint import FakeEndpoint, PreparedReply, ReceivedRequest
from perstack_bedrock.credentials import AwsAccount

HELLO = BEDROCK.reply(Said("Hello"))
ID, SECRET, SESSION = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG", "a-session-token"
KEYS = {"AWS_ACCESS_KEY_ID": ID, "AWS_SECRET_ACCESS_KEY": SECRET}
REGION = {"AWS_REGION": "eu-west-1"}


async def _generate(provider: Provider) -> None:
    assert (await provider.generate(request_of(BEDROCK), lambda delta: None)).reply.text == "Hello"


def _request_with(env: dict[str, str], **setting: Any) -> ReceivedRequest:
    return using(BEDROCK, HELLO, act=_generate, env={**NOWHERE, **env}, **setting).asked[0]


def _signer(asked: ReceivedRequest, secret: str = SECRET) -> tuple[str, str, str]:
    return signer_of(asked.method, asked.path, asked.headers, asked.body, secret)


def _failed(env: dict[str, str]) -> ProviderError:
    """The error of who found no credentials; nothing was sent."""
    found: list[ProviderError] = []

    async def act(provider: Provider) -> None:
        with pytest.raises(ProviderError) as caught:
            await _generate(provider)
        found.append(caught.value)

    assert using(BEDROCK, HELLO, act=act, env={**NOWHERE, **env}).asked == []
    return found[0]


def _files(folder: Path, config: str = "", credentials: str = "") -> dict[str, str]:
    """AWS's two files."""
    (folder / "config").write_text(config)
    (folder / "credentials").write_text(credentials)
    files = {"AWS_CONFIG_FILE": str(folder / "config"), "AWS_SHARED_CREDENTIALS_FILE": str(folder / "credentials")}
    return {**NOWHERE, **files}


def _program(folder: Path, code: str) -> str:
    path = folder / "login"
    path.write_text(f"#!{sys.executable}\n{code}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_signatures_are_checked_as_awss_published_example_has_it() -> None:
    signature = "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"
    scope = "AKIDEXAMPLE/20150830/us-east-1/service/aws4_request"
    headers = {
        "host": "example.amazonaws.com",
        "x-amz-date": "20150830T123600Z",
        "authorization": f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host;x-amz-date, Signature={signature}",
    }
    found = signer_of("GET", "/", headers, b"", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
    assert found == ("AKIDEXAMPLE", "us-east-1", "service")
    with pytest.raises(AssertionError):
        signer_of("GET", "/", headers, b"", "another")


def test_keys_of_the_environment_sign_each_request() -> None:
    asked = _request_with({**REGION, **KEYS})
    assert _signer(asked) == (ID, "eu-west-1", "bedrock")
    assert "x-amz-security-token" not in asked.headers
    assert SECRET not in str(asked)


def test_a_session_token_is_sent_and_signed() -> None:
    asked = _request_with({**REGION, **KEYS, "AWS_SESSION_TOKEN": SESSION})
    assert _signer(asked) == (ID, "eu-west-1", "bedrock")
    assert asked.headers["x-amz-security-token"] == SESSION


def test_headers_of_a_gateway_are_sent_and_those_of_aws_are_signed() -> None:
    headers = {"X-Team": "blue", "X-Amzn-Bedrock-GuardrailIdentifier": "g1"}
    asked = _request_with({**REGION, **KEYS}, headers=headers)
    assert (asked.headers["x-team"], asked.headers["x-amzn-bedrock-guardrailidentifier"]) == ("blue", "g1")
    assert _signer(asked) == (ID, "eu-west-1", "bedrock")
    assert "x-amzn-bedrock-guardrailidentifier" in asked.headers["authorization"]


def test_a_token_comes_before_keys() -> None:
    asked = _request_with({**REGION, **KEYS, "AWS_BEARER_TOKEN_BEDROCK": "a-token"})
    assert asked.headers["authorization"] == "Bearer a-token"


PROFILES = """
[default]
region = us-east-2
[profile work]
region = ap-south-1
"""
KEYS_OF_PROFILES = """
[default]
aws_access_key_id = DEFAULTID
aws_secret_access_key = default-secret
[work]
aws_access_key_id = WORKID
aws_secret_access_key = work-secret
aws_session_token = work-token
"""


@pytest.mark.parametrize(
    ("env", "setting", "secret", "signer"),
    [
        ({}, {}, "default-secret", ("DEFAULTID", "us-east-2")),
        ({"AWS_PROFILE": "work"}, {}, "work-secret", ("WORKID", "ap-south-1")),
        ({"AWS_DEFAULT_PROFILE": "work"}, {}, "work-secret", ("WORKID", "ap-south-1")),
        ({"AWS_PROFILE": "default"}, {"profile": "work"}, "work-secret", ("WORKID", "ap-south-1")),
        (KEYS, {"profile": "work"}, "work-secret", ("WORKID", "ap-south-1")),
        ({**KEYS, "AWS_PROFILE": "work"}, {}, SECRET, (ID, "ap-south-1")),
        ({**REGION, "AWS_PROFILE": "work"}, {"region": "us-west-2"}, "work-secret", ("WORKID", "us-west-2")),
        ({**REGION, "AWS_PROFILE": "work"}, {}, "work-secret", ("WORKID", "eu-west-1")),
    ],
)
def test_a_profile_of_awss_files_gives_keys_and_a_region(
    tmp_path: Path, env: dict[str, str], setting: dict[str, str], secret: str, signer: tuple[str, str]
) -> None:
    asked = _request_with({**_files(tmp_path, PROFILES, KEYS_OF_PROFILES), **env}, **setting)
    assert _signer(asked, secret) == (*signer, "bedrock")


def test_credentials_of_a_program_are_kept_until_they_are_about_to_expire(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    lasting, expiring = ((now + timedelta(seconds=seconds)).isoformat() for seconds in (3600, 60))
    program = _program(
        tmp_path,
        f"""
from pathlib import Path
told = Path({str(tmp_path / "told")!r})
count = len(told.read_text()) if told.exists() else 0
told.write_text("." * (count + 1))
until = {lasting!r} if count else {expiring!r}
print('{{"Version": 1, "AccessKeyId": "ID%d", "SecretAccessKey": "s", "Expiration": "%s"}}' % (count + 1, until))
""",
    )
    files = _files(tmp_path, f"[default]\nregion = eu-west-1\ncredential_process = {program}\n")

    async def act(provider: Provider) -> None:
        await _generate(provider)
        await asyncio.gather(*(_generate(provider) for _ in range(5)))

    endpoint = using(BEDROCK, HELLO, act=act, env=files)
    signers = [_signer(asked, "s")[0] for asked in endpoint.asked]
    assert signers[-5:] == ["ID2"] * 5
    assert (tmp_path / "told").read_text() == ".."


def test_a_program_that_fails_is_told_with_its_words(tmp_path: Path) -> None:
    program = _program(tmp_path, "import sys\nsys.exit('log in first:\\nrun my-login')")
    error = _failed(_files(tmp_path, f"[default]\nregion = eu-west-1\ncredential_process = {program}\n"))
    assert (error.name, error.is_retryable) == ("Authentication", False)
    assert "log in first: run my-login" in str(error)


def test_credentials_of_a_container_come_from_its_own_server(monkeypatch: pytest.MonkeyPatch) -> None:
    until = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    given = {"AccessKeyId": "TASKID", "SecretAccessKey": "task-secret", "Token": "task-token", "Expiration": until}
    reply = PreparedReply((json.dumps(given).encode(),), headers={"content-type": "application/json"})

    async def scenario() -> ReceivedRequest:
        async with asyncio.timeout(30), FakeEndpoint(reply) as container, FakeEndpoint(HELLO) as model:
            name, url = "AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{container.url}/keys"
            monkeypatch.setenv(name, url)  # botocore reads it there
            provider = BEDROCK.provider(model.url, {**NOWHERE, **REGION, name: url})
            await _generate(provider)
            await provider.close()
            assert [asked.path for asked in container.asked] == ["/keys"]
            return model.asked[0]

    asked = asyncio.run(scenario())
    assert _signer(asked, "task-secret") == ("TASKID", "eu-west-1", "bedrock")
    assert asked.headers["x-amz-security-token"] == "task-token"


def test_credentials_that_do_not_come_are_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perstack_bedrock.credentials, "_LOOKUP_TIMEOUT_S", 0.05)
    may_end = threading.Event()
    monkeypatch.setattr(AwsAccount, "_get_credentials", lambda self: may_end.wait(30))
    threading.Timer(1, may_end.set).start()
    error = _failed({**REGION, **KEYS})
    assert (error.name, error.is_retryable) == ("Timeout", True)


def test_a_program_that_hangs_keeps_no_process_from_its_end(tmp_path: Path) -> None:
    program = _program(tmp_path, "import sys\nsys.stdin.read()")
    env = _files(tmp_path, f"[default]\nregion = eu-west-1\ncredential_process = {program}\n")
    code = f"""
import asyncio, perstack_bedrock.credentials as credentials
credentials._LOOKUP_TIMEOUT_S = 1
account = credentials.AwsAccount(None, {env!r}, "eu-west-1")
asyncio.run(account.signature("https://a.example", b"", {{}}))
"""
    paths = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    theirs, ours = os.pipe()  # the program ends with it
    try:
        asked = subprocess.run(
            [sys.executable, "-c", code], env=paths, stdin=theirs, capture_output=True, timeout=30, check=False
        )
    finally:
        os.close(theirs)
        os.close(ours)
    assert b"AWS gave no credentials within 1 s" in asked.stderr


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("[default]\nregion = eu-west-1\n", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run `aws configure`"),
        ("[default]\nregion = eu-west-1\nsource_profile = gone\nrole_arn = arn:aws:iam::1:role/r\n", "gone"),
    ],
)
def test_files_that_give_no_credentials_are_told_of_on_one_line(tmp_path: Path, config: str, words: str) -> None:
    error = _failed(_files(tmp_path, config))
    assert isinstance(error, MissingCredential) == words.startswith("set")
    assert words in str(error)
    assert "\n" not in str(error)
    assert not error.is_retryable


@pytest.mark.parametrize(
    "words",
    [
        "The security token included in the request is invalid.",
        "The request signature we calculated does not match the signature you provided.",
        "Signature expired: 20261121T100000Z is now earlier than 20261121T101500Z",
        "Invalid API Key format: Must start with pre-defined prefix",
        "Bearer Token has expired",
    ],
)
def test_credentials_that_aws_does_not_know_are_told_as_such_though_their_status_is_403(words: str) -> None:
    error = error_of(BEDROCK, BEDROCK.error_reply(403, words))
    said = (
        f"provider amazon-bedrock refused the key in AWS_BEARER_TOKEN_BEDROCK, which is set in the environment: {words}"
    )
    assert (error.name, error.status_code, error.is_retryable) == ("Authentication", 403, False)
    assert str(error).startswith(said), str(error)


def test_what_credentials_may_not_do_is_told_as_such() -> None:
    words = "User: arn:aws:iam::1:user/u is not authorized to perform: bedrock:InvokeModelWithResponseStream"
    assert error_of(BEDROCK, BEDROCK.error_reply(403, words)).name == "Permission"


def test_no_secret_stands_in_an_event_a_log_or_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")  # what botocore signs, it tells at DEBUG
    env = {**NOWHERE, **REGION, **KEYS, "AWS_SESSION_TOKEN": SESSION}

    async def scenario() -> tuple[Seen, ReceivedRequest]:
        async with asyncio.timeout(30), FakeEndpoint(BEDROCK.error_reply(400, f"you sent {SESSION}")) as endpoint:
            provider = ProviderSetting(provider_name="amazon-bedrock", setting=BEDROCK.config(endpoint.url).setting)
            project = project_of(expert("a")).model_copy(update={"model": BEDROCK.model, "provider": provider})
            host, seen = Host(project, workspace=tmp_path, env=env), Seen()
            await host.run("a", "hi", on_event=seen)
            await host.close()
            return seen, endpoint.asked[0]

    seen, asked = asyncio.run(scenario())
    assert seen.of("errorRun")[0].error.message == "you sent [redacted]"
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    told = b"".join([*written, *seen.lines, caplog.text.encode()])
    for secret in (SECRET, SESSION, asked.headers["authorization"]):
        assert secret.encode() not in told
