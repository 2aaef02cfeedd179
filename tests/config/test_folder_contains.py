"""Which paths and addresses stay in the folder of a definition."""

from pathlib import Path

import pytest

from perstack.config.project_place import folder_contains


@pytest.mark.parametrize("name", ["memory:/../../x", "memory:/../..", "memory:link", "file:link", "sqlite:link"])
def test_a_name_that_looks_like_an_address_stays_in_the_folder_as_a_path_too(tmp_path: Path, name: str) -> None:
    """`memory:/../..` of an Agent Skill, or a link named `file:link`, leads out although the address does not."""
    folder = tmp_path / "clone"
    folder.mkdir()
    (folder / "link").mkdir()
    for scheme in ("memory", "file", "sqlite"):
        (folder / f"{scheme}:link").symlink_to(tmp_path)

    assert not folder_contains(folder, name)


@pytest.mark.parametrize("name", ["memory:", "memory:a", "file:perstack", "sqlite:a.db", "docs", "file:./a/../b"])
def test_names_in_the_folder_stay_in_it(tmp_path: Path, name: str) -> None:
    assert folder_contains(tmp_path, name)
