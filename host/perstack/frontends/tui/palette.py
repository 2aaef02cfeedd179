"""Ctrl+P: every action, by its name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from textual.command import DiscoveryHit, Hit, Hits, Provider

from perstack.frontends.tui.actions import ACTIONS, Action
from perstack.frontends.tui.screens.base import OverScreen


class Actions(Provider):
    """Those of the screen that is shown, and those of the whole program."""

    async def discover(self) -> Hits:
        """All of them."""
        for action, does in self._every():
            yield DiscoveryHit(_name(action.title, action.shown), does, help=action.text)

    async def search(self, query: str) -> Hits:
        """Those that match."""
        matcher = self.matcher(query)
        for action, does in self._every():
            name = _name(action.title, action.shown)
            score = max(matcher.match(name), matcher.match(action.text) / 2)
            if score > 0:
                yield Hit(score, matcher.highlight(name), does, help=action.text)

    def _every(self) -> Iterator[tuple[Action, Callable[[], Awaitable[object]]]]:
        screen = self.screen
        if isinstance(screen, OverScreen):
            for action in screen.ACTIONS:
                yield action, partial(screen.run_action, action.name)
        for action in ACTIONS:
            yield action, partial(self.app.run_action, action.name)


def _name(title: str, key: str) -> str:
    return f"{title}  {key}" if key else title
