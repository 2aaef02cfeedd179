"""Read folders of Agent Skills, through file handles, without links or hidden files, within size limits."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from perstack.agent_skills.front_matter import (
    SKILL_FILE,
    NotASkill,
    SkillFile,
    SkillHead,
    digest_of_files,
    is_part_of_skill,
    read_head,
    split_front_matter,
)
from perstack.dataclass import dataclass
from perstack.system.files import FOLDER, REAL_FOLDER, FileTooLarge, open_for_reading, read_below

MAX_FILES = 2_000
MAX_TOTAL_BYTES = 64 << 20  # maximum bytes of all files of a skill together
MAX_TEXT_BYTES = 4 << 20  # maximum bytes of a file that is read as text
_MAX_DEPTH = 16
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SkillFolder:
    """Agent Skill as of the time when it was read."""

    path: Path
    skill_head: SkillHead
    files: tuple[SkillFile, ...]
    digest: str
    problems: tuple[str, ...] = ()  # problems that make it unusable, as phrases that follow the name of its SKILL.md

    def find_file(self, path: str) -> SkillFile | None:
        """Return the file of that path, or SKILL.md for an empty one; None if there is none."""
        name = path or skill_file_name(self)
        return next((file for file in self.files if file.path == name), None)


def skill_file_name(folder: SkillFolder) -> str:
    """Return the actual name of SKILL.md; the format's own programs accept lower case too."""
    names = {file.path for file in folder.files}
    return SKILL_FILE if SKILL_FILE in names else SKILL_FILE.lower()


def read_skill(path: Path) -> SkillFolder:
    """Read a skill with the digests of its files; problems of SKILL.md go to `problems`. Raises NotASkill."""
    try:
        files = tuple(sorted(_hash_files(path), key=lambda file: file.path))
        skill_folder = SkillFolder(path, SkillHead(), files, digest_of_files(files))
        if skill_folder.find_file("") is None:
            raise NotASkill(f"has no {SKILL_FILE}")
        text = read_text(path, skill_file_name(skill_folder))
    except OSError as error:
        raise NotASkill(f"cannot be read: {error.strerror or error}") from None
    try:
        skill_head, problems = read_head(split_front_matter(text)[0], path.name)
    except NotASkill as error:
        skill_head, problems = SkillHead(), (str(error),)
    return SkillFolder(path, skill_head, files, skill_folder.digest, problems)


def read_text(folder: Path, path: str) -> str:
    """Return a text file of a skill's folder. Raises NotASkill, and OSError if it does not exist."""
    return decode_utf8(read_bytes(folder, path))


def decode_utf8(data: bytes) -> str:
    """Decode UTF-8. Raises NotASkill for anything else."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise NotASkill(f"is not UTF-8 at byte {error.start}") from None


def read_bytes(folder: Path, path: str) -> bytes:
    """Return a file of a skill's folder, following no links. Raises NotASkill, and OSError if it does not exist."""
    if not all(map(is_part_of_skill, path.split("/"))):
        raise NotASkill("is not a part of the skill")
    try:
        return read_below(folder, path, MAX_TEXT_BYTES)
    except FileTooLarge:
        raise NotASkill(f"is larger than {MAX_TEXT_BYTES >> 20} MiB") from None


def _hash_files(folder: Path) -> Iterator[SkillFile]:
    handle = os.open(folder, FOLDER)
    remaining = [MAX_FILES, MAX_TOTAL_BYTES]
    try:
        yield from _walk(handle, "", remaining, 1)
    finally:
        os.close(handle)


def _walk(handle: int, prefix: str, remaining: list[int], level: int) -> Iterator[SkillFile]:
    """Yield the files of an open folder and below; `remaining` counts down the files and bytes that may follow."""
    if level > _MAX_DEPTH:
        raise NotASkill(f"has folders more than {_MAX_DEPTH} levels deep")
    with os.scandir(handle) as entries:
        names = sorted(entry.name for entry in entries if is_part_of_skill(entry.name))
    for name in names:
        status = os.stat(name, dir_fd=handle, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            subfolder = os.open(name, REAL_FOLDER, dir_fd=handle)
            try:
                yield from _walk(subfolder, f"{prefix}{name}/", remaining, level + 1)
            finally:
                os.close(subfolder)
        elif stat.S_ISREG(status.st_mode):
            yield _hash_file(handle, name, prefix, remaining)


def _hash_file(handle: int, name: str, prefix: str, remaining: list[int]) -> SkillFile:
    remaining[0] -= 1
    if remaining[0] < 0:
        raise NotASkill(f"has more than {MAX_FILES} files")
    digest, size = sha256(), 0
    with open_for_reading(name, handle) as file:
        while chunk := os.read(file, _CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
            remaining[1] -= len(chunk)
            if remaining[1] < 0:
                raise NotASkill(f"has more than {MAX_TOTAL_BYTES >> 20} MiB of files")
    return SkillFile(f"{prefix}{name}", digest.hexdigest(), size)
