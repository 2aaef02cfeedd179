"""What is taken for a secret, and what stands for it."""

from __future__ import annotations

import os
import time
from base64 import b64encode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from secret_texts import SECRETS

from perstack.core.secrets.masking import (
    SecretMasker,
    digest_of_secret,
    masked_address,
    masked_args,
    masked_error,
    masked_line,
    masked_variables,
    masked_words,
    secrets_in,
)
from perstack.core.secrets.names import is_secret_name

LONG = "A1b2C3d4E5f6G7h8I9j0"


def stars(value: str) -> str:
    return "***"


@pytest.mark.parametrize(
    ("args", "masked"),
    [
        (("--token", "abc", "-v"), ("--token", "***", "-v")),
        (("--api-key=abc",), ("--api-key=***",)),
        (("--apiKey", "abc"), ("--apiKey", "***")),
        (("-e", "GITHUB_TOKEN=ghp"), ("-e", "GITHUB_TOKEN=***")),
        (("--header", "Authorization: Bearer abc"), ("--header", "Authorization: ***")),
        (("--header", "X-Api-Key:abc"), ("--header", "X-Api-Key:***")),
        (("postgres://ada:pw@db/x",), ("postgres://***:***@db/x",)),
        (("https://ghp-as-user:x-oauth-basic@example.com/x",), ("https://***:***@example.com/x",)),
        (("postgres://ada@db/x",), ("postgres://ada@db/x",)),
        (("https://abc@example.com/x",), ("https://***@example.com/x",)),
        (("--url=https://h/x?api_key=abc&page=2",), ("--url=https://h/x?api_key=***&page=2",)),
        (("sk-0123456789abcdefgh",), ("***",)),
        (("--token", "--verbose", "x"), ("--token", "--verbose", "x")),
        (("--password", ""), ("--password", "")),
    ],
)
def test_secrets_in_arguments(args: tuple[str, ...], masked: tuple[str, ...]) -> None:
    assert masked_args(args, stars) == masked


@pytest.mark.parametrize(
    "args",
    [
        ("--token", "${GITHUB_TOKEN}"),
        ("--token=${GITHUB_TOKEN}",),
        ("--token-file", "/run/secrets/token"),
        ("--max-tokens", "100"),
        ("--primary-key", "id"),
        ("--key", "tls/server.key"),
        ("ssh://git@example.com/x.git",),
        ("image@sha256:" + "0" * 64,),
        ("-y", "@scope/package@1.2.3", "/srv/data", "https://example.com/mcp?page=2"),
        ("a:b", "key:value", "monkey=1", "C:/x"),
    ],
)
def test_what_is_no_secret_stays(args: tuple[str, ...]) -> None:
    assert masked_args(args, stars) == args


@pytest.mark.parametrize(
    ("address", "masked"),
    [
        ("https://ada:pw@example.com/mcp", "https://***:***@example.com/mcp"),
        ("https://example.com/mcp?key=abc#token=x", "https://example.com/mcp?key=***#token=***"),
        (f"https://example.com/s/{LONG}/mcp", "https://example.com/s/***/mcp"),
        (f"https://example.com/{'0af3' * 8}", "https://example.com/***"),
        ("https://example.com/a-long-name-of-words-only/mcp", "https://example.com/a-long-name-of-words-only/mcp"),
        ("https://${USER}:${PASSWORD}@example.com/${PLACE}?key=${KEY}",) * 2,
    ],
)
def test_secrets_in_addresses(address: str, masked: str) -> None:
    assert masked_address(address, stars) == masked


def test_secrets_in_variables_lines_and_errors() -> None:
    assert masked_variables({"API_KEY": "x", "LEVEL": "debug", "DB": "pg://a:b@c"}, stars) == {
        "API_KEY": "***",
        "LEVEL": "debug",
        "DB": "pg://***:***@c",
    }
    assert masked_line("measure --token abc  --all | tee 'x y'", stars) == "measure --token ***  --all | tee 'x y'"
    assert masked_line('measure --token "$TOKEN"', stars) == 'measure --token "$TOKEN"'
    said = masked_error(f"Client error '401' for url 'https://a:b@h/{LONG}?api_key=xyz' (token: expired)")
    assert not any(secret in said for secret in ("a:b@", LONG, "xyz"))
    assert said.endswith("' (token: expired)")


@pytest.mark.parametrize("name", ["--token", "API_KEY", "githubToken", "x-api-key", "DB_PASSWORD", "APIKEY"])
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


_PIECES = st.sampled_from(
    [
        "--token",
        "--token=",
        "abc",
        "=",
        ":",
        "//",
        "@",
        "https://",
        "u:p@h",
        "?key=",
        "&",
        "${X}",
        LONG,
        "/",
        " ",
        "sk-",
    ]
)


@example(["https://--token@"])
@example(["?key=https://u:p@h"])
@example(["https://u:p&key=x@h"])
@example(["https://--token?key=x"])
@given(st.lists(st.lists(_PIECES, max_size=6).map("".join), max_size=5))
def test_masking_what_is_masked_changes_nothing_and_leaves_no_secret(args: list[str]) -> None:
    masked = masked_args(args)
    assert masked_args(masked) == masked
    assert masked_address(masked_address("".join(args))) == masked_address("".join(args))
    for secret in secrets_in(lambda substitute: masked_args(args, substitute)):
        assert digest_of_secret(secret) in "".join(masked)


def test_a_private_key_is_masked_behind_what_else_looks_like_a_key() -> None:
    key = "-----BEGIN PRIVATE KEY-----abc=\n-----END PRIVATE KEY-----"
    assert "abc=" not in masked_words(f"sk-aaaaaaaaaaaaaaaa{key}")


LOOK_ALIKES = [
    "commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b",
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08  dist/x.tar.gz",
    "sha512-" + b64encode(bytes(range(64))).decode(),
    "image@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "550e8400-e29b-41d4-a716-446655440000",
    "01ARZ3NDEKTSV4RRFFQ69G5FAV",
    "2024-05-01T10:00:00Z INFO request 7f3a took 12 ms",
    b64encode(b"The quick brown fox jumps over the lazy dog. " * 4).decode(),
    "data:image/png;base64," + b64encode(bytes(range(90))).decode(),
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJq2Yx0mQ1u8n4s3Zb5k7o9c1e3g5i7k9m1o3q5s7u9w ada@h",
    "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE\n-----END PUBLIC KEY-----",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    "It uses basic authentication, and the bearer brings the authorization letter.",
    "Basic understanding of bearer authentication is required. Basic programming is taught.",
    "Authorization: required for each request",
    "Password: must have eight characters, and a token is sent by mail.",
    "The secret of good logs is order; the password is not here, and no token: see below.",
    "Error: invalid token: expired",
    "Use --password to set the password, or --token with a file.",
    "  --password PASSWORD  the password\n  --token <token>  the token\n  --api-key string  the key",
    "def login(password: str, token: Optional[str] = None, api_key: ApiKey) -> AuthToken:",
    "const token: AuthToken = readToken(); let secret = config.secret;",
    "password = getpass.getpass()",
    'token = os.environ["TOKEN"]',
    "PASSWORD=$PASSWORD TOKEN=${TOKEN} KEY=$(cat key)",
    '-H "Authorization: Bearer $TOKEN"',
    "max_tokens=4096, prompt_tokens: 1200, total tokens 31337",
    '{"nextPageToken": "CAUQAA", "next_token": "abcdefgh"}',
    "token_type: bearer, expires_in: 3600",
    "mkdir -p /srv/data && cp -pr a b && ssh -p2222 ada@h && docker run -p8080:80 x && patch -p1",
    "mysql -u root -p shop",
    "curl -u $USER https://example.com/ && curl --proxy http://h:8080/",
    "https://example.com/a/b?page=2&sort=name#top",
    "ssh://git@github.com/x/y.git git@github.com:x/y.git ada@example.com",
    "task-1234567890123456 disk-ab12cd34ef56gh78 risk-1234567890abcdefg",
    "ALTER TABLE x ADD CONSTRAINT pk_organization_members_2 PRIMARY KEY (id)",
    "sk_buff_head_initialization and sk-learn-tutorial-examples and npm_config_registry_example",
    "primary_key: id, foreign key: user_id, cache key: users, sort key = name",
    "host/perstack/core/secrets/masking.py:12:34: error: expected a token",
    "PASS tests/test_password.py::test_token  PASS: test_writer",
    "Cookie: chocolate chip",
    "PWD=/home/ada/work OLDPWD=/home/ada",
    "machine learning: login page, password reset",
    "key: value\nkeyboard: qwerty\nmonkey=12345678",
    b64encode(b"-----BEGIN CERTIFICATE-----\n" + bytes(99)).decode(),
    "certificate-authority-data: " + b64encode(b"-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQ").decode(),
    "PASS: test_b12\nPass: 12 of 14\n  pass: test/x12.py",
    "The password is required. The password is wrong, and the passphrase was changed.",
    "src/main.c:5432:12:5: error and src/a.py:12:34:E501",
    "zip -r a.zip b && ssh-keygen -t rsa -f key && curl -uNAME https://example.com/ -Lo a:b",
    "api_key: str\npassword: SecretStr = Field(min_length=8)\nsecret_name = x\nsecret_scanner_for_repositories",
    "psk_length = 8 and the master key of the house; set -gx PATH /usr/bin",
    "[secret:1] and password: [secret:2] and Authorization: Basic [redacted]",
]


def masked(text: str) -> str:
    return SecretMasker().text(text)


@pytest.mark.parametrize(("text", "secret"), SECRETS)
def test_a_secret_of_the_real_world_is_masked_wherever_it_stands(text: str, secret: str) -> None:
    assert secret in text
    for around in (text, f"first line\n{text}\nlast line", f"  {text}"):
        hidden = masked(around)
        assert secret not in hidden
        assert "[redacted]" in hidden
        assert masked(hidden) == hidden
        assert "last line" in hidden or "last line" not in around


@pytest.mark.parametrize("text", LOOK_ALIKES)
def test_what_only_looks_like_a_secret_stays(text: str) -> None:
    assert masked(text) == text
    assert masked(f"first line\n{text}\nlast line") == f"first line\n{text}\nlast line"


HOSTILE = (
    "a", "A", "1", " ", "\n", "=", ":", "-", "/", "\"", "'", "\\", "$", "{", "<a>", "a:", "a ", "a.", "a b ", "-p ",
    "password", "password=", "password: ", "password: |\n ", "PASSWORD=a", "--password ", "\"password\":\"", "\\\"",
    "'a", "token=token=", "name=token value=", "name:a,", "Authorization: ", "Authorization: Basic ",
    "cookie: a", "://", "a://", "a://b:", "http://a@", "?key=", ";key=", "&a=",
    "AKIA", "AKIAAAAAAAAAAAAAAAAA,", "eyJ", "eyJaaaaaaaa.", "eyJaaaaaaaa-", "-eyJaaaaaaaa", "sk-", "-sk-", "sk-a-",
    "npm_", "hf_a_", "xoxb-", "SG.", "SG.aaaaaaaaaaaaaaaa.", "$2a$", "1:AA", "8Q~", "key-", "ghp_",
    "a:b@", "-----", "-----BEGIN ", "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----aaaaaaaaaaaaaaaaaaaaaaaa\n", "-----BEGIN A PRIVATE KEY", "[secret:1]",
    "password=[secret:1]", "LS0tLS1CRUdJTi", "LS0tLS1CRUdJTi\n", "password: a[",
    "a\x1b[0m", "password\x1b[0m ", "setenv a ", "pw: str = ", "sl.", "EAA", "secret_",
    "[redacted", "secret-sha256:", "//hooks.slack.com/services/", "{\"a\":",
)  # fmt: skip
"""Texts that begin what a pattern looks for, again and again, and never end it."""
LESS = 1 if os.environ.get("PERSTACK_FUZZ") else 4
"""Divides sizes and seconds in an ordinary run; `make fuzz` tries the whole."""


@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_text_takes_linear_time(piece: str) -> None:
    assert _seconds(piece, 200_000 // LESS) < 3 / LESS


@pytest.mark.parametrize("piece", ["a:", "a://b:", "password=", "-p ", "-----BEGIN PRIVATE KEY-----"])
def test_a_hostile_megabyte_is_masked_in_seconds(piece: str) -> None:
    assert _seconds(piece, 1_000_000 // LESS) < 12 / LESS


def _seconds(piece: str, size: int) -> float:
    text = (piece * (size // len(piece) + 1))[:size]
    began = time.process_time()
    masked(text + "!")
    return time.process_time() - began
