"""What a tool's function is given besides its arguments, and the bytes that it may return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Generic

from pydantic import BaseModel
from typing_extensions import TypeVar

from perstack.dataclass import dataclass
from perstack.ports.skill import ToolCall

if TYPE_CHECKING:
    from perstack.ports.tasks import TaskMemory

SettingsT = TypeVar("SettingsT", bound=BaseModel | None, default=None)
ResourceT = TypeVar("ResourceT", default=None)


@dataclass(frozen=True)
class Setup(Generic[SettingsT]):
    """What a skill was declared with and may use, the same for a whole Job."""

    settings: SettingsT
    """`settings` of perstack.toml, checked; None if the Toolkit has no settings."""
    workspace: Path
    """The directory that the Job works in, absolute."""
    env: Mapping[str, str]
    """The variables that the Toolkit asks for, with the values of the host's environment and `.env` files."""
    tasks: Callable[[], TaskMemory] | None = field(default=None, kw_only=True)
    """The tasks that agents pause and resume; None where there is no host."""


@dataclass(frozen=True)
class ToolContext(Setup[SettingsT], Generic[SettingsT, ResourceT]):
    """What a function is given that has a parameter of this type, whatever its name; a model does not see it."""

    resource: ResourceT
    """What the Toolkit's lifespan yielded; None without one."""
    call: ToolCall
    """The call: its key, which is the same after a resume, the Job's blobs, a way to show progress."""


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes for a function to return, alone or in a list: an image or a PDF is shown to a model that can see it."""

    data: bytes
    mime_type: str = "application/octet-stream"
    name: str | None = None
