"""A model's Markdown at a terminal: complete blocks of a stream, rendered as lines."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from perstack.core.base.text import plain_text
from perstack.doors.shared.markdown import Block, TextStream, lines_of
from perstack.doors.shared.screen import Screen, sanitized

SCREEN = Screen(80, False, 24)
TEXT = """# The *pond*

An old pond
A frog jumps in

1. first `one`
2. second
   ```sh
   ls

   # no heading
   ```
3. third
   - inner

- bullet

```python
def f():

    return "# x"
```

| name | value |
|------|------:|
| a    | 1     |

> quoted

[text](https://example.com) ![picture](https://example.com/a.png) List<String> &amp; [ref]
[ref]: lost
"""
SHOWN = """The pond

An old pond
A frog jumps in

 1. first one
 2. second
    ls

    # no heading
 3. third
     • inner

 • bullet

  def f():

      return "# x"

 name  value
 ───────────
 a         1

▌ quoted

text (https://example.com) ![picture](https://example.com/a.png) List<String>
& [ref]
[ref]: lost
"""


def blocks(text: str, size: int = 1 << 30) -> list[Block]:
    stream = TextStream()
    found = [block for at in range(0, len(text), size) for block in stream.add(text[at : at + size])]
    return [*found, *stream.end()]


def rendered(text: str, width: int = 78, screen: Screen = SCREEN) -> str:
    lines: list[str] = []
    for block in blocks(text):
        lines += [""] * (block.begins and bool(lines))
        lines += [sanitized(line).rstrip() for line in lines_of(block, screen, width)]
    return "".join(f"{line}\n" for line in lines)


def test_every_element_has_its_form_and_no_text_is_lost() -> None:
    assert rendered(TEXT) == SHOWN


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_the_blocks_do_not_depend_on_the_pieces_in_which_the_text_comes(size: int) -> None:
    assert blocks(TEXT, size) == blocks(TEXT)


def test_a_block_is_returned_as_soon_as_it_is_complete_and_the_rest_can_be_seen() -> None:
    stream = TextStream()
    assert stream.add("One\nand") == []
    assert stream.rest == Block("One\nand")
    assert stream.add(" two\n\n1. a") == [Block("One\nand two")]
    assert stream.add("\n2. b\n") == [Block("1. a", "item")]
    assert stream.rest == Block("2. b", "item", begins=False)
    assert stream.add("```\nx\ny") == [Block("2. b", "item", begins=False), Block("x", "code")]
    assert stream.rest == Block("y", "code", begins=False)
    assert stream.end() == [Block("y", "code", begins=False)]


def test_styles_are_of_sixteen_colours_and_only_where_there_are_colours() -> None:
    coloured = rendered(TEXT, screen=Screen(80, True, 24))
    plain = re.sub(r"\x1b\[(?:0|1|2|3|4|9|3[0-7]|9[0-7])m", "", coloured)
    assert re.sub(r" +$", "", plain, flags=re.MULTILINE) == SHOWN
    assert "\x1b[1m" in coloured


@pytest.mark.parametrize(
    "text",
    ["\x1b[2Ja", "a &#x1b;[2J &#x202e;b &rlm; &#155;8m", "`\x1b]0;owned\x07`", "```\n\x1b[2J\rx\n```", "[a](\x1b[2J)"],
)
def test_nothing_that_a_text_holds_or_names_is_obeyed(text: str) -> None:
    assert plain_text(rendered(text)) == rendered(text)


PIECES = st.sampled_from(
    [*"[]()*_`~<>!#|-+&;:\\\n\n \t", "a", "古", "1. ", "- ", "```", "> ", "  ", "|-|-|\n", "&#x202e;"]
)


@given(st.lists(PIECES, max_size=200).map("".join), st.integers(30, 100))
def test_any_text_is_shown_within_its_width(text: str, width: int) -> None:
    found = rendered(text, width)
    assert all(cell_len(line) <= width for line in found.splitlines())
    assert plain_text(found) == found


@pytest.mark.parametrize(
    "text",
    [
        "![" * 200_000,
        "- item\n" * 100_000,
        "".join(f"{' ' * 2 * depth}- a\n" for depth in range(500)),
        "> " * 10_000 + "a",
        "|a" * 5_000 + "\n" + "|-" * 5_000,
        "*a _b `c\n" * 50_000,
    ],
    ids=["one line", "a list", "nested lists", "nested quotes", "a table", "open marks"],
)
def test_a_huge_or_deep_text_takes_bounded_time_and_is_shown(text: str) -> None:
    began = time.process_time()
    found = rendered(text)
    assert time.process_time() - began < 5
    assert len("".join(found.split())) >= len("".join(text.split())) // 3
