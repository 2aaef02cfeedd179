"""Updates of an editor's session."""

from __future__ import annotations

from pathlib import Path

from perstack.core.messages.adaptations import Adaptation
from perstack.core.runs.events.generations import AdaptRequest
from perstack_acp.updates import Updates


def test_an_adapted_request_is_told_as_a_thought() -> None:
    field = Adaptation(part="field", form="omitted", name="top_p")
    event = AdaptRequest(
        id="e",
        timestamp=0,
        job_id="j",
        run_id="j-1",
        expert_key="a",
        step_number=1,
        model="p/m",
        adaptations=(field,),
    )
    (update,) = Updates(Path("/w")).of(event)
    assert "(requests are sent without the field top_p (p/m needs it))" in update.model_dump_json()
