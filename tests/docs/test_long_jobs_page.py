"""docs/long-jobs.md says what the code does."""

from __future__ import annotations

import re
import tomllib

from pages import fenced, page

from perstack.config.resolved_settings import resolve_settings
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.project import Project
from perstack.core.definitions.settings import ContextPolicy
from perstack.core.runs.context_window import OVERFLOW
from perstack.core.runs.events.context import CompactHistory, ShrinkResults, StartCompaction

PAGE = page("docs/long-jobs.md")


def test_the_settings_that_are_shown_are_the_defaults() -> None:
    (shown,) = fenced(PAGE, "toml")
    written = Project.model_validate(tomllib.loads(shown))
    plain = Expert(key="a", instruction="x")
    policy = resolve_settings(written, plain).limits.context
    assert policy == ContextPolicy(window=32_000, offers_pin=True)
    assert resolve_settings(Project(), plain).limits.context == ContextPolicy()


def test_the_events_and_the_error_that_are_named_exist() -> None:
    named = set(re.findall(r"`(\w+)`", PAGE))
    assert {kind.model_fields["type"].default for kind in (ShrinkResults, StartCompaction, CompactHistory)} <= named
    assert OVERFLOW in named
