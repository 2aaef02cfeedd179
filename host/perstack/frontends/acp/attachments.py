"""What an editor sends with a prompt besides words: images, documents, and links to such files of the workspace."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterable
from mimetypes import guess_type
from posixpath import basename
from urllib.parse import unquote, urlsplit

from acp.schema import (
    AudioContentBlock,
    BlobResourceContents,
    EmbeddedResourceContentBlock,
    ImageContentBlock,
    ResourceContentBlock,
    TextContentBlock,
)

from perstack.errors import UsageError
from perstack.host import Host
from perstack.ports.toolkit.context import Blob

Block = TextContentBlock | ImageContentBlock | AudioContentBlock | ResourceContentBlock | EmbeddedResourceContentBlock


async def attachments_of(prompt: Iterable[Block], host: Host) -> list[Blob]:
    """The images and documents of a prompt; texts are part of the query. Raises UsageError for what is not base64.

    A link is followed to an image or a PDF of the workspace. Any other file is only named, and the Expert reads it.
    """
    found: list[Blob] = []
    for block in prompt:
        match block:
            case ImageContentBlock():
                found.append(Blob(_decoded(block.data), name=_name(block.uri)))
            case EmbeddedResourceContentBlock(resource=BlobResourceContents() as resource):
                found.append(Blob(_decoded(resource.blob), name=_name(resource.uri)))
            case ResourceContentBlock() if _is_shown(block):
                found += await _linked(block.uri, host)
            case _:
                continue
    return found


async def _linked(uri: str, host: Host) -> list[Blob]:
    try:
        return [await host.attachment(uri)]
    except UsageError:
        return []  # what is elsewhere, or gone, is still named in the query


def _is_shown(block: ResourceContentBlock) -> bool:
    kind = block.mime_type or guess_type(urlsplit(block.uri).path)[0] or ""
    return kind.startswith("image/") or kind == "application/pdf"


def _decoded(data: str) -> bytes:
    try:
        return b64decode(data, validate=True)
    except (NotBase64, ValueError):
        raise UsageError("an attachment of the prompt is not base64: the client has to send it so") from None


def _name(uri: str | None) -> str | None:
    return basename(unquote(urlsplit(uri).path)) or None if uri else None
