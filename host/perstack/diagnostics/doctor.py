"""Check whether this machine has what perstack needs: runtimes, providers, extras and the place of the state."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from importlib import metadata
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit
from urllib.request import getproxies

from perstack.core.definitions.experts import Expert
from perstack.core.definitions.sandbox import SandboxPolicy
from perstack.core.definitions.settings import RECORDED
from perstack.core.secrets.masking import masked_words
from perstack.dataclass import dataclass
from perstack.engine.context.host_setup import HostSetup
from perstack.engine.log.delegate_leases_and_stop_requests import end_leftover_programs
from perstack.errors import PerstackError, UsageError
from perstack.http_providers.provider import HttpProvider
from perstack.iterations.programs import command_sandbox
from perstack.ports.environment import inherit_variables
from perstack.ports.provider import OfferedModel, ProviderConfig, ProviderFactory
from perstack.ports.runtime import Ending, Program, RuntimeFactory
from perstack.ports.storage import Storage
from perstack.system.files import system_reason
from perstack.system.processes import await_start, end_with_block
from perstack.version import VERSION

# Programs run as a tool of an Expert would, for a person who wants to see what a sandbox allows.


@dataclass(frozen=True, slots=True)
class ProgramExit:
    """The result of a program that was run for a person."""

    status: int  # exit status, or the negative number of the signal that ended it
    ending: Ending


@dataclass(frozen=True, slots=True)
class RuntimeState:
    """State of one runtime on this machine."""

    name: str
    is_wanted: bool  # True if an Expert's programs run in it
    problem: str = ""  # reason why it cannot be used, with the remedy; empty if it can
    limits: Mapping[str, str] = field(default_factory=dict[str, str])


async def runtimes(setup: HostSetup) -> tuple[RuntimeState, ...]:
    """Return the state of each installed runtime, sorted by name."""
    policies = [setup.policy(expert) or SandboxPolicy() for expert in setup.project.experts.values()]
    factories = sorted(setup.plugins.runtimes.values(), key=lambda factory: factory.name)
    return tuple(
        [
            await _runtime_state(setup, runtime, [policy for policy in policies if policy.runtime == runtime.name])
            for runtime in factories
        ]
    )


async def _runtime_state(setup: HostSetup, factory: RuntimeFactory, policies: Sequence[SandboxPolicy]) -> RuntimeState:
    problem = ""
    try:
        for policy in policies or (SandboxPolicy(runtime=factory.name),):
            problem = problem or "; ".join(await factory.check(policy, setup.surroundings("")))
    except PerstackError as error:
        problem = str(error)
    return RuntimeState(factory.name, bool(policies), problem, factory.limits())


async def run_program(setup: HostSetup, expert: Expert, argv: Sequence[str]) -> ProgramExit:
    """Run a program in the Expert's runtime and the workspace, with this process's standard streams.

    Raises UsageError if it cannot be started, and the errors of `HostSetup.check_sandbox`.
    """
    async with end_leftover_programs(setup.storage), command_sandbox(setup, expert.key) as sandbox:
        env = {**inherit_variables(setup.env.without_stored, sandbox.variables), "PWD": str(setup.workspace)}
        program = Program(tuple(argv), setup.workspace, env, 0, 1, 2, records=setup.storage.programs)
        try:
            process = await await_start(asyncio.create_task(sandbox.runtime.start(program)))
        except (OSError, ValueError) as error:
            raise UsageError(f"{argv[0]} cannot be started: {system_reason(error)}") from error
        async with end_with_block(process):
            status = await process.wait()
        return ProgramExit(status, sandbox.runtime.ending(process))


# Providers and their models.

_MODEL_LIST_TIMEOUT_S = 10.0  # timeout in seconds for a provider's list of models


@dataclass(frozen=True, slots=True)
class ProviderState:
    """The state of a provider on this machine."""

    name: str
    is_configured: bool  # True if the environment has all that it needs, such as a key
    is_usable: bool  # True if it is configured, or is a server without settings that answers
    is_default: bool  # True if a Run that names no provider uses it
    how_to_configure: str
    default_model: str | None
    models: tuple[OfferedModel, ...] = ()
    problem: str = ""  # reason why its models cannot be listed; empty if they can
    served_by: str = ""  # command that starts its server on this machine; empty for others
    takes_any_address: bool = False  # True if its setting `baseUrl` may name any server of its wire format
    credential: str = ""  # the variable of its key and where that is set; empty if it has no key in a variable


async def provider_states(setup: HostSetup) -> tuple[ProviderState, ...]:
    """Return the state of each provider, the default first, then in the order in which they are tried.

    The provider that plays recordings is included only if it is the default.
    """
    factories = sorted(setup.plugins.providers.values(), key=lambda factory: factory.priority)
    default = _default_provider(setup)
    factories = [factory for factory in factories if factory.name != RECORDED or default == RECORDED]
    async with asyncio.TaskGroup() as group:
        states = (_provider_state(factory, setup.env, factory.name == default) for factory in factories)
        tasks = [group.create_task(state) for state in states]
    return tuple(sorted((task.result() for task in tasks), key=lambda state: not state.is_default))


async def provider_state(setup: HostSetup, name: str) -> ProviderState:
    """Return the state of one provider. Raises UsageError for an unknown one."""
    factory = setup.plugins.provider(name)
    return await _provider_state(factory, setup.env, _default_provider(setup) == name)


def _default_provider(setup: HostSetup) -> str | None:
    if setup.overrides.provider is not None:
        return setup.overrides.provider
    if setup.project.provider is not None:
        return setup.project.provider.provider_name
    factory = setup.plugins.default_provider(setup.env)
    return None if factory is None else factory.name


async def _provider_state(factory: ProviderFactory, env: Mapping[str, str], is_default: bool) -> ProviderState:
    is_configured = factory.is_configured(env)
    is_listed, models, problem = False, tuple[OfferedModel, ...](), ""
    try:
        is_listed, models = await asyncio.wait_for(asyncio.to_thread(_models, factory, env), _MODEL_LIST_TIMEOUT_S)
    except PerstackError as error:
        problem = str(error)
    except TimeoutError:
        problem = f"gave no list of models in {_MODEL_LIST_TIMEOUT_S:.0f} s"
    credential = await _read_from_provider(factory, env, lambda provider: provider.credential) if is_configured else ""
    return ProviderState(
        name=factory.name,
        is_configured=is_configured,
        is_usable=is_configured or (is_listed and bool(models)),
        is_default=is_default,
        how_to_configure=factory.how_to_configure,
        default_model=factory.default_model,
        models=models,
        problem=problem,
        served_by=factory.served_by,
        takes_any_address=factory.takes_any_address,
        credential=credential or "",
    )


def _models(factory: ProviderFactory, env: Mapping[str, str]) -> tuple[bool, tuple[OfferedModel, ...]]:
    models = factory.models(env)
    if models is not None:
        return True, tuple(models)
    return False, () if factory.prices is None else tuple(factory.prices.models())


_CONNECT_TIMEOUT_S = 3.0
_PACKAGE = "perstack"
_OLDEST_PYTHON = (3, 11)
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+).*;.*extra\s*==\s*['\"]([^'\"]+)['\"]")
_MIN_FREE_BYTES = 1_000_000_000  # free bytes on the disk of the state below which a problem is reported


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """The result of one check."""

    about: str
    state: Literal["ok", "missing", "problem"]  # `missing` is optional; `problem` prevents something
    text: str
    remedy: str = ""


async def diagnosis(setup: HostSetup) -> tuple[DoctorFinding, ...]:
    """Check Python, the extras, the providers and the storage. Changes nothing."""
    return (
        _python_finding(),
        *_extra_findings(),
        *_provider_findings(await provider_states(setup)),
        *await _endpoint_findings(setup),
        *(_state_finding(path) for path in setup.storage.places[:1]),
        *await _storage_findings(setup.storage),
    )


def _python_finding() -> DoctorFinding:
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}, perstack {VERSION}"
    version = tuple(map(int, platform.python_version_tuple()[:2]))
    if version < _OLDEST_PYTHON:
        return DoctorFinding("Python", "problem", text, "use Python 3.11 or newer")
    return DoctorFinding("Python", "ok", text)


def _extra_findings() -> Iterator[DoctorFinding]:
    packages_by_extra = dict[str, list[str]]()
    for line in metadata.requires(_PACKAGE) or ():
        if match := _REQUIREMENT.match(line):
            packages_by_extra.setdefault(match[2], []).append(match[1])
    for extra, packages in packages_by_extra.items():
        missing = [name for name in packages if not _is_installed(name)]
        about = f"extra {extra}"
        if missing:
            yield DoctorFinding(about, "missing", f"missing: {', '.join(missing)}", f"pip install 'perstack[{extra}]'")
        else:
            yield DoctorFinding(about, "ok", ", ".join(f"{name} {metadata.version(name)}" for name in packages))


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _provider_findings(states: Sequence[ProviderState]) -> Iterator[DoctorFinding]:
    for state in states:
        about = f"provider {state.name}"
        if state.is_configured and state.problem:
            yield DoctorFinding(about, "problem", state.problem, state.how_to_configure)
        elif state.is_configured:
            model = f", {state.default_model} if no model is named" if state.default_model else ""
            key = f"; {state.credential}" if state.credential else ""
            yield DoctorFinding(about, "ok", f"{'the default' if state.is_default else 'ready'}{model}{key}")
        elif state.is_default:
            yield DoctorFinding(
                about, "problem", "perstack.toml names it, but it is not set up", state.how_to_configure
            )
        else:
            yield DoctorFinding(about, "missing", "not set up", state.how_to_configure)
    if not any(state.is_usable for state in states):
        remedy = "set up one of the providers listed here"
        yield DoctorFinding("a model", "problem", "no provider is set up, so no Expert can be run", remedy)


def _names_address(name: str) -> bool:
    return name.endswith(("_URL", "_ENDPOINT", "_HOST", "_RESOURCE_NAME")) or "_ENDPOINT_URL_" in name


async def _endpoint_findings(setup: HostSetup) -> tuple[DoctorFinding, ...]:
    """Connect to each endpoint whose address a variable of the user sets. Send nothing."""
    default_env = {name: value for name, value in setup.env.items() if not _names_address(name)}
    findings = list[DoctorFinding]()
    for factory in setup.plugins.providers.values():
        address = await _read_from_provider(factory, setup.env, _base_url) if factory.is_configured(setup.env) else None
        if address is not None and address != await _read_from_provider(factory, default_env, _base_url):
            problem = await _connection_problem(address)
            about, text = f"endpoint of {factory.name}", masked_words(address)
            if problem is None:
                findings.append(DoctorFinding(about, "ok", text))
            else:
                remedy = "correct the variable that names it, or start the server"
                findings.append(DoctorFinding(about, "problem", f"{text} cannot be reached: {problem}", remedy))
    return tuple(findings)


async def _read_from_provider(
    factory: ProviderFactory, env: Mapping[str, str], read: Callable[[HttpProvider], str]
) -> str | None:
    """Return `read` of the provider; None if it has no HTTP endpoint, or cannot be created from the environment."""
    try:
        provider = factory.create(ProviderConfig({}, env))
    except PerstackError:
        return None
    await provider.close()
    return read(provider) if isinstance(provider, HttpProvider) else None


def _base_url(provider: HttpProvider) -> str:
    return provider.endpoint.base_url


async def _connection_problem(address: str) -> str | None:
    """Return why a server cannot be connected to; None if it can, or a proxy would be asked."""
    url = urlsplit(address)
    if url.scheme in getproxies() or url.hostname is None:
        return None
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(url.hostname, url.port or (443 if url.scheme == "https" else 80))
            writer.close()
            await writer.wait_closed()
    except TimeoutError:
        return f"no answer in {_CONNECT_TIMEOUT_S:.0f} s"
    except OSError as error:
        return os.strerror(error.errno).lower() if error.errno else str(error)  # asyncio's own text names the address
    return None


def _state_finding(path: Path) -> DoctorFinding:
    folder = next(ancestor for ancestor in (*([path] if path.is_dir() else []), *path.parents) if ancestor.exists())
    if not folder.is_dir():
        return DoctorFinding(
            "state", "problem", f"{path}: {folder} is not a folder", "name another place as the storage"
        )
    try:
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        return DoctorFinding("state", "problem", f"{path}: {error.strerror}", "name another place as the storage")
    text = f"{path}, {free_bytes / 1e9:.1f} GB free"
    if not os.access(folder, os.W_OK | os.X_OK):
        remedy = f"let {_user_label()} write to {folder}, or name another place as the storage"
        return DoctorFinding("state", "problem", f"{text}, not writable", remedy)
    if free_bytes < _MIN_FREE_BYTES:
        return DoctorFinding("state", "problem", text, "make room on that disk, or remove old Jobs")
    return DoctorFinding("state", "ok", text)


async def _storage_findings(storage: Storage) -> tuple[DoctorFinding, ...]:
    checks = await storage.checks()
    states: tuple[Literal["problem", "ok"], ...] = ("problem", "ok")
    return tuple(
        DoctorFinding(f"state, {check.about}", states[check.is_there], check.text, check.remedy) for check in checks
    )


def _user_label() -> str:
    return os.environ.get("USER") or f"user {os.getuid()}"
