"""Fuzzing: inputs made from real ones by small edits, by hypothesis (which minimizes failures) or in great numbers.

Hypothesis takes longer for an input than most parsers do. With PERSTACK_FUZZ=N the same edits come from a plain random
generator, seeded by kind and seed, and a failing input is stored in the corpus, which is tried first from then on.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FEW = 30
"""Inputs of each kind in an ordinary test run."""
MANY = int(os.environ.get("PERSTACK_FUZZ", "0"))
SEED = os.environ.get("PERSTACK_FUZZ_SEED", "1")
MOST_EDITS, LONGEST_CUT, LONGEST_PIECE = 4, 8, 6

NASTY = (
    b"\\ud800", b"NaN", b"1e999", b"-1", b"null", b"[" * 200, b'{"a":' * 200, b"\0", b"\x1b[2J", b"\xff\xfe",
    b"9" * 400, b"[" * 9000, b"[]", b"{}", b'""', b"\n", b"true", b"\xc2\x85", b"1.5", b"'", b'"',
)  # fmt: skip


def scaled(examples: int) -> int:
    """Return that many examples for every hundred of the profile: fewer in an ordinary run, more with `make fuzz`."""
    return max(1, examples * settings().max_examples // 100)


@st.composite
def edited(draw: st.DrawFn, seeds: tuple[bytes, ...]) -> bytes:
    """Return one of the seeds after some edits."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, MOST_EDITS))):
        at, length = draw(st.integers(0, len(data))), draw(st.integers(0, LONGEST_CUT))
        piece = draw(st.one_of(st.sampled_from(NASTY), st.binary(max_size=LONGEST_PIECE), st.just(b"")))
        data[at : at + length] = piece
    return bytes(data)


def edited_by(chance: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    """Edit a seed without hypothesis; inserted pieces may also come from the other seeds."""
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.randrange(1, MOST_EDITS + 1)):
        at = chance.randrange(len(data) + 1)
        data[at : at + chance.randrange(LONGEST_CUT + 1)] = _random_piece(chance, seeds)
    return bytes(data)


def _random_piece(chance: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    kind = chance.randrange(4)
    if kind == 0:
        return chance.choice(NASTY)
    if kind == 1:
        return chance.randbytes(chance.randrange(LONGEST_PIECE + 1))
    if kind == 2:
        source = chance.choice(seeds)
        at = chance.randrange(len(source) + 1)
        return source[at : at + chance.randrange(64)]
    return b""


def fuzz(corpus: Path, seeds: tuple[bytes, ...], take: Callable[[bytes], None], share: float = 1) -> None:
    """Try the corpus, then new inputs; `share` scales their number."""
    for path in sorted(corpus.glob("*")):
        take(path.read_bytes())
    if not MANY:
        _try_inputs(seeds, take, max(20, round(FEW * share)))
        return
    chance, number, began = random.Random(f"{corpus.name} {SEED}"), round(MANY * share), time.monotonic()
    for _ in range(number):
        data = edited_by(chance, seeds)
        try:
            take(data)
        except BaseException as error:
            raise AssertionError(f"found by {keep(corpus, data)}") from error
    print(f"{corpus.name}: {number} inputs with seed {SEED} in {time.monotonic() - began:.0f} s, none found")


def keep(corpus: Path, data: bytes) -> Path:
    """Store a failing input in the corpus. Return its path."""
    path = corpus / hashlib.sha256(data).hexdigest()[:16]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def _try_inputs(seeds: tuple[bytes, ...], take: Callable[[bytes], None], number: int) -> None:
    @settings(
        max_examples=number, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(edited(seeds))
    def attack(data: bytes) -> None:
        take(data)

    attack()
