"""The error tree, named by who must act.

    PerstackError
    ├── UsageError            the caller: wrong option, id, or moment
    │   ├── NotFound          a Job, Run, task or checkpoint that does not exist
    │   ├── NotAllowed        an action that a task's status does not allow
    │   ├── CannotServe       a Job that needs what this worker does not have
    │   ├── NotAgreed         something that its user has to agree to first; has the page to show
    │   └── NeedsPerson       a decision that a program or a model may not make over MCP or HTTP
    ├── DefinitionError       the author of perstack.toml; has every problem found
    ├── ProviderError         the model's endpoint; has its status and its own message
    │   └── MissingCredential a key, or a library, that the provider needs
    ├── SkillError            a tool, or the server behind it
    ├── PluginError           the author of a plugin package
    ├── StorageError          the administrator of the disk or the database
    │   ├── Conflict          another driver wrote first, or holds the Job
    │   └── Damaged           the log cannot be read; says where, and how far it can
    └── DispatcherError       the administrator of the dispatcher

Each message is one line that says what to change. `next_steps` are facts about what may be done instead, so that each
door can name its own commands. `exit_code` is the exit status of the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from typing_extensions import override

from perstack.dataclass import dataclass
from perstack.next_steps import NextStep, Note, in_words, with_steps


class PerstackError(Exception):
    """Base class of the host's own errors; as text, the message and the next steps, phrased for any door."""

    exit_code = 1

    def __init__(self, *args: object, next_steps: Sequence[NextStep] = ()) -> None:
        """Create the error with steps that may be done next."""
        super().__init__(*args)
        self.next_steps = tuple(next_steps)

    @property
    def message(self) -> str:
        """The message without the next steps."""
        return super().__str__()

    def text_for(self, say: Callable[[NextStep], str]) -> str:
        """Return the message and the next steps, each worded by `say`."""
        return with_steps(self.message, self.next_steps, say)

    @property
    def note(self) -> Note:
        """Message and next steps, to be shown instead of raised."""
        return Note(self.message, self.next_steps)

    def __str__(self) -> str:
        """Return the message and the next steps, phrased for any door."""
        return self.text_for(in_words)


class UsageError(PerstackError):
    """A request that cannot be done this way."""

    exit_code = 2


class NotFound(UsageError):
    """A Job, Run, checkpoint or blob that does not exist in this storage."""


class NotAllowed(UsageError):
    """An action that the status of a task does not allow."""

    def __init__(self, message: str, allowed: Sequence[str] = (), *, next_steps: Sequence[NextStep] = ()) -> None:
        """Create the error with the actions that the status allows."""
        super().__init__(message, next_steps=next_steps)
        self.allowed = tuple(allowed)


class CannotServe(UsageError):
    """A missing key, plugin or program on a worker. Nothing was written; another worker may have it."""


class NotAgreed(UsageError):
    """Something written by others, which the host does not act on before its user has agreed. Nothing was done."""

    def __init__(
        self, message: str, *, page: Sequence[str], agree: Callable[[], None], next_steps: Sequence[NextStep] = ()
    ) -> None:
        """Create the error. `page` shows, whole, what `agree` records an agreement to; `agree` raises StorageError."""
        super().__init__(message, next_steps=next_steps)
        self.page = tuple(page)
        self.agree = agree


class NeedsPerson(UsageError):
    """A decision that only a person makes, and nobody could be asked, or agreed. Nothing was done."""

    @override
    def text_for(self, say: Callable[[NextStep], str]) -> str:
        """Return the message and all the decisions, each worded by `say`."""
        return with_steps(self.message, self.next_steps, say, joint=", and ")


@dataclass(frozen=True)
class Problem:
    """A problem in a definition file."""

    message: str
    file: str
    line: int | None = None
    key: str | None = None
    severity: str = "error"  # `error` disables the problem's Expert, or everything; `warning` is only shown
    expert: str | None = None  # the key of the problem's Expert; None for the whole project
    only_new_jobs: bool = False  # True for an error with which no Job can begin, and Jobs that have begun continue

    def __str__(self) -> str:
        """Return the problem in one line, with its place."""
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.message}" if self.key is None else f"{place}: {self.key}: {self.message}"


class DefinitionError(PerstackError):
    """An unusable perstack.toml; `problems` has every problem at once."""

    exit_code = 2

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        """Join all problems into the message."""
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))


class ProviderError(PerstackError):
    """A failed generation.

    `name` is a short stable word (`RateLimit`, `Timeout`, `BadRequest`, …), `status_code` the HTTP status if there was
    one, `retry_after` the seconds that the endpoint asked to wait. For a `ContextOverflow`, `context_window` is the
    number of tokens that the model's context can hold, if the endpoint said so. `may_not_fit` is True for a refusal
    without a known cause, which may be that the request is too large. `answer` is the endpoint's whole answer as far as
    it is short, for what the message leaves out; it is never shown.
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
        may_not_fit: bool = False,
        next_steps: Sequence[NextStep] = (),
        answer: str = "",
    ) -> None:
        """Create the error; by default it is not retried."""
        super().__init__(message, next_steps=next_steps)
        self.name = name
        self.status_code = status_code
        self.is_retryable = is_retryable
        self.retry_after = retry_after
        self.context_window = context_window
        self.may_not_fit = may_not_fit
        self.answer = answer
        self.refused_body = b""  # the request as it was sent, if the endpoint refused it for what it contains


class MissingCredential(ProviderError):
    """A key or an optional library that the provider needs and that is missing."""

    exit_code = 2

    def __init__(self, message: str, *, next_steps: Sequence[NextStep] = ()) -> None:
        """Create an error that is never retried."""
        super().__init__(message, name="MissingCredential", next_steps=next_steps)


class SkillError(PerstackError):
    """A failure of a tool, or of the server behind it."""


class PluginError(PerstackError):
    """A plugin that breaks its contract: a misspelt hook, a name that is taken, a wrong return type."""


class StorageError(PerstackError):
    """State that could not be read or written."""


class Conflict(StorageError):
    """A write or a lease that another process got first."""


class Damaged(StorageError):
    """A log damaged before its torn tail. `readable`: good records, as `read(..., limit=readable)` returns."""

    def __init__(self, message: str, *, readable: int, next_steps: Sequence[NextStep] = ()) -> None:
        """Set the number of readable records."""
        super().__init__(message, next_steps=next_steps)
        self.readable = readable


class DispatcherError(PerstackError):
    """A dispatcher that cannot be reached, or refuses."""
