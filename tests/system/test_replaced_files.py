"""Files that are replaced as a whole: the old content or the new one, in the folder that was opened."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from perstack.system.files import FOLDER, replace_private_file, system_reason


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    made.mkdir()
    (made / "file").write_text("old")
    return made


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_file_is_replaced_for_its_owner_alone_and_nothing_is_left(folder: Path) -> None:
    (folder / "file").chmod(0o666)
    replace_private_file(folder / "file", b"new")
    assert ((folder / "file").read_text(), (folder / "file").stat().st_mode & 0o777) == ("new", 0o600)
    replace_private_file(folder / "file", b"shared", mode=0o640)
    assert (folder / "file").stat().st_mode & 0o777 == 0o640
    assert names_in(folder) == {"file"}


def test_a_folder_that_is_put_in_place_of_the_opened_one_is_not_written_to(folder: Path, tmp_path: Path) -> None:
    handle = os.open(folder, FOLDER)
    try:
        folder.rename(tmp_path / "moved")
        (tmp_path / "other").mkdir()
        folder.symlink_to(tmp_path / "other")
        replace_private_file(Path("file"), b"new", handle)
    finally:
        os.close(handle)
    assert (tmp_path / "moved/file").read_text() == "new"
    assert names_in(tmp_path / "other") == set()


def test_a_file_that_cannot_be_replaced_stays_and_nothing_is_left(folder: Path) -> None:
    (folder / "below").mkdir()
    with pytest.raises(OSError, match="directory"):
        replace_private_file(folder / "below", b"new")
    assert names_in(folder) == {"below", "file"}
    with pytest.raises(FileNotFoundError):
        replace_private_file(folder / "missing/file", b"new")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/Home"), "permission denied"),
        (OSError("/Home/Ada is a link"), "/Home/Ada is a link"),
        (ValueError("no file is named A"), "no file is named A"),
        (OSError(), "OSError"),
    ],
)
def test_only_the_systems_text_is_in_lower_case_for_an_errors_own_text_may_name_a_path(
    error: Exception, reason: str
) -> None:
    assert system_reason(error) == reason
