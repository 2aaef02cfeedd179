"""Environment variables for providers and skills, with the origin of each.

Anyone who can write to a workspace may have set a variable in its `.env` file. Such a variable is marked with its file
until the user confirms that the file is theirs. Until then it must not send the user's own key to an address that it
names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from perstack.errors import UsageError
from perstack.next_steps import Note, SetOption, Trust

_ADDRESS_SUFFIXES = ("_URL", "_ENDPOINT", "_HOST", "_RESOURCE_NAME")


STATE_KEY = "PERSTACK_STATE_KEY"
"""Variable with the key of the marks of state: the host reads it from its own process's environment alone."""


class Environment(dict[str, str]):
    """Variables by name, without the key of the user's state. Must not be changed after construction."""

    def __init__(
        self,
        variables: Mapping[str, str],
        *,
        unconfirmed: Mapping[str, str] | None = None,
        files: Iterable[Path] = (),
        left_out: Mapping[str, str] | None = None,
        sources: Mapping[str, str] | None = None,
        stored: Iterable[str] = (),
    ) -> None:
        """Copy the variables and their origins."""
        super().__init__((name, value) for name, value in variables.items() if name != STATE_KEY)
        self.unconfirmed: Mapping[str, str] = dict(unconfirmed or {})  # set by a workspace file only: that file
        self.files = tuple(files)  # all files that were searched, as absolute paths
        self.sources: Mapping[str, str] = dict(sources or {})  # of variables that a file names: where the value is set
        self.stored = frozenset(stored)  # keys that the user has stored for providers: no tool gets them
        self.left_out: Mapping[str, str] = dict(left_out or {})  # named by such a file, which must not set it

    @property
    def warnings(self) -> tuple[Note, ...]:
        """One warning per file that names variables it must not set."""
        names = {
            file: [name for name, source in self.left_out.items() if source == file] for file in self.left_out.values()
        }
        return tuple(
            Note(
                f"{file}: {', '.join(variables)} not taken from here, for it decides which code is run, or who is let"
                " in: set it in your own environment",
                (SetOption("env_file"),),
            )
            for file, variables in names.items()
        )

    def without(self, name: str | None) -> Environment:
        """Return a copy without the variable `name`, or self if it is None or not set."""
        if name is None or name not in self:
            return self
        return self.with_variables({other: value for other, value in self.items() if other != name}, self.unconfirmed)

    @property
    def without_stored(self) -> Environment:
        """The environment without the keys that the user has stored, which only providers may use."""
        if not self.stored:
            return self
        return self.with_variables(
            {name: value for name, value in self.items() if name not in self.stored}, self.unconfirmed
        )

    def with_variables(self, variables: Mapping[str, str], unconfirmed: Mapping[str, str]) -> Environment:
        """Return a copy with these variables, of which files set the `unconfirmed` ones."""
        unconfirmed = {name: file for name, file in unconfirmed.items() if name in variables}
        return Environment(
            variables,
            unconfirmed=unconfirmed,
            files=self.files,
            left_out=self.left_out,
            sources=self.sources,
            stored=self.stored.intersection(variables),
        )


def unconfirmed_in(env: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables that only a workspace file sets, each with that file; none for a plain mapping."""
    return env.unconfirmed if isinstance(env, Environment) else {}


def source_of(env: Mapping[str, str], name: str) -> str:
    """Return where a variable is set, for a person."""
    return env.sources.get(name, "the environment") if isinstance(env, Environment) else "the environment"


def is_address_name(name: str) -> bool:
    """Return whether a variable with this name holds the address that requests are sent to."""
    return name.endswith(_ADDRESS_SUFFIXES) or "_ENDPOINT_URL_" in name


def refuse_redirected(
    env: Mapping[str, str], address: str, credentials: Iterable[str], *, others: str | None = None
) -> None:
    """Raise UsageError if a workspace file sets `address`, and keys of the user's own would be sent there."""
    unconfirmed = unconfirmed_in(env)
    if address not in unconfirmed:
        return
    key = next((name for name in credentials if env.get(name, "").strip() and name not in unconfirmed), None)
    subject = f"{key} of your environment" if key is not None else others
    if subject is not None:
        raise UsageError(
            f"{subject} is not sent to the {address} that {unconfirmed[address]} names, unless that address is yours",
            next_steps=(SetOption("env_file"), Trust()),
        )


# The part of the host's environment that a tool's program inherits.

INHERITED = frozenset(  # variables that every program inherits from the host, in addition to LC_*
    ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TERM", "TMPDIR", "TZ", "COLORTERM", "NO_COLOR")
)


def inherit_variables(env: Mapping[str, str], more: Collection[str] = ()) -> dict[str, str]:
    """Return the harmless variables of an environment, and the ones named in `more`."""
    allowed = INHERITED.union(more)
    return {name: value for name, value in env.items() if name in allowed or name.startswith("LC_")}
