"""Runs the two Experts of the demo on one text, as a person would on the command line, and reads what happened."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from texts import ROOT, Text

CONFIG = ROOT / "experts" / "demo" / "perstack.toml"
MODEL = "qwen2.5-coder-1.5b-instruct"

QUERY = """\
Text:
{text}

Task: choose the one sentence of the text that says best what the text is about. Call writer with the query \
"Write this sentence to summary.md:" and then that sentence, word for word.\
"""

Event = dict[str, Any]


@dataclass(slots=True)
class Outcome:
    """What one run left behind."""

    text: Text
    workspace: Path
    exit_code: int = -1
    seconds: float = 0.0
    events: list[Event] = field(default_factory=list)
    errors: str = ""

    def of(self, kind: str, expert: str | None = None) -> list[Event]:
        """The events of a type, of one Expert or of all."""
        return [e for e in self.events if e["type"] == kind and expert in (None, e.get("expertKey"))]

    @property
    def result(self) -> str:
        """The Coordinator's result."""
        finished = self.of("finishRun", "editor")
        return str(finished[-1]["text"]) if finished else ""

    @property
    def job_folder(self) -> Path | None:
        """Where the Job's state is."""
        started = self.of("startRun")
        return self.workspace / "perstack" / "jobs" / str(started[0]["jobId"]) if started else None

    @property
    def tokens(self) -> tuple[int, int]:
        """Input and output tokens of all generations, by the model's own figures."""
        usages = [event["usage"] for event in self.of("finishGeneration")]
        return sum(usage["inputTokens"] for usage in usages), sum(usage["outputTokens"] for usage in usages)


def run(text: Text, workspace: Path, on_event: Callable[[Event], None] = lambda event: None) -> Outcome:
    """`perstack run editor …` with the embedded model, in that workspace."""
    outcome = Outcome(text, workspace)
    command = [sys.executable, "-m", "perstack", "run", "editor", QUERY.format(text=text.body)]
    command += ["--config", str(CONFIG), "--workspace", str(workspace), "--provider", "local", "--model", MODEL]
    command += ["--max-steps", "12", "--timeout", "600000"]
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=None, text=True, encoding="utf-8") as process:
        for line in process.stdout or ():
            event = json.loads(line)
            outcome.events.append(event)
            on_event(event)
    outcome.exit_code, outcome.seconds = process.returncode, time.monotonic() - began
    return outcome
