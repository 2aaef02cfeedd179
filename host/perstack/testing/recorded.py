"""Playing a recorded Job in a test: no key, no server, nobody there.

    from perstack.testing.recorded import recorded

    async with Host.open(config="perstack.toml", workspace=folder, overrides=recorded("haiku.json")) as host:
        job = await host.run("writer", "A haiku about logs")

`perstack record JOB --to haiku.json` writes such a file, and so does `(await host.record(JOB)).to_bytes()`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from perstack.core.overrides import Overrides
from perstack.core.recording.model import RecordedCall as RecordedCall
from perstack.core.recording.model import RecordedReply as RecordedReply
from perstack.core.recording.model import RecordedRun as RecordedRun
from perstack.core.recording.model import Recording as Recording
from perstack.core.recording.tools import HowToRun, chosen_tools
from perstack.ports.playing import read_recording as read_recording


def recorded(
    path: str | Path,
    *,
    tools: HowToRun | Mapping[str, HowToRun] | None = None,
    definition: Literal["same", "any"] = "same",
) -> Overrides:
    """What a Host is given to play that recording; its path is made absolute.

    `tools` says which are really run: `live` or `recorded` for all, or a table of `TOOL` and `SKILL/TOOL` with either.
    By default those of the base skill are that change files. `definition="any"` plays it with another instruction too.
    Raises UsageError for a file that is no recording, and for a wrong word in `tools`.
    """
    whole = Path(path).resolve()
    read_recording(whole)
    chosen_tools(tools, "tools")
    chosen: JsonValue = {**tools} if isinstance(tools, Mapping) else tools
    return Overrides(recording=str(whole), recorded_tools=chosen, recorded_definition=definition)
