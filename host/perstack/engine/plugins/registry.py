"""Load plugins through pluggy and return what they registered, with types.

Only this module and `ports.hooks` use pluggy. Plugins come from three sources, in this order: the entry points of group
`perstack`, the modules named in PERSTACK_PLUGINS, and the objects passed to `load_plugins`. An object that is found
twice is registered once.

There are seven kinds: storages, providers, skills, formats, listeners, runtimes and dispatchers. Each has a hook in
`ports.hooks`. `pm.hook` is untyped, so `_of` calls the hooks of one plugin at a time and is the only place that narrows
their results. Names and schemes are unique over all plugins. Skills have no lookup by name: the first factory that
handles a definition provides the skill, and plugins loaded later come first, so an object passed in Python overrides an
installed plugin.

Errors: an installed plugin that cannot be imported is left out with a notice, so that one broken package does not stop
perstack. All other errors raise, because the caller asked for that plugin or its author has to fix it.

A new kind needs a hook in `ports.hooks`, a field in `PluginInfo`, `Plugins` and `_Registered`, and a line in `_of` and
`_collect`.
"""

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
from perstack.core.base.records import JsonObject
from perstack.dataclass import dataclass
from perstack.errors import PluginError, UsageError
from perstack.ports import hooks
from perstack.ports.dispatcher import Dispatcher, DispatcherFactory
from perstack.ports.formats import JobFormat, OpensForeign
from perstack.ports.hooks import Listener
from perstack.ports.provider import ProviderFactory
from perstack.ports.runtime import RuntimeFactory
from perstack.ports.skill import SkillFactory
from perstack.ports.storage import Storage, StorageFactory, TakesSetting
from perstack.system.user import notice

GROUP = "perstack"
EXTRA_MODULES = "PERSTACK_PLUGINS"
"""Environment variable: comma-separated modules to load as plugins, in addition to the installed ones."""


_ELSEWHERE = {"mcp-sampling": "it is the model of an editor, which is there only while perstack serves that over MCP"}
"""Providers that only some front doors register, and the reason to show where they are missing."""


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """One plugin, with the names it registered, for display."""

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
    """Everything that the loaded plugins registered."""

    storages: Mapping[str, StorageFactory]
    providers: Mapping[str, ProviderFactory]
    skills: Sequence[SkillFactory]
    formats: Mapping[str, JobFormat]
    listeners: Sequence[Listener]
    infos: Sequence[PluginInfo] = field(default=())
    runtimes: Mapping[str, RuntimeFactory] = field(default_factory=dict[str, RuntimeFactory])
    dispatchers: Mapping[str, DispatcherFactory] = field(default_factory=dict[str, DispatcherFactory])

    def storage(self, scheme: str) -> StorageFactory:
        """Return the storage factory of a scheme. Raises UsageError, listing the known schemes, if there is none."""
        found = self.storages.get(scheme)
        if found is None:
            known = ", ".join(sorted(self.storages))
            near = suggestion(scheme, self.storages)
            raise UsageError(f"no storage {scheme!r} is installed; there are: {known}{near}")
        return found

    def open_storage(self, address: str, folder: Path, setting: JsonObject | None = None) -> Storage:
        """Open the storage at an address such as `file:perstack`, relative to a folder.

        Raises UsageError if there is no such storage, or if it does not accept settings.
        """
        factory, location = self.storage_at(address)
        if isinstance(factory, TakesSetting):
            return factory.open_set(location, folder, setting or {})
        if setting:
            raise UsageError(f"storageSetting: storage {factory.scheme} has no settings: leave the table out")
        if isinstance(factory, OpensForeign):
            return factory.open_with(location, folder, tuple(self.formats.values()))
        return factory.open(location, folder)

    def storage_at(self, address: str) -> tuple[StorageFactory, str]:
        """Split an address into storage factory and location. Raises UsageError if there is no such storage."""
        scheme, separator, location = address.partition(":")
        if not separator:
            raise UsageError(f"storage {scheme!r} names no place: write it as `file:DIRECTORY` or `sqlite:FILE`")
        return self.storage(scheme), location

    def open_dispatcher(self, address: str) -> Dispatcher:
        """Open the dispatcher at an address such as `postgresql://host/database`. Raises UsageError if it cannot."""
        factory, location = self.dispatcher_at(address)
        return factory.open(location)

    def dispatcher_at(self, address: str) -> tuple[DispatcherFactory, str]:
        """Split an address into its dispatcher factory and the location in it. Raises UsageError if there is none."""
        scheme, separator, location = address.partition(":")
        found = self.dispatchers.get(scheme) if separator else None
        if found is None:
            known = ", ".join(f"`{name}:`" for name in sorted(self.dispatchers)) or "none"
            near = suggestion(scheme, self.dispatchers)
            raise UsageError(f"no dispatcher {scheme!r} is installed; addresses begin with one of: {known}{near}")
        return found, location

    def format(self, name: str) -> JobFormat:
        """Return the format of a name. Raises UsageError, listing the known formats, if there is none."""
        found = self.formats.get(name)
        if found is None:
            known = ", ".join(sorted(self.formats)) or "none"
            raise UsageError(f"no format {name!r} is installed; there are: {known}{suggestion(name, self.formats)}")
        return found

    def runtime(self, name: str) -> RuntimeFactory:
        """Return the runtime factory of a name. Raises UsageError, listing the known runtimes, if there is none."""
        found = self.runtimes.get(name)
        if found is None:
            known = ", ".join(sorted(self.runtimes)) or "none"
            near = suggestion(name, self.runtimes)
            raise UsageError(f"no runtime {name!r} is installed; there are: {known}{near}")
        return found

    def provider(self, name: str) -> ProviderFactory:
        """Return the provider factory of a name. Raises UsageError, listing the known providers, if there is none."""
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
    """A plugin manager that skips the attributes of a module that cannot be hooks.

    pluggy inspects every name that a module imports; skipping them takes most of the time off opening a Host.
    """

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        if type(plugin) is ModuleType and not isinstance(vars(plugin).get(name), _HOOKS):
            return None
        return super().parse_hookimpl_opts(plugin, name)


_HOOKS = (FunctionType, MethodType, staticmethod, classmethod)
"""Types that pluggy accepts as hook implementations."""


def load_plugins(extra: Iterable[object] = (), env: Mapping[str, str] | None = None) -> Plugins:
    """Load the installed plugins, those named in PERSTACK_PLUGINS, and `extra` objects.

    An installed plugin that cannot be imported is left out, with a notice on stderr and in `perstack plugins`. Raises
    UsageError for a name in PERSTACK_PLUGINS that cannot be imported, and PluginError for a misspelt hook, a hook that
    raises, or a name that two plugins register.
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
        except Exception as error:  # noqa: BLE001 - a package may raise anything, and the others must load
            text = f"{type(error).__name__}: {error}"
            notice(f"plugin {point.name} of {package} was left out: {text}")
            result.append(_Found(point.name, package, version, None, text))
    return result


@lru_cache(maxsize=1)
def _points(path: tuple[str, ...]) -> tuple[tuple[EntryPoint, str, str], ...]:
    """Return the entry points on this path with package and version. Cached, because reading all metadata is slow."""
    result: list[tuple[EntryPoint, str, str]] = []
    packages: dict[int, tuple[str, str]] = {}  # dist.name and dist.version parse the metadata at each access
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
    except (Exception, SystemExit) as error:  # a module may raise anything, and a name may be invalid
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(
            f"{EXTRA_MODULES}: {name} cannot be imported ({what}); correct the module, or take its name out"
        ) from error


def _given(plugin: object) -> _Found:
    name = getattr(plugin, "__name__", type(plugin).__name__)
    return _Found(f"{name}", "given in Python", "", plugin)


def _each_once(found: Sequence[_Found]) -> list[_Found]:
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
    # the first factory that handles a skill provides it: objects passed in Python go before installed plugins
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
    """Call the hooks of one plugin. The only place where the untyped `pm.hook` is narrowed."""
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
