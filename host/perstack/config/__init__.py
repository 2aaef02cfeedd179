"""perstack.toml: found, read, checked, and made into a `Project`; and what one Run is then started with."""

from perstack.config.load import LoadedProject, load_project, load_usable
from perstack.config.places import find_config
from perstack.config.settings import ChosenSettings, Overrides, resolve_settings

__all__ = [
    "ChosenSettings",
    "LoadedProject",
    "Overrides",
    "find_config",
    "load_project",
    "load_usable",
    "resolve_settings",
]
