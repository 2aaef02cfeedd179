"""A host without a part that protects its user refuses to begin: nothing is allowed because nobody checks it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hosts import Bench, expert, wait_for

from perstack.engine.context.protection import RUN_FILES
from perstack.engine.plugins.trust_checks import TOOL_LOCKS
from perstack.errors import UsageError
from perstack.ports.parts import Part, Parts
from perstack.testing.scripted import text


@pytest.mark.parametrize("part", [RUN_FILES, TOOL_LOCKS], ids=lambda part: part.name)
def test_without_it_no_job_begins(bench: Bench, part: Part[Any]) -> None:
    host = bench.host([text("ok")], expert("a"))
    source = host._source
    parts = source.setup.parts
    assert parts.has(part)
    others = Parts(offer for offer in parts._makers.items() if offer[0] is not part)
    source.replace(replace(source.setup, parts=others))
    with pytest.raises(UsageError, match=f"no {part.name}"):
        wait_for(host.run("a", "q"))
    assert wait_for(host.jobs.list()).jobs == ()
