"""The error tree, named by who must act.

    PerstackError
    ├── UsageError            the person who called: wrong option, id, or moment
    │   ├── NotFound          …asked for a Job, Run, task or checkpoint that is not there
    │   ├── NotAllowed        …or for what a task's status does not allow
    │   └── CannotServe       …or for a Job that needs what this worker does not have
    ├── DefinitionError       the author of perstack.toml; carries every problem found
    ├── ProviderError         the model's endpoint; keeps its status and its own words
    │   └── MissingCredential …no key, or no library, for the provider asked for
    ├── SkillError            a tool, or the server behind it
    ├── PluginError           the author of a plugin package
    ├── StorageError          whoever looks after the disk or the database
    │   ├── Conflict          another driver wrote first, or holds the Job
    │   └── Damaged           the log does not read; says where, and how far it does
    └── DispatcherError       whoever looks after the engine that says who drives a Job

Each message is one line that says what to change. `next_steps` are facts that say what may be done instead, so that
each front door can name its own commands. `exit_code` is what the command line returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perstack.dataclass import dataclass
from perstack.next_steps import NextStep, Note, in_words, with_steps


class PerstackError(Exception):
    """The base of every error that the host raises on purpose.

    As text it is the message and the next steps, in words that suit every door.
    """

    exit_code = 1

    def __init__(self, *args: object, next_steps: Sequence[NextStep] = ()) -> None:
        super().__init__(*args)
        self.next_steps = tuple(next_steps)

    @property
    def message(self) -> str:
        """What is wrong, without the next steps."""
        return super().__str__()

    def said(self, say: Callable[[NextStep], str]) -> str:
        """All of it, with the next steps in the words of `say`."""
        return with_steps(self.message, self.next_steps, say)

    @property
    def note(self) -> Note:
        """The same as something that is shown and not raised."""
        return Note(self.message, self.next_steps)

    def __str__(self) -> str:
        return self.said(in_words)


class UsageError(PerstackError):
    """The caller asked for something that cannot be done this way."""

    exit_code = 2


class NotFound(UsageError):
    """No Job, Run, checkpoint or blob of that id in this storage."""


class NotAllowed(UsageError):
    """A task does not stand so that this can be done; `allowed` is what can."""

    def __init__(self, message: str, allowed: Sequence[str] = (), *, next_steps: Sequence[NextStep] = ()) -> None:
        super().__init__(message, next_steps=next_steps)
        self.allowed = tuple(allowed)


class CannotServe(UsageError):
    """A worker has not what a Job needs: a key, a plugin, a program. Nothing was written; another may have it."""


@dataclass(frozen=True)
class Problem:
    """One thing wrong in a definition file."""

    message: str
    file: str
    line: int | None = None
    key: str | None = None
    severity: str = "error"
    """`error` stops the Expert it is about, or everything; `warning` is only shown."""
    expert: str | None = None
    """The key of the Expert that it is about; None if it is about the whole project."""

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.message}" if self.key is None else f"{place}: {self.key}: {self.message}"


class DefinitionError(PerstackError):
    """perstack.toml cannot be used as it is; `problems` has all of it at once."""

    exit_code = 2

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))


class ProviderError(PerstackError):
    """A generation failed.

    `name` is a short stable word (`RateLimit`, `Timeout`, `BadRequest`, …), `status_code` the HTTP status if
    there was one, `retry_after` the seconds that the endpoint asked us to wait. Of a `ContextOverflow`,
    `context_window` is how many tokens the model's context can hold, if the endpoint said so.
    """

    def __init__(
        self,
        message: str,
        *,
        name: str = "ProviderError",
        status_code: int | None = None,
        is_retryable: bool = False,
        retry_after: float | None = None,
        context_window: int | None = None,
        next_steps: Sequence[NextStep] = (),
    ) -> None:
        super().__init__(message, next_steps=next_steps)
        self.name = name
        self.status_code = status_code
        self.is_retryable = is_retryable
        self.retry_after = retry_after
        self.context_window = context_window


class MissingCredential(ProviderError):
    """A key or an optional library that the provider needs is not there."""

    exit_code = 2

    def __init__(self, message: str, *, next_steps: Sequence[NextStep] = ()) -> None:
        super().__init__(message, name="MissingCredential", next_steps=next_steps)


class SkillError(PerstackError):
    """A tool, or the server behind it, could not do its work."""


class PluginError(PerstackError):
    """A plugin broke its contract: a misspelt hook, a name that is taken, a wrong return type."""


class StorageError(PerstackError):
    """State could not be read or written."""


class Conflict(StorageError):
    """Somebody else wrote first, or is driving this Job now."""


class Damaged(StorageError):
    """A log is damaged somewhere else than at its torn tail.

    `readable` is how many records from the start are good: `read(..., limit=readable)` returns them.
    """

    def __init__(self, message: str, *, readable: int, next_steps: Sequence[NextStep] = ()) -> None:
        super().__init__(message, next_steps=next_steps)
        self.readable = readable


class DispatcherError(PerstackError):
    """The engine that says who drives a Job cannot be reached, or refuses."""
