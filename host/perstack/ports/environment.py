"""The variables that providers and skills are given, and who has named each.

A variable of a workspace's `.env` may come from whoever can write there. So it is known by its file, until a person
says that the file is theirs: what such a variable may not do is send a person's own key to an address that it names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from perstack.errors import UsageError
from perstack.next_steps import Give, Note, Trust

_ADDRESSES = ("_URL", "_ENDPOINT", "_HOST", "_RESOURCE_NAME")


class Environment(dict[str, str]):
    """Variables by their names. Not to be changed once it is made."""

    def __init__(
        self,
        variables: Mapping[str, str],
        *,
        unconfirmed: Mapping[str, str] | None = None,
        files: Iterable[Path] = (),
        left_out: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(variables)
        self.unconfirmed: Mapping[str, str] = dict(unconfirmed or {})
        """Variables that only a workspace's file names, each with that file."""
        self.files = tuple(files)
        """Every file that was looked for, absolute."""
        self.left_out: Mapping[str, str] = dict(left_out or {})
        """Variables that such a file names and must not set, each with that file."""

    @property
    def warnings(self) -> tuple[Note, ...]:
        """What a person should be told, a line for each file."""
        names = {file: [name for name, its in self.left_out.items() if its == file] for file in self.left_out.values()}
        return tuple(
            Note(
                f"{file}: {', '.join(each)} not taken from here, for it decides which code is run, or who is let in:"
                " set it in your own environment",
                (Give("env_file"),),
            )
            for file, each in names.items()
        )

    def without(self, name: str | None) -> Environment:
        """The same, but for a variable that nobody else may see; itself if it does not have that."""
        if name is None or name not in self:
            return self
        left = {one: value for one, value in self.items() if one != name}
        unconfirmed = {one: file for one, file in self.unconfirmed.items() if one != name}
        return Environment(left, unconfirmed=unconfirmed, files=self.files, left_out=self.left_out)


def unconfirmed_in(env: Mapping[str, str]) -> Mapping[str, str]:
    """The variables that only a workspace's file names, each with that file."""
    return env.unconfirmed if isinstance(env, Environment) else {}


def is_address_name(name: str) -> bool:
    """Whether a variable of that name says where something is sent."""
    return name.endswith(_ADDRESSES) or "_ENDPOINT_URL_" in name


def refuse_redirected(
    env: Mapping[str, str], address: str, credentials: Iterable[str], *, others: str | None = None
) -> None:
    """Raises UsageError if `address` is a variable of a workspace's file and one of `credentials` is a person's own.

    `others` says in words which credentials beside the environment's would be sent.
    """
    unconfirmed = unconfirmed_in(env)
    if address not in unconfirmed:
        return
    own = next((name for name in credentials if env.get(name, "").strip() and name not in unconfirmed), None)
    what = f"{own} of your environment" if own is not None else others
    if what is not None:
        raise UsageError(
            f"{what} is not sent to the {address} that {unconfirmed[address]} names, unless that address is yours",
            next_steps=(Give("env_file"), Trust()),
        )
