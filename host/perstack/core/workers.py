"""`[workers]`: processes that drive Jobs, on this machine or on others."""

from __future__ import annotations

from typing import Annotated, Literal

from perstack.core.base import Fact
from perstack.core.keys import NOT_EMPTY, Key


class Workers(Fact):
    """Who drives what is queued."""

    dispatcher: Annotated[
        str | None,
        NOT_EMPTY,
        Key(
            "the engine that says which worker drives a Job, such as `postgresql://host/database`; by default the"
            " database where the state is, if it is PostgreSQL"
        ),
    ] = None
    delegates: Annotated[
        Literal["local", "distributed"],
        Key(
            "where the delegates of a Job run that a worker drives: `local`, in that worker, or `distributed`, each in"
            " whichever worker has a place; `local` if not given"
        ),
    ] = "local"
