"""Hosts on a scripted model, for tests of behaviour through the Python door."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from perstack.config.settings import Overrides
from perstack.core.definitions import Expert, InteractiveSkill, InteractiveTool, Price, Project, Workspace
from perstack.core.events import Event, StoredEvent
from perstack.engine.clock import SYSTEM
from perstack.engine.plugins import load_plugins
from perstack.host import Host
from perstack.ports.clock import Clock
from perstack.ports.dispatcher import Dispatcher
from perstack.ports.storage import Storage
from perstack.testing.crashing_storage import Crash, CrashingStorage, CrashPoint
from perstack.testing.scripted import ScriptedProvider, ScriptLike

T = TypeVar("T")

QUESTION = {"type": "object", "properties": {"question": {"type": "string"}}, "required": ["question"]}


@contextmanager
def until_it_crashes() -> Generator[None]:
    """A crash of the storage ends the block, alone or in a group of what failed with it."""
    try:
        yield
    except BaseExceptionGroup as error:
        if error.split(Crash)[0] is None:
            raise
    except Crash:
        pass


def expert(key: str, *, delegates: tuple[str, ...] = (), ask: bool = False, **fields) -> Expert:
    """An Expert; with `ask` it has an interactive tool askUser."""
    skills = (InteractiveSkill(name="user", tools=(InteractiveTool(name="askUser", input_schema=QUESTION),)),)
    fields.setdefault("instruction", f"[[{key}]] does its work.")
    return Expert(key=key, delegates=delegates, skills=skills if ask else (), **fields)


def project_of(*experts: Expert) -> Project:
    return Project(experts={one.key: one for one in experts})


def storage_line(request: pytest.FixtureRequest, env: dict[str, str]) -> str:
    """For perstack.toml: the address of `storage_of`. What a command needs to find its server is added to `env`."""
    address = storage_of(request)
    env |= server_variables()
    return f'storage = "{address}"\n'


def server_variables() -> dict[str, str]:
    """What a process of its own needs to find the server of `storage_of`, where there is one."""
    return {name: value for name, value in os.environ.items() if name.startswith("AWS_")}


def elsewhere(storage: str) -> str:
    """The address of a new store of the same kind; the same for one that is in the workspace."""
    for scheme, separator, name in (("postgresql:", "=", "t_"), ("s3:", "/", "")):
        if storage.startswith(scheme):
            return f"{storage.rpartition(separator)[0]}{separator}{name}{secrets.token_hex(6)}"
    return storage


@dataclass
class Seen:
    """Collects events."""

    events: list[Event] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)

    def __call__(self, event: Event, line: bytes) -> None:
        self.events.append(event)
        self.lines.append(line)

    def of(self, *kinds: str, run: str | None = None) -> list:
        return [e for e in self.events if e.type in kinds and (run is None or e.run_id.endswith(run))]

    def types(self, run: str | None = None) -> list[str]:
        stored = [event for event in self.events if isinstance(event, StoredEvent)]
        return [event.type for event in stored if run is None or event.run_id.endswith(run)]


def opened(storage: str, workspace: Path) -> Storage:
    """A storage by its address."""
    return load_plugins((), {}).open_storage(storage, workspace)


STORAGES = [
    pytest.param("file:perstack", id="file"),
    pytest.param("sqlite:perstack/state.db", id="sqlite"),
    pytest.param("postgresql", id="postgres"),
    pytest.param("s3", id="s3"),
]
"""The parameters of a fixture that `storage_of` gives an address for."""


def shared_out(points: list[CrashPoint], bench: Bench) -> list[CrashPoint]:
    """The part of a sweep that falls to this storage: between them files and SQLite try all of it, each before some
    appends and after others. With PERSTACK_STORAGES=all each storage tries all."""
    if os.environ.get("PERSTACK_STORAGES") == "all":
        return points
    part = bench.storage.startswith("file:")
    return [one for one in points if (one.append % 2 == (one.moment == "before")) == part]


def storage_of(request: pytest.FixtureRequest) -> str:
    """The address that a fixture's parameter stands for: of a new store, where a server keeps it."""
    match request.param:
        case "postgresql":
            return str(request.getfixturevalue("postgres").address())
        case "s3":
            return str(request.getfixturevalue("s3_store"))
        case address:
            return str(address)


def crashing(point: CrashPoint) -> Callable[[Storage], Storage]:
    """For `Bench.host(wrap=…)`: the process dies at this point."""
    return lambda inner: CrashingStorage(inner, point)


def recording(host: Host, **settings) -> Host:
    """The same, recording the files of its workspace."""
    host.use(host.project.model_copy(update={"workspace": Workspace(snapshots=True, **settings)}))
    return host


OPENED: list[Host] = []
"""Hosts that a test made and did not close; `tests/host/conftest.py` does."""


class MovedClock:
    """The system's time, moved ahead."""

    def __init__(self) -> None:
        self.ahead = 0

    def now(self) -> int:
        return SYSTEM.now() + self.ahead

    def move(self, milliseconds: int) -> None:
        """So much time goes by."""
        self.ahead += milliseconds


class Bench:
    """A workspace with a storage and a clock; each `host` is a new process's view of it."""

    def __init__(self, workspace: Path, storage: str) -> None:
        self.workspace = workspace
        self.storage = storage
        self.clock = MovedClock()

    def beside(self, workspace: Path) -> Bench:
        """Another workspace, with a store of its own of the same kind."""
        return Bench(workspace, elsewhere(self.storage))

    def needs_files(self, why: str) -> None:
        """Skip a test that is about the storages which keep files on this machine."""
        if not self.storage.startswith(("file:", "sqlite:")):
            pytest.skip(why)

    def has_no_dispatcher(self) -> None:
        """Skip a test that is about storages which do not bring a dispatcher."""
        if self.storage.startswith("postgresql:"):
            pytest.skip("a storage in PostgreSQL is a dispatcher too")

    def host(
        self,
        script: ScriptLike | ScriptedProvider,
        *experts: Expert,
        plugins: tuple = (),
        prices: tuple[Price, ...] = (),
        wrap: Callable[[Storage], Storage] | None = None,
        clock: Clock | None = None,
        dispatcher: Dispatcher | None = None,
        **overrides,
    ) -> Host:
        """`wrap` puts another storage around the one that there is: its Host knows no other.

        `clock` None is that of the Bench.
        """
        provider = script if isinstance(script, ScriptedProvider) else ScriptedProvider(script)
        host = Host(
            project_of(*experts).model_copy(update={"prices": prices}),
            workspace=self.workspace,
            storage=self.storage if wrap is None else wrap(opened(self.storage, self.workspace)),
            env={"PATH": "/usr/bin:/bin"},
            overrides=Overrides(provider="scripted", **overrides),
            plugins=[provider, *plugins],
            clock=clock or self.clock,
            dispatcher=dispatcher,
        )
        OPENED.append(host)
        return host


def wait_for(work: Coroutine[object, object, T], seconds: float = 30) -> T:
    """Run to the end, within a bound."""

    async def bounded() -> T:
        async with asyncio.timeout(seconds):
            return await work

    return asyncio.run(bounded())


@contextmanager
def closing(*storages: Storage) -> Generator[None]:
    """At the end of the block these are closed."""
    try:
        yield
    finally:
        for one in storages:
            wait_for(one.close())


def results(seen: Seen, name: str | None = None) -> list[str]:
    """The texts of tool results, in the order they came."""
    return [
        "".join(getattr(part, "text", "") for part in event.contents)
        for event in seen.of("finishToolCall")
        if name is None or event.tool_name == name
    ]
