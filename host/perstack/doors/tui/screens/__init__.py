"""Screens over that of the Jobs. A screen is a module here with a class, and a line in `SCREENS`."""

from __future__ import annotations

from importlib import import_module

from perstack.frontends.tui.screens.base import OverScreen, Program

SCREENS: dict[str, tuple[str, str]] = {
    "help": ("help", "HelpScreen"),
    "inbox": ("inbox", "InboxScreen"),
    "history": ("history", "HistoryScreen"),
}
"""By the name of the action that opens it: module and class, imported when it is opened."""


def screen_of(name: str, over: Program) -> OverScreen:
    """The screen of that name, anew."""
    module, of = SCREENS[name]
    made = getattr(import_module(f"{__name__}.{module}"), of)(over)
    if not isinstance(made, OverScreen):
        raise TypeError(f"{module}.{of} is not a screen")
    return made
