"""Which model of a Run generates, and when another one takes its place: read from the state alone.

- A Run has the models that `startRun` names, in their order; `switchModel` says from when on another one generates.
- The next one stands in when the tries of the one before are used up, at an exhausted quota, and after a refusal: where
  another endpoint may do what this one cannot. A request that is wrong is wrong everywhere, and a key that is refused
  is for a person to put right.
- Five minutes later the first one is tried again.
"""

from __future__ import annotations

from dataclasses import replace

from perstack.core.events import StartRun
from perstack.core.model_events import SwitchModel, SwitchReason
from perstack.core.models import full_name
from perstack.core.run_facts import ErrorInfo
from perstack.core.runs.changes import Changes
from perstack.core.runs.stamp import Stamps
from perstack.core.runs.state import Phase, Run
from perstack.core.transitions import IllegalFact
from perstack.core.usage import ModelShare, Usage

REST = 300_000
"""Milliseconds after which the first model is tried again."""

REFUSAL = "Refusal"
"""The name of the error that a refusal is."""

_REASONS: dict[str, SwitchReason] = {
    "Overloaded": "overloaded",
    "RateLimit": "rateLimit",
    "QuotaExceeded": "quota",
    REFUSAL: "refusal",
    "Timeout": "timeout",
    "Stall": "timeout",
    "ConnectError": "unreachable",
    "ProxyError": "unreachable",
    "CutStream": "unreachable",
    "CircuitOpen": "circuitOpen",
    "MissingCredential": "notConfigured",
}
_AT_ONCE = frozenset(("QuotaExceeded", "CircuitOpen"))


def models_of(start: StartRun) -> tuple[str, ...]:
    """All models of a Run, as `provider/model`, the first one first."""
    return (full_name(start.provider, start.model), *start.fallbacks)


def next_model(run: Run) -> str | None:
    """The model that stands in for the one in force; None if there is none."""
    names = models_of(run.start)
    following = names.index(run.on) + 1 if run.on in names else 1
    return names[following] if following < len(names) else None


def models_left(run: Run) -> int:
    """How many models may be tried from here on, the one in force included: what time there is, is for all of them."""
    names = models_of(run.start)
    return len(names) - (names.index(run.on) if run.on in names else 0)


def reason_to_switch(error: ErrorInfo) -> SwitchReason | None:
    """Why another model is asked after this error; None if it would not do better."""
    known = _REASONS.get(error.name)
    status = error.status_code or 0
    if error.is_retryable or known in ("quota", "refusal", "notConfigured") or status in (429, 529):
        return known or "serverError"
    return None


def needs_no_retry(error: ErrorInfo) -> bool:
    """Whether the model that stands in is asked at once, without another try of this one."""
    return error.name in _AT_ONCE


def switch_after(
    run: Run, error: ErrorInfo, stamp: Stamps, *, uncharged: bool = False, window: int | None = None
) -> SwitchModel | None:
    """That the next model generates from now on; None if there is none, or if it would not do better."""
    following, reason = next_model(run), reason_to_switch(error)
    if following is None or reason is None:
        return None
    return SwitchModel(
        **stamp(),
        before=run.on,
        to=following,
        reason=reason,
        error=error,
        context_window=window,
        uncharged=uncharged,
    )


def cannot_stand_in(run: Run, problem: str) -> ErrorInfo:
    """Why a Run fails whose model in force cannot be had: what the one before it failed with, and this."""
    words = f"{run.on} cannot stand in: {problem}"
    if run.left_for is None:
        return ErrorInfo(name="MissingCredential", message=words)
    return run.left_for.model_copy(update={"message": f"{run.left_for.message}; {words}"})


def is_due_back(run: Run, now: int) -> bool:
    """Whether the first model has rested long enough. `now` is in milliseconds since 1970."""
    return run.stands_in and now >= run.back_at


def switch_back(run: Run, stamp: Stamps, window: int | None = None) -> SwitchModel:
    """That the first model is tried again."""
    return SwitchModel(**stamp(), before=run.on, to=models_of(run.start)[0], reason="triedAgain", context_window=window)


def switched(run: Run, event: SwitchModel) -> Changes:
    """What a switch changes. Raises IllegalFact for one that cannot be: what it holds is not what the Run has."""
    names = models_of(run.start)
    if event.before != run.on or event.to not in names or event.to == run.on:
        raise IllegalFact(f"switchModel from {event.before} to {event.to}, where {run.on} generates")
    is_first = event.to == names[0]
    return Changes(
        stand_in="" if is_first else event.to,
        # one that cannot be had has not failed
        left_for=run.left_for if event.reason == "notConfigured" else event.error,
        back_at=0 if is_first else event.timestamp + REST,
        unusable=None,
        cut_at=None,
        context_window=event.context_window,
        # another model counts tokens in its own way, and has its own window
        counted=None,
        sending=None,
        context=replace(run.context, learned=None, freed=0, overflow=None, is_relieved=False, summarising=""),
        is_switched=run.phase is Phase.GENERATING,
    )


def switch_difference(run: Run, event: SwitchModel) -> str | None:
    """What is wrong with a switch, where the loop would do something else; None if nothing is."""
    names = models_of(run.start)
    if event.reason == "triedAgain":
        if event.to != names[0] or not is_due_back(run, event.timestamp):
            return f"switchModel to {event.to}, where {run.on} generates until the first model is tried again"
        return None
    expected = next_model(run)
    if event.to != expected:
        return f"switchModel to {event.to}, where the next model is {expected or 'none'}"
    if event.error is not None and reason_to_switch(event.error) != event.reason:
        return f"switchModel because of {event.reason}, after {event.error.name}"
    if event.reason == "refusal" and (run.unusable is None or run.unusable.name != REFUSAL):
        return "switchModel because of a refusal, where the model has not refused"
    return None


def shared(run: Run, usage: Usage) -> dict[str, ModelShare]:
    """What each model has used, with this; nothing for a Run that has one model."""
    if not run.start.fallbacks:
        return run.by_model
    before = run.by_model.get(run.on, ModelShare())
    more = ModelShare(usage=before.usage + usage, unpriced_tokens=before.unpriced_tokens + usage.unpriced_tokens)
    return {**run.by_model, run.on: more}
