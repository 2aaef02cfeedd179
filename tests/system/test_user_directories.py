"""Directories of the user, by the XDG Base Directory Specification."""

from __future__ import annotations

from pathlib import Path

import pytest

from perstack.system.user import user_directory


@pytest.mark.parametrize(
    ("kind", "variable", "default"),
    [
        ("config", "XDG_CONFIG_HOME", "/h/.config"),
        ("cache", "XDG_CACHE_HOME", "/h/.cache"),
        ("state", "XDG_STATE_HOME", "/h/.local/state"),
    ],
)
def test_a_variable_names_the_directory_unless_it_depends_on_the_working_directory(
    kind: str, variable: str, default: str
) -> None:
    assert user_directory(kind, {variable: "/x", "HOME": "/h"}) == Path("/x/perstack")  # type: ignore[arg-type]
    assert user_directory(kind, {variable: "x", "HOME": "/h"}) == Path(default, "perstack")  # type: ignore[arg-type]
    assert user_directory(kind, {"HOME": "/h"}) == Path(default, "perstack")  # type: ignore[arg-type]
