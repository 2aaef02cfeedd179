"""Folders of Agent Skills, read from handles: through no link, within bounds, and nothing of what is hidden in them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from perstack.config.handles import FOLDER, TooLarge, opened, read_below
from perstack.core.agent_skills import (
    SKILL_FILE,
    NotASkill,
    SkillFile,
    SkillHead,
    digest_of_files,
    divided,
    is_part_of_skill,
    read_head,
)
from perstack.dataclass import dataclass

MOST_FILES = 2_000
MOST_BYTES = 64 << 20
"""Of all files together."""
LARGEST_TEXT = 4 << 20
"""Bytes of a file that is read as a text."""
_DEEPEST = 16
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class SkillFolder:
    """A skill as it was when it was read."""

    path: Path
    """Absolute."""
    head: SkillHead
    files: tuple[SkillFile, ...]
    """All that belong to it, in the order of their paths."""
    digest: str
    problems: tuple[str, ...] = ()
    """What keeps it from being used, in words that follow the name of its SKILL.md."""

    def file(self, path: str) -> SkillFile | None:
        """The file of that path, or SKILL.md for an empty one."""
        wanted = path or skill_file_of(self)
        return next((one for one in self.files if one.path == wanted), None)


def skill_file_of(folder: SkillFolder) -> str:
    """What its SKILL.md is called: the format's own programs take it in small letters too."""
    names = {one.path for one in folder.files}
    return SKILL_FILE if SKILL_FILE in names else SKILL_FILE.lower()


def read_skill(path: Path) -> SkillFolder:
    """A skill with the digests of all its files; what is wrong in its SKILL.md is in `problems`. Raises NotASkill."""
    try:
        files = tuple(sorted(_files(path), key=lambda one: one.path))
        unread = SkillFolder(path, SkillHead(), files, digest_of_files(files))
        if unread.file("") is None:
            raise NotASkill(f"has no {SKILL_FILE}")
        text = read_text(path, skill_file_of(unread))
    except OSError as error:
        raise NotASkill(f"cannot be read: {error.strerror or error}") from None
    try:
        head, problems = read_head(divided(text)[0], path.name)
    except NotASkill as error:
        head, problems = SkillHead(), (str(error),)
    return SkillFolder(path, head, files, unread.digest, problems)


def read_text(folder: Path, path: str) -> str:
    """The text of a file in a skill's folder. Raises NotASkill, and OSError if it is not there."""
    return decoded(read_bytes(folder, path))


def decoded(data: bytes) -> str:
    """Raises NotASkill for what is no UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise NotASkill(f"is not UTF-8 at byte {error.start}") from None


def read_bytes(folder: Path, path: str) -> bytes:
    """A file in a skill's folder, to which no link leads. Raises NotASkill, and OSError if it is not there."""
    if not all(map(is_part_of_skill, path.split("/"))):
        raise NotASkill("is no part of the skill")
    try:
        return read_below(folder, path, LARGEST_TEXT)
    except TooLarge:
        raise NotASkill(f"is larger than {LARGEST_TEXT >> 20} MiB") from None


def _files(folder: Path) -> Iterator[SkillFile]:
    handle = os.open(folder, FOLDER)
    left = [MOST_FILES, MOST_BYTES]
    try:
        yield from _below(handle, "", left, 1)
    finally:
        os.close(handle)


def _below(handle: int, above: str, left: list[int], level: int) -> Iterator[SkillFile]:
    """The files of an open folder and those below it. `left` is how many more there may be, and how many bytes."""
    if level > _DEEPEST:
        raise NotASkill(f"has folders more than {_DEEPEST} levels deep")
    with os.scandir(handle) as entries:
        names = sorted(entry.name for entry in entries if is_part_of_skill(entry.name))
    for name in names:
        status = os.stat(name, dir_fd=handle, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            inner = os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=handle)
            try:
                yield from _below(inner, f"{above}{name}/", left, level + 1)
            finally:
                os.close(inner)
        elif stat.S_ISREG(status.st_mode):
            yield _file(handle, name, above, left)


def _file(handle: int, name: str, above: str, left: list[int]) -> SkillFile:
    left[0] -= 1
    if left[0] < 0:
        raise NotASkill(f"has more than {MOST_FILES} files")
    digest, size = sha256(), 0
    with opened(name, handle) as file:
        while piece := os.read(file, _PIECE):
            digest.update(piece)
            size += len(piece)
            left[1] -= len(piece)
            if left[1] < 0:
                raise NotASkill(f"has more than {MOST_BYTES >> 20} MiB of files")
    return SkillFile(f"{above}{name}", digest.hexdigest(), size)
