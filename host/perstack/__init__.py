"""Run Experts: small LLM agents declared in perstack.toml, with state that is never lost.

    import perstack

    job = perstack.run_sync("writer", "Write a haiku about logs")
    print(job.text)

`run_sync`, and `run` in async code, drive one new Job from beginning to end. `Host` does everything else: continue,
answer, resume, cancel, list, verify. `perstack.ports` defines what plugins implement, `perstack.testing` what tests
need. Names are imported on first use; a new public name needs an entry in `_HOMES` and an import for type checkers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from perstack.version import VERSION

if TYPE_CHECKING:
    from perstack.core.base.ids import By as By
    from perstack.core.definitions.experts import Expert as Expert
    from perstack.core.definitions.project import Project as Project
    from perstack.core.definitions.settings import Overrides as Overrides
    from perstack.core.jobs.summary import JobSummary as JobSummary
    from perstack.core.jobs.summary import ParsedJob as ParsedJob
    from perstack.core.runs.events import Event as Event
    from perstack.engine.log.run_session import OnEvent as OnEvent
    from perstack.engine.runs.input_protocols import Attachable as Attachable
    from perstack.errors import CannotServe as CannotServe
    from perstack.errors import Conflict as Conflict
    from perstack.errors import Damaged as Damaged
    from perstack.errors import DefinitionError as DefinitionError
    from perstack.errors import DispatcherError as DispatcherError
    from perstack.errors import MissingCredential as MissingCredential
    from perstack.errors import NeedsPerson as NeedsPerson
    from perstack.errors import NotAgreed as NotAgreed
    from perstack.errors import NotAllowed as NotAllowed
    from perstack.errors import NotFound as NotFound
    from perstack.errors import PerstackError as PerstackError
    from perstack.errors import PluginError as PluginError
    from perstack.errors import ProviderError as ProviderError
    from perstack.errors import SkillError as SkillError
    from perstack.errors import StorageError as StorageError
    from perstack.errors import UsageError as UsageError
    from perstack.host import Host as Host
    from perstack.host import run as run
    from perstack.host import run_sync as run_sync
    from perstack.streams.events import DelegateStarted as DelegateStarted
    from perstack.streams.events import Finished as Finished
    from perstack.streams.events import Question as Question
    from perstack.streams.events import StreamEvent as StreamEvent
    from perstack.streams.events import TextDelta as TextDelta
    from perstack.streams.events import ToolCall as ToolCall
    from perstack.streams.events import ToolResult as ToolResult
    from perstack.streams.job_stream import JobStream as JobStream
    from perstack.toolkit.context import Blob as Blob
    from perstack.toolkit.context import ToolContext as ToolContext
    from perstack.toolkit.functions import tool as tool


__version__ = VERSION

_HOMES = {
    "perstack.core.base.ids": "By",
    "perstack.core.definitions.experts": "Expert",
    "perstack.core.definitions.settings": "Overrides",
    "perstack.core.definitions.project": "Project",
    "perstack.core.runs.events": "Event",
    "perstack.streams.events": "DelegateStarted Finished Question StreamEvent TextDelta ToolCall ToolResult",
    "perstack.core.jobs.summary": "JobSummary ParsedJob",
    "perstack.streams.job_stream": "JobStream",
    "perstack.engine.log.run_session": "OnEvent",
    "perstack.engine.runs.input_protocols": "Attachable",
    "perstack.errors": "CannotServe Conflict Damaged DefinitionError DispatcherError MissingCredential NeedsPerson"
    " NotAgreed NotAllowed NotFound PerstackError PluginError ProviderError SkillError StorageError UsageError",
    "perstack.host": "Host run run_sync",
    "perstack.toolkit.context": "Blob ToolContext",
    "perstack.toolkit.functions": "tool",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


if not TYPE_CHECKING:  # type checkers read the imports above, and so find a misspelt name
    __all__ = sorted([*_HOME_OF, "__version__"])

    def __getattr__(name: str) -> object:
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(home), name)
        return value

    def __dir__() -> list[str]:
        return list(__all__)
