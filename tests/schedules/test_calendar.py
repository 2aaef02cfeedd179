"""When cron lines occur: as Debian's cron has it where clocks go forward and back, each moment once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from fuzzing import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from perstack.schedules.calendar import Calendar, WrongCron, WrongZone

MINUTE = 60_000
DAY = 24 * 60 * MINUTE


def moment_of(text: str) -> int:
    """A moment, by its UTC."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def occurrences(cron: str, zone: str, start: str, days: int = 1) -> list[str]:
    """What occurs from a day's beginning in UTC on, by UTC."""
    calendar, moment, found = Calendar(cron, zone), moment_of(start) - 1, []
    end = moment_of(start) + days * DAY
    while (following := calendar.next_after(moment)) is not None and following < end:
        assert following > moment
        found.append(datetime.fromtimestamp(following / 1000, UTC).strftime("%d %H:%M"))
        moment = following
    return found


@pytest.mark.parametrize(
    ("cron", "zone", "start", "expected"),
    [
        # 02:30 is left out on 29 March: right after the gap
        ("30 2 * * *", "Europe/Berlin", "2026-03-28", ["28 01:30", "29 01:00", "30 00:30"]),
        ("15,30 2 * * *", "Europe/Berlin", "2026-03-29", ["29 01:00", "30 00:15", "30 00:30", "31 00:15", "31 00:30"]),
        ("0 3 * * *", "Europe/Berlin", "2026-03-29", ["29 01:00", "30 01:00", "31 01:00"]),
        # 02:30 comes twice on 25 October: the first time
        ("30 2 * * *", "Europe/Berlin", "2026-10-24", ["24 00:30", "25 00:30", "26 01:30"]),
        ("30 2 * * *", "America/New_York", "2026-03-07", ["07 07:30", "08 07:00", "09 06:30"]),
        ("30 1 * * *", "America/New_York", "2026-10-31", ["31 05:30", "01 05:30", "02 06:30"]),
        # the southern half, and a clock that moves by half an hour
        ("30 2 * * *", "Australia/Sydney", "2026-10-03", ["03 16:00", "04 15:30", "05 15:30"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-03", ["03 14:45", "04 14:45", "05 15:15"]),
        # midnight itself is left out
        ("0 0 * * *", "America/Santiago", "2026-09-05", ["05 04:00", "06 04:00", "07 03:00"]),
        # a zone that left out a whole day, 30 December 2011: right after it
        ("0 12 * * *", "Pacific/Apia", "2011-12-28", ["28 22:00", "29 22:00", "30 10:00", "30 22:00"]),
    ],
)
def test_a_time_of_day_occurs_once_a_day_whatever_the_clocks_do(cron, zone, start, expected) -> None:
    assert occurrences(cron, zone, start, 3) == expected


@pytest.mark.parametrize(
    ("start", "hours"), [("2026-03-29", 24), ("2026-10-25", 24)], ids=["clocks go forward", "clocks go back"]
)
def test_a_line_that_follows_the_clock_occurs_in_each_hour_that_there_is(start: str, hours: int) -> None:
    assert len(occurrences("0 * * * *", "Europe/Berlin", start)) == hours
    assert len(occurrences("*/15 * * * *", "Europe/Berlin", start)) == 4 * hours


def test_an_hour_that_is_left_out_has_no_minutes() -> None:
    assert occurrences("*/20 2 * * *", "Europe/Berlin", "2026-03-29") == []
    assert occurrences("*/20 0 * * *", "America/Santiago", "2026-09-06") == []


def test_a_look_within_the_hour_that_comes_twice_sees_what_is_behind_it_no_more() -> None:
    calendar = Calendar("30 2 * * *", "Europe/Berlin")
    for moment in ("2026-10-25T00:30", "2026-10-25T01:15", "2026-10-25T01:45"):
        assert calendar.next_after(moment_of(moment)) == moment_of("2026-10-26T01:30")


def test_days_of_the_month_and_the_week_are_both_meant_as_debian_means_them() -> None:
    assert occurrences("0 0 13 * FRI", "UTC", "2026-02-01", 14) == ["06 00:00", "13 00:00"]
    assert occurrences("0 0 29 2 *", "UTC", "2026-02-01", 1100) == ["29 00:00"]
    assert occurrences("0 9 L * *", "UTC", "2026-02-01", 59) == ["28 09:00", "31 09:00"]


ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Sydney", "America/Havana", "Asia/Kolkata"]
FIELD = st.sampled_from(["*", "*/7", "0", "30", "5-50/15", "2,3"])


@settings(max_examples=scaled(60), deadline=None)
@given(FIELD, st.sampled_from(["*", "*/3", "0", "2", "1-3", "23"]), st.sampled_from(ZONES), st.integers(0, 364))
def test_what_occurs_in_a_day_is_what_its_minutes_say(minute: str, hour: str, zone: str, day: int) -> None:
    """Held to a walk over all minutes, of a day on which no clock is moved; on others to order and distance."""
    cron, calendar = f"{minute} {hour} * * *", Calendar(f"{minute} {hour} * * *", zone)
    start = moment_of("2026-01-01") + day * DAY
    found, moment = [], start - 1
    while (following := calendar.next_after(moment)) is not None and following < start + DAY:
        assert following % MINUTE == 0
        assert following > moment
        assert calendar.next_after(following - 1) == following
        found.append(following)
        moment = following
    local = [datetime.fromtimestamp(one / 1000, ZoneInfo(zone)) for one in range(start, start + DAY, MINUTE)]
    moved = local[0].utcoffset() != local[-1].utcoffset()
    if not moved and datetime.fromtimestamp((start - DAY) / 1000, ZoneInfo(zone)).utcoffset() == local[0].utcoffset():
        fits = [int(one.timestamp() * 1000) for one in local if matches(cron, one)]
        assert found == fits


def matches(cron: str, moment: datetime) -> bool:
    minute, hour, *_ = cron.split()
    return moment.minute in values(minute, 60) and moment.hour in values(hour, 24)


def values(text: str, most: int) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        whole = range(most) if span == "*" else range(int(first), int(last or first) + 1)
        found |= set(whole[:: int(step or 1)])
    return found


@given(st.text(alphabet="0123456789*/,-#LWMON ?@\u00b2\ud800", max_size=40) | st.text(max_size=30))
def test_any_line_is_one_or_is_refused(cron: str) -> None:
    try:
        calendar = Calendar(cron, "UTC")
    except WrongCron:
        return
    found = calendar.next_after(0)
    assert found is None or found > 0


@pytest.mark.parametrize("zone", ["Mars/Base", "../../etc/passwd", "/etc/passwd", "America", "", "a\0b", "x" * 300])
def test_a_zone_that_there_is_not_is_refused(zone: str) -> None:
    with pytest.raises(WrongZone, match="is not a time zone"):
        Calendar("* * * * *", zone)


def test_beyond_the_years_that_there_are_nothing_occurs() -> None:
    calendar = Calendar("0 0 1 1 *", "Europe/Berlin")
    assert calendar.next_after(moment_of("9999-06-01")) is None
    assert calendar.next_after(10**18) is None
    assert calendar.next_after(moment_of("1970-01-01") - int(timedelta(days=365).total_seconds()) * 1000) == moment_of(
        "1969-12-31T23:00"
    )
