"""Agent Skills of a Job for workers: store their files as blobs of the Job, and unpack them on the worker's machine."""

from __future__ import annotations

import asyncio
import shutil
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp

from pydantic import Field, field_validator

from perstack.agent_skills.front_matter import NotASkill, SkillFile, is_part_of_skill
from perstack.agent_skills.library import SkillLibrary, library_of
from perstack.agent_skills.skill_folders import SkillFolder, read_skill
from perstack.core.base.records import Record, falsy
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.sandbox import is_below
from perstack.core.files.file_names import is_path
from perstack.engine.plugins.knowledge import Knowledge
from perstack.engine.plugins.runtimes import UnpackedSkill
from perstack.errors import StorageError, UsageError
from perstack.ports.storage import Storage
from perstack.system.concurrency import shield_until_done
from perstack.system.files import FileTooLarge, read_below, system_reason
from perstack.system.user import user_directory

MAX_FILES = 1_000
MAX_BYTES = 16 << 20  # maximum bytes of all skills of one Job
_CONCURRENT_BLOBS = 8
_PROGRAM_MODE = 0o500
_FILE_MODE = 0o400


class BundledFile(Record):
    """A file of a skill, stored as a blob of the Job."""

    path: str  # path relative to the skill's folder, with slashes
    sha256: str  # name of the blob, in hex
    size: int
    is_executable: bool = Field(default=False, exclude_if=falsy)

    @field_validator("path")
    @classmethod
    def _check_path(cls, value: str) -> str:
        if not all(map(is_part_of_skill, value.split("/"))) or not is_path(value.encode()):
            raise ValueError("the path leads out of the skill")
        return value


class BundledSkill(Record):
    """A skill whose files are stored with the Job."""

    path: str  # the original path, by which Experts name the skill
    digest: str = Field(pattern="^sha256:[0-9a-f]{64}$")
    files: tuple[BundledFile, ...]
    in_workspace: bool = Field(default=False, exclude_if=falsy)
    """True if it was below the workspace, which all programs may read."""

    @field_validator("path")
    @classmethod
    def _check_name(cls, value: str) -> str:
        if not is_path(Path(value).name.encode()):  # `/skills/..` would be unpacked outside of its own folder
            raise ValueError("the path does not end with a name")
        return value

    def folder_in(self, cache: Path) -> Path:
        """Return the folder in the cache for this version of the skill."""
        return cache / self.digest.removeprefix("sha256:") / Path(self.path).name


def check_bundle(knowledge: Knowledge, team: Iterable[Expert]) -> None:
    """Raise UsageError if a skill of the team is invalid, differs from perstack.lock, or is too large to be stored."""
    experts = tuple(team)
    for expert in experts:
        knowledge.with_skill_digests(expert)
    _check_size(library_of(knowledge).valid_folders(experts).values())


async def bundle_skills(
    storage: Storage, job_id: str, library: SkillLibrary, team: Iterable[Expert]
) -> tuple[BundledSkill, ...]:
    """Store the valid skills of a team with a Job. Raises UsageError if too large or changed, and StorageError."""
    folders = library.valid_folders(team)
    _check_size(folders.values())
    bundled: list[BundledSkill] = []
    for path, folder in folders.items():
        contents = await asyncio.to_thread(_read_contents, folder)
        await storage.put_blobs(job_id, [data for data, _ in contents])
        files = tuple(
            BundledFile(path=file.path, sha256=file.sha256, size=file.size, is_executable=is_executable)
            for file, (_, is_executable) in zip(folder.files, contents, strict=True)
        )
        in_workspace = is_below(path, (str(library.workspace),))
        bundled.append(BundledSkill(path=path, digest=folder.digest, files=files, in_workspace=in_workspace))
    return tuple(bundled)


async def unpack_skills(
    storage: Storage, job_id: str, bundled: Iterable[BundledSkill], env: Mapping[str, str]
) -> tuple[UnpackedSkill, ...]:
    """Unpack a Job's skills into the user's cache, each version once. Raises StorageError, NotFound and UsageError."""
    unpacked: list[UnpackedSkill] = []
    for skill in bundled:
        folder = skill.folder_in(user_directory("cache", env).absolute() / "skills")
        if not await asyncio.to_thread(_is_intact, folder, skill):
            contents = await _read_blobs(storage, job_id, skill)
            await shield_until_done(asyncio.to_thread(partial(_replace_folder, folder, skill, contents)))
        unpacked.append(UnpackedSkill(skill.path, folder, skill.in_workspace))
    return tuple(unpacked)


def _check_size(folders: Iterable[SkillFolder]) -> None:
    count = size = 0
    for folder in folders:
        count += len(folder.files)
        size += sum(file.size for file in folder.files)
        if count > MAX_FILES or size > MAX_BYTES:
            raise UsageError(
                f"skill {folder.path}: the skills of a Job for workers are stored with it, so they may have at most"
                f" {MAX_FILES:,} files and {MAX_BYTES >> 20} MiB: move what is not needed out of the folder, or into a"
                " subfolder whose name begins with a dot, which is left out"
            )
        unprintable = next((file.path for file in folder.files if not file.path.isprintable()), None)
        if unprintable is not None:
            problem = f"{unprintable!r} cannot be kept with a Job: give the file a printable name"
            raise UsageError(f"skill {folder.path}: {problem}")


def _read_contents(folder: SkillFolder) -> list[tuple[bytes, bool]]:
    """Return the bytes of each file and whether it is executable. Raises UsageError."""
    return [(_read_file(folder, file), _is_program(folder.path / file.path)) for file in folder.files]


def _read_file(folder: SkillFolder, file: SkillFile) -> bytes:
    try:
        data = read_below(folder.path, file.path, file.size)
    except FileTooLarge:
        data = b""
    except OSError as error:
        raise UsageError(f"{folder.path / file.path} cannot be read: {error.strerror or error}") from error
    if sha256(data).hexdigest() != file.sha256:
        raise UsageError(f"{folder.path / file.path} has changed while it was read: submit the Job again")
    return data


def _is_program(path: Path) -> bool:
    with suppress(OSError):
        return bool(path.stat(follow_symlinks=False).st_mode & stat.S_IXUSR)
    return False


async def _read_blobs(storage: Storage, job_id: str, skill: BundledSkill) -> list[bytes]:
    contents: list[bytes] = []
    for start in range(0, len(skill.files), _CONCURRENT_BLOBS):
        batch = skill.files[start : start + _CONCURRENT_BLOBS]
        contents += await asyncio.gather(*(storage.blob(job_id, file.sha256) for file in batch))
    for file, data in zip(skill.files, contents, strict=True):
        if sha256(data).hexdigest() != file.sha256:
            raise StorageError(
                f"Job {job_id}: {file.path} of skill {skill.path} was changed: restore its content ({file.sha256})"
            )
    return contents


def _is_intact(folder: Path, skill: BundledSkill) -> bool:
    """Return whether a folder has exactly these files: a program of an earlier Job may have changed them."""
    try:
        existing_skill = read_skill(folder)
    except NotASkill:
        return False
    programs = {file.path for file in skill.files if file.is_executable}
    return existing_skill.digest == skill.digest and programs == {
        file.path for file in existing_skill.files if _is_program(folder / file.path)
    }


def _replace_folder(folder: Path, skill: BundledSkill, contents: list[bytes]) -> None:
    """Replace the folder by renames, because other processes may be reading that version. Raises UsageError."""
    try:
        folder.parent.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new_folder = Path(mkdtemp(prefix=".new-", dir=folder.parent.parent))
        try:
            for file, data in zip(skill.files, contents, strict=True):
                path = new_folder / folder.name / file.path
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                path.chmod(_PROGRAM_MODE if file.is_executable else _FILE_MODE)
            if folder.parent.exists():
                folder.parent.rename(new_folder / ".old")
            (new_folder / folder.name).rename(_make_folder(folder.parent) / folder.name)
        finally:
            shutil.rmtree(new_folder, ignore_errors=True)
    except OSError as error:
        if not _is_intact(folder, skill):  # no other process has written it in the meantime
            reason = system_reason(error)
            raise UsageError(f"{folder}: the files of the skill cannot be written: {reason}") from error


def _make_folder(folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    return folder
