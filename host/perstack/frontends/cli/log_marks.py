"""Signs beside the events of a log that the model does not see any more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from perstack.core.ids import event_id_of
from perstack.engine.read import RunLog
from perstack.host import Host

Marks = Mapping[tuple[str, int], str]
"""By Run and index in its log."""

_MEANINGS = {
    "·": "· the model does not see this any more; its tool recallHistory does",
    "~": "~ the model sees the ends of this result",
}
_SHORTENED = (b'{"type":"compactHistory"', b'{"type":"shrinkResults"')


async def marks_of(host: Host, logs: Sequence[RunLog]) -> Marks:
    """What is marked in these logs; those of Runs whose models see all are not folded."""
    marks: dict[tuple[str, int], str] = {}
    for log in logs:
        if not any(line.startswith(_SHORTENED) for line in log.lines):
            continue
        found = await host.jobs.left_out(log.run_id)
        signs = dict.fromkeys(found.shortened, "~") | dict.fromkeys(found.hidden, "·")
        for place in range(len(log.lines)):
            sign = signs.get(event_id_of(log.run_id, place + 1))
            if sign is not None:
                marks[log.run_id, place] = sign
    return marks


def meanings(marks: Marks) -> Iterator[str]:
    """What the signs among them mean."""
    used = set(marks.values())
    return (meaning for sign, meaning in _MEANINGS.items() if sign in used)
