"""No file that a definition names gives a tool the keys that the user has stored for providers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from perstack.trust.env_files import read_env
from perstack.trust.user_keys import KeyStore

NAME, KEY = "ANTHROPIC_API_KEY", "sk-stored-by-the-user"


def _as_it_is(clone: Path, keys: Path) -> str:
    return str(keys)


def _relative(clone: Path, keys: Path) -> str:
    return os.path.relpath(keys, clone)


def _by_a_link(clone: Path, keys: Path) -> str:
    (clone / "settings.env").symlink_to(keys)
    return "settings.env"


def _by_a_folder(clone: Path, keys: Path) -> str:
    (clone / "conf").symlink_to(keys.parent)
    return f"conf/{keys.name}"


def _by_a_second_name(clone: Path, keys: Path) -> str:
    (clone / "settings.env").hardlink_to(keys)
    return "settings.env"


@pytest.mark.parametrize("is_named", [False, True])
@pytest.mark.parametrize("name_of", [_as_it_is, _relative, _by_a_link, _by_a_folder, _by_a_second_name])
def test_a_key_of_the_store_is_for_providers_alone_by_whichever_name_its_file_is_read(
    tmp_path: Path, name_of: Callable[[Path, Path], str], *, is_named: bool
) -> None:
    clone = tmp_path / "clone"
    clone.mkdir()
    store = KeyStore(tmp_path / "config")
    store.put(NAME, KEY)
    env = read_env(
        clone, [name_of(clone, store.path)], {}, is_named=is_named, stored=store, is_agreed=lambda file: True
    )
    assert env[NAME] == KEY
    assert KEY not in env.without_stored.values()
