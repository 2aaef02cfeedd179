"""Calendar of a schedule: the times of its cron line, by the clock of its time zone.

Cron lines have the meaning of Debian's cron. A time that is skipped when clocks go forward occurs right after the gap;
a time that comes twice occurs the first time. A line with `*` in its minute or hour follows the clock through both.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

from perstack.core.base.text import suggestion
from perstack.core.definitions.project import Schedule
from perstack.errors import UsageError
from perstack.toml_reader.experts import Draft, check_expert
from perstack.toml_reader.source import Reporter

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_SKIPPED_TIMES = 200  # maximum repeated clock times (when clocks go back) to skip before the next occurrence
_FIELDS = {
    "Bad minute": "minute, 0 to 59",
    "Bad hour": "hour, 0 to 23",
    "Bad day-of-month": "day of the month, 1 to 31, which that month must have",
    "Bad month": "month, 1 to 12 or JAN to DEC",
    "Bad day-of-week": "day of the week, 0 to 7 or SUN to SAT",
}


class WrongCron(UsageError):
    """Raised for an invalid cron line; the message completes a sentence that begins with the key."""


class WrongZone(UsageError):
    """Raised for an unknown time zone; the message completes a sentence that begins with the key."""


class Calendar:
    """Occurrences of a schedule. Queries read no file and no clock."""

    def __init__(self, cron: str, timezone: str) -> None:
        """Parse a cron line and a time zone. Raises WrongCron and WrongZone."""
        self._zone = _zone(timezone)
        self._cron = " ".join(cron.split())
        if len(self._cron.split()) != 5:  # the library accepts six as well; Debian's cron does not
            raise WrongCron("must have 5 fields: minute, hour, day of the month, month and day of the week")
        try:
            CronSim(self._cron, _EPOCH)
        except CronSimError as error:
            field = _FIELDS.get(str(error), str(error))
            raise WrongCron(f"`{self._cron}` has a wrong {field}") from error

    def next_after(self, moment: int) -> int | None:
        """Return the first occurrence after `moment`, both in milliseconds since 1970; None without one."""
        try:
            times = CronSim(self._cron, (_EPOCH + timedelta(milliseconds=moment)).astimezone(self._zone))
            for _ in range(_MAX_SKIPPED_TIMES):
                local_time = next(times, None)
                if local_time is None:
                    return None
                time = local_time.astimezone(UTC)
                # skip a time that the clock left out, and the second of two equal clock times
                if time.astimezone(self._zone).replace(tzinfo=None) == local_time.replace(tzinfo=None):
                    milliseconds = (time - _EPOCH) // timedelta(milliseconds=1)
                    if milliseconds > moment:
                        return milliseconds
        except (OverflowError, ValueError):  # the date is beyond the supported years
            pass
        return None

    def stamp(self, moment: int) -> str:
        """Return a minute in UTC, as in `20261201T0200Z`."""
        return (_EPOCH + timedelta(milliseconds=moment)).strftime("%Y%m%dT%H%MZ")

    def format_minute(self, moment: int) -> str:
        """Return a minute by the clock of the time zone, as in `2026-12-01 02:00`."""
        return (_EPOCH + timedelta(milliseconds=moment)).astimezone(self._zone).strftime("%Y-%m-%d %H:%M")


def calendar_of(schedule: Schedule) -> Calendar:
    """Return a schedule's calendar. Raises UsageError, naming the schedule, for an invalid one made in Python."""
    try:
        return Calendar(schedule.cron, schedule.timezone)
    except WrongCron as error:
        raise UsageError(f"schedules.{schedule.name}.cron {error}") from error
    except WrongZone as error:
        raise UsageError(f"schedules.{schedule.name}.timezone {error}") from error


def check_schedules(schedules: tuple[Schedule, ...], drafts: Mapping[str, Draft], report: Reporter) -> None:
    """Report schedules that never occur, or whose Expert does not exist."""
    for schedule in schedules:
        at = ("schedules", schedule.name)
        if schedule.expert:
            check_expert(schedule.expert, (*at, "expert"), report, drafts)
        if not schedule.cron:
            continue  # reported already
        try:
            if Calendar(schedule.cron, schedule.timezone).next_after(0) is None:
                report.error((*at, "cron"), f"`{schedule.cron}` never comes: there is no such date")
        except WrongCron as error:
            report.error((*at, "cron"), str(error))
        except WrongZone as error:
            report.error((*at, "timezone"), str(error))


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC  # works without time zone data on the machine
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        zones = available_timezones()
        if not zones:
            raise WrongZone(f"`{name}` cannot be looked up: install tzdata on this machine") from error
        same_letters = [zone for zone in zones if zone.casefold() == name.casefold()]
        hint = f"; did you mean `{same_letters[0]}`?" if same_letters else suggestion(name, zones)
        raise WrongZone(f"`{name}` is not a time zone{hint or ': write it as in `Europe/Berlin`'}") from error
