"""Cycles in directed graphs, such as Experts that delegate to each other or tasks that wait for each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence


def find_cycle(
    task_id: str, depends_on: Sequence[str], dependencies: Mapping[str, Sequence[str]]
) -> tuple[str, ...] | None:
    """Return the cycle that a task would close by waiting for `depends_on`; None if there is none."""
    came_from: dict[str, str] = {}
    to_do = list(depends_on)
    came_from.update(dict.fromkeys(depends_on, task_id))
    while to_do:
        current = to_do.pop()
        if current == task_id:
            return _way_back(task_id, came_from)
        for dependency in dependencies.get(current, ()):
            if dependency not in came_from:
                came_from[dependency] = current
                to_do.append(dependency)
    return None


def tasks_on_cycles(dependencies: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """Return the tasks on cycles, which two tasks can close at one moment, and tasks that wait for these."""
    remaining = {
        task_id: [name for name in targets if name in dependencies] for task_id, targets in dependencies.items()
    }
    _drop_ends(remaining)
    return frozenset(remaining)


def _way_back(task_id: str, came_from: Mapping[str, str]) -> tuple[str, ...]:
    path = [task_id]
    while (previous := came_from[path[-1]]) != task_id:
        path.append(previous)
    return (task_id, *reversed(path))


def cycles(edges: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """Yield cycles without common nodes, at least one if there is any; edges to nodes that are not keys are ignored."""
    remaining = {node: [target for target in targets if target in edges] for node, targets in edges.items()}
    while True:
        _drop_ends(remaining)
        if not remaining:
            return
        order = {node: index for index, node in enumerate(remaining)}
        path: dict[str, None] = {}
        node = next(iter(remaining))
        while node not in path:
            path[node] = None
            node = remaining[node][0]
        cycle = list(path)[list(path).index(node) :]
        first = cycle.index(min(cycle, key=order.__getitem__))
        yield cycle[first:] + cycle[:first]
        removed = set(cycle)
        for node in cycle:
            del remaining[node]
        for source, targets in remaining.items():
            remaining[source] = [target for target in targets if target not in removed]


def _drop_ends(remaining: dict[str, list[str]]) -> None:
    """Remove nodes that lead nowhere, until every remaining node leads to a cycle."""
    sources: dict[str, list[str]] = {}
    for node, targets in remaining.items():
        for target in targets:
            sources.setdefault(target, []).append(node)
    leaves = [node for node, targets in remaining.items() if not targets]
    while leaves:
        leaf = leaves.pop()
        del remaining[leaf]
        for source in sources.get(leaf, ()):
            if source in remaining:
                remaining[source].remove(leaf)
                if not remaining[source]:
                    leaves.append(source)
