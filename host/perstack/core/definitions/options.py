"""Options with which a caller chooses settings of a Run; `Overrides` has a field for each, annotated with it.

The options are separate from the fields because the command line shows them without importing pydantic, which takes
four times as long as `--help`. A new option needs a row here and a field of its name in `Overrides`; a test compares
both.
"""

from __future__ import annotations

from collections.abc import Mapping

from perstack.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Option:
    """Option of the commands that drive Jobs."""

    help: str
    metavar: str = ""  # empty for a flag
    least: int | None = None  # minimum of a number, as of the key of the same name
    is_repeated: bool = True  # True if a Run's start names it, and resuming or continuing the Run repeats the choice


BUDGET_OPTIONS = ("max_cost", "max_tokens", "max_time", "max_tool_calls")

OPTIONS: Mapping[str, Option] = {
    "model": Option("The model.", "NAME"),
    "provider": Option("The provider; `perstack plugins` lists all.", "NAME"),
    "reasoning_budget": Option("none, minimal, low, medium, high, or tokens.", "LEVEL"),
    "max_steps": Option("Maximum steps of the Job, over all its Runs.", "N", least=0),
    "max_retries": Option("Maximum retries of a generation.", "N", least=0),
    "timeout": Option("Timeout of one generation, in milliseconds.", "MS", least=1),
    "unattended": Option(
        "No person answers: decline every question, and deny calls that need approval; the model sees that.",
        is_repeated=False,
    ),
    "open": Option("Run the programs of `exec` without a question or a sandbox."),
    "strict_skills": Option("Fail a Run before its first model call if one of its skills is missing."),
    "runtime": Option("The runtime of tool programs; `perstack plugins` lists all.", "NAME", is_repeated=False),
    "max_cost": Option("Maximum cost of the Job, in US dollars.", "X"),
    "max_tokens": Option("Maximum tokens of the Job.", "N", least=1),
    "max_time": Option("Maximum working time of the Job, in milliseconds.", "MS", least=1),
    "max_tool_calls": Option("Maximum tool calls of the Job.", "N", least=1),
    "compaction": Option("What to do with a nearly full context: auto, off, or expert=NAME.", "HOW"),
    "recording": Option(
        "Play this recording instead of calling the model and the tools; needs no key.", "FILE", is_repeated=False
    ),
}
"""Options by the name of their field of `Overrides`."""
