"""Next steps: facts about what may be done after an error, which each door phrases for its users.

Code that raises an error names the steps. `in_words` words them where there is no door: for a caller of the library, or
for a model. A new step needs a class, a place in `NextStep`, and a case in `in_words` and in every door; `assert_never`
makes the type check fail otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias, assert_never

from perstack.dataclass import dataclass

Kind = Literal["job", "task", "series"]

Listing = Literal["log", "questions", "tasks", "series", "schedules", "inbox", "plugins", "providers", "damage"]

Option = Literal[
    "config",
    "dispatcher",
    "expert",
    "job_id",
    "env_file",
    "max_cost",
    "max_iterations",
    "max_steps",
    "max_time",
    "max_tokens",
    "max_tool_calls",
    "model",
    "storage",
    "target",
    "total_cost",
    "total_tokens",
    "workspaces",
]


@dataclass(frozen=True)
class GiveAnswer:
    """Answer a waiting Job or task."""

    id: str
    is_approval: bool = False  # True if it approves a call, which only a person may; `id` is then the question's


@dataclass(frozen=True)
class AnswerEarlier:
    """Give another answer to an earlier question of a Job, at its checkpoint."""

    job_id: str


@dataclass(frozen=True)
class Resume:
    """Resume a stopped Job, task or series."""

    id: str
    kind: Kind = "job"
    needs: Option | None = None  # the option that must be given; None if none is needed


@dataclass(frozen=True)
class TryAgain:
    """Retry a task that failed."""

    task_id: str


@dataclass(frozen=True)
class ResumeWithoutDependencies:
    """Resume a task without the tasks that it waits for."""

    task_id: str


@dataclass(frozen=True)
class Continue:
    """Continue a Job with a new query."""

    job_id: str
    expert_key: str | None = None


@dataclass(frozen=True)
class Start:
    """Start a Job."""

    job_id: str | None = None  # the id to use; None for any


@dataclass(frozen=True)
class Inspect:
    """Open a list, a log or a report."""

    listing: Listing
    job_id: str | None = None  # the Job whose log, questions or damage to open; None for other listings


@dataclass(frozen=True)
class SetOption:
    """Give an option, or another value of one."""

    option: Option


@dataclass(frozen=True)
class WriteDefinition:
    """Write a first definition."""


@dataclass(frozen=True)
class Install:
    """Ask every skill for its tools again, and rewrite perstack.lock."""


@dataclass(frozen=True)
class LogIn:
    """Log in to the server of a skill, which only a person can do."""

    skill_name: str


@dataclass(frozen=True)
class Trust:
    """Trust what the files of a project execute or reach, which only a person can do."""

    folder: str | None = None  # the project's folder; None for the door's own project


NextStep: TypeAlias = (
    GiveAnswer
    | AnswerEarlier
    | Resume
    | TryAgain
    | ResumeWithoutDependencies
    | Continue
    | Start
    | Inspect
    | SetOption
    | WriteDefinition
    | Install
    | LogIn
    | Trust
)


@dataclass(frozen=True)
class Note:
    """A notice for a person, and what may be done about it."""

    text: str
    next_steps: tuple[NextStep, ...] = ()

    def said(self, say: Callable[[NextStep], str]) -> str:
        """Return the text and the steps, each worded by `say`."""
        return with_steps(self.text, self.next_steps, say)

    def __str__(self) -> str:
        """Return the text and the steps, phrased for any door."""
        return self.said(in_words)


def with_steps(text: str, steps: Iterable[NextStep], say: Callable[[NextStep], str]) -> str:
    """Return a text followed by the alternatives for what to do next."""
    return "; ".join(filter(None, (text, ", or ".join(map(say, steps)))))


_NOUNS: dict[Kind, str] = {"job": "Job", "task": "task", "series": "iterations"}
_PLACES: dict[Listing, str] = {
    "log": "its log shows them",
    "questions": "its log shows where something was asked",
    "tasks": "list the tasks to see what there is",
    "series": "list the iterations to see what there is",
    "schedules": "list the schedules to see what there is",
    "inbox": "the inbox lists what is open",
    "plugins": "list the plugins to see what there is",
    "providers": "list the providers to see every way",
    "damage": "verify it to see why",
}
_OPTIONS: dict[Option, str] = {
    "config": "name one",
    "dispatcher": "name one",
    "expert": "name the Expert",
    "job_id": "choose another id for the Job",
    "env_file": "name the file as one with variables",
    "max_cost": "give a higher budget in dollars",
    "max_iterations": "allow more iterations",
    "max_steps": "give a higher step limit",
    "max_time": "give it more time",
    "max_tokens": "give a higher budget of tokens",
    "max_tool_calls": "allow more tool calls",
    "model": "name one",
    "storage": "name the place yourself",
    "target": "give a better target",
    "total_cost": "give all its Jobs together a higher budget in dollars",
    "total_tokens": "give all its Jobs together a higher budget of tokens",
    "workspaces": "start workers that keep a workspace for each Job, or where the files are",
}


def in_words(step: NextStep) -> str:  # noqa: C901 - one case for each step
    """Return the phrase of a step that suits any door."""
    match step:
        case GiveAnswer():
            what = "a person approves the call, or not, by the answer" if step.is_approval else "give the answer"
            return f"{what} to {step.id}"
        case AnswerEarlier():
            return "answer an earlier question, at its checkpoint"
        case Resume():
            needs = "" if step.needs is None else f", and {_OPTIONS[step.needs]}"
            return f"resume {_NOUNS[step.kind]} {step.id}{needs}"
        case TryAgain():
            return f"retry task {step.task_id}"
        case ResumeWithoutDependencies():
            return f"resume task {step.task_id}, which continues without"
        case Continue():
            return f"continue Job {step.job_id} with a new query"
        case Start():
            return "start one" if step.job_id is None else f"start it again, as Job {step.job_id}"
        case Inspect():
            return _PLACES[step.listing]
        case SetOption():
            return _OPTIONS[step.option]
        case WriteDefinition():
            return "write one"
        case Install():
            return "install the skills again"
        case LogIn():
            return f"a person has to log in for skill {step.skill_name}"
        case Trust():
            return "a person has to trust the project"
        case _:
            assert_never(step)
