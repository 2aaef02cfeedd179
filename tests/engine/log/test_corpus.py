"""Jobs of the corpus are recorded, verified, replayed and shown as before the code was restructured."""

from __future__ import annotations

import json
import os

import corpus

DIGESTS = json.loads(corpus.DIGESTS.read_text())
SAMPLED = range(corpus.SEEDS) if os.environ.get("PERSTACK_FAULTS") == "all" else range(0, corpus.SEEDS, 5)


def test_jobs_of_the_corpus_come_to_what_they_came_to_before() -> None:
    differ = [seed for seed in SAMPLED if corpus.digest_of(seed)[0] != DIGESTS[str(seed)]]
    assert differ == [], "compare with an older version: python tests/support/corpus.py --dump DIR"


def test_the_corpus_is_whole() -> None:
    assert [int(seed) for seed in DIGESTS] == list(range(corpus.SEEDS))
