"""What is taken for a secret, and what stands for it."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perstack.core.secret_text import (
    digest_of_secret,
    is_secret_name,
    masked_address,
    masked_args,
    masked_error,
    masked_line,
    masked_variables,
    masked_words,
    secrets_in,
)

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
        (("postgres://ada:pw@db/x",), ("postgres://ada:***@db/x",)),
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
        ("https://ada:pw@example.com/mcp", "https://ada:***@example.com/mcp"),
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
        "DB": "pg://a:***@c",
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
    for secret in secrets_in(lambda stand: masked_args(args, stand)):
        assert digest_of_secret(secret) in "".join(masked)


def test_a_private_key_is_masked_behind_what_else_looks_like_a_key() -> None:
    key = "-----BEGIN PRIVATE KEY-----abc=\n-----END PRIVATE KEY-----"
    assert "abc=" not in masked_words(f"sk-aaaaaaaaaaaaaaaa{key}")
