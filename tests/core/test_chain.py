"""How a line of a log is sealed and opened."""

from __future__ import annotations

import json

import pytest
from fuzzing import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from perstack.core.base.chain import EMPTY_LOG, BrokenSeal, check, open_line, seal

digests = st.text("aZ09-_", min_size=43, max_size=43)
endings = st.one_of(
    st.builds('","batch":{}'.format, st.integers(0, 9)),
    st.builds('","digest":"{}","hash":"{}"}}'.format, digests, digests),
    st.text(max_size=8),
)
payloads = endings.map(lambda text: json.dumps({"type": "t", "batch": 7, "x": text}, separators=(",", ":")).encode())


@settings(max_examples=scaled(60), deadline=None)
@given(st.lists(payloads, min_size=1, max_size=12))
def test_a_line_opens_as_what_was_sealed_whatever_its_payload_ends_with(written: list[bytes]) -> None:
    lines, end = seal(EMPTY_LOG, written)
    head = EMPTY_LOG
    for place, (line, payload) in enumerate(zip(lines, written, strict=True)):
        sealed, head = check(head, line)
        assert (sealed.payload, sealed.batch) == (payload, len(written) if place == 0 else 1)
    assert head == end


@pytest.mark.parametrize("cut", [0, 1, 50, 108])
def test_a_line_without_a_whole_seal_is_none(cut: int) -> None:
    (line,), _ = seal(EMPTY_LOG, [b'{"type":"t"}'])
    with pytest.raises(BrokenSeal):
        open_line(line[-cut:] if cut else b"")
    with pytest.raises(BrokenSeal):
        open_line(line + b" ")
