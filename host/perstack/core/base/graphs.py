"""Cycles in a directed graph, such as Experts that delegate to each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence


def cycles(edges: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """Cycles that have no node in common, each from the first of its nodes in the order of the mapping.

    There is one at least if there is any. Edges to what is not a key are ignored.
    """
    left = {node: [target for target in targets if target in edges] for node, targets in edges.items()}
    while True:
        _drop_ends(left)
        if not left:
            return
        order = {node: place for place, node in enumerate(left)}
        way: dict[str, None] = {}
        node = next(iter(left))
        while node not in way:
            way[node] = None
            node = left[node][0]
        found = list(way)[list(way).index(node) :]
        first = found.index(min(found, key=order.__getitem__))
        yield found[first:] + found[:first]
        gone = set(found)
        for node in found:
            del left[node]
        for other, targets in left.items():
            left[other] = [target for target in targets if target not in gone]


def _drop_ends(left: dict[str, list[str]]) -> None:
    """Take out what leads nowhere, until all that is left leads to a cycle."""
    sources: dict[str, list[str]] = {}
    for node, targets in left.items():
        for target in targets:
            sources.setdefault(target, []).append(node)
    ends = [node for node, targets in left.items() if not targets]
    while ends:
        end = ends.pop()
        del left[end]
        for source in sources.get(end, ()):
            if source in left:
                left[source].remove(end)
                if not left[source]:
                    ends.append(source)
