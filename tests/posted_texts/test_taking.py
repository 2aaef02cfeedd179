"""A posted text is one event, which a Run takes once and only where no reply is to be continued."""

from __future__ import annotations

import pytest
from simulation import START

from perstack.core.base.chain import EMPTY_LOG, link
from perstack.core.base.ids import By
from perstack.core.base.records import IllegalEvent, blank
from perstack.core.base.text import REDACTED
from perstack.core.base.usage import Usage
from perstack.core.messages.messages import FinishReason, TextPart, text_of
from perstack.core.messages.standing import STANDING_MARK, Saying, standing_text, without_text
from perstack.core.runs.commands import Generate
from perstack.core.runs.context_window import always_kept
from perstack.core.runs.events import StartRun, parse_event
from perstack.core.runs.events.context import DropText, TellRun
from perstack.core.runs.events.generations import FinishGeneration, FinishStep, StartGeneration
from perstack.core.runs.evolve import difference, evolve
from perstack.core.runs.facts import EventStamp
from perstack.core.runs.pending import pending, takes_posted_texts
from perstack.core.runs.state import Run, begin
from perstack.posted_texts.model import PostedText, posted_events

ANN = By(user="ann", door="cli")


def stamp(seq: int) -> EventStamp:
    return {
        "id": f"one-1-{seq}", "timestamp": seq, "job_id": "one", "run_id": "one-1", "expert_key": "e", "step_number": 1
    }  # fmt: skip


def folded(*events) -> Run:
    head, run = EMPTY_LOG, None
    for event in events:
        payload = event.to_json()
        _, head = link(head, payload)
        again = parse_event(payload)
        assert again == event
        assert run is None or difference(run, again) is None
        run = begin(again, head) if isinstance(again, StartRun) else evolve(run, again, head) if run else None
    assert run is not None
    return run


BEGUN = StartRun(**stamp(1), **START)


def tell(seq: int, posted: str = "p1", text: str = "a wish", by: By = ANN) -> TellRun:
    return TellRun(**stamp(seq), posted=posted, text=text, by=by)


def test_a_text_is_a_message_and_kept_and_a_second_event_of_it_is_refused() -> None:
    run = folded(BEGUN, tell(2))
    assert text_of(run.messages[1].contents) == "a wish"  # type: ignore[union-attr]
    assert run.sayings[1:] == (Saying("one-1-2", "a wish", "one-1-2", ANN),)
    with pytest.raises(IllegalEvent, match="the posted text p1 was taken before"):
        folded(BEGUN, tell(2), tell(3))
    assert len(folded(BEGUN, tell(2), tell(3, "p2")).sayings) == 3


def test_a_text_of_another_program_is_no_text_of_a_person() -> None:
    assert len(folded(BEGUN, tell(2, by=ANN.with_source("/ci"))).sayings) == 1


def test_the_latest_query_stays_the_one_that_is_always_kept() -> None:
    assert always_kept(folded(BEGUN, tell(2), tell(3, "p2"))) == {0}


def is_taken(run: Run) -> bool:
    command = pending(run)
    assert command is not None
    return takes_posted_texts(run, command)


def replied(finish_reason: FinishReason) -> tuple:
    reply = FinishGeneration(
        **stamp(3), reply=(TextPart(text="half"),), finish_reason=finish_reason, usage=Usage(output_tokens=1)
    )
    return BEGUN, StartGeneration(**stamp(2)), reply


def stepped(*events) -> tuple:
    return *events, FinishStep(**stamp(4), checkpoint_id="one-1-4", usage=Usage(output_tokens=1))


def test_a_text_comes_before_a_generation_and_before_its_repetition() -> None:
    assert is_taken(folded(BEGUN))
    begun = (BEGUN, StartGeneration(**stamp(2)))
    assert is_taken(folded(*begun))
    assert len(folded(*begun, tell(3)).messages) == 2


def test_a_text_never_parts_a_reply_that_is_continued() -> None:
    paused = stepped(*replied("paused"))
    assert not is_taken(folded(*paused))
    with pytest.raises(IllegalEvent, match="cannot separate a reply from its continuation"):
        folded(*paused, tell(5))


def test_a_result_that_was_written_counts_no_more() -> None:
    ended = stepped(*replied("stop"))
    assert folded(*ended).result == "half"
    assert is_taken(folded(*ended))
    run = folded(*ended, tell(5))
    assert (run.result, pending(run)) == (None, Generate(2))


def test_a_redaction_takes_the_text_from_the_event_and_from_what_is_kept() -> None:
    left = blank(tell(2))
    assert isinstance(left, TellRun)
    assert (left.text, left.posted) == (REDACTED, "p1")


def test_a_removal_takes_the_text_from_what_is_kept_and_only_such_a_text() -> None:
    drop = DropText(**stamp(3), posted="p2", dropped="one-1-2", by=ANN)
    run = folded(BEGUN, tell(2), drop)
    assert [saying.text for saying in run.sayings] == ["do it"]
    assert len(run.messages) == 2
    with pytest.raises(IllegalEvent, match="no text of a person has the id one-1-2"):
        folded(BEGUN, tell(2), drop, drop.model_copy(update={"id": "one-1-4", "posted": "p3"}))


def test_what_was_taken_or_withdrawn_becomes_no_event() -> None:
    def posted(number: int, text: str = "", drops: str = "") -> PostedText:
        return PostedText(id=f"p{number}", timestamp=number, by=ANN, text=text, drops=drops)

    run = folded(BEGUN)
    texts = [posted(1, "first"), posted(2, "second"), posted(3, drops="p2"), posted(4, drops="one-1-1"),
             posted(5, drops="one-1-1"), posted(6, "third")]  # fmt: skip
    events = posted_events(run, texts, {"p1"}, lambda ahead=0: stamp(2 + ahead))
    assert [(event.type, event.id) for event in events] == [("dropText", "one-1-2"), ("tellRun", "one-1-3")]
    assert folded(BEGUN, *events).taken_posts == {"p4": "one-1-2", "p6": "one-1-3"}


@pytest.mark.parametrize("texts", [["one"], ["one", "two"], ["two", "one", "one two"], ["one\n- two", "one"]])
def test_a_removed_text_is_gone_from_the_text_of_a_compaction_and_the_others_stay(texts: list[str]) -> None:
    sayings = [Saying(f"e{number}", text, f"m{number}") for number, text in enumerate(texts)]
    compacted = f"notes{standing_text(sayings, (), 8_000)}"
    left = without_text(compacted, "one")
    others = [saying for saying in sayings if saying.text != "one"]
    assert left == f"notes{standing_text(others, (), 8_000)}"
    assert (STANDING_MARK in left) == bool(others)
