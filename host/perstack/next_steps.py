"""Next steps: facts about what may be done after an error, which each door phrases for its users.

Code that raises an error names the steps. `in_words` words them where there is no door: for a caller of the library, or
for a model. A new step needs a class, a place in `NextStep`, and a phrase in `IN_WORDS`, and one in each table of
`doors/shared/next_step_phrases.py` whose door says it in another way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Literal, TypeAlias

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
    is_shown: bool = False  # True if the whole question is shown with this step, so that a yes may be given at once


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
    """Trust what the files of a project execute or reach, or its state, which only a person can do."""

    folder: str | None = None  # the project's folder; None for the door's own project
    is_state: bool = False  # True for what is waiting to run in its state
    storage: str | None = None  # address of that state, if it was named; None for the project's


Act = Literal[
    "answer", "answer_task", "close", "continue", "delete_task", "drop_text", "resume", "resume_task", "rewind", "tell"
]


@dataclass(frozen=True)
class Decide:
    """Do what a program may not, as a person: all of what was refused."""

    act: Act
    id: str  # id of the Job, the task, or the question to answer
    value: str = ""  # the answer, the Expert that continues, or the checkpoint of a rewind
    options: tuple[tuple[str, str], ...] = ()  # names and values in order; a name may occur several times


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
    | Decide
)


@dataclass(frozen=True)
class Note:
    """A notice for a person, and what may be done about it."""

    text: str
    next_steps: tuple[NextStep, ...] = ()

    def text_for(self, say: Callable[[NextStep], str]) -> str:
        """Return the text and the steps, each worded by `say`."""
        return with_steps(self.text, self.next_steps, say)

    def __str__(self) -> str:
        """Return the text and the steps, phrased for any door."""
        return self.text_for(in_words)


def with_steps(text: str, steps: Iterable[NextStep], say: Callable[[NextStep], str], joint: str = ", or ") -> str:
    """Return a text followed by what to do next: by default alternatives."""
    return "; ".join(filter(None, (text, joint.join(map(say, steps)))))


# Phrases, with the step's values filled in. The name of a phrase is the step's class and what the step has beyond the
# defaults: `Resume job needs max_steps` is preferred to `Resume job needs`, and that to `Resume job`.

IN_WORDS: Mapping[str, str] = {
    "GiveAnswer": "give the answer to {id}",
    "GiveAnswer is_approval": "a person approves the call, or not, by the answer to {id}",
    "AnswerEarlier": "answer an earlier question, at its checkpoint",
    "Resume job": "resume Job {id}",
    "Resume task": "resume task {id}",
    "Resume series": "resume iterations {id}",
    "TryAgain": "retry task {task_id}",
    "ResumeWithoutDependencies": "resume task {task_id}, which continues without",
    "Continue": "continue Job {job_id} with a new query",
    "Start": "start one",
    "Start job_id": "start it again, as Job {job_id}",
    "Inspect log": "its log shows them",
    "Inspect questions": "its log shows where something was asked",
    "Inspect tasks": "list the tasks to see what there is",
    "Inspect series": "list the iterations to see what there is",
    "Inspect schedules": "list the schedules to see what there is",
    "Inspect inbox": "the inbox lists what is open",
    "Inspect plugins": "list the plugins to see what there is",
    "Inspect providers": "list the providers to see every way",
    "Inspect damage": "verify it to see why",
    "SetOption": "name one",
    "SetOption expert": "name the Expert",
    "SetOption job_id": "choose another id for the Job",
    "SetOption env_file": "name the file as one with variables",
    "SetOption max_cost": "give a higher budget in dollars",
    "SetOption max_iterations": "allow more iterations",
    "SetOption max_steps": "give a higher step limit",
    "SetOption max_time": "give it more time",
    "SetOption max_tokens": "give a higher budget of tokens",
    "SetOption max_tool_calls": "allow more tool calls",
    "SetOption storage": "name the place yourself",
    "SetOption target": "give a better target",
    "SetOption total_cost": "give all its Jobs together a higher budget in dollars",
    "SetOption total_tokens": "give all its Jobs together a higher budget of tokens",
    "SetOption workspaces": "start workers that keep a workspace for each Job, or where the files are",
    "WriteDefinition": "write one",
    "Install": "install the skills again",
    "LogIn": "a person has to log in for skill {skill_name}",
    "Trust": "a person has to trust the project",
    "Trust is_state": "a person has to trust the state",
    "Decide answer": "a person may answer {id}",
    "Decide answer_task": "a person may answer task {id}",
    "Decide close": "a person may close Job {id}",
    "Decide continue": "a person may continue Job {id}",
    "Decide delete_task": "a person may delete task {id}",
    "Decide drop_text": "a person may remove what was said to Job {id}",
    "Decide tell": "a person may tell it to Job {id}",
    "Decide resume": "a person may resume Job {id}",
    "Decide resume_task": "a person may resume task {id}",
    "Decide rewind": "a person may rewind the files of Job {id}",
}


def in_words(step: NextStep) -> str:
    """Return the phrase of a step that suits any door."""
    words = phrase(step, IN_WORDS)
    if isinstance(step, Resume) and step.needs is not None:
        return f"{words}, and {in_words(SetOption(step.needs))}"
    return words


def phrase(step: NextStep, phrases: Mapping[str, str], **values: str) -> str:
    """Return the step by the most specific of `phrases`, with `values` filled in too; without one as `in_words`."""
    name = phrase_name(step)
    while name and name not in phrases:
        name = name.rpartition(" ")[0]
    return phrases.get(name, "").format(**vars(step), **values) or in_words(step)


def phrase_name(step: NextStep) -> str:
    """Return the most specific name of a step in tables of phrases."""
    words = [type(step).__name__]
    for field in fields(step):
        value = getattr(step, field.name)
        if field.name in ("kind", "listing", "option", "act"):
            words.append(value)
        elif field.default not in (MISSING, value):
            words += (field.name, value) if field.name == "needs" else (field.name,)
    return " ".join(words)
