"""Files of a folder that its definition runs, and their content, which an agreement to a declaration covers.

A change of `srv.py` changes what `args = ["srv.py"]` does. So the digest of a declaration that executes contains
the content of each file that its words name, and any change asks again: by a pull, an archive, an Expert or the
user. There are two kinds of words:

- What is started: the program, its script, the module after `-m`, what an `allow` rule runs, a file with functions, a
  recording that is played. Their files always count.
- Other words of a server or plugin: what follows its script, and values of variables. They may be data that it writes
  itself. They count unless git leaves them alone (`is_untracked`), or they are SQLite databases. What follows the
  script of an evaluator, a test or an anchor is what it measures, and never counts.

Experts may not change what is started (`perstack.engine.context.protection`), nor what such a command may run in any
way in which its words could be read.

Only files below the folder are read, and never through a link that leads out of it: such a link counts by where it
leads. Files that a program reads by itself are not found: modules that a script imports, a Makefile, package.json.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pydantic import JsonValue

from perstack.core.base.records import Record
from perstack.core.definitions.experts import FunctionEvaluator, Iterate
from perstack.core.definitions.permissions import Permissions
from perstack.core.definitions.project import Audit
from perstack.core.definitions.sandbox import is_below
from perstack.core.definitions.settings import ProviderSetting
from perstack.core.definitions.skills import McpStdioSkill, PluginSkill, is_base_skill
from perstack.dataclass import dataclass
from perstack.system.files import NotRegular, open_for_reading, read_rest
from perstack.system.module_path import module_path

if TYPE_CHECKING:
    from perstack.expert_tests.models import ExpertTest  # for types only: a start without tests needs none of it

_MAX_FILE_BYTES = 16 << 20  # maximum bytes to hash; larger files are compared by inode, size and times
_VARIABLE = r"\$\{([A-Za-z_]\w*)\}"  # compiled where a word has one, since every start imports this module
_SQLITE = b"SQLite format 3\0"


@dataclass(frozen=True, slots=True)
class NamedPaths:
    """Paths among the words of a declaration, each with whether it is certainly a file's."""

    started: Mapping[str, bool]
    others: Mapping[str, bool]
    protected: Mapping[str, bool]  # files that Experts may not change
    entries: tuple[str, ...] = ()  # functions, `package.module:function`


NO_PATHS = NamedPaths({}, {}, {})


def named_paths(table: Record) -> NamedPaths:
    """Return the paths that a table of a definition names; none if it runs nothing."""
    finder = FINDERS.get(type(table).__name__)
    return NO_PATHS if finder is None else finder(table)


def named_paths_of_command(command: str | tuple[str, ...]) -> NamedPaths:
    """Return the paths of a shell line, or of a program with its arguments."""
    from perstack.trust.command_files import files_of_command, scripts_of_command  # few start programs

    return NamedPaths(scripts_of_command(command), {}, files_of_command(command))


def _paths_of_server(table: Record) -> NamedPaths:
    skill = cast("McpStdioSkill", table)
    if is_base_skill(skill):
        return NO_PATHS
    from perstack.trust.command_files import files_of_command, files_of_server

    args = [*map(_fill_in_variables, skill.args)]
    others = (skill.package_name or "", *args, *map(_fill_in_variables, skill.env.values()))
    started = files_of_server(skill.command, args)
    return NamedPaths(started, files_of_command(("", *others)), started)


def _paths_of_plugin(table: Record) -> NamedPaths:
    skill = cast("PluginSkill", table)
    imported = {skill.file: True} if skill.file else {}
    return NamedPaths(imported, _paths_in_texts(skill.settings), imported)


def _paths_of_provider(table: Record) -> NamedPaths:
    return NamedPaths(_paths_in_texts(cast("ProviderSetting", table).setting), {}, {})


def _paths_of_iterate(table: Record) -> NamedPaths:
    evaluator = cast("Iterate", table).evaluator
    if isinstance(evaluator, FunctionEvaluator):
        return NamedPaths({}, {}, {}, (evaluator.entry,))
    return named_paths_of_command(evaluator) if isinstance(evaluator, str | tuple) else NO_PATHS


def _paths_of_rules(table: Record) -> NamedPaths:
    from perstack.trust.rule_programs import programs_named_by

    programs = dict.fromkeys(programs_named_by(cast("Permissions", table).allow), True)
    return NamedPaths(programs, {}, programs)


def _paths_of_audit(table: Record) -> NamedPaths:
    anchor = cast("Audit", table).anchor
    return named_paths_of_command(anchor) if isinstance(anchor, tuple) else NO_PATHS


def _paths_of_test(table: Record) -> NamedPaths:
    test = cast("ExpertTest", table)
    files = {} if test.expect.command is None else {**named_paths_of_command(test.expect.command).started}
    if test.workspace is not None:  # the command runs in a copy of it
        files |= {f"{test.workspace}/{path}": is_certain for path, is_certain in files.items()}
    return NamedPaths(files | ({} if test.model is None else {test.model: True}), {}, {})


FINDERS: Mapping[str, Callable[[Record], NamedPaths]] = {
    McpStdioSkill.__name__: _paths_of_server,
    PluginSkill.__name__: _paths_of_plugin,
    ProviderSetting.__name__: _paths_of_provider,
    Iterate.__name__: _paths_of_iterate,
    Permissions.__name__: _paths_of_rules,
    Audit.__name__: _paths_of_audit,
    "ExpertTest": _paths_of_test,
}
"""Functions that find the paths in a table, by its model's name: each with a key that executes, as a test checks."""


def _paths_in_texts(value: JsonValue) -> Mapping[str, bool]:
    from perstack.trust.command_files import files_of_command

    files: dict[str, bool] = {}
    for text in _texts_in(value):
        files |= {text: True, **files_of_command(("", text))}
    return files


def _texts_in(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(item)


def _fill_in_variables(word: str) -> str:
    """Fill in `${NAME}`, which the host does when it starts a server."""
    return re.sub(_VARIABLE, lambda match: os.environ.get(match[1], ""), word) if "${" in word else word


# Files on disk.

_LOADED_ENDINGS = (".js", ".cjs", ".mjs", ".jsx", ".ts", ".cts", ".mts", ".tsx", ".json", ".node", ".class", ".groovy")
"""Endings that node, bun, java and groovy add to a name without one, as `node grade` runs `grade.js`."""
_FOLDER_MAINS = ("__main__.py", "package.json", *(f"index{ending}" for ending in _LOADED_ENDINGS))
"""Files that Python and node run if they are given a folder."""


def programs_at(path: Path, *, is_certain: bool) -> Iterator[Path]:
    """Yield the program that a word names: a file, or what a loader runs of a folder. Other folders are data.

    If the word means a file with an ending, the one without must not be created: it would run instead.
    """
    loaded = [file for ending in _LOADED_ENDINGS if (file := path.with_name(f"{path.name}{ending}")).is_file()]
    yield from loaded
    if path.is_dir():
        yield from (main for name in _FOLDER_MAINS if (main := path / name).exists())
    elif is_certain or loaded or path.is_file():
        yield path


def modules_at(entry: str, roots: Collection[str], further: Collection[str] = ()) -> Iterator[Path]:
    """Yield the modules of a function, in each folder of this process's modules that is below one of `roots`.

    `further`: folders in which another process may search for modules.
    """
    from perstack.trust.command_files import files_of_entry

    for place in dict.fromkeys((*map(os.path.abspath, module_path()), *further)):
        if is_below(place, roots):
            yield from (Path(place, name) for name in files_of_entry(entry))


def contents_of(table: Record, folder: Path, workspace: Path) -> dict[str, str]:
    """Return the content of each file that a table names, as a digest, by its path from the folder.

    Relative words are seen from the folder, and from the workspace if it is in the folder.
    """
    words = named_paths(table)
    if not words.started and not words.others and not words.entries:
        return {}
    top = os.path.realpath(folder)
    inner = os.path.realpath(workspace)
    roots = tuple(dict.fromkeys((top, inner if is_below(inner, (top,)) else top)))
    contents: dict[str, str] = {}
    for path in _existing_files(words.started, roots, top):
        _add_content(contents, path, top)
    for entry in words.entries:
        for module in modules_at(entry, roots, further=roots):
            _add_content(contents, str(module), top)
    for path in _existing_files(words.others, roots, top):
        if path not in contents and not _is_data(path, top):
            _add_content(contents, path, top)
    return contents


def _existing_files(words: Mapping[str, bool], roots: tuple[str, ...], top: str) -> Iterator[str]:
    for word, is_certain in words.items():
        for root in () if "\0" in word else roots:
            plain = os.path.normpath(os.path.expanduser(word) if word.startswith("~/") else Path(root, word))  # noqa: PTH111
            if not is_below(plain, (top,)):  # its word leads through a link outside
                plain = os.path.realpath(plain)
            if is_below(plain, (top,)):
                yield from map(str, programs_at(Path(plain), is_certain=is_certain))


def _add_content(contents: dict[str, str], path: str, top: str) -> None:
    content = _content_digest(path, top)
    if content:
        contents[os.path.relpath(path, top)] = content


def _content_digest(path: str, top: str) -> str:
    """Return what identifies the content of a file; empty without a file."""
    real = os.path.realpath(path)
    if not is_below(real, (top,)):
        return f"link to {real}" if os.path.lexists(path) else ""
    try:
        with open_for_reading(real) as file:
            status = os.fstat(file)
            if status.st_size > _MAX_FILE_BYTES:
                return f"{status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
            return sha256(read_rest(file, _MAX_FILE_BYTES)).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except NotRegular:
        return "" if Path(real).is_dir() else "no ordinary file"
    except OSError as error:
        return f"cannot be read: {error.errno}"


def _is_data(path: str, top: str) -> bool:
    """Return whether a file that is not started may be changed by the program that is given its name."""
    from perstack.trust.git_index import is_untracked

    real = os.path.realpath(path)
    if not is_below(real, (top,)):
        return False
    if is_untracked(Path(real)):
        return True
    try:
        with open_for_reading(real) as file:
            return os.read(file, len(_SQLITE)) == _SQLITE
    except OSError:
        return False
