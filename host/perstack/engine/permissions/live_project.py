"""A definition that is read again when its files change, for a process that goes on for days.

What it says in words is taken at once. If it would have something else executed, the one of before holds until a person
agrees: whoever can write the files need not be the person that started the process.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from perstack.config.changes import Stamp, matched, stamps
from perstack.config.load import LoadedProject, load_usable
from perstack.dataclass import dataclass
from perstack.engine.executed import Item, digests_of, executed
from perstack.engine.notices import notice
from perstack.engine.trust import TrustStore, folder_of
from perstack.errors import DefinitionError
from perstack.next_steps import Note, Trust


@dataclass(frozen=True, slots=True)
class Held:
    """A definition that a person has not agreed to."""

    file: str
    loaded: LoadedProject
    new: tuple[Item, ...]
    """What it would have executed that nobody has agreed to."""

    @property
    def digest(self) -> str:
        """Which change this is."""
        return sha256("".join(sorted(digests_of(self.new))).encode()).hexdigest()

    @property
    def question(self) -> str:
        """For a person."""
        lines = "\n".join(f"+ {item.shown} ({item.name})" for item in self.new)
        return f"perstack: {self.file} has changed, and would now execute or reach:\n{lines}\nUse it?"

    @property
    def note(self) -> Note:
        """For whoever uses the definition of before, a model perhaps: no command and no address of it is in it."""
        what = ", ".join(dict.fromkeys(f"{item.kind} ({item.name})" for item in self.new))
        return Note(
            f"{self.file} has changed what is executed: {what}."
            " Until a person agrees, the definition of before is used",
            (Trust(str(Path(self.file).parent)),),
        )


class LiveProject:
    """What holds of a definition now."""

    def __init__(self, loaded: LoadedProject, store: TrustStore | None = None) -> None:
        """Whoever starts a process agrees to what is loaded then."""
        self.loaded = loaded
        self.problem: Note | None = None
        """What is wrong with the files now, or why they do not hold."""
        self.held: Held | None = None
        self._store = store or TrustStore.of_user()
        self._folder = folder_of(loaded.project, Path.cwd())
        self._agreed = digests_of(executed(loaded.project))
        self.is_asked = False
        """Whether a person is being asked."""
        self._refused: str | None = None
        self._watched = self._watching(loaded.files)
        self._seen: tuple[Stamp, ...] = ()
        """None to begin with: the files may have changed since they were read, while the process was starting."""
        self._matched = matched(loaded)

    def refresh(self) -> bool:
        """Read the files again if one has changed; whether another definition holds."""
        return stamps(self._watched) != self._seen and self._read()

    def matched(self) -> tuple[tuple[str, ...], ...]:
        """The files that the patterns of `include` match now. It may take long."""
        return matched(self.loaded if self.held is None else self.held.loaded)

    def refresh_matched(self, found: tuple[tuple[str, ...], ...]) -> bool:
        """The same as `refresh`, also if the patterns match other files."""
        is_new, self._matched = found != self._matched, found
        return self._read() if is_new else self.refresh()

    @property
    def open_change(self) -> Held | None:
        """What a person is to be asked about; None if nothing, or if they have said no."""
        return None if self.held is None or self.held.digest == self._refused else self.held

    def agree(self, digest: str) -> bool:
        """A person wants the change of this digest, which is kept; whether it holds now. Raises StorageError."""
        held = self.held
        if held is None or held.digest != digest:
            return False
        self._store.agree(self._folder, executed(held.loaded.project))
        self._take(held.loaded)
        return True

    def refuse(self, digest: str) -> None:
        """A person does not want it, and is not asked again."""
        self._refused = digest

    def _read(self) -> bool:
        try:
            loaded = load_usable(Path(self.loaded.files[0]))
        except DefinitionError as error:
            self.held = None
            self._say(f"{error}\nperstack: until that is fixed, what was read before stays in use", _broken(str(error)))
            self._watch((*self.loaded.files, *(Path(problem.file) for problem in error.problems)))
            return False
        loaded = self._whole(loaded)
        self._watch(loaded.files)
        self._matched = matched(loaded)
        known = self._agreed | self._store.digests(self._folder)
        new = tuple(item for item in executed(loaded.project) if item.digest not in known)
        if not new:
            self._take(loaded)
            return True
        held = Held(str(loaded.files[0]), loaded, new)
        is_news = self.held is None or self.held.digest != held.digest
        self.held, self.problem = held, held.note
        if is_news:
            self._say("\n".join((str(held.note), *(f"  + {item.shown}" for item in new))), held.note)
        return False

    def _take(self, loaded: LoadedProject) -> None:
        self.loaded, self.held = loaded, None
        self.problem = None
        self._agreed |= digests_of(executed(loaded.project))
        if loaded.project.broken:
            every = (problem for problems in loaded.project.broken.values() for problem in problems)
            error = DefinitionError(tuple(dict.fromkeys(every)))
            self._say(f"{error}\nperstack: until that is fixed, what was read before stays in use", _broken(str(error)))

    def _whole(self, loaded: LoadedProject) -> LoadedProject:
        """With the Experts that have errors now as they were before."""
        before = self.loaded.project.experts
        kept = {key: expert for key, expert in before.items() if key in loaded.project.broken}
        experts = {**loaded.project.experts, **kept}
        return replace(loaded, project=loaded.project.model_copy(update={"experts": experts}))

    def _watching(self, files: tuple[Path, ...]) -> tuple[Path, ...]:
        return tuple(dict.fromkeys((*files, self._store.path(self._folder))))

    def _watch(self, files: tuple[Path, ...]) -> None:
        self._watched = self._watching(files)
        self._seen = stamps(self._watched)

    def _say(self, words: str, problem: Note) -> None:
        self.problem = problem
        for line in words.splitlines():
            notice(line)


def _broken(problem: str) -> Note:
    return Note(f"perstack.toml is broken, so the last good one is used.\n{problem}")
