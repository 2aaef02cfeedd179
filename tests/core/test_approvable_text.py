"""Text on a page of consent: everything that a person cannot see is written as an escape."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perstack.core.base.text import approvable_line, approvable_text

# Default_Ignorable_Code_Point of Unicode's DerivedCoreProperties.txt, which Python does not have.
IGNORABLE = (
    "00AD 034F 061C 115F-1160 17B4-17B5 180B-180F 200B-200F 202A-202E 2060-206F 3164 FE00-FE0F FEFF FFA0 FFF0-FFF8"
    " 1BCA0-1BCA3 1D173-1D17A E0000-E0FFF"
)


def codes(ranges: str) -> list[int]:
    """Return the code points of ranges such as `FE00-FE0F`."""
    pairs = [(part.partition("-")[0], part.partition("-")[2] or part) for part in ranges.split()]
    return [code for first, last in pairs for code in range(int(first, 16), int(last, 16) + 1)]


@pytest.mark.parametrize("before", ["ls", "日", "e\u0301", "", " "])
def test_every_character_that_renders_nothing_is_an_escape(before: str) -> None:
    for code in codes(IGNORABLE):
        seen = approvable_text(f"{before}{chr(code)}")
        assert seen.startswith(f"{before}\\u"), hex(code)
        assert chr(code) not in seen


def test_no_control_format_separator_private_or_unassigned_character_is_shown() -> None:
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        if unicodedata.category(char)[0] in "CZ" and char not in " \t\n":
            assert approvable_text(f"a{char}b") != f"a{char}b", hex(code)


@pytest.mark.parametrize(
    "char",
    [
        *"\u2800\u3164\u115f\u1160\uffa0\u1161\u11a8",  # braille blank, Hangul fillers and jamo without width
        *"\u00a0\u2003\u3000\u1680\u202f\u205f\u2028\u0085\x0b\x0c\r",  # spaces and line ends
        "\U0001d159",  # musical null notehead
        *"\u00a8\u00b4\u2017",  # a space and a mark by their compatible form
        *"\u20dd\u20e0\ue000\ufdd0\U000f1234\ud800",  # enclosing marks, private use, no character, half a pair
    ],
)
def test_blank_glyphs_and_confusable_white_space_are_escapes(char: str) -> None:
    assert approvable_text(f"rm{char}-rf").startswith("rm\\u")


@pytest.mark.parametrize(
    "text",
    ["日本語（テスト）、…½", "Grüße, «café» – →✓👍🏽€", "Ελληνικά", "кириллица", "हिन्दी", "กี่", "שלום", "한국어"],
)
def test_what_people_write_is_shown_as_it_is(text: str) -> None:
    assert approvable_text(text) == text
    assert approvable_text(unicodedata.normalize("NFC", text)) == unicodedata.normalize("NFC", text)


def test_marks_are_shown_on_letters_and_never_pile_up() -> None:
    assert approvable_text("cafe\u0301") == "cafe\u0301"
    assert approvable_text("r\u0336m\u0336") == "r\\u0336m\\u0336"  # struck out
    assert approvable_text("и\u0306" + "\u0301" * 30) == "и\u0306\u0301" + "\\u0301" * 29
    assert approvable_text("; \u0301ls") == "; \\u0301ls"
    assert approvable_text("rm\u1039 -rf") == "rm\\u1039 -rf"  # a virama of another script has no glyph


def test_long_white_space_is_its_length_and_letters_are_not() -> None:
    assert approvable_text(f"ls{' ' * 3000}; x") == "ls⟦3,000 spaces⟧; x"
    assert approvable_text("ls" + "\u2800" * 30 + "; x") == "ls⟦30 blanks⟧; x"
    assert approvable_text("a\n\n\n\n\n\n\n\n b") == "a\n⟦8 line ends⟧\n b"
    assert approvable_text("b" * 100) == "b" * 100
    assert approvable_line("a\nb\u2028c") == "a\\nb\\u2028c"


@given(st.text(max_size=60))
def test_no_text_keeps_a_hidden_character_and_what_is_shown_once_stays(text: str) -> None:
    seen = approvable_text(text)
    assert approvable_text(seen.replace("⟦", "")) == seen.replace("⟦", "")
    assert all(char in " \t\n" or unicodedata.category(char)[0] in "LMNPS" for char in seen)
