"""The two themes, dark and light."""

from __future__ import annotations

from textual.theme import Theme

DARK = Theme(
    name="perstack-dark",
    primary="#7aa2c8",
    secondary="#8a8fa0",
    accent="#7aa2c8",
    success="#8fb573",
    warning="#d3a55e",
    error="#d0706d",
    foreground="#d5d8de",
    background="#14171c",
    surface="#14171c",
    panel="#1d2128",
    dark=True,
    variables={
        "quiet": "#7d8490",
        "rule": "#3a414c",
        "ask": "#c08fc0",
        "expert": "#7fb3b0",
        "border": "#3a414c",
        "border-blurred": "#3a414c",
        "block-cursor-background": "#2a313c",
        "block-cursor-foreground": "#d5d8de",
        "block-cursor-text-style": "none",
        "input-selection-background": "#7aa2c8 30%",
        "scrollbar": "#2a313c",
        "scrollbar-hover": "#3a414c",
        "scrollbar-active": "#7aa2c8",
        "scrollbar-background": "#14171c",
        "scrollbar-background-hover": "#14171c",
        "scrollbar-background-active": "#14171c",
    },
)
LIGHT = Theme(
    name="perstack-light",
    primary="#2f5f8f",
    secondary="#666c78",
    accent="#2f5f8f",
    success="#3f7a2a",
    warning="#8a5a00",
    error="#a8322e",
    foreground="#23272e",
    background="#fbfbf9",
    surface="#fbfbf9",
    panel="#efefec",
    dark=False,
    variables={
        "quiet": "#6b7280",
        "rule": "#c9ccd1",
        "ask": "#7d3f7d",
        "expert": "#2a6f6b",
        "border": "#c9ccd1",
        "border-blurred": "#c9ccd1",
        "block-cursor-background": "#e2e6ec",
        "block-cursor-foreground": "#23272e",
        "block-cursor-text-style": "none",
        "input-selection-background": "#2f5f8f 25%",
        "scrollbar": "#d8dade",
        "scrollbar-hover": "#c9ccd1",
        "scrollbar-active": "#2f5f8f",
        "scrollbar-background": "#fbfbf9",
        "scrollbar-background-hover": "#fbfbf9",
        "scrollbar-background-active": "#fbfbf9",
    },
)
DEFAULTS = {**{name: str(value) for name, value in DARK.variables.items()}}
"""Default values of the variables that these themes have beyond Textual's."""
