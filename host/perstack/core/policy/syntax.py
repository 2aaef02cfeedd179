"""The syntax tree of a shell script, from tree-sitter's grammar of bash. Imported when a rule is about a command."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Protocol, cast


class Node(Protocol):
    """A node of the tree."""

    @property
    def type(self) -> str: ...

    @property
    def text(self) -> bytes: ...

    @property
    def is_named(self) -> bool: ...

    @property
    def has_error(self) -> bool: ...

    @property
    def children(self) -> Sequence[Node]: ...

    @property
    def named_children(self) -> Sequence[Node]: ...

    def child_by_field_name(self, name: str) -> Node | None: ...

    def children_by_field_name(self, name: str) -> Sequence[Node]: ...


class _Tree(Protocol):
    @property
    def root_node(self) -> Node: ...


class _Parser(Protocol):
    def parse(self, source: bytes) -> _Tree: ...


def parsed(script: str) -> Node:
    """The tree of a script; its `has_error` says whether all of it was understood."""
    return _parser().parse(script.encode("utf-8", "replace")).root_node


def source(node: Node) -> str:
    """What stands there."""
    return node.text.decode("utf-8", "replace")


def descendants(node: Node) -> Iterator[Node]:
    """All nodes below one, itself first."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += one.children


@lru_cache(maxsize=1)
def _parser() -> _Parser:
    engine = import_module("tree_sitter")
    grammar = cast("Callable[[], object]", import_module("tree_sitter_bash").language)
    language = cast("Callable[[object], object]", engine.Language)(grammar())
    return cast("Callable[[object], _Parser]", engine.Parser)(language)
