"""Environment of providers and skills: the process's own, completed from `.env` files and the user's stored keys.

As in Perstack, `.env` and `.env.local` are read, or the files in `envPath` and `--env-path`. They never override a
variable that is set, and an empty variable counts as not set. Of two files the later one wins here, so that
`.env.local` overrides `.env`. A stored key counts only if neither sets its variable.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from io import StringIO
from pathlib import Path

from perstack.config.keys import KeyStore
from perstack.config.project import TRUST_VARIABLE, check_owner
from perstack.config.source import NotRead, read_bounded
from perstack.errors import UsageError
from perstack.ports.environment import Environment

_MAX_FILE_BYTES = 1 << 20  # maximum bytes of one file

DEFAULT_FILES = (".env", ".env.local")

_LOADER_VARIABLES = frozenset(  # variables that decide which programs run, and which code they load
    {
        "PATH", "HOME", "SHELL", "BASH_ENV", "ENV", "PERSTACK_PLUGINS",
        "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "NODE_OPTIONS", "NODE_PATH", "PERL5LIB", "PERL5OPT", "RUBYLIB",
        "RUBYOPT", "JAVA_TOOL_OPTIONS", "GIT_SSH_COMMAND", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE",
    }
)  # fmt: skip
_LOADER_PREFIXES = ("LD_", "DYLD_", "XDG_")

_ACCESS_VARIABLES = frozenset({"PERSTACK_MCP_TOKEN", TRUST_VARIABLE})  # they give access, and trust to definitions


def read_env(
    folder: Path,
    names: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
    *,
    is_confirmed: bool = False,
    owners: Collection[int] = (),
    stored: KeyStore | None = None,
) -> Environment:
    """Return the variables of `environ` and of the files, without changing `os.environ`.

    Names are relative to `folder`; without any, `.env` and `.env.local` are read. Missing files are skipped, because
    `.env.local` is optional. `${OTHER}` in values is not expanded. `is_confirmed`: a person named these files.
    Otherwise they cannot set variables that decide what runs or who gets access, and each must belong to the user, root
    or one of `owners`. The keys in `stored` are for providers alone.

    Raises:
        UsageError: a file exists but cannot be read, or may be another user's.
    """
    variables: dict[str, str] = {}
    sources: dict[str, str] = {}
    left_out: dict[str, str] = {}
    paths = [folder / name for name in names or DEFAULT_FILES]
    for path in paths:
        if not is_confirmed and _is_there(path):
            check_owner(path, "env_file", owners)
        for name, value in _read(path).items() if _is_there(path) else ():
            if not is_confirmed and (_is_loader(name) or name in _ACCESS_VARIABLES):
                if not environ.get(name):
                    left_out[name] = str(path)
                continue
            variables[name] = value
            sources[name] = str(path)
    from_environ = {name: value for name, value in environ.items() if value or name not in variables}
    variables.update(from_environ)
    keys = {} if stored is None else {name: key for name, key in stored.read().items() if not variables.get(name)}
    variables.update(keys)
    unconfirmed = {} if is_confirmed else {name: file for name, file in sources.items() if name not in from_environ}
    overriding = {
        name: f"the environment, which takes precedence over {sources[name]}"
        for name in from_environ
        if name in sources
    }
    return Environment(
        variables,
        unconfirmed=unconfirmed,
        files=(path.absolute() for path in paths),
        left_out=left_out,
        sources={**sources, **overriding, **dict.fromkeys(keys, "" if stored is None else str(stored.path))},
        stored=keys,
    )


def missing_file(folder: Path, names: Sequence[str]) -> str | None:
    """Return the first of the named files that is missing, or no regular file; None if all are there."""
    return next((name for name in names if not _is_there(folder / name)), None)


def _is_loader(name: str) -> bool:
    return name.upper() in _LOADER_VARIABLES or name.upper().startswith(_LOADER_PREFIXES)


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:  # a name that is too long, or a folder without access
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error


def _read(path: Path) -> dict[str, str]:
    # imported here, because most projects have no such file
    from dotenv import dotenv_values

    try:
        values = dotenv_values(stream=StringIO(read_bounded(path, _MAX_FILE_BYTES).decode()), interpolate=False)
    except NotRead as error:
        raise UsageError(f"{path}: {error}") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not UTF-8 at byte {error.start}: save it as UTF-8") from error
    # a name without `=` has no value
    return {name: value for name, value in values.items() if value is not None}
