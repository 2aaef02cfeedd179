"""The one place that talks to pluggy: finds plugins, checks them, and hands out what they registered, typed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Protocol, TypeVar

import pluggy

from perstack.config.check import suggestion
from perstack.core.base import JsonObject
from perstack.dataclass import dataclass
from perstack.engine.notices import notice
from perstack.errors import PluginError, UsageError
from perstack.ports import hooks
from perstack.ports.dispatcher import Dispatcher, DispatcherFactory
from perstack.ports.formats import JobFormat, OpensForeign
from perstack.ports.listener import Listener
from perstack.ports.provider import ProviderFactory
from perstack.ports.runtime import RuntimeFactory
from perstack.ports.skill import SkillFactory
from perstack.ports.storage import Storage, StorageFactory, TakesSetting

GROUP = "perstack"
EXTRA_MODULES = "PERSTACK_PLUGINS"
"""Environment variable: modules to load as plugins besides the installed ones, separated by commas."""


_ELSEWHERE = {"mcp-sampling": "it is the model of an editor, which is there only while perstack serves that over MCP"}
"""Providers that only some front doors bring."""


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """One plugin, for people."""

    name: str
    package: str
    version: str
    storages: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    listeners: int = 0
    runtimes: tuple[str, ...] = ()
    dispatchers: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Plugins:
    """What all plugins together registered."""

    storages: Mapping[str, StorageFactory]
    providers: Mapping[str, ProviderFactory]
    skills: Sequence[SkillFactory]
    formats: Mapping[str, JobFormat]
    listeners: Sequence[Listener]
    infos: Sequence[PluginInfo] = field(default=())
    runtimes: Mapping[str, RuntimeFactory] = field(default_factory=dict[str, RuntimeFactory])
    dispatchers: Mapping[str, DispatcherFactory] = field(default_factory=dict[str, DispatcherFactory])

    def storage(self, scheme: str) -> StorageFactory:
        """Raises UsageError that lists the schemes there are."""
        found = self.storages.get(scheme)
        if found is None:
            known = ", ".join(sorted(self.storages))
            near = suggestion(scheme, self.storages)
            raise UsageError(f"no storage {scheme!r} is installed; there are: {known}{near}")
        return found

    def open_storage(self, address: str, folder: Path, setting: JsonObject | None = None) -> Storage:
        """The storage of an address such as `file:perstack`, seen from a folder. Raises UsageError if there is none, or
        if it has no such settings."""
        factory, location = self.storage_at(address)
        if isinstance(factory, TakesSetting):
            return factory.open_set(location, folder, setting or {})
        if setting:
            raise UsageError(f"storageSetting: storage {factory.scheme} has no settings: leave the table out")
        if isinstance(factory, OpensForeign):
            return factory.open_with(location, folder, tuple(self.formats.values()))
        return factory.open(location, folder)

    def storage_at(self, address: str) -> tuple[StorageFactory, str]:
        """Which storage an address means, and where in it. Raises UsageError if there is none."""
        scheme, separator, location = address.partition(":")
        if not separator:
            raise UsageError(f"storage {scheme!r} names no place: write it as `file:DIRECTORY` or `sqlite:FILE`")
        return self.storage(scheme), location

    def open_dispatcher(self, address: str) -> Dispatcher:
        """The dispatcher of an address such as `postgresql://host/database`. Raises UsageError if there is none."""
        factory, location = self.dispatcher_at(address)
        return factory.open(location)

    def dispatcher_at(self, address: str) -> tuple[DispatcherFactory, str]:
        """Which dispatcher an address means, and where in it. Raises UsageError if there is none."""
        scheme, separator, location = address.partition(":")
        found = self.dispatchers.get(scheme) if separator else None
        if found is None:
            known = ", ".join(f"`{name}:`" for name in sorted(self.dispatchers)) or "none"
            near = suggestion(scheme, self.dispatchers)
            raise UsageError(f"no dispatcher {scheme!r} is installed; addresses begin with one of: {known}{near}")
        return found, location

    def format(self, name: str) -> JobFormat:
        """Raises UsageError that lists the formats there are."""
        found = self.formats.get(name)
        if found is None:
            known = ", ".join(sorted(self.formats)) or "none"
            raise UsageError(f"no format {name!r} is installed; there are: {known}{suggestion(name, self.formats)}")
        return found

    def runtime(self, name: str) -> RuntimeFactory:
        """Raises UsageError that lists the runtimes there are."""
        found = self.runtimes.get(name)
        if found is None:
            known = ", ".join(sorted(self.runtimes)) or "none"
            near = suggestion(name, self.runtimes)
            raise UsageError(f"no runtime {name!r} is installed; there are: {known}{near}")
        return found

    def provider(self, name: str) -> ProviderFactory:
        """Raises UsageError that lists the providers there are."""
        found = self.providers.get(name)
        if found is None:
            known = f"there are: {', '.join(sorted(self.providers))}{suggestion(name, self.providers)}"
            where = _ELSEWHERE.get(name, known)
            raise UsageError(f"no provider {name!r} is installed; {where}")
        return found


class _Named(Protocol):
    @property
    def name(self) -> str: ...


@dataclass(slots=True)
class _Found:
    name: str
    package: str
    version: str
    plugin: object | None
    error: str | None = None


class _Manager(pluggy.PluginManager):
    """Passes over what cannot be a hook in a module, where pluggy would search for it as in an object of any kind.

    That is nearly all of what a plugin imports, and took most of the time in which a Host is opened.
    """

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        if type(plugin) is ModuleType and not isinstance(vars(plugin).get(name), _HOOKS):
            return None
        return super().parse_hookimpl_opts(plugin, name)


_HOOKS = (FunctionType, MethodType, staticmethod, classmethod)
"""What pluggy takes for a hook."""


def load_plugins(extra: Iterable[object] = (), env: Mapping[str, str] | None = None) -> Plugins:
    """Load the installed plugins, those named in PERSTACK_PLUGINS, and `extra` objects.

    An installed plugin that cannot be imported is reported by `perstack plugins` and on stderr, and left out.
    Raises UsageError for a name in PERSTACK_PLUGINS that cannot be imported, and PluginError for a misspelt hook, one
    that raises, or a name that is taken twice.
    """
    manager = _Manager(hooks.PROJECT)
    manager.add_hookspecs(hooks)
    found = _each_once([*_installed(), *_named(env or {}), *(_given(plugin) for plugin in extra)])
    for one in found:
        if one.plugin is not None:
            _register(manager, one)
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise PluginError(f"a plugin has a hook that does not exist: {error}") from error
    return _collect(manager, found)


def _installed() -> list[_Found]:
    result: list[_Found] = []
    for point, package, version in _points(tuple(sys.path)):
        try:
            result.append(_Found(point.name, package, version, point.load()))
        except Exception as error:  # noqa: BLE001 - whatever somebody's package raises, the others must load
            text = f"{type(error).__name__}: {error}"
            notice(f"plugin {point.name} of {package} was left out: {text}")
            result.append(_Found(point.name, package, version, None, text))
    return result


@lru_cache(maxsize=1)
def _points(path: tuple[str, ...]) -> tuple[tuple[EntryPoint, str, str], ...]:
    """The entry points of what is installed on this path, each with its package and version.

    They are looked for once: who opens many Hosts, reads the metadata of all packages for none but the first.
    """
    result: list[tuple[EntryPoint, str, str]] = []
    packages: dict[int, tuple[str, str]] = {}  # its metadata is read anew by each question
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        dist = point.dist
        if dist is None:
            result.append((point, point.value, ""))
            continue
        if id(dist) not in packages:
            packages[id(dist)] = dist.name, dist.version
        result.append((point, *packages[id(dist)]))
    return tuple(result)


def _named(env: Mapping[str, str]) -> list[_Found]:
    modules = [name.strip() for name in env.get(EXTRA_MODULES, "").split(",") if name.strip()]
    return [_Found(name, name, "", _imported(name)) for name in modules]


def _imported(name: str) -> object:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # whatever somebody's module raises, or a name that is none
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(
            f"{EXTRA_MODULES}: {name} cannot be imported ({what}); correct the module, or take its name out"
        ) from error


def _given(plugin: object) -> _Found:
    name = getattr(plugin, "__name__", type(plugin).__name__)
    return _Found(f"{name}", "given in Python", "", plugin)


def _each_once(found: Sequence[_Found]) -> list[_Found]:
    """A plugin that is installed and named besides counts once."""
    seen: set[int] = set()
    once: list[_Found] = []
    for one in found:
        if one.plugin is None or id(one.plugin) not in seen:
            seen.add(id(one.plugin))
            once.append(one)
    return once


def _register(manager: pluggy.PluginManager, one: _Found) -> None:
    name = one.name if not manager.has_plugin(one.name) else f"{one.name}#{id(one.plugin)}"
    try:
        manager.register(one.plugin, name=name)
    except (ValueError, pluggy.PluginValidationError) as error:
        raise PluginError(f"plugin {one.name} of {one.package}: {error}") from error


def _collect(manager: pluggy.PluginManager, found: Sequence[_Found]) -> Plugins:
    storages: dict[str, StorageFactory] = {}
    providers: dict[str, ProviderFactory] = {}
    skills: dict[str, SkillFactory] = {}
    formats: dict[str, JobFormat] = {}
    runtimes: dict[str, RuntimeFactory] = {}
    dispatchers: dict[str, DispatcherFactory] = {}
    listeners: list[Listener] = []
    infos: list[PluginInfo] = []
    for one in found:
        if one.plugin is None:
            infos.append(PluginInfo(one.name, one.package, one.version, error=one.error))
            continue
        ours = _of(manager, one)
        _merge("storage", {factory.scheme: factory for factory in ours.storages}, storages, one)
        _merge("provider", _by_name(ours.providers), providers, one)
        _merge("skill", _by_name(ours.skills), skills, one)
        _merge("format", _by_name(ours.formats), formats, one)
        _merge("runtime", _by_name(ours.runtimes), runtimes, one)
        _merge("dispatcher", {factory.scheme: factory for factory in ours.dispatchers}, dispatchers, one)
        listeners.extend(ours.listeners)
        infos.append(
            PluginInfo(
                one.name,
                one.package,
                one.version,
                tuple(factory.scheme for factory in ours.storages),
                tuple(factory.name for factory in ours.providers),
                tuple(factory.name for factory in ours.skills),
                tuple(form.name for form in ours.formats),
                len(ours.listeners),
                tuple(factory.name for factory in ours.runtimes),
                tuple(factory.scheme for factory in ours.dispatchers),
            )
        )
    # the first that handles a skill provides it: what was given by hand goes before what is installed
    given_first = tuple(reversed(skills.values()))
    return Plugins(storages, providers, given_first, formats, tuple(listeners), tuple(infos), runtimes, dispatchers)


@dataclass(slots=True)
class _Registered:
    storages: list[StorageFactory]
    providers: list[ProviderFactory]
    skills: list[SkillFactory]
    formats: list[JobFormat]
    listeners: list[Listener]
    runtimes: list[RuntimeFactory]
    dispatchers: list[DispatcherFactory]


def _of(manager: pluggy.PluginManager, one: _Found) -> _Registered:
    """What one plugin returned from its hooks. `pm.hook` is untyped: it is narrowed here and nowhere else."""
    others = [other for other in manager.get_plugins() if other is not one.plugin]

    def call(hook_name: str) -> list[object]:
        caller = manager.subset_hook_caller(hook_name, others)
        try:
            answers: list[Sequence[object] | None] = caller()
        except Exception as error:
            what = " ".join(f"{type(error).__name__}: {error}".split())
            raise PluginError(f"plugin {one.name} of {one.package}: its hook {hook_name} raised {what}") from error
        return [item for answer in answers if answer is not None for item in answer]

    return _Registered(
        storages=call("perstack_storages"),  # type: ignore[arg-type]
        providers=call("perstack_providers"),  # type: ignore[arg-type]
        skills=call("perstack_skills"),  # type: ignore[arg-type]
        formats=call("perstack_formats"),  # type: ignore[arg-type]
        listeners=call("perstack_listeners"),  # type: ignore[arg-type]
        runtimes=call("perstack_runtimes"),  # type: ignore[arg-type]
        dispatchers=call("perstack_dispatchers"),  # type: ignore[arg-type]
    )


_N = TypeVar("_N", bound=_Named)
_T = TypeVar("_T")


def _by_name(factories: Iterable[_N]) -> dict[str, _N]:
    return {factory.name: factory for factory in factories}


def _merge(what: str, new: Mapping[str, _T], into: dict[str, _T], one: _Found) -> None:
    for name, factory in new.items():
        if name in into and into[name] is not factory:
            raise PluginError(f"two plugins bring the {what} {name!r}; remove {one.package} or the other")
        into[name] = factory
