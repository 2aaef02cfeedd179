"""A worker's log: a line for a person, or a JSON object for a program, for each thing that happens."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from pydantic import JsonValue

from perstack.core.plain import one_line
from perstack.engine.workers.news import News
from perstack.frontends.shared.words import local_time


def text_line(news: News, now: int) -> str:
    """For a person; `now` is in milliseconds since 1970."""
    about = "" if news.job is None else f"job {news.job} "
    level = "" if news.level == "info" else f"{news.level}: "
    return one_line(f"{local_time(now):%H:%M:%S} {level}{about}{news.text}")


def json_line(news: News, worker: str, now: int) -> str:
    """For a program: `time`, `level`, `event`, `worker`, `job` if it is about one, `text`, and what else is known."""
    moment = datetime.fromtimestamp(now / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    said: dict[str, JsonValue] = {"time": moment, "level": news.level, "event": news.event, "worker": worker}
    if news.job is not None:
        said["job"] = news.job
    facts = {key: value for key, value in news.facts.items() if key not in said}
    return json.dumps({**said, "text": one_line(news.text), **facts}, ensure_ascii=False)
