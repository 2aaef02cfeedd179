"""On which line each key stands, whatever the text between them looks like."""

from __future__ import annotations

import json
import re
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perstack.toml_reader.key_lines import KeyLines


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        ("a = 1\nb = 2", ("b",), 2),
        ("# [a]\n\n[a]\nb = 2", ("a", "b"), 4),
        ("[a.b.c]\n", ("a", "b"), 1),
        ('[a."b.c"]\n\n"d e" = 1', ("a", "b.c", "d e"), 3),
        ("[ a . 'b' ]\nc = 1", ("a", "b", "c"), 2),
        ("a.b.c = 1\na.b.d = 2", ("a", "b", "d"), 2),
        ('"\\u0061" = 1', ("a",), 1),
        ("'a\\b' = 1", ("a\\b",), 1),
        ('a = """\n[b]\nb = 1 \\""" "" \n"""\nb = 2', ("b",), 5),
        ("a = '''\n[b]\nb = 1 '' \n'''\nb = 2", ("b",), 5),
        ('a = """x"""""\nb = 2', ("b",), 2),
        ('a = ""\nb = 2', ("b",), 2),
        ("a = [ # ]\n  1,\n  [2, 3],\n]\nb = 1", ("a", 1, 1), 3),
        ("a = [ # ]\n  1,\n  [2, 3],\n]\nb = 1", ("b",), 5),
        ("a = [\n  { b = 1 },\n  { b = 2, c.d = 3 }\n]", ("a", 1, "c", "d"), 3),
        ('a = { b = "}", "c" = { d = [1] } }\ne = 1', ("a", "c", "d", 0), 1),
        ("[[a]]\nb = 1\n[[a]]\nb = 2\n[a.c]\nd = 3\n[[a.e]]\nf = 1\n[[a.e]]\nf = 2", ("a", 1, "e", 1, "f"), 10),
        ("[[a]]\n[[a]]\n[a.c]\nd = 3", ("a", 1, "c", "d"), 4),
        ("a = 1979-05-27 07:32:00 # x\r\n\r\nb = 2\r\n", ("b",), 3),
    ],
)
def test_the_line_of_a_key_is_found(text, path, line):
    tomllib.loads(text)
    assert KeyLines(text).of(path) == line


def test_a_key_that_is_not_there_has_the_line_of_the_nearest_table_around_it():
    lines = KeyLines("a = 1\n[b]\n[b.c]\nd = 1")
    assert lines.of(("b", "c", "gone", "deeper")) == 3
    assert lines.of(("gone",)) == 1


DECOYS = ["", "[decoy]", "decoy = 1", "# no comment", ']}"', "''", "[[decoy]]", "é\t="]
NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=4) | st.sampled_from(["a", "b", "key"])
SPACE = st.sampled_from(["", " ", "\t "])


class Page:
    """A TOML text in the making, with the line of everything that was written into it."""

    def __init__(self, draw):
        self.draw = draw
        self.text = ""
        self.expected = {}

    def note(self, path):
        for length in range(1, len(path) + 1):
            self.expected.setdefault(path[:length], self.text.count("\n") + 1)

    def pick(self, *choices):
        return self.draw(st.sampled_from(choices))

    def spell(self, name):
        spellings = [json.dumps(name, ensure_ascii=False)]
        if re.fullmatch(r"[A-Za-z0-9_-]+", name):
            spellings.append(name)
        if "'" not in name:
            spellings.append(f"'{name}'")
        return self.pick(*spellings)

    def key(self, names):
        space = self.draw(SPACE)
        return f"{space}.{space}".join(self.spell(name) for name in names)

    def end_line(self):
        self.text += self.pick("\n", "  \n", " # [decoy] = '\n", "\r\n", "\n\n\t\n")

    def gap(self):
        self.text += self.pick("", " ", "\n", " # ], }\n\t")

    def value(self, path, depth):
        kind = self.pick("scalar", "text", "long text", "array", "table") if depth else self.pick("scalar", "text")
        match kind:
            case "scalar":
                self.text += self.pick("1", "true", "-1.5e3", "1979-05-27T07:32:00Z", "1979-05-27 07:32:00", "inf")
            case "text":
                self.text += self.pick('"# [x]"', "'\\'", '"\\"]"', '""', "''")
            case "long text":
                body = "\n".join(self.draw(st.lists(st.sampled_from(DECOYS), max_size=4)))
                self.text += self.pick(f'"""\n{body} \\""" \\\\"""', f"'''{body.replace(chr(39), '')} '''''", '""""""')
            case "array":
                self.array(path, depth)
            case _:
                self.inline_table(path, depth)

    def array(self, path, depth):
        self.text += "["
        count = self.draw(st.integers(0, 3))
        for index in range(count):
            self.gap()
            self.note((*path, index))
            self.value((*path, index), depth - 1)
            self.gap()
            if index < count - 1 or self.draw(st.booleans()):
                self.text += ","
        self.gap()
        self.text += "]"

    def inline_table(self, path, depth):
        self.text += "{"
        for index, name in enumerate(self.draw(st.lists(NAMES, max_size=3, unique=True))):
            self.text += ", " if index else " "
            self.pair(path, [name], depth - 1)
        self.text += " }"

    def pair(self, table, names, depth):
        self.note((*table, *names))
        self.text += self.key(names) + self.draw(SPACE) + "=" + self.draw(SPACE)
        self.value((*table, *names), depth)

    def table(self, written, path, depth):
        """The pairs of a table, and then the tables below it, `written` in their headers."""
        names = self.draw(st.lists(NAMES, max_size=5, unique=True))
        below = names[:2] if depth else []
        for name in names[len(below) :]:
            self.text += self.draw(SPACE)
            self.pair(path, [name, *self.draw(st.lists(NAMES, max_size=1))], 2)
            self.end_line()
        for name in below:
            count = self.draw(st.integers(1, 2)) if self.draw(st.booleans()) else 0
            for index in range(max(count, 1)):
                here = (*path, name, index) if count else (*path, name)
                self.note(here)
                self.text += ("[[{}]]" if count else "[{}]").format(self.key([*written, name]))
                self.end_line()
                self.table([*written, name], here, depth - 1)


@st.composite
def pages(draw):
    page = Page(draw)
    page.table([], (), 2)
    return page


def paths_in(value, path=()):
    if path:
        yield path
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in below:
        yield from paths_in(one, (*path, name))


@settings(deadline=None)  # other work on the machine is not a fault of this code
@given(pages())
def test_every_key_that_tomllib_reads_is_found_where_it_was_written(page):
    lines = KeyLines(page.text)
    assert lines.paths() - {()} == set(paths_in(tomllib.loads(page.text)))
    assert {path: lines.of(path) for path in page.expected} == page.expected
