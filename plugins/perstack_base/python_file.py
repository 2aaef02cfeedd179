"""A Python file of a project whose functions are tools: its check without executing it, and its import.

`check_source` reads the syntax tree alone, so that a definition can be validated before its user has agreed to it.
`load_file` executes the source: the Toolkit that the file defines, or one of its public functions. A public function
is defined in the file itself, and its name has no leading underscore.

The source is compiled from the bytes of the file. Python's own import would use a `__pycache__` next to the file, which
no agreement covers, and would need the folder on the module search path, where any file of a workspace could replace a
module of the host.
"""

from __future__ import annotations

import ast
import errno
import inspect
import sys
import warnings
from collections.abc import Iterator
from os import strerror
from pathlib import Path
from types import CodeType, ModuleType
from typing import cast

from perstack.errors import PluginError, SkillError
from perstack.system.files import FileTooLarge, NotRegular, read_regular
from perstack.toolkit.functions import Function, shown_path
from perstack.toolkit.toolkit import Toolkit

_MAX_BYTES = 1 << 20
_NO_FUNCTION = "has no function to use as a tool: write `def NAME(…)` with types and a docstring, without a leading `_`"
_IMPORT_HINTS = (
    "it is imported alone: it can import installed packages, but no file next to it."
    " Install what it needs where perstack is installed, or put it into the file"
)

AnyToolkit = Toolkit[None, None]


def read_source(path: Path) -> bytes:
    """Return the content of a file. Raises SkillError if it cannot be read."""
    try:
        return read_regular(path, _MAX_BYTES)
    except NotRegular:
        reason = "is not a file"
    except FileTooLarge:
        reason = f"has more than {_MAX_BYTES >> 20} MB"
    except OSError as error:
        reason = "does not exist" if error.errno == errno.ENOENT else strerror(error.errno or 0).lower()
    raise SkillError(f"{shown_path(str(path))} {reason}: name a Python file with functions")


# Check of the syntax tree, without executing the file.


def check_source(path: Path, source: bytes) -> None:
    """Raise SkillError with the first problem of a file, and its line, that can be found without executing the file.

    Only functions without a decorator are checked, since a decorator may change what a function takes.
    """
    tree = cast("ast.Module", _compile(path, source, is_tree=True))
    if any(_makes_toolkit(node) for node in tree.body):
        return
    first: dict[str, int] = {}
    for function in _public_functions(tree):
        place = f"{shown_path(str(path))}:{function.lineno}: tool {function.name}"
        if function.name in first:
            raise SkillError(f"{place}: is already defined in line {first[function.name]}; rename one")
        first[function.name] = function.lineno
        problem = None if function.decorator_list else _find_problem(function)
        if problem is not None:
            raise SkillError(f"{place}: {problem}")
    if not first and not any(isinstance(node, ast.Assign | ast.AnnAssign | ast.If | ast.Try) for node in tree.body):
        raise SkillError(f"{shown_path(str(path))}:1: {_NO_FUNCTION}")


def _compile(path: Path, source: bytes, *, is_tree: bool) -> object:
    """Return the syntax tree, or the code, of a file. Raises SkillError with the line of an error."""
    flags = ast.PyCF_ONLY_AST if is_tree else 0
    display_path = shown_path(str(path))
    try:
        with warnings.catch_warnings(action="ignore"):  # warnings about style are for the author's own tools
            return cast("object", compile(source, str(path), "exec", flags, dont_inherit=True))
    except SyntaxError as error:
        raise SkillError(f"{display_path}:{error.lineno or 1}: {error.msg}; correct the Python in it") from error
    except (ValueError, RecursionError, MemoryError) as error:  # the source has a NUL, or hundreds of parentheses
        reason = str(error) or "it is nested too deeply"
        raise SkillError(f"{display_path}:1: {reason}; correct the Python in it") from error


def _makes_toolkit(node: ast.stmt) -> bool:
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    return isinstance(value, ast.Call) and ast.unparse(value.func).partition("[")[0].endswith("Toolkit")


def _public_functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield node


def _find_problem(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str | None:
    arguments = function.args
    untyped = [item.arg for item in (*arguments.args, *arguments.kwonlyargs) if item.annotation is None]
    unnamed = [item.arg for item in (*arguments.posonlyargs, arguments.vararg, arguments.kwarg) if item is not None]
    if not ast.get_docstring(function):
        return "describe it in a docstring: the model chooses a tool by its description"
    if unnamed:
        return f"parameter {unnamed[0]} cannot be passed by name; make it an ordinary one"
    if untyped:
        return f"parameter {untyped[0]} has no type; annotate it, as in `{untyped[0]}: str`"
    return None


# Import, which executes the file.


def load_file(path: Path, source: bytes, name: str) -> AnyToolkit:
    """Execute a file and return its tools. Raises SkillError with the file, the line and what to change.

    The module is in `sys.modules` under its path, where
    dataclasses and pydantic look for what a type hint names.
    """
    check_source(path, source)
    code = cast("CodeType", _compile(path, source, is_tree=False))
    module = ModuleType(str(path))
    module.__file__ = str(path)
    before, sys.modules[str(path)] = sys.modules.get(str(path)), module
    try:
        exec(code, vars(module))  # noqa: S102 - its user has agreed to this content
        return _choose_toolkit(module, path, name)
    except (Exception, SystemExit) as error:  # a file may raise anything
        if before is None:
            del sys.modules[str(path)]
        else:
            sys.modules[str(path)] = before
        if isinstance(error, SkillError):
            raise
        raise SkillError(_describe_import_error(error, path)) from error


def _choose_toolkit(module: ModuleType, path: Path, name: str) -> AnyToolkit:
    """Return the module's only Toolkit, or one of its public functions. Raises SkillError."""
    values = {id(value): value for value in vars(module).values()}.values()
    kits = [cast("AnyToolkit", value) for value in values if isinstance(value, Toolkit)]
    display_path = shown_path(str(path))
    if len(kits) > 1:
        raise SkillError(f"{display_path}:1: has {len(kits)} Toolkits; put all of its tools into one")
    if kits:
        if not kits[0].tool_names:
            raise SkillError(
                f"{display_path}:1: its Toolkit has no tool: write"
                f" `@{_variable_name(module, kits[0])}.tool()` above one"
            )
        return kits[0]
    kit: AnyToolkit = Toolkit(name)
    for value in values:
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not value.__name__.startswith("_"):
            kit.add(cast("Function", value))
    if not kit.tool_names:
        raise SkillError(f"{display_path}:1: {_NO_FUNCTION}")
    return kit


def _variable_name(module: ModuleType, value: object) -> str:
    return next(name for name, other in vars(module).items() if other is value)


def _describe_import_error(error: BaseException, path: Path) -> str:
    """Return an error of the import in one line, at the last line of the file that was executed."""
    if isinstance(error, PluginError):
        return error.message  # the error already names its place
    line, trace = 1, error.__traceback__
    while trace is not None:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == str(path) else line
        trace = trace.tb_next
    message = " ".join(f"{type(error).__name__}: {error}".split())
    remedy = _IMPORT_HINTS if isinstance(error, ImportError) else "correct it: the file is executed when it is imported"
    return f"{shown_path(str(path))}:{line}: {message}; {remedy}"
