"""Print the figures that describe the structure and the language of the code, and hold them.

Every figure has a bound in `house.toml`. The command fails if a figure is worse than its bound, so the code can only
get better; a bound is loosened by a commit that says why. `--write` tightens the bounds to what was measured.

    python tools/house.py [--write]
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import statistics
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from names import CHECKS

ROOT = Path(__file__).parents[1]
SOURCES = ("host/perstack", "plugins")
BOUNDS = ROOT / "house.toml"
AT_LEAST = {"median_lines"}
"""Figures that must not fall. All others must not rise."""

_NO_HEAD = re.compile(
    r"(What|Whether|Those|Whoever|Whatever|Of|It|How|Where|Who|Which|That|These|When|Why|Not|As|So|If|For|From|With"
    r"|Under|In|On|At|By|Its|Their|None|Told|Given|Called|The (one|ones|same|other|others|latter|former)|All (of|that)"
    r"|One (of|that))\b"
)
"""How a docstring begins that names neither an action nor its subject."""

_IDIOMS = re.compile(
    r"\b(one that|those (that|of|who|which)|whoever|whatever|comes? of|becomes? of|what came|is told|are told|besides?"
    r"|goes on|go on|as long as somebody|anew|in vain|elsewhere|see to|looks? at|stands? (for|there|in the)"
    r"|taken? up|takes up|in words|the same|that of|is about|at hand|in hand|by hand|its own|comes? to)\b",
    re.IGNORECASE,
)
"""Phrases that a reader must decode; HABITS of the project name plain ones for them."""

_NO_NAME = re.compile(
    r"_*("
    r"about|after|against|ago|and|apart|around|asked|asks|at|attended|awaited|bad|bare|before|begun"
    r"|below|beneath|bounded|brings|broken|by|called|came|changed|chosen|closes|concerns|counted"
    r"|covered|damaged|decided|described|doing|each|either|elsewhere|ended|ends|exceeded|executed"
    r"|existing|finished|first|fits|fitting|following|forgotten|found|given|granted|held|here|hidden"
    r"|holds|in|inner|inside|itself|joined|judged|kept|known|latest|left|listed|loaded|made|matched"
    r"|meant|measured|moved|named|near|next|noted|offered|older|one|opened|other|over|own|passing"
    r"|placed|planned|ready|real|really|recorded|refused|relief|remaining|renamed|required|resumed"
    r"|right|ruled|said|same|seen|settled|shared|shown|some|spent|standing|started|stopped|stored"
    r"|stuck|taken|then|through|together|told|tried|turned|under|understood|unknown|unset|until"
    r"|unusable|wanted|when|where|whether|whole|why|with|within|without|wrong"
    r")"
)
"""Names of functions that say nothing where they are called: participles, prepositions and the like."""


@dataclass(frozen=True)
class Source:
    """One production file, parsed."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        """Number of lines."""
        return len(self.text.splitlines())


def sources() -> list[Source]:
    """Return every production file. The starters that `perstack init` writes are not ours to measure."""
    paths = [path for top in SOURCES for path in sorted((ROOT / top).rglob("*.py"))]
    texts = [(path, path.read_text()) for path in paths if "starters" not in path.parts]
    return [Source(path, text, ast.parse(text)) for path, text in texts]


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield the docstrings of a module, its classes, functions and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            values = [statement.value for statement in node.body if isinstance(statement, ast.Expr)]
            constants = (value.value for value in values if isinstance(value, ast.Constant))
            yield from (constant for constant in constants if isinstance(constant, str))


def comments(text: str) -> Iterator[str]:
    """Yield the comments of a file, without directives to tools."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not re.match(r"# ?(noqa|type:|pyright|pragma|fmt:|!)", token.string):
            yield token.string.lstrip("# ")


def imports_of(source: Source, modules: set[str]) -> set[str]:
    """Return the modules of the project that a file imports when it is itself imported."""
    imported_names: set[str] = set()
    for node in _at_import(source.tree.body):
        if isinstance(node, ast.Import):
            imported_names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported_names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return imported_names & modules


def _at_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run when a module is imported; those under TYPE_CHECKING do not."""
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _at_import(node.orelse)
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _at_import([child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)])
        else:
            yield node


def module_name(path: Path) -> str:
    """Return the dotted name of a production file."""
    parts = [part for part in path.relative_to(ROOT).with_suffix("").parts[1:] if "-" not in part]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def count_cycles(graph: dict[str, set[str]]) -> int:
    """Return the number of groups of modules that import each other."""
    visited: set[str] = set()
    order: list[str] = []

    def visit(start: str, edges: dict[str, set[str]], out: list[str]) -> None:
        stack = [(start, iter(edges.get(start, ())))]
        visited.add(start)
        while stack:
            node, successors = stack[-1]
            following = next((target for target in successors if target not in visited), None)
            if following is None:
                out.append(node)
                stack.pop()
            else:
                visited.add(following)
                stack.append((following, iter(edges.get(following, ()))))

    for node in graph:
        if node not in visited:
            visit(node, graph, order)
    backward: dict[str, set[str]] = {}
    for node, targets in graph.items():
        for target in targets:
            backward.setdefault(target, set()).add(node)
    visited.clear()
    groups = 0
    for node in reversed(order):
        if node not in visited:
            group: list[str] = []
            visit(node, backward, group)
            groups += len(group) > 1
    return groups


KERNEL = ("core", "engine", "config", "ports", "system", "support", "toolkit")
LOOP = ("core/runs", "core/base", "engine/log", "engine/runs", "ports")
"""What one reads to change the loop."""
FEATURES = (
    *("python_api", "feature_logs", "toml_reader", "lockfile", "expert_tests", "trust", "agent_skills", "state_guard"),
    *("media", "oversight", "posted_texts", "streams", "pacing", "compaction", "recordings"),
    *("snapshots", "tasks", "iterations", "workers", "schedules", "audit"),
)
_FEATURE = re.compile(rf"\bperstack\.({'|'.join(FEATURES)})\b")


def layer_figures(parsed: list[Source], graph: dict[str, set[str]]) -> dict[str, float]:
    """Return the lines of kernel, features, doors and plugins, and how far the kernel is from the features."""
    host = ROOT / "host" / "perstack"

    def sources_in(*folders: str) -> list[Source]:
        paths = [host / folder for folder in folders]
        return [source for source in parsed if any(source.path.with_suffix("").is_relative_to(path) for path in paths)]

    reached, open_modules = set[str](), ["perstack.engine.runs.loop"]
    while open_modules:
        module = open_modules.pop()
        if module not in reached:
            reached.add(module)
            open_modules += graph.get(module, ())
    sizes = {module_name(source.path): source.lines for source in parsed}
    return {
        "lines_of_kernel": sum(source.lines for source in sources_in(*KERNEL)),
        "lines_to_change_the_loop": sum(source.lines for source in sources_in(*LOOP)),
        "lines_reached_by_the_loop": sum(sizes.get(module, 0) for module in reached),
        "lines_of_features": sum(source.lines for source in sources_in(*FEATURES)),
        "lines_of_doors": sum(source.lines for source in sources_in("doors")),
        "lines_of_plugins": sum(source.lines for source in parsed if source.path.is_relative_to(ROOT / "plugins")),
        "kernel_files_that_name_a_feature": sum(
            _FEATURE.search(source.text) is not None for source in sources_in(*KERNEL)
        ),
    }


def figures() -> dict[str, float]:
    """Return every figure by its name in house.toml."""
    parsed = sources()
    files = [source for source in parsed if source.path.name != "__init__.py"]
    sizes = [source.lines for source in files]
    folders = Counter(source.path.parent for source in files)
    nodes = [node for source in parsed for node in ast.walk(source.tree)]
    classes = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    texts = [text for source in parsed for text in docstrings(source.tree)]
    prose = [*texts, *(text for source in parsed for text in comments(source.text))]
    names = {module_name(source.path) for source in parsed}
    graph = {module_name(source.path): imports_of(source, names) for source in parsed}
    function_names = [
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.decorator_list
    ]
    return {
        "files": len(files),
        "median_lines": statistics.median(sizes),
        "percent_under_50_lines": round(100 * sum(size < 50 for size in sizes) / len(sizes), 1),
        "lines": sum(source.lines for source in parsed),
        **layer_figures(parsed, graph),
        "docstring_lines": sum(text.count("\n") + 1 for text in texts),
        "files_in_biggest_folder": max(folders.values()),
        "packages_with_one_file": sum(count == 1 for count in folders.values()),
        "class_names_used_twice": sum(count > 1 for count in classes.values()),
        "functions_without_a_telling_name": sum(_NO_NAME.fullmatch(name) is not None for name in function_names),
        "import_cycles": count_cycles(graph),
        **{name: len(check()) for name, check in CHECKS.items()},
        "percent_docstrings_without_head": _percent(_NO_HEAD.match(text.strip()) for text in texts),
        "percent_idioms": _percent(_IDIOMS.search(text) for text in prose),
    }


def _percent(matches: Iterator[object]) -> float:
    hits = [match is not None for match in matches]
    return round(100 * sum(hits) / len(hits), 1)


def main() -> int:
    """Print the figures beside their bounds. Return 1 if one is worse."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="tighten the bounds to the figures of today")
    options = parser.parse_args()
    bounds: dict[str, float] = tomllib.loads(BOUNDS.read_text()) if BOUNDS.exists() else {}
    measured = figures()
    worse = [
        name
        for name, value in measured.items()
        if name in bounds and (value < bounds[name] if name in AT_LEAST else value > bounds[name])
    ]
    for name, value in measured.items():
        mark = "  worse than its bound" if name in worse else ""
        print(f"{name:34}{value:>10,g}{bounds.get(name, value):>10,g}{mark}")
    if options.write and not worse:
        head = "# Bounds of the figures that `make house` prints. Loosened only by a commit that says why.\n"
        BOUNDS.write_text(head + "".join(f"{name} = {value}\n" for name, value in measured.items()))
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main())
