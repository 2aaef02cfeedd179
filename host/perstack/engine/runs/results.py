"""Validate the result of a Run against its schema, and describe the result of a delegate."""

from __future__ import annotations

import asyncio
import json

from perstack.core.base.json_schema import QUICK
from perstack.core.base.records import JsonObject
from perstack.core.definitions.result_schemas import ResultCheck, judged
from perstack.core.runs.facts import DelegateHead
from perstack.core.runs.state import Run
from perstack.dataclass import dataclass

_SHORT = 50_000
"""Maximum characters of a result that is validated in the event loop before a thread is used."""


async def judge_result(text: str, schema: JsonObject) -> ResultCheck:
    """Validate a result against a schema. Never raises; what takes longer than a moment is done in a thread."""
    quick = judged(text, schema, QUICK) if len(text) <= _SHORT else None
    return quick if quick is not None else await asyncio.to_thread(judged, text, schema)


@dataclass(frozen=True, slots=True)
class DelegateResult:
    """Result of a delegate's Run. Without a text the Run has stopped and may be resumed."""

    text: str | None
    is_error: bool = False
    run: Run | None = None  # None if it could not be set up

    @classmethod
    def failed(cls, reason: str, run: Run | None = None) -> DelegateResult:
        """Create the result of a failed delegation."""
        return cls(f"Delegation failed: {reason}", True, run)

    @property
    def head(self) -> DelegateHead | None:
        """The head of the Run's log when it ended; None without a Run."""
        run = self.run
        return None if run is None else DelegateHead(run_id=run.id, seq=run.head.seq, hash=run.head.hash)

    @property
    def stopped(self) -> Run | None:
        """The Run, if it has stopped without a result; None otherwise."""
        return self.run if self.text is None else None

    @classmethod
    def of(cls, run: Run) -> DelegateResult:
        """Create the result of a Run that is not driven any further for now."""
        if run.status == "completed":
            text = run.result or ""
            return cls(text if run.value is None else json.dumps(run.value, ensure_ascii=False), False, run)
        if run.status == "stoppedByError":
            reason = run.error.message if run.error is not None else "unknown error"
            return cls.failed(reason, run)
        return cls(None, False, run)
