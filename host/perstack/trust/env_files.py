"""Environment of providers and skills: the process's own, completed from the user's stored keys and `.env` files.

As in Perstack, `.env` and `.env.local` are read, or the files in `envPath` and `--env-path`. They never override a
variable that is set, and an empty variable counts as not set. Of two files the later one wins here, so that
`.env.local` overrides `.env`.

A `.env` comes with a folder, and so from its author: it could name the address that a key is sent to, or the code that
an interpreter loads. A file that the user has not named for this call, and not agreed to, is not read at all, and even
then a stored key precedes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from io import StringIO
from pathlib import Path

from perstack.config.project_place import check_owner
from perstack.dataclass import dataclass
from perstack.errors import UsageError
from perstack.ports.environment import Environment
from perstack.toml_reader.source import NotRead, read_bounded
from perstack.trust.user_keys import KeyStore

_MAX_FILE_BYTES = 1 << 20  # maximum bytes of one file

DEFAULT_FILES = (".env", ".env.local")


@dataclass(frozen=True, slots=True)
class EnvFile:
    """Content of a `.env` file."""

    path: Path
    content: bytes
    variables: Mapping[str, str]


def read_env(
    folder: Path,
    names: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
    *,
    is_named: bool = False,
    owners: Collection[int] = (),
    stored: KeyStore | None = None,
    may_open: Callable[[Path], bool] = lambda path: True,
    is_agreed: Callable[[EnvFile], bool] = lambda file: False,
) -> Environment:
    """Return the variables of `environ`, of the stored keys and of the files, without changing `os.environ`.

    Names are relative to `folder`; without any, `.env` and `.env.local` are read. Missing files are skipped, because
    `.env.local` is optional. `${OTHER}` in values is not expanded. `is_named`: a person named these files, which then
    precede the stored keys. Any other is opened only if it `may_open`, must belong to the user, root or one of
    `owners`, and its variables count only if it `is_agreed`. The keys in `stored` are for providers alone.

    Raises:
        UsageError: a file exists but cannot be read, or may be another user's.
    """
    variables: dict[str, str] = {}
    sources: dict[str, str] = {}
    unread: list[Path] = []
    paths = [folder / name for name in names or DEFAULT_FILES]
    for path in filter(_look_for_file, paths):
        if not is_named and not may_open(path):
            unread.append(path)
            continue
        if not is_named:
            check_owner(path, "env_file", owners)
        file = _read(path)
        if is_named or is_agreed(file):
            variables.update(file.variables)
            sources.update(dict.fromkeys(file.variables, str(path)))
        else:
            unread.append(path)
    from_environ = {name: value for name, value in environ.items() if value or name not in variables}
    variables.update(from_environ)
    stored_keys: Mapping[str, str] = {} if stored is None else stored.read()
    preferred = variables if is_named else from_environ
    keys = {name: key for name, key in stored_keys.items() if not preferred.get(name)}
    variables.update(keys)
    secrets = {*stored_keys.values()}
    # a file may be the store itself, or a copy of it, under any name
    from_store = (name for name in sources if name not in from_environ and variables[name] in secrets)
    overriding = {
        name: f"the environment, which takes precedence over {sources[name]}"
        for name in from_environ
        if name in sources
    }
    return Environment(
        variables,
        files=(path.absolute() for path in paths),
        unread=unread,
        sources={**sources, **overriding, **dict.fromkeys(keys, "" if stored is None else str(stored.path))},
        stored=(*keys, *from_store),
    )


def missing_file(folder: Path, names: Sequence[str]) -> str | None:
    """Return the first of the named files that is missing, or no regular file; None if all are there."""
    return next((name for name in names if not _look_for_file(folder / name)), None)


def _look_for_file(path: Path) -> bool:
    """Return whether a regular file is there. Raises UsageError if that cannot be known."""
    try:
        return path.is_file()
    except OSError as error:  # a name that is too long, or a folder without access
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error


def _read(path: Path) -> EnvFile:
    # imported here, because most projects have no such file
    from dotenv import dotenv_values

    try:
        content = read_bounded(path, _MAX_FILE_BYTES)
        values = dotenv_values(stream=StringIO(content.decode()), interpolate=False)
    except NotRead as error:
        raise UsageError(f"{path}: {error}") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not UTF-8 at byte {error.start}: save it as UTF-8") from error
    # a name without `=` has no value
    return EnvFile(path, content, {name: value for name, value in values.items() if value is not None})
