"""Cycles in directed graphs, such as Experts that delegate to each other or tasks that wait for each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence


def find_cycle(task_id: str, depends_on: Sequence[str], waits: Mapping[str, Sequence[str]]) -> tuple[str, ...] | None:
    """Return the cycle that a task would close by waiting for `depends_on`; None if there is none."""
    came_from: dict[str, str] = {}
    to_do = list(depends_on)
    came_from.update(dict.fromkeys(depends_on, task_id))
    while to_do:
        one = to_do.pop()
        if one == task_id:
            return _way_back(task_id, came_from)
        for other in waits.get(one, ()):
            if other not in came_from:
                came_from[other] = one
                to_do.append(other)
    return None


def tasks_on_cycles(waits: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """Return the tasks on cycles, which two tasks can close at one moment, and tasks that wait for these."""
    left = {task_id: [one for one in wanted if one in waits] for task_id, wanted in waits.items()}
    _drop_ends(left)
    return frozenset(left)


def _way_back(task_id: str, came_from: Mapping[str, str]) -> tuple[str, ...]:
    way = [task_id]
    while (before := came_from[way[-1]]) != task_id:
        way.append(before)
    return (task_id, *reversed(way))


def cycles(edges: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """Yield cycles without common nodes, at least one if there is any; edges to nodes that are not keys are ignored."""
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
    """Remove nodes that lead nowhere, until every remaining node leads to a cycle."""
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
