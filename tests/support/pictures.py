"""Images and documents for tests: real ones, damaged ones, and a skill whose tool returns them."""

from __future__ import annotations

import io
import random
from base64 import b64decode
from collections.abc import Iterator, Sequence
from typing import Any

from PIL import Image

from perstack.core.definitions.skills import McpStdioSkill, ToolSpec
from perstack.core.messages.messages import BlobPart
from perstack.media.file_headers import media_type
from perstack.ports.hooks import hookimpl
from perstack.ports.skill import SkillFactory, SkillSession, ToolCall, ToolResult, Toolset

PDF = b"%PDF-1.4\n1 0 obj <</Type/Catalog>> endobj\n2 0 obj <</Type/Page>> endobj\ntrailer <</Root 1 0 R>>\n%%EOF\n"
ENCRYPTED_PDF = PDF.replace(b"/Root", b"/Encrypt 5 0 R /Root")


def picture(form: str = "PNG", size: tuple[int, int] = (4, 4), mode: str = "RGB", **options: Any) -> bytes:
    """Return an image of one colour in a format of Pillow."""
    output = io.BytesIO()
    Image.new(mode, size).save(output, form, **options)
    return output.getvalue()


def noise(form: str = "PNG", size: tuple[int, int] = (1_600, 1_200), **options: Any) -> bytes:
    """Return an image that hardly compresses: 5.8 MB as PNG."""
    output = io.BytesIO()
    Image.frombytes("RGB", size, random.Random(1).randbytes(size[0] * size[1] * 3)).save(output, form, **options)
    return output.getvalue()


def animation(form: str = "GIF") -> bytes:
    """Return an image of three frames that differ."""
    frames = [Image.new("RGB", (16, 16), (80 * number, 0, 0)) for number in range(3)]
    output = io.BytesIO()
    frames[0].save(output, form, save_all=True, append_images=frames[1:])
    return output.getvalue()


def rotated_jpeg(size: tuple[int, int]) -> bytes:
    """Return a JPEG whose metadata say that it lies on its side."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return picture("JPEG", size, exif=exif)


def as_image(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


class MediaSkill(SkillFactory, SkillSession):
    """A skill `showing` whose tool `show` returns media: for each call a list of types and contents."""

    name = "showing"

    def __init__(self, *calls: Sequence[tuple[str, bytes]], is_error: bool = False) -> None:
        self.calls = list(calls)
        self.is_error = is_error

    def handles(self, definition: object) -> bool:
        return isinstance(definition, McpStdioSkill) and definition.name == "showing"

    async def open(self, definition: object, context: object) -> SkillSession:
        return self

    async def tools(self) -> Toolset:
        return Toolset((ToolSpec(name="show"),))

    async def call(self, call: ToolCall) -> ToolResult:
        media = self.calls.pop(0) if len(self.calls) > 1 else self.calls[0]
        parts = [
            BlobPart(sha256=await call.blobs.put(data), mime_type=kind, size=len(data), name=f"{number}.bin")
            for number, (kind, data) in enumerate(media, start=1)
        ]
        return ToolResult(tuple(parts), self.is_error)

    async def close(self) -> None:
        pass

    @hookimpl
    def perstack_skills(self) -> list[SkillFactory]:
        return [self]


SHOWING = McpStdioSkill(name="showing", command="true")


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text in a body."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from texts_in(item)


def media_in(body: Any) -> list[bytes]:
    """Return the images and documents in a body."""
    found = []
    for text in texts_in(body):
        data = text.partition(";base64,")[2] or text
        try:
            content = b64decode(data, validate=True)
        except ValueError:
            continue
        if len(data) > 40 and media_type(content):
            found.append(content)
    return found
