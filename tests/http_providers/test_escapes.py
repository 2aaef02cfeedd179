"""JSON with halves of surrogate pairs."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json

from perstack.http_providers.replies import replace_lone_surrogates


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        (r'"\ud83d\ude00"', r'"\ud83d\ude00"'),
        (r'"\uD83D x"', r'"\ufffd x"'),
        (r'"\ude00\ud83d"', r'"\ufffd\ufffd"'),
        (r'"\ud83d\ud83d\ude00"', r'"\ufffd\ud83d\ude00"'),
        (r'"\\ud83d"', r'"\\ud83d"'),
        (r'"\\\ud83d"', r'"\\\ufffd"'),
        ("plain", "plain"),
    ],
)
def test_an_escape_that_is_half_of_a_pair_is_replaced_and_nothing_else(text: str, whole: str) -> None:
    assert replace_lone_surrogates(text) == whole


@given(st.text(st.characters() | st.characters(categories=["Cs"]) | st.sampled_from("\\ud8def")))
def test_every_parser_takes_what_comes_of_it(text: str) -> None:
    found = from_json(replace_lone_surrogates(json.dumps(text)))
    assert found == json.loads(json.dumps(text)).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
