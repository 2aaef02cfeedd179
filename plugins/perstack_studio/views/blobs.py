"""The blobs of a Job: images in pages, and everything else as a download that no browser opens here."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from functools import partial
from hashlib import sha256

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from perstack.core.messages.media import PDF, image_type
from perstack.errors import NotFound, StorageError, UsageError
from perstack_studio.studio import studio_of

MAX_BLOB_BYTES = 64 << 20  # maximum bytes of a sent blob; attachments of a query may have 60 MB together
_MAX_OPEN_BLOBS = 8  # maximum blobs in memory at a time; further requests wait
_CHUNK_BYTES = 256 << 10
_SHA256 = re.compile(r"[0-9a-f]{64}")

INLINE_TYPES: frozenset[str] = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))
"""Media types that a browser shows in a page. None of them can hold a script."""

_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "X-Content-Type-Options": "nosniff",
}


def pages() -> Iterable[BaseRoute]:
    """Return the route. All its requests share one limit of blobs in memory."""
    open_blobs = asyncio.Semaphore(_MAX_OPEN_BLOBS)
    yield Route("/jobs/{job}/blobs/{sha256}", partial(_send_blob, open_blobs), methods=["GET"])


async def _send_blob(open_blobs: asyncio.Semaphore, request: Request) -> Response:
    job_id, digest = request.path_params["job"], request.path_params["sha256"]
    await open_blobs.acquire()
    has_response = False
    try:
        data = await _read_blob(request, job_id, digest)
        headers = _blob_headers(data, digest, request.query_params.get("type", ""))
        has_response = True
    finally:
        if not has_response:
            open_blobs.release()
    return _BlobResponse(_split_in_chunks(data), headers=headers, open_blobs=open_blobs)


async def _read_blob(request: Request, job_id: str, digest: str) -> bytes:
    """Return the bytes of a blob of this Job. Raises NotFound, and StorageError if they do not match the digest."""
    studio = studio_of(request)
    if not _SHA256.fullmatch(digest):
        raise NotFound("there is no such blob: a blob is named by its SHA-256")
    try:
        await studio.served_project.job(job_id)
    except UsageError as error:
        raise NotFound(str(error)) from error
    data = await studio.host.storage.blob(job_id, digest)
    if len(data) > MAX_BLOB_BYTES:
        raise UsageError(f"blob {digest} has {len(data):,} bytes: at most {MAX_BLOB_BYTES:,} are sent here")
    actual_digest = await asyncio.to_thread(lambda: sha256(data).hexdigest())
    if actual_digest != digest:
        raise StorageError(f"Job {job_id}: blob {digest} does not match its name")
    return data


def _blob_headers(data: bytes, digest: str, asked_type: str) -> dict[str, str]:
    """Return the headers of a blob. Only a type of `INLINE_TYPES` that the bytes have is sent; others are downloads."""
    headers = {**_HEADERS, "Content-Length": str(len(data))}
    if asked_type in INLINE_TYPES and image_type(data) == asked_type:
        return {**headers, "Content-Type": asked_type, "Content-Disposition": "inline"}
    suffix = ".pdf" if asked_type == PDF else ".bin"  # never a suffix of files that a double click executes
    name = f"{digest[:16]}{suffix}"
    return {
        **headers,
        "Content-Type": "application/octet-stream",
        "Content-Disposition": f'attachment; filename="{name}"',
    }


async def _split_in_chunks(data: bytes) -> AsyncIterator[bytes]:
    view = memoryview(data)
    for start in range(0, len(data), _CHUNK_BYTES):
        yield bytes(view[start : start + _CHUNK_BYTES])


class _BlobResponse(StreamingResponse):
    """A response that sends a blob in chunks, and releases its slot of `open_blobs` at the end."""

    def __init__(
        self, content: AsyncIterator[bytes], *, headers: Mapping[str, str], open_blobs: asyncio.Semaphore
    ) -> None:
        super().__init__(content, headers=headers)
        self._open_blobs = open_blobs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the blob."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._open_blobs.release()
