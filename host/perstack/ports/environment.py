"""Environment variables for providers and skills, with the origin of each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from perstack.next_steps import Note, SetOption, Trust

STATE_KEY = "PERSTACK_STATE_KEY"
"""Variable with the key for the marks of state. The host reads it only from its process's environment."""


class Environment(dict[str, str]):
    """Environment variables by name, without `STATE_KEY`. Must not be changed after construction."""

    def __init__(
        self,
        variables: Mapping[str, str],
        *,
        files: Iterable[Path] = (),
        unread: Iterable[Path] = (),
        sources: Mapping[str, str] | None = None,
        stored: Iterable[str] = (),
    ) -> None:
        """Copy the variables, except `STATE_KEY`."""
        super().__init__((name, value) for name, value in variables.items() if name != STATE_KEY)
        self.files = tuple(files)  # absolute paths of all files that were searched
        self.unread = tuple(unread)  # existing files that were not read, because nobody has agreed to them
        self.sources: Mapping[str, str] = dict(sources or {})  # origin of each variable in a file, for people
        self.stored = frozenset(stored)  # names of keys that the user has stored for providers; no tool gets them

    @property
    def warnings(self) -> tuple[Note, ...]:
        """A warning for each file that was not read."""
        return tuple(
            Note(f"{path} is not read: nobody has agreed to it", (Trust(str(path.parent)), SetOption("env_file")))
            for path in self.unread
        )

    def without(self, name: str | None) -> Environment:
        """Return a copy without the variable `name`, or self if it is None or not set."""
        if name is None or name not in self:
            return self
        return self.with_variables({other: value for other, value in self.items() if other != name})

    @property
    def without_stored(self) -> Environment:
        """The environment without the keys that the user has stored, which only providers may use."""
        if not self.stored:
            return self
        return self.with_variables({name: value for name, value in self.items() if name not in self.stored})

    def with_variables(self, variables: Mapping[str, str]) -> Environment:
        """Return a copy with these variables only."""
        return Environment(
            variables,
            files=self.files,
            unread=self.unread,
            sources=self.sources,
            stored=self.stored.intersection(variables),
        )


def source_of(env: Mapping[str, str], name: str) -> str:
    """Return the origin of a variable, for people."""
    return env.sources.get(name, "the environment") if isinstance(env, Environment) else "the environment"


# The part of the host's environment that a tool's program inherits.

INHERITED = frozenset(  # variables that every program inherits from the host, in addition to LC_*
    ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TERM", "TMPDIR", "TZ", "COLORTERM", "NO_COLOR")
)


def inherit_variables(env: Mapping[str, str], more: Collection[str] = ()) -> dict[str, str]:
    """Return the variables that every program inherits, and the ones that `more` names."""
    allowed = INHERITED.union(more)
    return {name: value for name, value in env.items() if name in allowed or name.startswith("LC_")}
