"""Having another model of a Run generate: the endpoint of the one in force, and what is recorded of a switch."""

from __future__ import annotations

from collections.abc import Callable

from perstack.core.models import parts_of
from perstack.core.run_facts import ErrorInfo
from perstack.core.runs.state import Run
from perstack.core.runs.switching import (
    cannot_stand_in,
    is_due_back,
    models_of,
    next_model,
    switch_after,
    switch_back,
)
from perstack.engine.prices import Prices
from perstack.engine.providers import Endpoint
from perstack.engine.session import Session
from perstack.engine.tries import fail
from perstack.errors import PerstackError


async def opened(session: Session, open_endpoint: Callable[[Run], Endpoint], prices: Prices) -> Endpoint | None:
    """The endpoint of the model in force; None if the Run failed, which is recorded.

    A model that stands in and cannot be had, for want of a key, is passed over, or the first is tried again if it has
    rested. Raises for the first, as it would have
    at the start.
    """
    while True:
        try:
            return open_endpoint(session.run)
        except PerstackError as error:
            if not session.run.stands_in:
                raise
            info = ErrorInfo(name="MissingCredential", message=str(error))
        if not await switched(session, info, prices) and not await gone_back(session, prices):
            await fail(session, cannot_stand_in(session.run, info.message))
            return None


async def switched(session: Session, error: ErrorInfo, prices: Prices, *, uncharged: bool = False) -> bool:
    """Record that the next model generates after this error; false if there is none, or if it would not do better."""
    following = next_model(session.run)
    window = None if following is None else await prices.window(*parts_of(following))
    event = switch_after(session.run, error, session.stamp, uncharged=uncharged, window=window)
    if event is None:
        return False
    session.note(event)
    await session.flush()
    return True


async def gone_back(session: Session, prices: Prices) -> bool:
    """Record that the first model is tried again, if it has rested long enough."""
    if not is_due_back(session.run, session.clock.now()):
        return False
    window = await prices.window(*parts_of(models_of(session.run.start)[0]))
    session.note(switch_back(session.run, session.stamp, window))
    return True
