"""Rules that a person has approved for a whole project, kept outside of every workspace.

A grant approves calls that a rule of the definition, or the missing name of `exec`, asks about. It removes no `deny`.

For a tool of a server or plugin a grant holds only while the tool's definition is unchanged since the person allowed
it: the grant has its digest, or perstack.lock has exactly this definition. Tools of the host need no pin.

A grant of a program holds only while each file that its rule names has a content that the grant was given for. These
are exactly the files that no Expert may write because of the grant (`perstack.engine.context.protection`, whose
`RunFiles` reads their contents). So an Expert cannot make a person be asked again: a change of these files was
made by somebody else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path

from pydantic import Field, ValidationError

from perstack.core.base.ids import By
from perstack.core.base.records import Record, falsy
from perstack.core.definitions.permissions import rule_problem
from perstack.core.definitions.tool_definitions import Definitions, merged_definitions
from perstack.errors import StorageError
from perstack.system.clock import SYSTEM
from perstack.system.files import locked_folder, read_regular, replace_private_file
from perstack.system.user import user_directory

_MAX_BYTES = 1 << 20
_MAX_GRANTS = 1_000
_MAX_CONTENTS = 20  # contents of one file that a grant keeps at most, the latest ones


class ProjectGrant(Record):
    """A rule that a person has approved for a project."""

    rule: str
    by: By
    granted_at: int  # milliseconds since 1970
    # digests of the definitions that it was given for, by skill and tool; empty for the definitions in perstack.lock
    pins: dict[str, dict[str, str]] = Field(default_factory=dict, exclude_if=falsy)
    # digests of the contents that it was given for, by the path of each file from the workspace
    files: dict[str, tuple[str, ...]] = Field(default_factory=dict, exclude_if=falsy)

    def holds_for(self, skill: str, tool: str, definition: str, *, is_locked: bool) -> bool:
        """Return whether the grant was given for this definition of a tool.

        `definition`: its digest, empty for tools of the host. `is_locked`: perstack.lock has exactly this definition.
        """
        pinned_digest = self.pins.get(skill, {}).get(tool)
        return not definition or (is_locked if pinned_digest is None else pinned_digest == definition)

    def changed_files(self, contents: Mapping[str, str]) -> tuple[str, ...]:
        """Return the files whose present contents the grant was not given for."""
        return tuple(path for path, content in contents.items() if content not in self.files.get(path, ()))


class _Grants(Record):
    """Content of a file of grants."""

    folder: str
    grants: tuple[ProjectGrant, ...] = ()


class ProjectGrants:
    """Grants of the project in one folder: one file, readable only by the user."""

    def __init__(self, folder: Path, path: Path | None = None) -> None:
        """Read nothing yet. `path`: the folder with the files of grants; None for the user's state directory."""
        self._folder = str(folder)
        self._state_folder = path

    @classmethod
    def user_folder(cls, environ: Mapping[str, str] = os.environ) -> Path:
        """Return the folder with the grants of all projects."""
        return user_directory("state", environ) / "grants"

    def all(self) -> tuple[ProjectGrant, ...]:
        """Return the grants, oldest first; none without a file. Raises StorageError if it cannot be read."""
        path = self._path
        try:
            content = _Grants.model_validate_json(read_regular(path, _MAX_BYTES))
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except (OSError, ValidationError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not a file of grants"
            raise StorageError(f"{path} cannot be read ({reason}): remove it to revoke all grants") from error
        return content.grants if content.folder == self._folder else ()

    def parsable(self) -> tuple[ProjectGrant, ...]:
        """Return the grants whose rules can be parsed. Raises StorageError."""
        return tuple(grant for grant in self.all() if rule_problem(grant.rule) is None)

    def rules(self) -> tuple[str, ...]:
        """Return the rules of the grants. Raises StorageError."""
        return tuple(grant.rule for grant in self.parsable())

    def add(
        self, rule: str, by: By, pins: Definitions | None = None, contents: Mapping[str, str] | None = None
    ) -> None:
        """Add a grant for tools with these definitions and files with these contents.

        An earlier grant of an equal rule is extended. Without `pins` a grant holds for tools of the host, and for
        tools that perstack.lock has. Raises StorageError.
        """

        def with_grant(grants: tuple[ProjectGrant, ...]) -> tuple[ProjectGrant, ...]:
            earlier_grant = next((grant for grant in grants if grant.rule == rule), None)
            if earlier_grant is None and len(grants) >= _MAX_GRANTS:
                raise StorageError(f"the project has {_MAX_GRANTS:,} grants: revoke some first")
            all_pins = merged_definitions({} if earlier_grant is None else earlier_grant.pins, pins or {})
            files = {} if earlier_grant is None else dict(earlier_grant.files)
            for path, content in (contents or {}).items():
                files[path] = tuple(dict.fromkeys((*files.get(path, ()), content)))[-_MAX_CONTENTS:]
            if earlier_grant is not None and (all_pins, files) == (earlier_grant.pins, earlier_grant.files):
                return grants
            new_pins = {skill: dict(digests) for skill, digests in all_pins.items()}
            grant = ProjectGrant(rule=rule, by=by, granted_at=SYSTEM.now(), pins=new_pins, files=files)
            return (*(other for other in grants if other is not earlier_grant), grant)

        self._change(with_grant)

    def revoke(self, is_revoked: Callable[[ProjectGrant], bool]) -> tuple[ProjectGrant, ...]:
        """Remove the grants for which `is_revoked` returns True, and return them. Raises StorageError."""
        old_grants = self._change(lambda grants: tuple(grant for grant in grants if not is_revoked(grant)))
        return tuple(filter(is_revoked, old_grants))

    @property
    def _path(self) -> Path:
        folder = self._state_folder or self.user_folder()
        return folder / f"{sha256(os.fsencode(self._folder)).hexdigest()}.json"

    def _change(
        self, change: Callable[[tuple[ProjectGrant, ...]], tuple[ProjectGrant, ...]]
    ) -> tuple[ProjectGrant, ...]:
        """Replace the grants by the result of `change`, and return the previous ones. Raises StorageError."""
        path = self._path
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with locked_folder(path.parent) as folder:
                old_grants = self.all()
                new_grants = change(old_grants)
                if new_grants != old_grants:
                    content = _Grants(folder=self._folder, grants=new_grants).to_json()
                    replace_private_file(Path(path.name), content, folder)
        except OSError as error:
            raise StorageError(f"grants cannot be stored in {path.parent}: {error.strerror}") from error
        return old_grants
