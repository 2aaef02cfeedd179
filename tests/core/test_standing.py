"""What a person said is kept word for word within a share of the window, newest last."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perstack.core.messages.messages import estimated_tokens
from perstack.core.messages.standing import STANDING_SHARE, Saying, standing_text, with_place

TEXTS = st.lists(
    st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\n"), min_size=1, max_size=40), max_size=30
)


def sayings(texts: list[str]) -> tuple[Saying, ...]:
    return tuple(Saying(f"e{number}", text, f"m{number}") for number, text in enumerate(texts))


@given(TEXTS, st.sets(st.integers(0, 29)), st.integers(2_048, 200_000))
def test_every_text_is_shown_in_a_message_or_as_standing_or_counted_as_left_out(
    texts: list[str], shown: set[int], window: int
) -> None:
    hidden = [text for number, text in enumerate(texts) if number not in shown]
    result = standing_text(sayings(texts), {f"m{number}" for number in shown}, window)
    kept = next(number for number in range(len(hidden) + 1) if result.endswith(_lines(hidden[number:])))
    assert (f"[{kept} older text" in result) == bool(kept)
    if kept:
        size = sum(estimated_tokens(len(text.encode())) + 1 for text in hidden[kept - 1 :])
        assert size > int(window * STANDING_SHARE)


def _lines(texts: list[str]) -> str:
    return "".join(f"\n- {text}" for text in texts)


def test_nothing_is_sent_while_every_text_is_still_in_its_message() -> None:
    assert standing_text(sayings(["a", "b"]), {"m0", "m1"}, 8_000) == ""


def test_a_text_gets_the_place_of_its_step_once() -> None:
    once = with_place((Saying("e1", "yes"),), "m1")
    assert with_place((*once, Saying("e2", "no")), "m2") == (Saying("e1", "yes", "m1"), Saying("e2", "no", "m2"))
