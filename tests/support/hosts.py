"""Hosts on a scripted model, for tests through the Python API."""

from __future__ import annotations

import asyncio
import os
import secrets
import tomllib
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from perstack.config.project_place import ProjectPlace
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.models import Price
from perstack.core.definitions.project import Project, Workspace
from perstack.core.definitions.settings import Overrides
from perstack.core.definitions.skills import InteractiveSkill, InteractiveTool
from perstack.core.runs.events import Event, StoredEvent
from perstack.doors.shared.agreement_items import items_of
from perstack.engine.plugins.registry import load_plugins
from perstack.host import Host
from perstack.parts import describe_waiting_work
from perstack.ports.dispatcher import Dispatcher
from perstack.ports.storage import Storage
from perstack.state_guard.guarded_state import guard_state
from perstack.state_guard.state_marks import StateKey, StateMark
from perstack.system.clock import SYSTEM, Clock
from perstack.testing.crashing_storage import Crash, CrashingStorage, CrashPoint
from perstack.testing.scripted import ScriptedProvider, ScriptLike
from perstack.trust.agreements import TrustStore

T = TypeVar("T")

QUESTION = {"type": "object", "properties": {"question": {"type": "string"}}, "required": ["question"]}


@contextmanager
def until_it_crashes() -> Generator[None]:
    """Let a simulated crash end the block, alone or in an exception group."""
    try:
        yield
    except BaseExceptionGroup as error:
        if error.split(Crash)[0] is None:
            raise
    except Crash:
        pass


def expert(key: str, *, delegates: tuple[str, ...] = (), ask: bool = False, **fields) -> Expert:
    """Return an Expert; with `ask` it has an interactive tool askUser."""
    skills = (InteractiveSkill(name="user", tools=(InteractiveTool(name="askUser", input_schema=QUESTION),)),)
    fields.setdefault("instruction", f"[[{key}]] does its work.")
    return Expert(key=key, delegates=delegates, skills=skills if ask else (), **fields)


def project_of(*experts: Expert) -> Project:
    return Project(experts={item.key: item for item in experts})


def storage_line(request: pytest.FixtureRequest, env: dict[str, str]) -> str:
    """Return the `storage` line of perstack.toml, and add the variables that commands need for its server to `env`."""
    address = storage_of(request)
    env |= server_variables()
    return f'storage = "{address}"\n'


def server_variables() -> dict[str, str]:
    """Return the variables that a separate process needs to find the server of `storage_of`."""
    return {name: value for name, value in os.environ.items() if name.startswith("AWS_")}


def other_address(storage: str) -> str:
    """Return the address of a new store of the same kind; the same address if the store is in the workspace."""
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


class Begun(Seen):
    """Collects events, and sets `generating` when a generation starts."""

    def __init__(self) -> None:
        super().__init__()
        self.generating = asyncio.Event()

    def __call__(self, event: Event, line: bytes) -> None:
        super().__call__(event, line)
        if event.type == "startGeneration":
            self.generating.set()


def open_storage(storage: str, workspace: Path) -> Storage:
    """Open a storage by its address."""
    return load_plugins((), {}).open_storage(storage, workspace)


def agree_to_state(folder: Path, storage: str | None = None, env: Mapping[str, str] = os.environ) -> None:
    """Agree to state that the test has put there, if there is any, as its user does by `perstack trust --state`.

    `storage` None: that of perstack.toml, or the default.
    """
    if storage is None:
        definition = folder / "perstack.toml"
        storage = tomllib.loads(definition.read_text()).get("storage") if definition.exists() else None
    state = open_storage(storage or "file:perstack", folder).local_state
    if state is not None and not (mark := StateMark(state, StateKey.of_user(env))).is_absent():
        mark.agree()


def agree_to_definition(folder: Path, env: Mapping[str, str] = os.environ) -> None:
    """Agree to the definition in a folder, but not to its state, as `perstack trust` does."""
    place = ProjectPlace(folder.resolve(), folder.resolve() / "perstack.toml")
    TrustStore.of_user(env).agree(place.folder, items_of(place).items)


STORAGES = [
    pytest.param("file:perstack", id="file"),
    pytest.param("sqlite:perstack/state.db", id="sqlite"),
    pytest.param("postgresql", id="postgres"),
    pytest.param("s3", id="s3"),
]
"""Parameters for fixtures that call `storage_of`."""


def sampled(points: list[CrashPoint], part: int = 0) -> list[CrashPoint]:
    """Return every fifth of the points at which a process dies, and all of them with PERSTACK_FAULTS=all.

    `part` is 0 to 4: tests on several storages pass a different one for each, so that together they try more.
    """
    return points if os.environ.get("PERSTACK_FAULTS") == "all" else points[part::5]


def storage_of(request: pytest.FixtureRequest) -> str:
    """Return the address for a fixture's parameter; a new store if a server keeps it."""
    match request.param:
        case "postgresql":
            return str(request.getfixturevalue("postgres").address())
        case "s3":
            return str(request.getfixturevalue("s3_store"))
        case address:
            return str(address)


def crashing(point: CrashPoint) -> Callable[[Storage], Storage]:
    """Return a wrapper for `Bench.host(wrap=…)`: the process dies at this point."""
    return lambda inner: CrashingStorage(inner, point)


def recording(host: Host, **settings) -> Host:
    """Make the Host record the files of its workspace, and return it."""
    host.use(host.project.model_copy(update={"workspace": Workspace(snapshots=True, **settings)}))
    return host


OPENED: list[Host] = []
"""Hosts that a test has not closed; the fixture `closed_hosts` closes them."""


class MovedClock:
    """The system's time, moved ahead."""

    def __init__(self) -> None:
        self.ahead = 0

    def now(self) -> int:
        return SYSTEM.now() + self.ahead

    def move(self, milliseconds: int) -> None:
        """Let milliseconds pass."""
        self.ahead += milliseconds


class Bench:
    """A workspace with a storage and a clock. Each `host` is the view of a new process."""

    def __init__(self, workspace: Path, storage: str) -> None:
        self.workspace = workspace
        self.storage = storage
        self.clock = MovedClock()

    def beside(self, workspace: Path) -> Bench:
        """Return a bench for another workspace, with its own store of the same kind."""
        return Bench(workspace, other_address(self.storage))

    def needs_files(self, why: str) -> None:
        """Skip a test that needs a storage with files on this machine."""
        if not self.storage.startswith(("file:", "sqlite:")):
            pytest.skip(why)

    def has_no_dispatcher(self) -> None:
        """Skip a test that needs a storage that is not a dispatcher."""
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
        attended: bool = False,
        **overrides,
    ) -> Host:
        """Return a Host on which `exec` is open. `wrap` replaces its storage by a wrapper.

        `clock` None means the clock of the bench.
        """
        provider = script if isinstance(script, ScriptedProvider) else ScriptedProvider(script)
        host = Host(
            project_of(*experts).model_copy(update={"prices": prices}),
            workspace=self.workspace,
            storage=self.storage if wrap is None else wrap(self._open_guarded()),
            env={"PATH": "/usr/bin:/bin"},
            overrides=Overrides(**{"provider": "scripted", "open": True, **overrides}),
            plugins=[provider, *plugins],
            clock=clock or self.clock,
            dispatcher=dispatcher,
            is_attended=lambda: attended,
        )
        OPENED.append(host)
        return host

    def _open_guarded(self) -> Storage:
        """Open the storage as a Host does, so that what is written through a wrapper is the user's own."""
        return guard_state(
            open_storage(self.storage, self.workspace), ProjectPlace(self.workspace, None), describe_waiting_work
        )


def wait_for(work: Coroutine[object, object, T], seconds: float = 30) -> T:
    """Run a coroutine to its end, with a timeout."""

    async def run_bounded() -> T:
        async with asyncio.timeout(seconds):
            return await work

    return asyncio.run(run_bounded())


@contextmanager
def closing(*storages: Storage) -> Generator[None]:
    """Close the storages at the end of the block."""
    try:
        yield
    finally:
        for storage in storages:
            wait_for(storage.close())


def results(seen: Seen, name: str | None = None) -> list[str]:
    """Return the texts of tool results in order."""
    return [
        "".join(getattr(part, "text", "") for part in event.contents)
        for event in seen.of("finishToolCall")
        if name is None or event.tool_name == name
    ]
