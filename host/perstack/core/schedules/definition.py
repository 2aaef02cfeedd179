"""`[schedules.NAME]`: a cron line that starts a Job."""

import re
from typing import Annotated, Literal

from perstack.core.base import Fact
from perstack.core.keys import NOT_EMPTY, Key, Rule, at_most

LONGEST_NAME = 64

_NAME = rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,{LONGEST_NAME - 1}}}"
_FIELDS = 5

Overlap = Literal["skip", "queue"]
"""What becomes of an occurrence while the Job of the one before is at work."""


def wrong_schedule_name(name: str) -> str | None:
    if re.fullmatch(_NAME, name):
        return None
    return f"is not a valid name: 1 to {LONGEST_NAME} of A-Z a-z 0-9 _ -, a letter or digit first"


def _wrong_number_of_fields(cron: str) -> str | None:
    """What a line of cron means is looked at where there is a calendar."""
    count = len(cron.split())
    if count == _FIELDS or not count:
        return None
    return (
        f"must have 5 fields, not {count}: minute, hour, day of the month, month and day of the week, as in `0 2 * * *`"
    )


class Schedule(Fact):
    """A query that an Expert is sent again and again."""

    name: Annotated[str, Rule(wrong_schedule_name)]
    cron: Annotated[
        str,
        NOT_EMPTY,
        at_most(200),
        Rule(_wrong_number_of_fields),
        Key("when: minute, hour, day of the month, month and day of the week, as cron has them"),
    ]
    timezone: Annotated[
        str, NOT_EMPTY, at_most(100), Key("whose time that is, such as `Europe/Berlin`; `UTC` if not given")
    ] = "UTC"
    expert: Annotated[str, NOT_EMPTY, Key("the Expert that is run, `name` or `name@version`")]
    query: Annotated[str, NOT_EMPTY, Key("what it is sent")]
    overlap: Annotated[
        Overlap,
        Key("while the Job of the occurrence before is at work: `skip` this one, or `queue` it; `skip` if not given"),
    ] = "skip"

    @property
    def line(self) -> str:
        """What decides when it occurs, in one text."""
        return f"{self.timezone} {' '.join(self.cron.split())}"
