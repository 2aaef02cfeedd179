"""AGENTS.md, a project's instructions to agents in the public format: find the files, and make a model's text of them.

The files are read from the top of the repository down to the workspace; the file nearest to it takes precedence.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from perstack.core.definitions.instruction import AgentsMdFile
from perstack.core.definitions.sandbox import is_below
from perstack.core.files.file_names import fold_case, protected_by_name
from perstack.dataclass import dataclass
from perstack.system.files import FileTooLarge, NotRegular, read_below
from perstack.system.project_states import is_state_of_project
from perstack.system.user import user_directories

AGENTS_FILE = "AGENTS.md"

MAX_AGENTS_MD_BYTES = 32 << 10  # maximum of all AGENTS.md files, about 8,000 tokens, as every request has them

_HEAD = (
    "What the project says to agents, in files called AGENTS.md. Where two of them differ, the later one counts, which"
    " is nearer to the working directory; the query counts before all of them."
)


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """AGENTS.md that exists but was not read."""

    path: str
    problem: str


def assemble_agents_md(files: Sequence[tuple[str, bytes] | SkippedFile]) -> tuple[str, tuple[AgentsMdFile, ...]]:
    """Return the model's text and the record of each file. The limit cuts the first files, far from the workspace."""
    remaining, parts, records = MAX_AGENTS_MD_BYTES, list[str](), list[AgentsMdFile]()
    for file in reversed(files):
        if isinstance(file, SkippedFile):
            parts.append(f"{file.path} is not shown: it {file.problem}.")
            records.append(AgentsMdFile(path=file.path, sha256="", size=0, problem=file.problem))
            continue
        path, data = file
        content = data[:remaining]
        remaining -= len(content)
        is_cut = len(content) < len(data)
        # "ignore" drops the last character if the limit cuts it in two
        text = content.decode(errors="ignore" if is_cut else "replace").strip()
        cut_note = f"\n[Cut: {len(data) - len(content):,} of {len(data):,} bytes are left out.]" if is_cut else ""
        if text or cut_note:
            parts.append(f"From {path}:\n{text}{cut_note}")
        digest = sha256(data).hexdigest()
        records.append(AgentsMdFile(path=path, sha256=digest, size=len(data), shown=len(content) if is_cut else None))
    text = "\n\n".join((_HEAD, *reversed(parts))) if parts else ""
    return text, tuple(reversed(records))


_MAX_FILE_BYTES = 1 << 20  # maximum bytes of one AGENTS.md
_MAX_FOLDERS = 64


def read_agents_md(workspace: Path) -> tuple[str, tuple[AgentsMdFile, ...]]:
    """Return the text for the model and the record of each file. An unreadable file is a record with its problem."""
    start = Path(os.path.realpath(workspace))
    top = next((folder for folder in (start, *start.parents) if os.path.lexists(folder / ".git")), start)
    folders = [start, *start.parents][: len(start.parts) - len(top.parts) + 1][:_MAX_FOLDERS]
    files = (_read_file(folder / AGENTS_FILE, top) for folder in reversed(folders))
    return assemble_agents_md([file for file in files if file is not None])


def _read_file(file: Path, top: Path) -> tuple[str, bytes] | SkippedFile | None:
    """Return the path and content of a file, which may be a link within the project; None if there is no file."""
    name = file.relative_to(top).as_posix()
    target = Path(os.path.realpath(file))
    if not os.path.lexists(file):
        return None
    if not target.is_relative_to(top) or _is_off_limits(target, top):
        return SkippedFile(path=name, problem="is a link that leads out of the project, or to what is off limits")
    try:
        return name, read_below(top, target.relative_to(top).as_posix(), _MAX_FILE_BYTES)
    except FileTooLarge:
        return SkippedFile(path=name, problem=f"has more than {_MAX_FILE_BYTES >> 20} MiB")
    except NotRegular:
        return SkippedFile(path=name, problem="is not a regular file")
    except OSError as error:
        return SkippedFile(path=name, problem=f"cannot be read ({error.strerror or type(error).__name__})")


def _is_off_limits(target: Path, top: Path) -> bool:
    user_folders = tuple(map(os.path.realpath, user_directories(os.environ)))
    is_state = is_state_of_project(str(target)) or is_below(str(target), user_folders)
    return is_state or protected_by_name(fold_case(target.relative_to(top).parts)) is not None
