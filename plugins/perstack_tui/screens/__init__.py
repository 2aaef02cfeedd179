"""Screens above the screen of the Jobs. Each is a class in a module of this package, and a line in `SCREENS`."""

from __future__ import annotations

from importlib import import_module

from perstack_tui.screens.base import OverlayScreen, ScreenHost

SCREENS: dict[str, tuple[str, str]] = {
    "help": ("help", "HelpScreen"),
    "inbox": ("history", "InboxScreen"),
    "history": ("history", "HistoryScreen"),
}
"""Module and class by the name of the opening action; imported when it is opened."""


def screen_of(name: str, screen_host: ScreenHost) -> OverlayScreen:
    module, class_name = SCREENS[name]
    screen = getattr(import_module(f"{__name__}.{module}"), class_name)(screen_host)
    if not isinstance(screen, OverlayScreen):
        raise TypeError(f"{module}.{class_name} is not a screen")
    return screen
