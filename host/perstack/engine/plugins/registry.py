"""Load plugins through pluggy, and return the registered objects by kind and name.

Only this module and `ports.hooks` use pluggy. Plugins come from entry points of group `perstack`, from modules named in
PERSTACK_PLUGINS, and from the objects passed to `load_plugins`. Names and schemes are unique over all plugins. Skills
have no lookup by name: the first factory that handles a definition provides the skill, and plugins loaded later come
first, so an object passed in Python overrides an installed plugin.

An installed plugin that cannot be imported, or is written for another plugin API, is left out with a notice. All other
errors raise, because the caller asked for that plugin or its author has to fix it.

Commands of plugins are not loaded here: `doors.cli.plugin_commands` reads them without a Host.

A new kind needs a hook in `ports.hooks`, a field of that name in `PluginInfo` and `Plugins`, and a line in `_KINDS`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import TypeVar

import pluggy

from perstack.core.base.records import JsonObject
from perstack.core.base.text import suggestion
from perstack.dataclass import dataclass
from perstack.errors import PluginError, UsageError
from perstack.ports import hooks
from perstack.ports.dispatcher import Dispatcher, DispatcherFactory
from perstack.ports.formats import JobFormat
from perstack.ports.hooks import Listener
from perstack.ports.provider import ProviderFactory
from perstack.ports.runtime import RuntimeFactory
from perstack.ports.skill import SkillFactory
from perstack.ports.storage import Storage, StorageFactory
from perstack.system.plugin_modules import EXTRA_MODULES, installed_modules, named_modules
from perstack.system.user import notice

GROUP = "perstack"

_KINDS: Mapping[str, str] = {
    "storages": "scheme",
    "providers": "name",
    "skills": "name",
    "formats": "name",
    "runtimes": "name",
    "dispatchers": "scheme",
}
"""The kinds of objects with names, and the attribute that is the name. Listeners are the only kind without names."""

_REASONS_IF_MISSING = {
    "mcp-sampling": "it is the model of an editor, and exists only while perstack serves that editor over MCP"
}
"""Providers that only some front doors register, and the reason to show where they are missing."""

_HOOKS = (FunctionType, MethodType, staticmethod, classmethod)  # types that pluggy accepts as hook implementations
_IN_PYTHON = "given in Python"

EXTRAS = "perstack.extras"
"""Entry point group of the extras that install another distribution: `provider.NAME = EXTRA`, in pyproject.toml."""


def _not_installed_error(kind: str, name: str, known: str, names: Iterable[str]) -> UsageError:
    for point in entry_points(group=EXTRAS, name=f"{kind}.{name}"):
        return UsageError(f"{kind} {name!r} is not installed: pip install 'perstack[{point.value}]'")
    return UsageError(f"no {kind} {name!r} is installed; {known}{suggestion(name, names)}")


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
    infos: Sequence[PluginInfo]
    runtimes: Mapping[str, RuntimeFactory]
    dispatchers: Mapping[str, DispatcherFactory]

    def storage(self, scheme: str) -> StorageFactory:
        """Return the storage factory of a scheme. Raises UsageError, listing the known schemes, if there is none."""
        return _find("storage", scheme, self.storages)

    def open_storage(self, address: str, folder: Path, setting: JsonObject | None = None) -> Storage:
        """Open the storage at an address such as `file:perstack`, relative to a folder. Raises UsageError."""
        factory, location = self.storage_at(address)
        if setting and not factory.has_settings:
            raise UsageError(f"storageSetting: storage {factory.scheme} has no settings: remove the table")
        return factory.open(location, folder, setting=setting, formats=tuple(self.formats.values()))

    def storage_at(self, address: str) -> tuple[StorageFactory, str]:
        """Split an address into storage factory and location. Raises UsageError if there is no such storage."""
        scheme, separator, location = address.partition(":")
        if not separator:
            raise UsageError(f"storage {scheme!r} has no location: write it as `file:DIRECTORY` or `sqlite:FILE`")
        return self.storage(scheme), location

    def open_dispatcher(self, address: str) -> Dispatcher:
        """Open the dispatcher at an address such as `postgresql://host/database`. Raises UsageError."""
        factory, location = self.dispatcher_at(address)
        return factory.open(location)

    def dispatcher_at(self, address: str) -> tuple[DispatcherFactory, str]:
        """Split an address into dispatcher factory and location. Raises UsageError if there is no such dispatcher."""
        scheme, separator, location = address.partition(":")
        factory = self.dispatchers.get(scheme) if separator else None
        if factory is None:
            schemes = ", ".join(f"`{name}:`" for name in sorted(self.dispatchers)) or "none"
            raise _not_installed_error(
                "dispatcher", scheme, f"addresses begin with one of: {schemes}", self.dispatchers
            )
        return factory, location

    def format(self, name: str) -> JobFormat:
        """Return the format of a name. Raises UsageError, listing the known formats, if there is none."""
        return _find("format", name, self.formats)

    def runtime(self, name: str) -> RuntimeFactory:
        """Return the runtime factory of a name. Raises UsageError, listing the known runtimes, if there is none."""
        return _find("runtime", name, self.runtimes)

    def is_vendor(self, name: str) -> bool | None:
        """Return whether a provider is its vendor's own endpoint (`ProviderFactory.is_vendor`); None if unknown."""
        factory = self.providers.get(name)
        return None if factory is None else factory.is_vendor

    def default_provider(self, env: Mapping[str, str]) -> ProviderFactory | None:
        """Return the first configured provider, for a Run that names none; None without one."""
        factories = sorted(self.providers.values(), key=lambda factory: factory.priority)
        return next((factory for factory in factories if not factory.needs_name and factory.is_configured(env)), None)

    def provider(self, name: str) -> ProviderFactory:
        """Return the provider factory of a name. Raises UsageError, listing the known providers, if there is none."""
        if name in _REASONS_IF_MISSING and name not in self.providers:
            raise UsageError(f"no provider {name!r} is installed; {_REASONS_IF_MISSING[name]}")
        return _find("provider", name, self.providers)


_T = TypeVar("_T")


def _find(kind: str, name: str, registered: Mapping[str, _T]) -> _T:
    entry = registered.get(name)
    if entry is None:
        names = ", ".join(sorted(registered)) or "none"
        raise _not_installed_error(kind, name, f"available: {names}", registered)
    return entry


@dataclass(slots=True)
class _FoundPlugin:
    name: str
    package: str
    version: str
    plugin: object | None
    error: str | None = None


class _Manager(pluggy.PluginManager):
    """A plugin manager that inspects only hooks: other attributes take most of the time of opening a Host."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        if type(plugin) is ModuleType and not isinstance(vars(plugin).get(name), _HOOKS):
            return None
        return super().parse_hookimpl_opts(plugin, name)


def load_plugins(extra: Iterable[object] = (), env: Mapping[str, str] | None = None) -> Plugins:
    """Load the installed plugins, those named in PERSTACK_PLUGINS, and `extra` objects.

    Raises UsageError for a name in PERSTACK_PLUGINS that cannot be imported, and PluginError for a misspelt hook, a
    hook that raises, a name that two plugins register, or another plugin API; an installed plugin may be left out.
    """
    manager = _Manager(hooks.PROJECT)
    manager.add_hookspecs(hooks)
    candidates = _without_duplicates(
        [*_installed_plugins(), *_from_environment(env or {}), *(_from_python(plugin) for plugin in extra)]
    )
    for candidate in candidates:
        if candidate.plugin is not None:
            _register(manager, candidate)
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise PluginError(f"a plugin has a hook that does not exist: {error}") from error
    return _collect(manager, candidates)


def _installed_plugins() -> list[_FoundPlugin]:
    result: list[_FoundPlugin] = []
    for point, package, version in installed_modules(GROUP):
        try:
            result.append(_FoundPlugin(point.name, package, version, _require_api(point.load(), point.name, package)))
        except Exception as error:  # noqa: BLE001 - a package may raise anything, and the others must load
            text = f"{type(error).__name__}: {error}"
            notice(f"plugin {point.name} of {package} was skipped: {text}")
            result.append(_FoundPlugin(point.name, package, version, None, text))
    return result


def _from_environment(env: Mapping[str, str]) -> list[_FoundPlugin]:
    return [_FoundPlugin(name, name, "", _require_api(_import_module(name), name, name)) for name in named_modules(env)]


def _import_module(name: str) -> object:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a module may raise anything, and a name may be invalid
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(
            f"{EXTRA_MODULES}: {name} cannot be imported ({cause}); correct the module, or remove its name"
        ) from error


def _from_python(plugin: object) -> _FoundPlugin:
    name = getattr(plugin, "__name__", type(plugin).__name__)
    return _FoundPlugin(f"{name}", _IN_PYTHON, "", _require_api(plugin, name, _IN_PYTHON))


def _require_api(plugin: object, name: str, package: str) -> object:
    """Return the plugin. Raises PluginError if it declares another version of the plugin API than this host's."""
    declared_api: object = getattr(plugin, "PLUGIN_API", hooks.PLUGIN_API)
    if declared_api != hooks.PLUGIN_API:
        raise PluginError(
            f"plugin {name} of {package} is written for plugin API {declared_api}, but the host has {hooks.PLUGIN_API}:"
            " install compatible versions of both"
        )
    return plugin


def _without_duplicates(candidates: Sequence[_FoundPlugin]) -> list[_FoundPlugin]:
    seen_ids: set[int] = set()
    unique: list[_FoundPlugin] = []
    for candidate in candidates:
        if candidate.plugin is None or id(candidate.plugin) not in seen_ids:
            seen_ids.add(id(candidate.plugin))
            unique.append(candidate)
    return unique


def _register(manager: pluggy.PluginManager, candidate: _FoundPlugin) -> None:
    name = candidate.name if not manager.has_plugin(candidate.name) else f"{candidate.name}#{id(candidate.plugin)}"
    try:
        manager.register(candidate.plugin, name=name)
    except (ValueError, pluggy.PluginValidationError) as error:
        raise PluginError(f"plugin {candidate.name} of {candidate.package}: {error}") from error
    if candidate.package == _IN_PYTHON and not manager.get_hookcallers(candidate.plugin):
        raise PluginError(
            f"plugin {candidate.name}, given in Python, has no hook: pass a Toolkit, or an object with hooks"
        )


def _collect(manager: pluggy.PluginManager, candidates: Sequence[_FoundPlugin]) -> Plugins:
    """Call the hooks of each plugin, and return what they register. Raises PluginError."""
    registered: dict[str, dict[str, object]] = {kind: {} for kind in _KINDS}
    listeners: list[object] = []
    infos: list[PluginInfo] = []
    for candidate in candidates:
        if candidate.plugin is None:
            infos.append(PluginInfo(candidate.name, candidate.package, candidate.version, error=candidate.error))
            continue
        names: dict[str, tuple[str, ...]] = {}
        for kind, attribute in _KINDS.items():
            hook_results = _call(manager, candidate, f"perstack_{kind}")
            factories = {getattr(factory, attribute): factory for factory in hook_results}
            names[kind] = tuple(factories)
            _merge(kind.removesuffix("s"), factories, registered[kind], candidate)
        new_listeners = _call(manager, candidate, "perstack_listeners")
        listeners += new_listeners
        package, version = candidate.package, candidate.version
        infos.append(PluginInfo(candidate.name, package, version, listeners=len(new_listeners), error=None, **names))
    # the first factory that handles a skill provides it: objects passed in Python go before installed plugins
    skills = tuple(reversed(registered.pop("skills").values()))
    # the only place where the results of the untyped hooks are narrowed
    return Plugins(skills=skills, listeners=tuple(listeners), infos=tuple(infos), **registered)  # type: ignore[arg-type]


def _call(manager: pluggy.PluginManager, candidate: _FoundPlugin, hook_name: str) -> list[object]:
    """Call a hook of one plugin. Raises PluginError if it raises anything."""
    others = [other for other in manager.get_plugins() if other is not candidate.plugin]
    caller = manager.subset_hook_caller(hook_name, others)
    try:
        results: list[Sequence[object] | None] = caller()
    except Exception as error:
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        plugin_label = f"plugin {candidate.name} of {candidate.package}"
        raise PluginError(f"{plugin_label}: its hook {hook_name} raised {cause}") from error
    return [item for result in results if result is not None for item in result]


def _merge(
    kind: str, new_factories: Mapping[str, object], registered: dict[str, object], candidate: _FoundPlugin
) -> None:
    for name, factory in new_factories.items():
        if name in registered and registered[name] is not factory:
            raise PluginError(f"two plugins provide the {kind} {name!r}; remove {candidate.package} or the other")
        registered[name] = factory
