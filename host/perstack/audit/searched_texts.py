"""Texts of Jobs that a search has read into a file of its own: where they are kept, and how a redaction removes them.

The file is a cache: a door that searches makes it again. A redacted text must not stay in it until somebody searches.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from perstack.errors import StorageError
from perstack.system.user import user_directory


def search_index_path(location: str, env: Mapping[str, str]) -> Path:
    """Return the file with the texts of a store's Jobs that a search has read: a cache, which a redaction removes."""
    name = sha256(location.encode(errors="surrogateescape")).hexdigest()[:32]
    return user_directory("cache", env) / "search" / f"{name}.db"


def remove_search_index(location: str, env: Mapping[str, str]) -> None:
    """Remove the texts of a store's Jobs that a search has read. Raises StorageError."""
    with suppress(FileNotFoundError):
        try:
            path = search_index_path(location, env)
        except StorageError:
            return  # without a home directory no index was written
        try:
            path.unlink()
        except PermissionError as error:
            raise StorageError(
                f"{path}: it may contain redacted texts and cannot be removed: {error.strerror}"
            ) from error
