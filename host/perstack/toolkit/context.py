"""Arguments and results of tool functions: the context, the bytes that they may return, and their conversion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Generic, cast

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json
from typing_extensions import TypeVar

from perstack.core.messages.messages import BlobPart, ResultContent, TextPart
from perstack.core.runs.facts import Question
from perstack.dataclass import dataclass
from perstack.errors import SkillError, UsageError
from perstack.ports.parts import NO_PARTS, Parts
from perstack.ports.skill import BlobStore, ToolCall, ToolResult

SettingsT = TypeVar("SettingsT", bound=BaseModel | None, default=None)
ResourceT = TypeVar("ResourceT", default=None)


@dataclass(frozen=True)
class Setup(Generic[SettingsT]):
    """Settings and resources of a declared skill, shared by all calls of a Job."""

    settings: SettingsT  # validated `settings` of perstack.toml; None if the Toolkit has no settings
    workspace: Path  # absolute path of the Job's working directory
    env: Mapping[str, str]  # the variables in the Toolkit's `required_env`, from environment and `.env` files
    parts: Parts = field(default=NO_PARTS, kw_only=True)  # services of the host, as `SkillContext.parts`


@dataclass(frozen=True)
class ToolContext(Setup[SettingsT], Generic[SettingsT, ResourceT]):
    """Context for a tool function: passed to the parameter of this type, under any name. Models do not see it."""

    resource: ResourceT  # the value that the Toolkit's lifespan yielded; None without one
    tool_call: ToolCall  # the call, with its key (unchanged after a resume), the Job's blobs and progress messages
    is_cancelled: Callable[[], bool] = field(default=lambda: False, kw_only=True)
    """Return whether nobody waits for the call any more: a plain function may check this, and return."""


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes for a function to return, alone or in a list. Models that support images or PDFs are shown them."""

    data: bytes
    mime_type: str = "application/octet-stream"
    name: str | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for data that is not bytes, and for a type or name that is not text."""
        data, texts = cast("object", self.data), cast("tuple[object, object]", (self.mime_type, self.name or ""))
        if not isinstance(data, bytes):
            raise UsageError(f"Blob: `data` must be bytes, and is {type(data).__name__}")
        if not all(isinstance(text, str) for text in texts):
            raise UsageError("Blob: `mime_type` and `name` must be text")


# Conversion of return values for the model.


async def as_result(value: object, blobs: BlobStore) -> ToolResult | Question:
    """Convert a value: text unchanged, bytes to blobs, anything else to JSON. Raises SkillError if it is no JSON."""
    if isinstance(value, ToolResult | Question):
        return value
    return ToolResult(tuple([await _part(part, blobs) for part in _parts(value)]))


def _parts(value: object) -> Sequence[object]:
    """Return the items of a list that contains bytes; anything else is a single part."""
    if not isinstance(value, list | tuple):
        return (value,)
    items = cast("Sequence[object]", value)
    return items if any(isinstance(item, Blob) for item in items) else (items,)


async def _part(value: object, blobs: BlobStore) -> ResultContent:
    match value:
        case str():
            return TextPart(text=value)
        case None:
            return TextPart(text="Done.")
        case bytes():
            return await _part(Blob(value), blobs)
        case Blob():
            sha256 = await blobs.put(value.data)
            return BlobPart(sha256=sha256, mime_type=value.mime_type, size=len(value.data), name=value.name)
        case _:
            return TextPart(text=_json(value))


def _json(value: object) -> str:
    try:
        return to_json(value, by_alias=True, inf_nan_mode="strings").decode()
    except PydanticSerializationError as error:
        raise SkillError(f"the tool returned what is not JSON: {str(error).splitlines()[0]}") from error
