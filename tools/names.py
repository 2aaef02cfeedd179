"""Check the names of the code: the glossary, predicates, and the names that texts mention.

- One word, one type: a parameter or field that is annotated with a type of the glossary bears its word, alone or after
  a qualifier (`run`, `base_run`), and no other annotation has the word. The glossary is the table «Words and types» of
  docs/architecture.md.
- A predicate (`is_`, `has_`, `differs_`, `belongs_`) only reads: it does not raise or assign, and awaits only reads.
- A name in backticks in a docstring or comment exists: in its file, as a definition of the project, as a word that the
  project writes (a key, a kind, an option), or as a foreign name that this file lists.

    python tools/names.py
"""

from __future__ import annotations

import ast
import builtins
import io
import keyword
import re
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("host/perstack", "plugins")
GLOSSARY_PAGE = ROOT / "docs" / "architecture.md"

Function = ast.FunctionDef | ast.AsyncFunctionDef


def production_files() -> list[Path]:
    """Return every production file, without the starters that `perstack init` writes."""
    paths = (path for top in SOURCES for path in sorted((ROOT / top).rglob("*.py")))
    return [path for path in paths if "starters" not in path.parts]


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text())


def location(path: Path, line: int) -> str:
    """Return `path:line`, relative to the checkout."""
    return f"{path.relative_to(ROOT)}:{line}"


# One word, one type


def glossary(page: str | None = None) -> dict[str, str]:
    """Return the word of each type, from the table «Words and types»."""
    text = GLOSSARY_PAGE.read_text() if page is None else page
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", text.partition("Words and types")[2].partition("\n## ")[0], re.M)
    return {type_name: word for word, type_name in rows}


def annotated_type(annotation: ast.expr) -> str | None:
    """Return the class that an annotation names, also if None is allowed; None for any other annotation."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            annotation = ast.parse(annotation.value, mode="eval").body
        except SyntaxError:
            return None
    if (
        isinstance(annotation, ast.BinOp)
        and isinstance(annotation.right, ast.Constant)
        and annotation.right.value is None
    ):
        return annotated_type(annotation.left)
    return annotation.id if isinstance(annotation, ast.Name) else None


def subclasses_of(base: str, trees: list[ast.Module]) -> set[str]:
    """Return the names of all classes below one of the project."""
    parents = {
        node.name: {ast.unparse(parent).split("[")[0] for parent in node.bases}
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found, size = {base}, 0
    while len(found) > size:
        size = len(found)
        found |= {name for name, bases in parents.items() if bases & found}
    return found


def annotated_names(tree: ast.Module, models: set[str]) -> Iterator[tuple[int, str, str]]:
    """Yield line, name and type of each annotated parameter and field.

    Fields of pydantic models and typed dictionaries are left out, since they are keys of JSON, and so are parameters of
    commands, which are options.
    """
    for node in ast.walk(tree):
        if isinstance(node, Function):
            decorators = " ".join(map(ast.unparse, node.decorator_list))
            if re.search(r"command|option|argument|hookimpl|hookspec", decorators):
                continue
            for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                named = None if argument.annotation is None else annotated_type(argument.annotation)
                if named is not None:
                    yield argument.lineno, argument.arg, named
        elif isinstance(node, ast.ClassDef) and node.name not in models:
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    named = annotated_type(field.annotation)
                    if named is not None:
                        yield field.lineno, field.target.id, named


def glossary_violations() -> list[str]:
    """Return each annotated name that has not the word of its type, or has the word of another type."""
    words = glossary()
    types = {word: type_name for type_name, word in words.items()}
    trees = [parsed(path) for path in production_files()]
    events = subclasses_of("RunEvent", trees)
    models = subclasses_of("BaseModel", trees) | subclasses_of("TypedDict", trees)
    classes = {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    found: list[str] = []
    for path in production_files():
        for line, name, named in annotated_names(parsed(path), models):
            word, bare = words.get(named), name.lstrip("_")
            if word is not None and bare != word and not bare.endswith(f"_{word}"):
                found.append(f"{location(path, line)}: {name}: {named} is not called {word}")
            elif word is None and bare in types and named in classes and not (bare == "event" and named in events):
                found.append(f"{location(path, line)}: {name}: {named}, but {bare} means {types[bare]}")
    return found


# Predicates only read

_PREDICATE = re.compile(r"_*(is|has|differs|belongs|was|can|may|needs)_\w+")
_READ = re.compile(
    r"_*((is|has|was|can|may|needs|read|load|get|list|find|fetch|count|resolve|select|query|poll|check|wait)(_\w+)?"
    r"|in_thread|to_thread|run_sync|gather_limited|head|exists|entry|summary|size|end|first|last|stat|one_of|rows?"
    r"|jobs?|runs?|events|logs|lease_info|folder)"
)
"""Functions that a predicate may await: their names say that they read."""


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below one, without those of nested functions and classes."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Function | ast.Lambda | ast.ClassDef):
            yield child
            yield from own_nodes(child)


def actions_of(function: Function) -> Iterator[str]:
    """Yield what a function does besides reading."""
    for node in own_nodes(function):
        is_target = isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del)
        if isinstance(node, ast.Raise):
            yield "raises"
        elif is_target or isinstance(node, ast.Global | ast.Nonlocal):
            yield "assigns"
        elif isinstance(node, ast.Await) and isinstance(node.value, ast.Call):
            called = ast.unparse(node.value.func).split(".")[-1]
            if not _READ.fullmatch(called):
                yield f"awaits {called}"


def acting_predicates() -> list[str]:
    """Return each predicate that does more than read."""
    return [
        f"{location(path, node.lineno)}: {node.name} {action}"
        for path in production_files()
        for node in ast.walk(parsed(path))
        if isinstance(node, Function) and _PREDICATE.fullmatch(node.name)
        for action in sorted(set(actions_of(node)))
    ]


# Names in texts exist

_NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*(\(\))?")
_FOREIGN_TEXT = """
vendors' APIs: ToolUseBlock FunctionDeclaration ToolSpecification ConverseStreamOutput ResponseStream ToolResultBlock
error.httpStatusCode tools.3.custom.input_schema toolConfig.tools.3.member.toolSpec streamGenerateContent
GenerateContentResponse Candidate UsageMetadata RetryInfo GetObject PutObject DeleteObject ListBucket

systems and libraries: sha256sum nohup setsid fpath includeIf search_path VISUAL nan inf list_changed has_focus pre
StateGraph SqliteSaver PostgresSaver FileSystemStorage RollingUpdate org_name workflow.patched __wrapped__

examples and placeholders: My_Skill GITHUB_TOKEN DB_PASSWORD NAME_command action_NAME StartApp.action_NAME TOOL srv.py
grade.js python3.12 json.py check_
"""
FOREIGN = frozenset(_FOREIGN_TEXT.split())
"""Names in texts that are not the project's own."""


def is_importable(name: str) -> bool:
    """Return whether a dotted name begins with a module of another package."""
    first = name.partition(".")[0]
    return "." in name and not first.startswith("perstack") and find_spec(first) is not None


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring and comment of a file."""
    for node in ast.walk(parsed(path)):
        body = getattr(node, "body", ())
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str() as text)):
                    yield statement.lineno, text
                case _:
                    pass
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def identifiers_of(tree: ast.Module) -> set[str]:
    """Return the identifiers that the code of a file uses, and the words of its strings."""
    identifiers: set[str] = set()
    texts = {
        id(statement.value)
        for node in ast.walk(tree)
        for statement in (getattr(node, "body", ()) if isinstance(getattr(node, "body", ()), list) else ())
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Name():
                identifiers.add(node.id)
            case ast.Attribute():
                identifiers.add(node.attr)
            case ast.arg() | ast.keyword():
                identifiers.add(node.arg or "")
            case ast.alias():
                identifiers.update(node.name.split("."), (node.asname or "",))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                identifiers.add(node.name)
            case ast.Constant(value=str() as text) if id(node) not in texts:
                identifiers.update(re.findall(r"[A-Za-z_][\w-]*", text))
            case _:
                pass
    return identifiers | {_camel(name) for name in identifiers}


def definitions_of(path: Path) -> set[str]:
    """Return what a file defines: itself, its classes, functions, fields, constants, imports and one-word strings."""
    tree = parsed(path)
    definitions = {path.stem, path.name, *path.relative_to(ROOT).parts}
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                definitions.add(node.name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                definitions.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()):
                definitions.add(name)
            case ast.Import() | ast.ImportFrom():
                definitions.update(part for alias in node.names for part in alias.name.split("."))
                definitions.update((getattr(node, "module", None) or "").split("."))
            case ast.Constant(value=str() as text) if re.fullmatch(r"[A-Za-z_]\w*", text):
                definitions.add(text)
            case _:
                pass
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            definitions.update(target.id for target in statement.targets if isinstance(target, ast.Name))
    return definitions | {_camel(name) for name in definitions} | {name[:1].lower() + name[1:] for name in definitions}


def _camel(name: str) -> str:
    return re.sub(r"_([a-z])", lambda letter: letter[1].upper(), name)


def is_path_to_nothing(name: str) -> bool:
    """Return True for a dotted name that begins with a package of the host and leads to no module or name in it."""
    path = ROOT / "host" / "perstack"
    parts = name.removesuffix("()").removeprefix("perstack.").split(".")
    if not (path / parts[0] / "__init__.py").exists():
        return False
    while parts and (path / parts[0]).is_dir():
        path /= parts.pop(0)
    if parts and (path / f"{parts[0]}.py").exists():
        path /= f"{parts.pop(0)}.py"
    else:
        path /= "__init__.py"
    return any(re.search(rf"\b{part}\b", path.read_text()) is None for part in parts)


def stale_names() -> list[str]:
    """Return each name in backticks, and each `Raises X`, that exists nowhere, or not where its path leads."""
    defined_names = {*dir(builtins), *keyword.kwlist, *sys.stdlib_module_names, *FOREIGN}
    for path in production_files():
        defined_names |= definitions_of(path)
    findings: list[str] = []
    for path in production_files():
        visible_names = defined_names | identifiers_of(parsed(path))
        for line, text in texts_of(path):
            named = re.findall(r"`([^`\n]+)`", text)
            raised = re.findall(r"\bRaises? ([A-Z]\w+)(?:, ([A-Z]\w+))*(?: (?:and|or) ([A-Z]\w+))?", text)
            names = [name for name in named if _NAME.fullmatch(name)]
            names += [name for group in raised for name in group if name]
            for name in dict.fromkeys(names):
                parts = name.removesuffix("()").split(".")
                is_unknown = (
                    name not in visible_names
                    and any(part not in visible_names for part in parts)
                    and not is_importable(name)
                )
                if is_unknown or is_path_to_nothing(name):
                    findings.append(f"{location(path, line)}: {name}")
    return findings


def stale_page_names() -> list[str]:
    """Return each module path and class in backticks on a page of docs that exists nowhere."""
    defined_names = {*dir(builtins), *FOREIGN}
    for path in production_files():
        defined_names |= definitions_of(path)
    findings: list[str] = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for number, text in enumerate(page.read_text().splitlines(), 1):
            for name in re.findall(r"`([^`\n]+)`", text):
                bare = name.removesuffix("()")
                if re.fullmatch(r"perstack(_\w+)?(\.\w+)+", bare) and not bare.endswith((".toml", ".py")):
                    is_stale = any(part not in defined_names for part in bare.split("."))
                else:
                    is_stale = re.fullmatch(r"([A-Z][a-z]+){2,}", bare) is not None and bare not in defined_names
                if is_stale:
                    findings.append(f"{page.relative_to(ROOT)}:{number}: {name}")
    return findings


CHECKS = {
    "glossary_violations": glossary_violations,
    "acting_predicates": acting_predicates,
    "stale_names": lambda: [*stale_names(), *stale_page_names()],
}


def main() -> int:
    """Print what each check finds. Return 1 if one finds something."""
    findings = {name: check() for name, check in CHECKS.items()}
    for name, lines in findings.items():
        print(f"{name}: {len(lines)}")
        print("".join(f"  {line}\n" for line in lines), end="")
    return int(any(findings.values()))


if __name__ == "__main__":
    sys.exit(main())
