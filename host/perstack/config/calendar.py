"""When a schedule occurs: its cron line, by the clock of its time zone.

The library that reads cron lines does as Debian's cron: a time that is left out when clocks go forward occurs right
after the gap, one that comes twice when they go back occurs the first time; a line with `*` in its minute or hour
follows the clock through both.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

from perstack.config.check import suggestion
from perstack.config.experts import Draft
from perstack.config.source import Reporter
from perstack.core.rules import key_and_version
from perstack.core.schedules.definition import Schedule
from perstack.errors import UsageError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_PASSED_OVER = 200
"""How many occurrences of one clock time that comes twice may lie behind the moment that is asked about."""
_FIELDS = {
    "Bad minute": "minute, 0 to 59",
    "Bad hour": "hour, 0 to 23",
    "Bad day-of-month": "day of the month, 1 to 31 and one that there is in that month",
    "Bad month": "month, 1 to 12 or JAN to DEC",
    "Bad day-of-week": "day of the week, 0 to 7 or SUN to SAT",
}


class WrongCron(UsageError):
    """A cron line that means nothing, in words that follow its name."""


class WrongZone(UsageError):
    """A time zone that there is not, in words that follow its name."""


class Calendar:
    """The occurrences of a schedule. Asking for one reads no file and no clock."""

    def __init__(self, cron: str, timezone: str) -> None:
        """Raises WrongCron and WrongZone."""
        self._zone = _zone(timezone)
        self._cron = " ".join(cron.split())
        if len(self._cron.split()) != 5:  # the library takes six too, and Debian's cron does not
            raise WrongCron("must have 5 fields: minute, hour, day of the month, month and day of the week")
        try:
            CronSim(self._cron, _EPOCH)
        except CronSimError as error:
            words = _FIELDS.get(str(error), str(error))
            raise WrongCron(f"`{self._cron}` has a wrong {words}") from error

    def after(self, moment: int) -> int | None:
        """The first occurrence later than a moment, both in milliseconds since 1970; None if there is none."""
        try:
            times = CronSim(self._cron, (_EPOCH + timedelta(milliseconds=moment)).astimezone(self._zone))
            for _ in range(_MOST_PASSED_OVER):
                found = next(times, None)
                if found is None:
                    return None
                at = found.astimezone(UTC)
                # one that the clock left out, of a line that follows the clock; one that came the first time it was so
                if at.astimezone(self._zone).replace(tzinfo=None) == found.replace(tzinfo=None):
                    milliseconds = (at - _EPOCH) // timedelta(milliseconds=1)
                    if milliseconds > moment:
                        return milliseconds
        except (OverflowError, ValueError):  # beyond the years that there are
            pass
        return None

    def stamp(self, moment: int) -> str:
        """A minute in UTC: `20261201T0200Z`."""
        return (_EPOCH + timedelta(milliseconds=moment)).strftime("%Y%m%dT%H%MZ")

    def shown(self, moment: int) -> str:
        """A minute as the clock there shows it: `2026-12-01 02:00`."""
        return (_EPOCH + timedelta(milliseconds=moment)).astimezone(self._zone).strftime("%Y-%m-%d %H:%M")


def calendar_of(schedule: Schedule) -> Calendar:
    """That of a schedule. Raises UsageError, naming it, for one that was made in Python and is wrong."""
    try:
        return Calendar(schedule.cron, schedule.timezone)
    except WrongCron as error:
        raise UsageError(f"schedules.{schedule.name}.cron {error}") from error
    except WrongZone as error:
        raise UsageError(f"schedules.{schedule.name}.timezone {error}") from error


def check_schedules(schedules: tuple[Schedule, ...], drafts: Mapping[str, Draft], report: Reporter) -> None:
    """Each must occur one day, and its Expert must be there."""
    for schedule in schedules:
        at = ("schedules", schedule.name)
        name, version = key_and_version(schedule.expert)
        if schedule.expert and (name not in drafts or (version is not None and drafts[name].expert.version != version)):
            report.error((*at, "expert"), f"there is no Expert `{schedule.expert}`{suggestion(name, drafts)}")
        if not schedule.cron:
            continue  # said already
        try:
            if Calendar(schedule.cron, schedule.timezone).after(0) is None:
                report.error((*at, "cron"), f"`{schedule.cron}` never comes: there is no such date")
        except WrongCron as error:
            report.error((*at, "cron"), str(error))
        except WrongZone as error:
            report.error((*at, "timezone"), str(error))


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC  # which is there on a machine without any data of zones
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        known = available_timezones()
        if not known:
            raise WrongZone(f"`{name}` cannot be looked up: install tzdata on this machine") from error
        same = [one for one in known if one.casefold() == name.casefold()]
        near = f"; did you mean `{same[0]}`?" if same else suggestion(name, known)
        raise WrongZone(f"`{name}` is not a time zone{near or ': write it as in `Europe/Berlin`'}") from error
