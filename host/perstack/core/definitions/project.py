"""Definition models of a project: one perstack.toml with its includes, and the tables that are not about Experts."""

import re
from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from perstack.core.base.records import JsonObject, Record
from perstack.core.base.text import span_problem
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.job_status import TYPED_STATUS
from perstack.core.definitions.keys import (
    NOT_EMPTY,
    AsIs,
    Key,
    Rule,
    anchor_problem,
    at_least,
    at_most,
    key_and_version,
    key_reference_problem,
)
from perstack.core.definitions.models import Price, ProviderLimits, WrittenModels
from perstack.core.definitions.permissions import Permissions
from perstack.core.definitions.sandbox import Sandbox
from perstack.core.definitions.settings import BudgetKey, NonEmptyText, ProviderKey, SharedKeys
from perstack.errors import DefinitionError, Problem

MAX_FILE_SIZE = 16 << 20  # default maximum size of a recorded file, in bytes


class SnapshotPolicy(Record):
    """Settings of workspace snapshots; a Run without a policy takes none."""

    max_file_size: int = MAX_FILE_SIZE  # bytes: a larger file is listed, but its contents are not recorded


class Audit(Record):
    """`[audit]`: where the heads of logs are kept, out of reach of the logs' writers."""

    anchor: Annotated[
        str | tuple[Annotated[str, NOT_EMPTY], ...] | None,
        NOT_EMPTY,
        Rule(anchor_problem),
        Key(
            "receives the heads of a Job, task or series when it stops: `file:PATH`, an `https://` address, "
            "or a program as a list",
            effect="reaches",
        ),
    ] = None
    signing_key: Annotated[  # reference to the key, never the key itself
        str | None,
        NOT_EMPTY,
        Rule(key_reference_problem),
        Key("the Ed25519 key in PEM that signs the heads: `file:PATH` or `env:NAME`", effect="reads"),
    ] = None


def _status_problem(names: Iterable[str]) -> str | None:
    unknown = [name for name in names if name not in TYPED_STATUS]
    return f"has {unknown[0]!r}: use {', '.join(TYPED_STATUS)}" if unknown else None


class Retention(Record):
    """`[retention]`: which Jobs are removed automatically: those that meet all conditions, none without a condition."""

    older_than: Annotated[
        str | None, Rule(span_problem), Key("only Jobs without a write for this time, such as `30d`", effect="writes")
    ] = None
    keep_last: Annotated[
        int | None,
        at_least(0),
        Key("number of each Expert's newest Jobs to keep, counted over all of them", effect="writes"),
    ] = None
    status: Annotated[
        tuple[str, ...],
        Rule(_status_problem),
        Key("only Jobs like this: " + ", ".join(f"`{name}`" for name in TYPED_STATUS), effect="writes"),
    ] = ()


# `[schedules.NAME]`: a cron line that starts a Job.

MAX_SCHEDULE_NAME_CHARS = 64

_NAME = rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,{MAX_SCHEDULE_NAME_CHARS - 1}}}"
_CRON_FIELDS = 5

Overlap = Literal["skip", "queue"]  # what happens to an occurrence while the Job of the previous one is active


def schedule_name_problem(name: str) -> str | None:
    if re.fullmatch(_NAME, name):
        return None
    return f"is not a valid name: 1 to {MAX_SCHEDULE_NAME_CHARS} of A-Z a-z 0-9 _ -, a letter or digit first"


def _cron_fields_problem(cron: str) -> str | None:
    """Check only the number of fields; the calendar checks their values."""
    count = len(cron.split())
    if count == _CRON_FIELDS or not count:
        return None
    return (
        f"must have 5 fields, not {count}: minute, hour, day of the month, month and day of the week, as in `0 2 * * *`"
    )


class Schedule(Record):
    """Query that an Expert is sent at the times of a cron line."""

    name: Annotated[str, Rule(schedule_name_problem)]
    cron: Annotated[
        str,
        NOT_EMPTY,
        at_most(200),
        Rule(_cron_fields_problem),
        Key("when: minute, hour, day of the month, month and day of the week, as cron has them", effect="pays"),
    ]
    timezone: Annotated[
        str, NOT_EMPTY, at_most(100), Key("its time zone, such as `Europe/Berlin`; default `UTC`", effect="pays")
    ] = "UTC"
    expert: Annotated[str, NOT_EMPTY, Key("the Expert, `name` or `name@version`", effect="pays")]
    query: Annotated[str, NOT_EMPTY, Key("the query", effect="pays")]
    overlap: Annotated[
        Overlap,
        Key(
            "while the Job of the previous occurrence is active: `skip` this one (default), or `queue` it",
            effect="pays",
        ),
    ] = "skip"

    @property
    def line(self) -> str:
        """The time zone and the cron line in one text: all that decides when the schedule is due."""
        return f"{self.timezone} {' '.join(self.cron.split())}"


class Workers(Record):
    """`[workers]`: processes that drive queued Jobs, on this machine or on others."""

    dispatcher: Annotated[
        str | None,
        NOT_EMPTY,
        Key(
            "the queue that assigns Jobs to workers, such as `postgresql://host/database`; default: the "
            "database of the storage, if it is PostgreSQL",
            effect="reaches",
        ),
    ] = None
    delegates: Annotated[
        Literal["local", "distributed"],
        Key(
            "where a worker runs the delegates of its Jobs: `local` (default), itself, or `distributed`, on "
            "any worker with a free place",
            effect="text",
        ),
    ] = "local"


class Workspace(Record):
    """`workspace = { … }`: the folder that Experts work in, and whether its files are recorded."""

    path: Annotated[
        NonEmptyText | None, Field(description="the folder, from this file's; by default where you are")
    ] = None
    snapshots: Annotated[bool, Field(description="record its files with each step that may change them")] = False
    max_file_size: Annotated[int, at_least(1), Field(description="bytes: a larger file is named, and not recorded")] = (
        MAX_FILE_SIZE
    )


class Project(SharedKeys):
    """Contents of one perstack.toml, with its includes and overrides."""

    provider: ProviderKey = None
    sandbox: Annotated[
        Sandbox | None,
        Key("what programs of tools may reach in addition, and their limits, see `[sandbox]`", effect="table"),
    ] = None
    env_path: Annotated[
        tuple[NonEmptyText, ...],
        Key("files with environment variables, relative to this file", effect="reads", is_path=True),
    ] = ()
    storage: Annotated[
        NonEmptyText,
        Key("where state is stored, relative to this file; default `file:perstack`", effect="writes", is_path=True),
    ] = "file:perstack"
    storage_setting: Annotated[
        JsonObject, Key("settings of that storage, see the page on storages", effect="reaches")
    ] = Field(default_factory=dict)
    workspace: Annotated[  # absolute after reading; None leaves the folder to the caller
        Annotated[str, NOT_EMPTY] | Workspace | None,
        Key(
            "folder that Experts work in, relative to this file; default: the current folder; a table, see `workspace`",
            effect="writes",
            is_path=True,
        ),
    ] = None
    includes: Annotated[  # absolute after reading
        tuple[NonEmptyText, ...],
        Key("further files, or patterns, whose Experts are included", effect="reads", name="include", is_path=True),
    ] = ()
    audit: Annotated[
        Audit | None,
        Key("where the heads of logs are also stored, and how they are signed, see `[audit]`", effect="table"),
    ] = None
    retention: Annotated[
        Retention | None,
        Key("which Jobs `perstack task run-due` and `perstack prune` remove, see `[retention]`", effect="table"),
    ] = None
    workers: Annotated[Workers | None, Key("the queue for workers, see `[workers]`", effect="table")] = None
    permissions: Annotated[
        Permissions | None, Key("which calls run, ask a person, or never run, see `[permissions]`", effect="table")
    ] = None
    budget: BudgetKey = None
    prices: Annotated[
        tuple[Price, ...],
        Key("prices of models by `provider/model`, before published ones, see `[prices]`", effect="table"),
    ] = ()
    models: Annotated[dict[str, WrittenModels], Key("names for models, see `[models]`", effect="text")] = Field(
        default_factory=dict
    )
    limits: Annotated[
        tuple[ProviderLimits, ...],
        Key("limits on concurrent requests and requests per minute, see `[limits]`", effect="table"),
    ] = ()
    schedules: Annotated[
        tuple[Schedule, ...],
        Key("Jobs started by a cron line, by the schedule's name, see `[schedules]`", effect="table"),
    ] = ()
    experts: Annotated[dict[str, Expert], Key("the Experts, by their key", effect="table")] = Field(
        default_factory=dict
    )
    recorded_permissions: Permissions | None = None  # rules of the time when iterations began, added to today's
    path: str | None = None  # file that it was read from, absolute; None for a project made in Python
    files: tuple[str, ...] = ()  # the definition file and its includes, absolute
    test_commands: tuple[
        str | tuple[str, ...], ...
    ] = ()  # commands of the Experts' tests, which no Expert has as a field
    # problems of declared Experts that cannot be used, by key
    broken: Annotated[dict[str, tuple[Problem, ...]], AsIs()] = Field(default_factory=dict)
    # problems of Experts that must not begin a Job, because a rule or limit may be misspelt, by key
    unguarded: Annotated[dict[str, tuple[Problem, ...]], AsIs()] = Field(default_factory=dict)

    first_fields: ClassVar = (
        *("model", "reasoning_budget", "max_steps", "max_depth", "max_repeats", "max_retries", "timeout"),
        *("retry_timeout", "provider"),
    )

    @property
    def folder(self) -> str | None:
        """The folder that Experts work in; None leaves it to the caller."""
        return self.workspace.path if isinstance(self.workspace, Workspace) else self.workspace

    @property
    def snapshots(self) -> SnapshotPolicy | None:
        """Policy for recording the workspace's files; None if they are not recorded."""
        workspace = self.workspace
        if not isinstance(workspace, Workspace) or not workspace.snapshots:
            return None
        return SnapshotPolicy(max_file_size=workspace.max_file_size)

    def expert(self, key: str) -> Expert | None:
        """Return the Expert of that key, or None. `name@version` matches `name` if that version is the defined one."""
        expert = self.experts.get(key)
        if expert is not None:
            return expert
        name, version = key_and_version(key)
        expert = self.experts.get(name)
        return expert if expert is not None and expert.version == version else None

    def to_toml(self) -> str:
        """Return the text of a perstack.toml with this definition, the Experts of included files among them.

        Raises UsageError for a value that TOML cannot express.
        """
        from perstack.core.definitions.to_toml import toml_of  # few programs write one

        return toml_of(self)

    def check_broken(self, key: str) -> None:
        """Raise DefinitionError with all problems of an Expert that is declared but cannot run."""
        problems = self.broken.get(key) or self.broken.get(key.rpartition("@")[0])
        if problems:
            raise DefinitionError(problems)

    def check_guarded(self, key: str) -> None:
        """Raise DefinitionError if a rule or limit that holds for an Expert may be misspelt."""
        if key in self.unguarded:
            raise DefinitionError(self.unguarded[key])


def with_delegates(project: Project, keys: Iterable[str]) -> list[Expert]:
    """Return these Experts and all that they may delegate to, each once. Unknown keys are skipped."""
    experts: dict[str, Expert] = {}
    waiting = list(keys)
    while waiting:
        expert = project.expert(waiting.pop(0))
        if expert is not None and expert.key not in experts:
            experts[expert.key] = expert
            waiting += expert.delegates
    return list(experts.values())
