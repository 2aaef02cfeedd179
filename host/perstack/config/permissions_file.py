"""A file with one `[permissions]` table, which somebody names to lay its rules over those in force, or to try them."""

from __future__ import annotations

import tomllib
from pathlib import Path

from perstack.config.check import read_table
from perstack.config.source import Reporter, Source
from perstack.config.toml import NotRead, parse_toml, read_bounded
from perstack.core.policy.permissions import Permissions
from perstack.errors import DefinitionError, Problem, UsageError

_LARGEST = 1 << 20


def read_permissions(path: Path) -> Permissions:
    """The table. Raises UsageError for a file that cannot be read or holds anything else, and DefinitionError, with
    every problem, for a table that is wrong: a key that has no meaning is an error here.
    """
    try:
        source = Source(path, read_bounded(path, _LARGEST).decode("utf-8-sig"))
        raw = parse_toml(source.text)
    except NotRead as error:
        raise UsageError(f"{path} {error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8: save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}") from None
    except OSError as error:
        raise UsageError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    if list(raw) != ["permissions"]:
        raise UsageError(f"{path}: a file of permissions has one table, [permissions], and nothing else")
    problems: list[Problem] = []
    permissions = read_table(Permissions, raw["permissions"], ("permissions",), Reporter(source, problems))
    if problems or permissions is None:
        raise DefinitionError(tuple(problems))
    return permissions
