"""Find the files that the host runs by the commands of a definition, so that no Expert may change them.

A command is read for every way in which it could run a file of the workspace: each word, the value of an option or a
variable, the words of a shell line, the module after `-m`, and all of these in each folder that a line enters by `cd`.
Nothing depends on which program is an interpreter. Targets of redirections are data, and so are the arguments of
programs that run none of them, such as `grep`.

A path is certain if its word has a folder or a file name extension, as in `./check` and `check.py`. Any other word
may be a file too, and is one if the file exists. Files that a program reads by itself are not found: Makefile,
package.json, and modules that a script imports.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import all_suffixes
from importlib.util import cache_from_source
from itertools import chain
from posixpath import join, normpath

from perstack.core.permissions.shell_syntax import split_names

_WORD = re.compile(r"[^\0\n]{1,4096}")
_ENDING = re.compile(r"\.[A-Za-z][A-Za-z0-9]*$")
_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_OPERATOR = re.compile(r"[<>&|;()]+")
_REDIRECT = re.compile(r"[<>&]*[<>][<>&]*")
_CURRENT_FOLDER = re.compile(r"\$(?:PWD\b|\{PWD\})")
_KEYWORDS = frozenset(("!", "if", "then", "elif", "else", "while", "until", "do", "time", "{"))
_READERS = split_names(
    "[ [[ cat cmp comm cut diff echo egrep expr fgrep grep head jq ls md5sum printf sha256sum stat tail test wc"
)
"""Programs that run none of their arguments: what these name is data, such as a result that is measured."""
_FLAGS = (
    (re.compile(r"(?:.*/)?python[\d.]*"), re.compile(r"-[bBdEiIOPqsSuvx]+")),
    (re.compile(r"(?:.*/)?(?:ba|da|z|k)?sh"), re.compile(r"-[aefhmnuvx]+")),
)
"""Options without a value, of interpreters by their names. After any other the next word may be its value."""
_MAX_DEPTH = 4

Found = Iterator[tuple[str, bool]]  # paths, each with whether it is certain


def files_of_command(command: str | Sequence[str]) -> Mapping[str, bool]:
    """Return the paths of files that a shell line, or a program with its arguments, may run; True for certain paths.

    Relative paths are seen from the folder that the command starts in. The files need not exist.

    >>> dict(files_of_command("cd tools && python3 check.py < draft.md"))
    {'cd': False, 'tools': False, 'python3': False, 'check.py': True, 'tools/check.py': True}
    """
    paths = _files_of_line(command, 0) if isinstance(command, str) else _files_of_words(command, 0)
    files: dict[str, bool] = {}
    for path, is_certain in paths:
        files[path] = is_certain or files.get(path, False)
    return files


def scripts_of_command(command: str | Sequence[str]) -> Mapping[str, bool]:
    """Return the paths of `files_of_command` that are started, without data such as a measured result.

    After a program with a folder in its name, or its script, all words of a simple command are data.

    >>> dict(scripts_of_command("python3 -I check.py draft.md"))
    {'python3': False, 'check.py': True}
    """
    paths = (
        _files_of_line(command, 0, are_data=True)
        if isinstance(command, str)
        else _files_of_words(command, 0, are_data=True)
    )
    files: dict[str, bool] = {}
    for path, is_certain in paths:
        files[path] = is_certain or files.get(path, False)
    return files


def files_of_server(command: str, args: Sequence[str]) -> Mapping[str, bool]:
    """Return the paths of files that start a server: words after its own script are data, such as a database."""
    words = [command]
    for word in args:
        words.append(word)
        if not words[-2].startswith("-") and _is_certain(word):
            break
    return files_of_command(words)


def files_of_entry(entry: str) -> tuple[str, ...]:
    """Return the paths, seen from a folder of Python modules, of the files that importing `package.module:f` runs."""
    parts = entry.partition(":")[0].strip().split(".")
    tops = ("/".join(parts[: count + 1]) for count in range(len(parts)))
    sources = tuple(f"{top}{ending}" for top in tops for ending in _module_endings())
    return (*sources, *(cache_from_source(source) for source in sources if source.endswith(".py")))


def _module_endings() -> Iterator[str]:
    for suffix in all_suffixes():
        yield from (suffix, f"/__init__{suffix}")


def _files_of_line(line: str, depth: int, *, are_data: bool = False) -> Found:
    """Yield the files of a shell line. A line without valid quotes is split at everything that separates words.

    `are_data`: words after a script are data.
    """
    plain = _CURRENT_FOLDER.sub(".", line).replace("$(", " ( ").replace("`", " ; ")
    lexer = shlex.shlex(plain, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:
        words = re.split(r"[\s;&|()\"'`]+", line)
    folders = [words[index + 1] for index, word in enumerate(words[:-1]) if word in ("cd", "pushd")]
    commands = _simple_commands(words)
    for path, is_certain in chain.from_iterable(_files_of_words(words, depth, are_data=are_data) for words in commands):
        yield path, is_certain
        for folder in folders if is_certain else ():
            yield from _file_in_word(join(folder, path))


def _simple_commands(words: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the words of each command of a line, without keywords before it and targets of redirections."""
    command: list[str] = []
    for word, previous in zip(words, ("", *words), strict=False):
        if _REDIRECT.fullmatch(word) or _REDIRECT.fullmatch(previous) or (not command and word in _KEYWORDS):
            continue
        if _OPERATOR.fullmatch(word):
            yield command
            command = []
        else:
            command.append(word)
    yield command


def _files_of_words(words: Sequence[str], depth: int, *, are_data: bool = False) -> Found:
    program = words[0] if words else ""
    if program in _READERS or (program.startswith("/") and program.rpartition("/")[2] in _READERS):
        return
    for index, word in enumerate(words):
        if index and words[index - 1] == "-m" and _MODULE.fullmatch(word):
            *packages, module = ("/".join(word.split(".")[: count + 1]) for count in range(word.count(".") + 1))
            yield from ((f"{package}/__init__.py", True) for package in packages)
            yield from ((f"{module}{end}", True) for end in (".py", "/__init__.py", "/__main__.py"))
            continue
        if depth < _MAX_DEPTH and re.search(r"[\s;&|]", word):
            yield from _files_of_line(word, depth + 1, are_data=are_data)
        yield from _file_in_word(word.partition("=")[2])
        if not word.startswith("-"):
            yield from _file_in_word(word)
            if are_data and _is_script(words, index):
                return
        elif not word.startswith("--") and _is_certain(word[2:]):
            yield from _file_in_word(word[2:])


def _is_script(words: Sequence[str], index: int) -> bool:
    """Return whether a word is certainly the program, at a relative path, or its script, and no value of an option."""
    if index == 0:
        return "/" in words[0] and not words[0].startswith("/")
    option = words[index - 1]
    if option.startswith("-"):
        flags = next((flags for name, flags in _FLAGS if name.fullmatch(words[0])), None)
        if flags is None or flags.fullmatch(option) is None:
            return False
    return _is_certain(words[index])


def _file_in_word(word: str) -> Found:
    """Yield a word as a normalized path, unless it is an option, an address, or certainly a folder."""
    if _WORD.fullmatch(word) is None or word.startswith("-") or word.endswith("/") or "://" in word:
        return
    path = normpath(word)
    if path not in (".", "..") and not path.endswith("/.."):
        yield path, _is_certain(word)


def _is_certain(word: str) -> bool:
    return "/" in word or _ENDING.search(word) is not None
