"""Ctrl+P: every action, by its name."""

from __future__ import annotations

from functools import partial

from textual.command import DiscoveryHit, Hit, Hits, Provider

from perstack.frontends.tui.actions import ACTIONS


class Actions(Provider):
    """Those of the table."""

    async def discover(self) -> Hits:
        """All of them."""
        for action in ACTIONS:
            yield DiscoveryHit(
                _name(action.title, action.shown), partial(self.app.run_action, action.name), help=action.text
            )

    async def search(self, query: str) -> Hits:
        """Those that match."""
        matcher = self.matcher(query)
        for action in ACTIONS:
            name = _name(action.title, action.shown)
            score = max(matcher.match(name), matcher.match(action.text) / 2)
            if score > 0:
                yield Hit(score, matcher.highlight(name), partial(self.app.run_action, action.name), help=action.text)


def _name(title: str, key: str) -> str:
    return f"{title}  {key}" if key else title
