"""Attachments of a query: read them, check that the model takes them, and store them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path

from perstack.core.messages.media import image_type, pdf_type
from perstack.core.messages.messages import BlobPart, ResultContent, TextPart
from perstack.dataclass import dataclass
from perstack.engine.context.host_setup import HostSetup
from perstack.engine.log.storage_access import JobBlobs
from perstack.engine.runs.input_protocols import Attachable, StoreAttachments
from perstack.errors import UsageError
from perstack.ports.storage import Storage
from perstack.system.files import read_regular, system_reason
from perstack.toolkit.context import Blob

MAX_ATTACHMENTS = 20
_MEBIBYTE = 1 << 20
MAX_PDF_BYTES = 30 * _MEBIBYTE  # maximum bytes of a PDF, which is the highest limit of all types
_MAX_IMAGE_BYTES = 15 * _MEBIBYTE
_MAX_TEXT_BYTES = 256 << 10
_MAX_TOTAL_BYTES = 60 * _MEBIBYTE
_MAX_NAME_CHARS = 255
_KINDS = "a PNG, JPEG, GIF or WebP image, a PDF, or text in UTF-8"


@dataclass(frozen=True, slots=True)
class CheckedAttachment:
    """An attachment of a supported type and size, and the part of the query that it becomes."""

    part: ResultContent
    name: str
    data: bytes

    @property
    def media_type(self) -> str | None:
        """The media type; None for a text."""
        return self.part.mime_type if isinstance(self.part, BlobPart) else None


def read_attachment(name: str, data: bytes) -> CheckedAttachment:
    """Return an attachment; its bytes tell its type. Raises UsageError for an unsupported type, or one too large."""
    name = "".join(char if char.isprintable() else "\ufffd" for char in name)[:_MAX_NAME_CHARS] or "attachment"
    image = image_type(data)
    media_type = image or pdf_type(data)
    if media_type is not None:
        _check_size(name, data, _MAX_IMAGE_BYTES if image else MAX_PDF_BYTES)
        part = BlobPart(sha256=sha256(data).hexdigest(), mime_type=media_type, size=len(data), name=name)
        return CheckedAttachment(part, name, data)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise UsageError(f"{name} cannot be attached: it is not {_KINDS}")
    _check_size(name, data, _MAX_TEXT_BYTES)
    return CheckedAttachment(TextPart(text=f"\n\nAttached file {name}:\n{text}"), name, data)


def check_together(attachments: Sequence[CheckedAttachment]) -> None:
    """Raise UsageError if the attachments are too many, or too large in total."""
    if len(attachments) > MAX_ATTACHMENTS:
        raise UsageError(f"{len(attachments)} files are attached: attach at most {MAX_ATTACHMENTS}")
    size = sum(len(attachment.data) for attachment in attachments)
    if size > _MAX_TOTAL_BYTES:
        raise UsageError(f"the attachments have {size:,} bytes together: attach at most {_MAX_TOTAL_BYTES:,}")


def _check_size(name: str, data: bytes, max_bytes: int) -> None:
    if len(data) > max_bytes:
        raise UsageError(f"{name} cannot be attached: it has {len(data):,} bytes, more than {max_bytes:,}")


async def read_supported(setup: HostSetup, expert_key: str, attachments: Sequence[Attachable]) -> StoreAttachments:
    """Read attachments. Raises UsageError if one cannot be read, or the Expert's model does not take it."""
    checked_attachments = await asyncio.to_thread(_read_all, attachments)
    _check_model_takes(setup, expert_key, checked_attachments)
    return partial(_store_blobs, checked_attachments)


def _check_model_takes(setup: HostSetup, expert_key: str, attachments: Sequence[CheckedAttachment]) -> None:
    if all(attachment.media_type is None for attachment in attachments):
        return
    settings = setup.providers.settings(setup.project, setup.expert(expert_key), setup.overrides)
    provider = setup.providers.get(settings.provider)
    for attachment in attachments:
        if attachment.media_type is not None and not provider.takes(settings.model, attachment.media_type):
            raise UsageError(
                f"{attachment.name} cannot be attached: the model {settings.model} of provider"
                f" {settings.provider.provider_name} takes no {attachment.media_type}; attach another kind of file, or"
                " choose another model"
            )


async def _store_blobs(
    attachments: Sequence[CheckedAttachment], storage: Storage, job_id: str
) -> tuple[ResultContent, ...]:
    blobs = JobBlobs(storage, job_id)
    for attachment in attachments:
        if attachment.media_type is not None:
            await blobs.put(attachment.data)
    return tuple(attachment.part for attachment in attachments)


def _read_all(attachments: Sequence[Attachable]) -> tuple[CheckedAttachment, ...]:
    checked_attachments: list[CheckedAttachment] = []
    for number, source in enumerate(attachments, start=1):
        match source:
            case bytes():
                checked_attachments.append(read_attachment(f"attachment {number}", source))
            case Blob():
                checked_attachments.append(read_attachment(source.name or f"attachment {number}", source.data))
            case str() | Path():
                checked_attachments.append(read_attachment(Path(source).name, _read_file(Path(source))))
            case _:
                kind = type(source).__name__
                raise UsageError(f"attachment {number} must be a path, bytes or a Blob, not {kind}")
        check_together(checked_attachments)
    return tuple(checked_attachments)


def _read_file(path: Path) -> bytes:
    """Return the content of a file, following links: the caller has named it. Raises UsageError."""
    try:
        return read_regular(path, MAX_PDF_BYTES)
    except OSError as error:
        raise UsageError(f"{path} cannot be attached: {system_reason(error)}") from None
    except ValueError:
        raise UsageError(f"{str(path)!r} cannot be attached: no file has such a name") from None
