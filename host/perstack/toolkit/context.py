"""What a function returns, as a model is given it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from pydantic_core import PydanticSerializationError, to_json

from perstack.core.messages import BlobPart, ResultContent, TextPart
from perstack.core.questions import Question
from perstack.errors import SkillError
from perstack.ports.skill import BlobStore, ToolResult
from perstack.ports.toolkit.context import Blob


async def as_result(value: object, blobs: BlobStore) -> ToolResult | Question:
    """Text as it is, bytes as a blob of the Job, anything else as JSON. Raises SkillError for what is not JSON."""
    if isinstance(value, ToolResult | Question):
        return value
    return ToolResult(tuple([await _part(one, blobs) for one in _parts(value)]))


def _parts(value: object) -> Sequence[object]:
    """A list with bytes in it, one by one; anything else is one part."""
    if not isinstance(value, list | tuple):
        return (value,)
    several = cast("Sequence[object]", value)
    return several if any(isinstance(one, Blob) for one in several) else (several,)


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
