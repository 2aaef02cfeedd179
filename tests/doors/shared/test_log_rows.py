"""Every event has a row that a person reads."""

from __future__ import annotations

from typing import get_args

import pytest

from perstack.core.runs.events.lifecycle import ResumeReason, ResumeRun
from perstack.core.runs.log_rows import EventContext


@pytest.mark.parametrize("reason", get_args(ResumeReason))
def test_whatever_a_run_is_resumed_for_is_said(reason: ResumeReason) -> None:
    event = ResumeRun(
        id="a-1-3", timestamp=1, job_id="a", run_id="a-1", expert_key="writer", step_number=1, reason=reason,
        checkpoint_id="a-1-2",
    )  # fmt: skip
    (row,) = event.describe(EventContext({}, str))
    assert (row.word, bool(row.text)) == ("resumes", True)
