"""How deep values are nested, found without recursion: they may be deeper than any stack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast


def layers(value: object) -> Iterator[list[object]]:
    """A value, then what is in it, then what is in that, for as long as there is anything; JSON and TOML alike."""
    layer = [value]
    while layer:
        yield layer
        inner: list[object] = []
        for one in layer:
            if isinstance(one, dict):
                inner += cast("dict[str, object]", one).values()
            elif isinstance(one, list):
                inner += cast("list[object]", one)
        layer = inner
