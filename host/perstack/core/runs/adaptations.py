"""Changes of a Run's requests that an endpoint needs: parts that it refuses are replaced, written plainer, or left out.

An endpoint may refuse one part of a request, and with it every request of the Run from then on. So a generation climbs
a ladder: what the wire format is known to refuse is adapted before sending; if a refusal still names a part, that part
is adapted and the request repeated. Each adaptation is recorded by `adaptRequest`, holds for all later requests of the
Run to the same model, and is never taken back: a rung is climbed at most once, so the ladder ends.

A provider names the parts (`Provider.adapt`); a codec must write each part as the adaptations of its request say.
Messages are adapted here (`adapted_message`), before a codec sees them; fields and tools by the codec, which knows
its format. Change together: a new kind of part with `words` and with the codecs that write it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Literal, assert_never

from pydantic import Field

from perstack.core.base.records import TEXT, Fact, canonical_json, falsy
from perstack.core.runs.messages import (
    BlobPart,
    ExpertMessage,
    Message,
    ResultContent,
    TextPart,
    ThinkingPart,
    ToolMessage,
    UserMessage,
)

RequestPart = Literal["field", "tool", "media", "thinking"]
AdaptedForm = Literal["plain", "omitted", "replaced"]

MAX_RUNGS = 3  # refusals in one generation that adaptations follow: a server may refuse one part after the other
REFUSAL_STATUSES = frozenset((400, 413, 415, 422))  # HTTP statuses that refuse a request for what it contains


class Adaptation(Fact):
    """One part of a request, and the form in which it is sent from now on.

    `name` tells the part: the name of a field in its wire format, such as `stream_options` or `messages.content`; the
    name of a tool; the sha256 of an image or document. `thinking` has none, and lists what is left out in `thoughts`.
    """

    part: RequestPart
    form: AdaptedForm
    name: str = Field(default="", exclude_if=falsy)
    text: Annotated[str, TEXT] = Field(default="", exclude_if=falsy)  # text in the place of an image or document
    blob: BlobPart | None = Field(default=None, exclude_if=falsy)  # smaller image or document in its place
    thoughts: tuple[str, ...] = Field(
        default=(), exclude_if=falsy
    )  # digests of parts of messages (`digest_of_thought`)

    def __hash__(self) -> int:
        """Hash the fields that tell adaptations apart: records have no hash of their own."""
        return hash((self.part, self.form, self.name, self.text, self.thoughts))

    @property
    def words(self) -> str:
        """The adaptation as a phrase, such as `without the field stream_options`."""
        match self.part:
            case "field":
                return f"without the field {self.name}" if self.form == "omitted" else f"with a plainer {self.name}"
            case "tool":
                omitted = self.form == "omitted"
                return f"without the tool {self.name}" if omitted else f"with a plainer schema of the tool {self.name}"
            case "media":
                kind = "a smaller image" if self.blob is not None else "a text"
                return f"with {kind} in place of an image or document"
            case "thinking":
                return "without the thinking of earlier replies"
            case _:
                assert_never(self.part)


Adaptations = tuple[Adaptation, ...]


def new_adaptations(known: Adaptations, named: Iterable[Adaptation]) -> Adaptations:
    """Return the adaptations that change something: no form twice, and nothing of a part that is left out already."""
    omitted = {(item.part, item.name) for item in known if item.form == "omitted" and item.part != "thinking"}
    found: list[Adaptation] = []
    for item in named:
        if item not in known and item not in found and (item.part, item.name) not in omitted:
            found.append(item)
    return tuple(found)


def names_in(adaptations: Adaptations, part: RequestPart, form: AdaptedForm = "omitted") -> frozenset[str]:
    """Return the names of the parts of one kind that are sent in this form; a later form replaces an earlier one."""
    forms = {item.name: item.form for item in adaptations if item.part == part}
    return frozenset(name for name, latest in forms.items() if latest == form)


def digest_of_thought(part: ThinkingPart) -> str:
    """Return the name of a thinking part in `Adaptation.thoughts`: 16 hex digits."""
    return sha256(canonical_json(part.model_dump(mode="json"))).hexdigest()[:16]


# Adapted messages.


def of_messages(adaptations: Adaptations) -> Adaptations:
    """Return the adaptations that change messages in a way that no wire format matters for."""
    return tuple(item for item in adaptations if item.part in ("media", "thinking"))


def adapted_message(message: Message, adaptations: Adaptations) -> Message:
    """Return a message as it is sent: with substitutes of images and documents, and without refused thinking."""
    if isinstance(message, ExpertMessage):
        return _without_thoughts(message, adaptations)
    media = {item.name: item for item in adaptations if item.part == "media"}
    if not media:
        return message
    if isinstance(message, UserMessage):
        return message.model_copy(update={"contents": _adapted(message.contents, media)})
    if isinstance(message, ToolMessage):
        results = tuple(
            result.model_copy(update={"contents": _adapted(result.contents, media)}) for result in message.contents
        )
        return message.model_copy(update={"contents": results})
    assert_never(message)


def _without_thoughts(message: ExpertMessage, adaptations: Adaptations) -> ExpertMessage:
    refused = {digest for item in adaptations for digest in item.thoughts}
    if not refused:
        return message
    contents = tuple(
        part
        for part in message.contents
        if not isinstance(part, ThinkingPart) or digest_of_thought(part) not in refused
    )
    return message if len(contents) == len(message.contents) else ExpertMessage(contents=contents)


def _adapted(contents: Sequence[ResultContent], media: Mapping[str, Adaptation]) -> tuple[ResultContent, ...]:
    return tuple(_substitute(part, media.get(part.sha256)) if isinstance(part, BlobPart) else part for part in contents)


def _substitute(part: BlobPart, adaptation: Adaptation | None) -> ResultContent:
    if adaptation is None:
        return part
    return TextPart(text=adaptation.text) if adaptation.blob is None else adaptation.blob
