"""Changes of a Run's requests that an endpoint needs: parts that it refuses are replaced, written plainer, or left out.

An endpoint may refuse one part of a request, and with it every request of the Run from then on. So a generation climbs
a ladder: what the wire format is known to refuse is adapted before sending; if a refusal still names a part, that part
is adapted and the request repeated. Each adaptation is recorded by `adaptRequest`, holds for all later requests of the
Run to that model, and is never taken back: a rung is climbed at most once, so the ladder ends. Other Runs of the Job
record what holds for them too (`shared_adaptations`) before they ask that model.

A provider names the parts (`Provider.adapt`), and applies the adaptations of each request. The host leaves out tools
(`offered_tools`). Providers adapt messages before a codec sees them (http_providers/adapted_messages.py); fields and
the schemas of tools are adapted by the codec, which knows its format. Change together: a new kind of part with `words`,
`problem_of` and the codecs that write it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal, assert_never

from pydantic import Field

from perstack.core.base.records import TEXT, Record, falsy
from perstack.core.base.text import one_line
from perstack.core.definitions.skills import ToolSpec
from perstack.core.definitions.tool_definitions import definition_digest
from perstack.core.messages.media import PDF, medium_noun
from perstack.core.messages.messages import BlobPart, Message, blobs_of

RequestPart = Literal["field", "tool", "providerTool", "media", "thinking"]
AdaptedForm = Literal["plain", "omitted", "replaced"]

MAX_RUNGS = 5  # maximum adapted requests in one generation: a server may refuse one part after the other
REFUSAL_STATUSES = frozenset((400, 413, 415, 422))  # HTTP statuses that refuse a request for what it contains
ANY_IMAGE, ANY_DOCUMENT = "image", "document"  # names of adaptations of all media of a kind, including later ones
ANY_THINKING = "any"  # name of an adaptation that also leaves out thinking of later replies
_MAX_TEXT_CHARS = 160  # characters of the text in place of an image or document that are shown


class Adaptation(Record):
    """One part of a request, and the form in which it is sent from now on.

    `name` identifies the part: the name of a field in the wire format, such as `stream_options` or `messages.content`;
    the name of a tool, the Run's or the provider's; the sha256 of an image or document, or `ANY_IMAGE` or
    `ANY_DOCUMENT`. `thinking` lists what is left out in `thoughts`, or has the name `ANY_THINKING`.
    """

    part: RequestPart
    form: AdaptedForm
    name: str = Field(default="", exclude_if=falsy)
    text: Annotated[str, TEXT] = Field(default="", exclude_if=falsy)  # text in the place of an image or document
    blob: BlobPart | None = Field(default=None, exclude_if=falsy)  # smaller image or document in its place
    reason: Annotated[str, TEXT] = Field(default="", exclude_if=falsy)  # why `blob` is sent
    shared_limit: bool = Field(default=False, exclude_if=falsy)
    """True if a request had too many or too large media in total, which says nothing about this one."""
    definition: str = Field(default="", exclude_if=falsy)  # digest of the tool's definition, added by the host
    thoughts: tuple[str, ...] = Field(default=(), exclude_if=falsy)  # digests of omitted parts of replies

    def __hash__(self) -> int:
        """Hash the fields that distinguish adaptations: records have no hash of their own."""
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
            case "providerTool":
                return f"without the provider's tool {self.name}"
            case "media" if self.blob is not None:
                noun = medium_noun(self.blob.mime_type, self.blob.name)
                reason = f": {self.reason}" if self.reason else ""
                return f"with the {noun} as {self.blob.size:,} bytes of {self.blob.mime_type}{reason}"
            case "media":
                text = one_line(self.text)
                return f"with the text {text if len(text) <= _MAX_TEXT_CHARS else text[:_MAX_TEXT_CHARS] + '…'}"
            case "thinking" if self.name:
                return "without the thinking of any reply"
            case "thinking":
                return "without the thinking of earlier replies"
            case _:
                assert_never(self.part)


Adaptations = tuple[Adaptation, ...]


def new_adaptations(known: Adaptations, named: Iterable[Adaptation]) -> Adaptations:
    """Return the named adaptations that are new, each once, and not of a part that is left out already."""
    omitted = {(item.part, item.name) for item in known if item.form == "omitted" and item.part != "thinking"}
    found: list[Adaptation] = []
    for item in named:
        if item not in known and item not in found and (item.part, item.name) not in omitted:
            found.append(item)
    return tuple(found)


def problem_of(item: Adaptation) -> str | None:
    """Return why an adaptation is invalid, as a noun phrase; None if it is valid."""
    match item.part:
        case "field" if not item.name:
            return "a field without a name"
        case "tool" if not item.name or item.form == "replaced":
            return "a tool that is replaced, or has no name"
        case "providerTool" if not item.name or item.form != "omitted":
            return "a provider's tool that is not left out, or has no name"
        case "media" if item.form != "replaced" or bool(item.text) == (item.blob is not None):
            return "an image or document without one substitute"
        case "thinking" if item.form != "omitted":
            return "thinking that is not left out"
        case _:
            return None


def shared_adaptations(
    learned: Sequence[Adaptation], tools: Iterable[ToolSpec], messages: Iterable[Message]
) -> Adaptations:
    """Return the adaptations learned by other Runs of a Job that apply to these tools and messages too.

    Omitted thinking belongs to one Run's replies, unless the endpoint accepts no thinking at all. Media that exceeded
    the limits of a whole request may fit another one.
    """
    kinds = {item.part for item in learned}
    tools_here = {(spec.name, definition_digest(spec)) for spec in (tools if "tool" in kinds else ())}
    media_here = {part.sha256 for message in (messages if "media" in kinds else ()) for part in blobs_of(message)}

    def is_shared(item: Adaptation) -> bool:
        match item.part:
            case "field" | "providerTool":
                return True
            case "tool":
                return (item.name, item.definition) in tools_here
            case "media":
                return item.name in (*media_here, ANY_IMAGE, ANY_DOCUMENT) and not item.shared_limit
            case "thinking":
                return not item.thoughts
            case _:
                assert_never(item.part)

    return tuple(filter(is_shared, learned))


def with_definitions(adaptations: Iterable[Adaptation], tools: Iterable[ToolSpec]) -> Adaptations:
    """Return the adaptations with the digests of the tools that they name."""
    specs = {spec.name: spec for spec in tools}
    return tuple(
        item.model_copy(update={"definition": definition_digest(specs[item.name])})
        if item.part == "tool" and item.name in specs
        else item
        for item in adaptations
    )


def names_in(adaptations: Adaptations, part: RequestPart, form: AdaptedForm = "omitted") -> frozenset[str]:
    """Return the names of the parts of one kind that are sent in this form; a later form replaces an earlier one."""
    if not adaptations:
        return frozenset()
    forms = {item.name: item.form for item in adaptations if item.part == part}
    return frozenset(name for name, latest in forms.items() if latest == form)


def offered_tools(specs: tuple[ToolSpec, ...], adaptations: Adaptations) -> tuple[ToolSpec, ...]:
    """Return the tools without the ones that the endpoint refuses in any form."""
    omitted = names_in(adaptations, "tool")
    return tuple(spec for spec in specs if spec.name not in omitted) if omitted else specs


def in_words(adaptations: Adaptations) -> str:
    """Return the adaptations as one phrase, at most `MAX_LISTED` of them."""
    phrases = list(dict.fromkeys(item.words for item in adaptations))
    rest = len(phrases) - MAX_LISTED
    return ", ".join(phrases[:MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")


MAX_LISTED = 5  # adaptations of one event that are named in a line


def media_adaptation(part: BlobPart, adaptations: Mapping[str, Adaptation]) -> Adaptation | None:
    """Return the adaptation of an image or document, from media adaptations by name; None if it is sent unchanged."""
    kind = ANY_DOCUMENT if part.mime_type == PDF else ANY_IMAGE
    is_of_kind = kind == ANY_DOCUMENT or part.mime_type.startswith("image/")
    return adaptations.get(part.sha256) or (adaptations.get(kind) if is_of_kind else None)
