"""Each promise of the list has a test that fails when it is broken: see tests/support/mutants.py."""

from __future__ import annotations

import time
from zlib import crc32

import mutants
import pytest

SAMPLES = 1
"""Number of mutants that the ordinary run tries; `make mutants` tries all."""


def sampled() -> list[mutants.Mutant]:
    """Choose other mutants each day, the same ones all day long."""
    today = str(int(time.time()) // 86_400)
    return sorted(mutants.MUTANTS, key=lambda one: crc32(f"{today} {one.promise}".encode()))[:SAMPLES]


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda one: one.promise)
def test_a_mutation_still_applies_to_the_code(mutant: mutants.Mutant) -> None:
    compile(mutant.mutated(), str(mutant.path), "exec")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", sampled(), ids=lambda one: one.promise)
def test_a_broken_promise_fails_its_test(mutant: mutants.Mutant) -> None:
    assert mutants.is_killed(mutant)
