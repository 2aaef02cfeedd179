"""The environment that providers and skills are given: the process's own, filled up from `.env` files.

Source of the rules: Perstack reads `.env` and `.env.local`, or what `envPath` and `--env-path` name, never overrides a
variable that is really set, and takes an empty one as not set. Of two files the later one wins here, so that
`.env.local` overrides `.env`, as its name promises.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path

from perstack.config.toml import NotRead, read_bounded
from perstack.errors import UsageError
from perstack.ports.environment import Environment

_LARGEST = 1 << 20
"""Bytes of one file."""

DEFAULT_FILES = (".env", ".env.local")

_LOADERS = frozenset(
    {
        "PATH", "HOME", "SHELL", "BASH_ENV", "ENV", "PERSTACK_PLUGINS",
        "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "NODE_OPTIONS", "NODE_PATH", "PERL5LIB", "PERL5OPT", "RUBYLIB",
        "RUBYOPT", "JAVA_TOOL_OPTIONS", "GIT_SSH_COMMAND", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE",
    }
)  # fmt: skip
"""What decides which programs are run, and which code is loaded into them."""
_OF_LOADERS = ("LD_", "DYLD_", "XDG_")

_OF_DOORS = frozenset({"PERSTACK_MCP_TOKEN"})
"""What decides who may drive Jobs."""


def read_env(
    folder: Path,
    names: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
    *,
    is_confirmed: bool = False,
) -> Environment:
    """The variables of `environ` and of the files; `os.environ` itself stays as it is.

    Names are seen from `folder`; with none given, `.env` and `.env.local` are read. A file that is not there is passed
    over, for `.env.local` is made to be absent. Values are taken as they stand: `${OTHER}` is not replaced.
    `is_confirmed`: a person has named these files. Else they set nothing that decides what is executed,
    or who is let in.

    Raises:
        UsageError: a file is there but cannot be read.
    """
    variables: dict[str, str] = {}
    sources: dict[str, str] = {}
    left_out: dict[str, str] = {}
    paths = [folder / name for name in names or DEFAULT_FILES]
    for path in paths:
        for name, value in _read(path).items() if _is_there(path) else ():
            if not is_confirmed and (_is_loader(name) or name in _OF_DOORS):
                if not environ.get(name):
                    left_out[name] = str(path)
                continue
            variables[name] = value
            sources[name] = str(path)
    given = {name: value for name, value in environ.items() if value or name not in variables}
    variables.update(given)
    unconfirmed = {} if is_confirmed else {name: file for name, file in sources.items() if name not in given}
    return Environment(variables, unconfirmed=unconfirmed, files=(path.absolute() for path in paths), left_out=left_out)


def _is_loader(name: str) -> bool:
    return name.upper() in _LOADERS or name.upper().startswith(_OF_LOADERS)


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:  # a name that is too long, a folder that nobody may look into
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error


def _read(path: Path) -> dict[str, str]:
    # imported only here, for most projects have no such file
    from dotenv import dotenv_values

    try:
        found = dotenv_values(stream=StringIO(read_bounded(path, _LARGEST).decode()), interpolate=False)
    except NotRead as error:
        raise UsageError(f"{path}: {error}") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not UTF-8 at byte {error.start}: save it as UTF-8") from error
    # a name without `=` has no value to give
    return {name: value for name, value in found.items() if value is not None}
