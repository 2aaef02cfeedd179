"""Play a recorded Job in a test: without a key, a server or a person.

    from perstack.testing.recorded import recorded

    async with Host.open(config="perstack.toml", workspace=folder, overrides=recorded("haiku.json")) as host:
        job = await host.run("writer", "A haiku about logs")

`perstack record JOB --to haiku.json` writes such a file, and so does `(await host.exports.record(JOB)).to_bytes()`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from perstack.core.definitions.settings import Overrides
from perstack.recordings.model import RecordedCall as RecordedCall
from perstack.recordings.model import RecordedReply as RecordedReply
from perstack.recordings.model import RecordedRun as RecordedRun
from perstack.recordings.model import Recording as Recording
from perstack.recordings.play import HowToRun, chosen_tools
from perstack.recordings.reading import read_recording as read_recording


def recorded(
    path: str | Path,
    *,
    tools: HowToRun | Mapping[str, HowToRun] | None = None,
    definition: Literal["same", "any"] = "same",
) -> Overrides:
    """Return the overrides with which a Host plays that recording; its path is made absolute.

    `tools` says which tools really run: `live` or `recorded` for all, or a mapping from `TOOL` or `SKILL/TOOL`. By
    default tools of the base skill that change files do. `definition="any"` also plays it with another instruction.
    Raises UsageError for a file that is not a recording, and for an invalid value in `tools`.
    """
    absolute = Path(path).resolve()
    read_recording(absolute)
    chosen_tools(tools, "tools")
    recorded_tools: JsonValue = {**tools} if isinstance(tools, Mapping) else tools
    return Overrides(recording=str(absolute), recorded_tools=recorded_tools, recorded_definition=definition)
