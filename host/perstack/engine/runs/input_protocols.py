"""Protocols for inputs of a Run that features handle: attachments, images and documents, texts that people post.

The package `media` reads attachments and fits requests to the limits of an endpoint; without an image, a document
or an attachment it is not imported. `posted_texts` keeps the texts that wait for the Runs of a storage.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from perstack.ports.parts import Part

if TYPE_CHECKING:
    from perstack.core.jobs.job import Job
    from perstack.core.messages.adaptations import Adaptations
    from perstack.core.messages.messages import History, Message, ResultContent
    from perstack.engine.context.host_setup import HostSetup
    from perstack.engine.log.run_session import RunSession
    from perstack.ports.provider import BlobReader, Provider
    from perstack.ports.skill import BlobStore, ToolResult
    from perstack.ports.storage import Storage
    from perstack.toolkit.context import Blob

# Attachments of a query.

Attachable: TypeAlias = "str | Path | bytes | Blob"
"""A file that the caller may read, by its path, or bytes. The name and type of a Blob are not trusted."""

StoreAttachments: TypeAlias = "Callable[[Storage, str], Awaitable[tuple[ResultContent, ...]]]"
"""Stores the bytes of attachments with a Job, before any event names them, and returns the parts of its query."""

ATTACHMENTS: Part[Callable[[HostSetup, str, Sequence[Attachable]], Awaitable[StoreAttachments]]] = Part("attachments")


async def read_attachments(setup: HostSetup, expert_key: str, attachments: Sequence[Attachable]) -> StoreAttachments:
    """Read attachments. Raises UsageError if one cannot be read, or the Expert's model does not take it."""
    return await setup.parts.get(ATTACHMENTS)(setup, expert_key, attachments)


# Images and documents of messages and results.


class Media(Protocol):
    """Functions for the images and documents of a Run; called only if there are any."""

    async def repair_result(self, result: ToolResult, read: BlobReader, tool_name: str) -> ToolResult:
        """Return a tool's result with the true types of its media, and a text for each image that nobody can read."""
        ...

    async def fit_request(self, session: RunSession, provider: Provider, blobs: BlobStore) -> None:
        """Record the substitutes for media of the Run that its endpoint would refuse."""
        ...

    async def find_substitutes(
        self, session: RunSession, provider: Provider, blobs: BlobStore, messages: History
    ) -> Adaptations:
        """Return the adaptations that the media of `messages` need at the endpoint in addition to the Run's."""
        ...

    async def max_tokens_beyond_bytes(
        self, messages: Iterable[Message], adaptations: Adaptations, read: BlobReader, tokens_by_blob: MediaTokens
    ) -> int | None:
        """Return the maximum tokens of the media as they are sent, beyond one per byte; None without a bound.

        `tokens_by_blob` keeps the tokens of each image and document from one request to the next.
        """
        ...


MediaTokens: TypeAlias = dict[tuple[str, str], int | None]
"""Maximum tokens of images and documents, by digest and media type; None without a bound."""

MEDIA: Part[Media] = Part("images and documents")

# Texts that people post to a Run.


class TextInbox(Protocol):
    """The texts that wait for the Runs of a storage, from any process."""

    async def take(self, job: Job, session: RunSession) -> bool:
        """Record the texts that wait for a Run, and return whether there were new ones. Raises StorageError."""
        ...

    async def forget_job(self, job_id: str) -> None:
        """Remove all texts for a deleted Job and its delegates. Raises StorageError."""
        ...


TEXT_INBOX: Part[Callable[[Storage], TextInbox]] = Part("texts that people post")
