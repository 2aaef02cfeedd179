"""perstack.toml: found, read, checked, and made into a `Project`; and what one Run is then started with."""

from perstack.config.load import LoadedProject, load_project, load_usable
from perstack.config.places import find_config
from perstack.config.settings import Overrides, RunSettings, resolve_settings

__all__ = [
    "LoadedProject",
    "Overrides",
    "RunSettings",
    "find_config",
    "load_project",
    "load_usable",
    "resolve_settings",
]
