"""Contradictions in the logs of one Job: within one log, and between that of a delegate and that of its caller."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from hashlib import sha256

from perstack.core.definitions.permissions import RuleSet
from perstack.core.definitions.sandbox import SandboxPolicy, narrow_policy
from perstack.core.runs.decide import report_of
from perstack.core.runs.events import StoredEvent
from perstack.core.runs.events.base import Repetition, is_emptied
from perstack.core.runs.facts import DelegateReport, Delegation
from perstack.core.runs.state import Run
from perstack.errors import UsageError


def contradictions(run: Run, event: StoredEvent) -> list[Repetition]:
    """Return every value of the event that contradicts the log before it, for `verify`."""
    if event.type == "startRun":
        return []
    wrong_repetitions = [
        repetition for repetition in event.repetitions(run) if repetition.value != repetition.known_value
    ]
    if event.expert_key != run.start.expert_key:
        wrong_repetitions.append(Repetition("expertKey", event.expert_key, run.start.expert_key))
    # An event between two steps has the number of either.
    if not max(1, run.step) <= event.step_number <= run.step + 1:
        wrong_repetitions.append(Repetition("stepNumber", event.step_number, run.step))
    return wrong_repetitions


def start_contradictions(
    delegate_run: Run, delegation: Delegation, parent_run: Run, chains: Iterable[tuple[RuleSet, ...]]
) -> Iterator[Repetition]:
    """Yield what a delegate's first event says that contradicts the Run that called it.

    `chains`: rules that the parent has had since it decided on the delegate, which must have one of them in full.
    """
    start, parent_start = delegate_run.start, parent_run.start
    caller = start.delegated_by
    is_unknown = is_emptied(start.query) or is_emptied(delegation.query)
    repetitions = [
        Repetition("the Expert", start.expert_key, delegation.expert_key),
        Repetition("the query", start.query, delegation.query, is_emptied=is_unknown),
        Repetition("the tool that called it", caller and caller.tool_name, delegation.tool_name),
        Repetition("the Expert that called it", caller and caller.expert_key, parent_start.expert_key),
        Repetition("its snapshots", start.snapshots, parent_start.snapshots),
        Repetition("its sandbox", start.sandbox, _narrow_policy(start.sandbox, parent_start.sandbox)),
    ]
    if start.depth or parent_start.depth:
        repetitions.append(Repetition("its depth", start.depth, parent_start.depth + 1))
    inherited_chains = [chain for chain in chains if start.permissions[: len(chain)] == chain]
    if not inherited_chains:
        is_unknown = is_emptied(start.query)
        repetitions.append(
            Repetition("its rules", "others", "those of the Run that called it, and its own", is_emptied=is_unknown)
        )
    yield from (repetition for repetition in repetitions if repetition.contradiction is not None)


def _narrow_policy(own_policy: SandboxPolicy | None, outer_policy: SandboxPolicy | None) -> SandboxPolicy | None:
    try:
        return narrow_policy(own_policy, outer_policy)
    except UsageError:  # the policies name two runtimes: no Run can begin with both
        return outer_policy


def result_contradictions(
    tool_name: str, result_text: str, report: DelegateReport | None, delegate_run: Run, *, is_error: bool
) -> Iterator[Repetition]:
    """Yield what a call's result says that contradicts the delegate's log up to the event that the result names."""
    is_completed = delegate_run.status == "completed"
    text = delegate_run.result or ""
    if delegate_run.result_value is not None:
        text = json.dumps(delegate_run.result_value, ensure_ascii=False)
    is_unknown = is_emptied(result_text) or is_emptied(delegate_run.result)
    repetitions = [Repetition("that it failed", is_error, not is_completed)]
    # The result has a shortened text instead, which names the blob with the whole text.
    if is_completed and sha256(text.encode("utf-8", "replace")).hexdigest() not in result_text:
        repetitions.append(Repetition("the delegate's result", result_text, text, is_emptied=is_unknown))
    if report is not None:
        actual_report = report_of(delegate_run, tool_name)
        repetitions.append(
            Repetition("the delegate's report", report, actual_report, is_emptied=is_emptied(report.text))
        )
    yield from (repetition for repetition in repetitions if repetition.contradiction is not None)
