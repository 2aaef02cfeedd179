"""The environment that providers and skills are given: the process's own, filled up from `.env` files.

Source of the rules: Perstack reads `.env` and `.env.local`, or what `envPath` and `--env-path` name, never overrides a
variable that is really set, and takes an empty one as not set. Of two files the later one wins here, so that
`.env.local` overrides `.env`, as its name promises.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from perstack.errors import UsageError

DEFAULT_FILES = (".env", ".env.local")


def read_env(folder: Path, names: Sequence[str] = (), environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of `environ` and of the files; `os.environ` itself stays as it is.

    Names are seen from `folder`; with none given, `.env` and `.env.local` are read. A file that is not there is passed
    over, for `.env.local` is made to be absent. Values are taken as they stand: `${OTHER}` is not replaced.

    Raises:
        UsageError: a file is there but cannot be read.
    """
    variables: dict[str, str] = {}
    for name in names or DEFAULT_FILES:
        path = folder / name
        if path.is_file():
            variables.update(_read(path))
    variables.update({name: value for name, value in environ.items() if value or name not in variables})
    return variables


def _read(path: Path) -> dict[str, str]:
    # imported only here, for most projects have no such file
    from dotenv import dotenv_values

    try:
        found = dotenv_values(path, interpolate=False, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not UTF-8 at byte {error.start}: save it as UTF-8") from error
    # a name without `=` has no value to give
    return {name: value for name, value in found.items() if value is not None}
