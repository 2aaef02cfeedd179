"""Reload a definition when its files change. A change that would execute or reach something new needs an agreement."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

from perstack.config.file_patterns import TooManyNames, matches
from perstack.config.project_place import folder_of, is_named
from perstack.dataclass import dataclass
from perstack.definition_files import load_usable
from perstack.errors import DefinitionError
from perstack.next_steps import Note, Trust
from perstack.system.user import notice
from perstack.toml_reader.definition_with_includes import LoadedProject
from perstack.trust.agreements import TrustStore, describe_place, ownership_of
from perstack.trust.items import IsVendor, TrustItem, digests_of, items_to_trust, no_files

# Detection of changes in the files that a project was read from.

Stamp: TypeAlias = tuple[str, int, int, int]
"""Name, modification time in nanoseconds, size and inode; zeros for a missing file."""


def stamps(files: Iterable[Path]) -> tuple[Stamp, ...]:
    """Return the stamps of files; this takes a few microseconds per file."""
    return tuple(_stamp(path) for path in files)


def included_files(loaded: LoadedProject) -> tuple[tuple[str, ...], ...]:
    """Return the files that the patterns of `include` match now. As slow as searching the folders."""
    return tuple(_matching_files(folder, pattern) for folder, pattern in loaded.patterns)


def _matching_files(folder: Path, pattern: str) -> tuple[str, ...]:
    try:
        return tuple(matches(pattern, folder))
    except TooManyNames:
        return ()  # the folder has grown too large since it was read: keep what was read


def _stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except OSError:
        return (str(path), 0, 0, 0)
    return (str(path), status.st_mtime_ns, status.st_size, status.st_ino)


@dataclass(frozen=True, slots=True)
class PendingChange:
    """A changed definition that a person has not agreed to."""

    file: str
    loaded: LoadedProject
    items: tuple[TrustItem, ...]  # all items that need an agreement, with the contents that were read
    new: tuple[TrustItem, ...]  # the items without an agreement
    page: tuple[str, ...]  # a line for each item without an agreement

    @property
    def digest(self) -> str:
        """The identifier of this change."""
        return sha256("".join(sorted(digests_of(self.new))).encode()).hexdigest()

    @property
    def question(self) -> str:
        head = f"perstack: {self.file} has changed, or a file that it runs, and would now execute or reach:"
        return "\n".join((head, *(f"+ {line}" for line in self.page), "Use it?"))

    @property
    def note(self) -> Note:
        """A notice for users of the previous definition, possibly a model: it contains no command and no address."""
        changes = ", ".join(dict.fromkeys(f"{', '.join(item.kinds)} ({item.place})" for item in self.new))
        return Note(
            f"{self.file} has changed what is executed, or a file that it runs has changed: {changes}."
            " Until a person agrees, the previous definition is used",
            (Trust(str(Path(self.file).parent)),),
        )


_CHECK_INTERVAL_S = 1.0  # minimum seconds between two checks of the files
_PAUSE_FACTOR = (
    50  # minimum pause after a check, as a multiple of its duration: a pattern of `include` may search a big tree
)


class ReloadedProject:
    """The definition in use, and a change that waits for a person's agreement."""

    def __init__(
        self, loaded: LoadedProject, store: TrustStore | None = None, is_vendor: IsVendor | None = None
    ) -> None:
        """Use `loaded`, which its user has agreed to."""
        own = ownership_of(loaded.project) if is_vendor is None else ownership_of(loaded.project, is_vendor)
        is_whole = loaded.project.path is not None and is_named(Path(loaded.project.path))
        self._own = replace(own, files=no_files) if is_whole else own
        self.loaded = loaded
        self.problem: Note | None = None  # error in the files, or reason why they are not in use; None without any
        self.pending_change: PendingChange | None = None
        self._store = store or TrustStore.of_user()
        self._folder = folder_of(loaded.project, Path.cwd())
        items = items_to_trust(loaded.project, self._own)
        self._agreed = digests_of(items)
        self.is_asked = False
        self._refused: str | None = None
        self._watched = self._files_to_watch((*loaded.files, *self._named_files(items)))
        self._last_stamps: tuple[Stamp, ...] = ()
        """Empty at first, because the files may have changed after they were read, while the process was starting."""
        self._matched = included_files(loaded)

    def refresh(self) -> bool:
        """Read the files again if one has changed. Return whether the definition in use was replaced."""
        return stamps(self._watched) != self._last_stamps and self._read()

    async def changes(self) -> AsyncGenerator[bool]:
        """Check the files until cancelled. After each check, yield whether the definition in use was replaced."""

        def look() -> tuple[tuple[tuple[str, ...], ...], float]:
            began = time.monotonic()  # measured in the thread, so that a busy event loop does not count
            current = self.loaded if self.pending_change is None else self.pending_change.loaded
            return included_files(current), time.monotonic() - began

        while True:
            matched, duration_s = await asyncio.to_thread(look)
            is_new, self._matched = matched != self._matched, matched
            yield self._read() if is_new else self.refresh()
            await asyncio.sleep(max(_CHECK_INTERVAL_S, duration_s * _PAUSE_FACTOR))

    @property
    def open_change(self) -> PendingChange | None:
        """The change to ask a person about; None without one, or if the person has refused it."""
        return (
            None if self.pending_change is None or self.pending_change.digest == self._refused else self.pending_change
        )

    def agree(self, digest: str) -> bool:
        """Store a person's agreement to the change and use it. Return False for another digest. Raises StorageError."""
        change = self.pending_change
        if change is None or change.digest != digest:
            return False
        self._store.agree(self._folder, change.items)  # use what the person was shown: a file may have changed since
        self._use(change.loaded, change.items)
        return True

    def refuse(self, digest: str) -> None:
        """Record that a person refused the change; it is not asked about again."""
        self._refused = digest

    def _read(self) -> bool:
        try:
            loaded = load_usable(Path(self.loaded.files[0]))
        except DefinitionError as error:
            self.pending_change = None
            self._report(
                f"{error}\nperstack: until that is fixed, the previous definition is used", _broken_note(str(error))
            )
            self._watch((*self.loaded.files, *(Path(problem.file) for problem in error.problems)))
            return False
        loaded = self._with_last_good_experts(loaded)
        items = tuple(items_to_trust(loaded.project, self._own))
        self._watch((*loaded.files, *self._named_files(items)))
        self._matched = included_files(loaded)
        record = self._store.read(self._folder)
        agreed_digests = self._agreed | (frozenset[str]() if record is None else digests_of(record.items))
        new_items = tuple(item for item in items if item.digest not in agreed_digests)
        if not new_items:
            self._use(loaded, items)
            return True
        page = tuple(f"{item.shown} ({describe_place(item, record)})" for item in new_items)
        change = PendingChange(str(loaded.files[0]), loaded, items, new_items, page)
        is_new_change = self.pending_change is None or self.pending_change.digest != change.digest
        self.pending_change, self.problem = change, change.note
        if is_new_change:
            self._report("\n".join((str(change.note), *(f"  + {line}" for line in change.page))), change.note)
        return False

    def _use(self, loaded: LoadedProject, items: Iterable[TrustItem]) -> None:
        self.loaded, self.pending_change = loaded, None
        self.problem = None
        self._agreed |= digests_of(items)
        if loaded.project.broken:
            all_problems = (problem for problems in loaded.project.broken.values() for problem in problems)
            error = DefinitionError(tuple(dict.fromkeys(all_problems)))
            self._report(
                f"{error}\nperstack: until that is fixed, the previous definition is used", _broken_note(str(error))
            )

    def _with_last_good_experts(self, loaded: LoadedProject) -> LoadedProject:
        previous = self.loaded.project.experts
        last_good = {key: expert for key, expert in previous.items() if key in loaded.project.broken}
        experts = {**loaded.project.experts, **last_good}
        return replace(loaded, project=loaded.project.model_copy(update={"experts": experts}))

    def _named_files(self, items: Iterable[TrustItem]) -> Iterator[Path]:
        """Yield the files that items run: a change of such a file needs an agreement, as one of the definition does."""
        return (self._folder / name for item in items for name in item.files)

    def _files_to_watch(self, files: tuple[Path, ...]) -> tuple[Path, ...]:
        return tuple(dict.fromkeys((*files, self._store.path(self._folder))))

    def _watch(self, files: tuple[Path, ...]) -> None:
        self._watched = self._files_to_watch(files)
        self._last_stamps = stamps(self._watched)

    def _report(self, words: str, problem: Note) -> None:
        self.problem = problem
        for line in words.splitlines():
            notice(line)


def _broken_note(problem: str) -> Note:
    return Note(f"perstack.toml is invalid, so the last valid one is used.\n{problem}")
