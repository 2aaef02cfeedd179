"""Mask the output of tools in a Run with `maskSecrets`: the model and the disk get `[secret:N]` in place of a value.

A `SecretVault` holds the values of one Job, in the memory of one process. A number never refers to two values: numbers
continue after the highest recorded one, and each process that drives a delegate has its own block. A call with the
placeholder of a process that has ended is refused.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from threading import Lock

from perstack.core.base.records import JsonObject, map_texts, texts_in
from perstack.core.base.text import REDACTED
from perstack.core.definitions.skills import DecidedCall, Subject
from perstack.core.messages.media import image_type, pdf_type
from perstack.core.messages.messages import BlobPart, Message, ResultContent, TextPart, ToolCallPart
from perstack.core.runs.facts import Question
from perstack.core.secrets.masking import SecretMasker, known_secrets
from perstack.errors import SkillError
from perstack.ports.skill import BlobStore, Sample, Sampler, SampleRequest, ToolCall, ToolResult

_PLACEHOLDER = re.compile(r"\[secret:(\d{1,9})\]")
NUMBERS_PER_PROCESS = 10_000
"""Values that one process may number; further values become `[redacted]` and cannot be filled in."""
_MIN_KNOWN_CHARACTERS = 8
"""Minimum characters of a value that is masked in any text: shorter ones may occur there by chance."""
_LONG_TEXT_CHARACTERS = 20_000  # characters from which a text is masked in a thread instead of on the event loop
_MAX_UNRECORDED_CHARACTERS = 200_000  # an unrecorded text is masked on the event loop; a longer one is `[redacted]`
_PLAIN = re.compile(r"[\w@%+=:,./-]*", re.ASCII)  # text that no shell interprets
_CODE_OPTION = r"-[A-Za-z]*[ce]|--(?:eval|command|exec)"  # an option whose value is code


class SecretVault:
    """The secrets that tools of one Job have output in this process, by number. Thread-safe."""

    def __init__(self, env: Mapping[str, str]) -> None:
        """Create a vault that also masks the secrets found in `env`."""
        self._env_secrets = known_secrets(env)
        self._numbers: dict[str, int] = {}
        self._values: dict[int, str] = {}
        self._first_number = 0
        self._lock = Lock()
        self.highest_number = 0

    def continue_after(self, recorded_numbers: Iterable[int], block: int = 0) -> None:
        """Continue after the highest recorded number of a block of NUMBERS_PER_PROCESS numbers."""
        self._first_number = block * NUMBERS_PER_PROCESS
        block_numbers = range(self._first_number, self._first_number + NUMBERS_PER_PROCESS)
        own_numbers = (number for number in recorded_numbers if number in block_numbers)
        self.highest_number = max(self._first_number, self.highest_number, *own_numbers)

    def mask(self, text: str) -> str:
        """Return the text with a placeholder in place of each secret."""
        return SecretMasker(self._known_secrets(), self._placeholder_for).text(text)

    def mask_unrecorded(self, text: str) -> str:
        """Mask a text that is shown, not recorded. Values without a number and very long texts become `[redacted]`."""
        if len(text) > _MAX_UNRECORDED_CHARACTERS:
            return REDACTED
        return SecretMasker(self._known_secrets(), self._known_placeholder).text(text)

    def contains_secret(self, data: bytes) -> bool:
        return SecretMasker(self._known_secrets()).is_in(data)

    def fill_args(self, args: JsonObject, subject: Subject | None) -> JsonObject:
        """Return the arguments with values in place of placeholders.

        Raises SkillError for a placeholder without a value, and for a value that a shell could interpret.
        """
        code = {*_code_arguments(args, subject)}

        def fill(text: str) -> str:
            return _PLACEHOLDER.sub(lambda match: self._value_for(match, is_code=text in code), text)

        return map_texts(args, fill)

    def fill_parts(self, parts: Sequence[ToolCallPart]) -> list[ToolCallPart]:
        """Return the calls with the known values filled in, for a second judgment by the rules."""

        def fill(text: str) -> str:
            return _PLACEHOLDER.sub(lambda match: self._values.get(int(match[1]), match[0]), text)

        return [part.model_copy(update={"args": map_texts(part.args, fill)}) for part in parts]

    def stricter_ruling(self, shown_decided: DecidedCall, filled_decided: DecidedCall) -> DecidedCall:
        """Return the stricter of two rulings, with masked texts. An approval in `filled_decided` does not count."""
        if filled_decided.strictness <= shown_decided.strictness:
            return shown_decided
        texts = {
            "problem": filled_decided.problem and self.mask(filled_decided.problem),
            "rule": self.mask(filled_decided.rule),
        }
        return shown_decided.model_copy(
            update={"kind": filled_decided.kind, "asks": filled_decided.asks, "approved_by": "", **texts}
        )

    def _value_for(self, match: re.Match[str], *, is_code: bool) -> str:
        """Return the value of a placeholder. Raises SkillError as `fill_args` does."""
        value = self._values.get(int(match[1]))
        if value is None:
            raise SkillError(
                f"Not run: {match[0]} cannot be filled in here, for its value was only in the memory of the process"
                " that found it. Call the tool again that showed it, and use the placeholder that stands there then."
            )
        if is_code and not _PLAIN.fullmatch(value):
            raise SkillError(
                f"Not run: the value of {match[0]} has characters that a shell may read as a command. Pass it as a"
                " whole argument of the program, or as a variable."
            )
        return value

    def _placeholder_for(self, value: str) -> str:
        with self._lock:
            number = self._numbers.get(value)
            if number is None:
                if self.highest_number + 1 >= self._first_number + NUMBERS_PER_PROCESS:
                    return REDACTED
                self.highest_number = number = self.highest_number + 1
                self._numbers[value], self._values[number] = number, value
            return f"[secret:{number}]"

    def _known_placeholder(self, value: str) -> str:
        number = self._numbers.get(value)
        return REDACTED if number is None else f"[secret:{number}]"

    def _known_secrets(self) -> list[str]:
        with self._lock:
            secrets = [value for value in self._numbers if _is_distinctive(value)]
        return sorted({*secrets, *self._env_secrets}, key=lambda value: (-len(value), value))


class MaskedBlobs:
    """A blob store that masks texts before it stores them."""

    def __init__(self, blobs: BlobStore, vault: SecretVault) -> None:
        self._blobs = blobs
        self._vault = vault
        self.sizes: dict[str, int] = {}  # bytes of each stored blob, by its sha256

    async def put(self, data: bytes) -> str:
        """Store bytes, masked if text. Raises SkillError for an image or a PDF that contains a known secret."""
        if image_type(data) is None and pdf_type(data) is None:
            text = data.decode("utf-8", "surrogateescape")
            data = (await asyncio.to_thread(self._vault.mask, text)).encode("utf-8", "surrogateescape")
        elif self._vault.contains_secret(data):
            raise SkillError("Not shown: a secret stands in this file, and files of its kind cannot be masked.")
        name = await self._blobs.put(data)
        self.sizes[name] = len(data)
        return name

    async def get(self, sha256: str) -> bytes:
        return await self._blobs.get(sha256)


class MaskedCall:
    """One call of a tool with placeholders filled in and its output masked."""

    def __init__(self, vault: SecretVault, tool_call: ToolCall, subject: Subject | None) -> None:
        """Wrap a call. Raises SkillError if a placeholder in the arguments cannot be filled in."""
        self._vault = vault
        self._blobs = MaskedBlobs(tool_call.blobs, vault)
        sample = tool_call.sample

        def show_masked(message: str) -> None:
            tool_call.on_progress(vault.mask_unrecorded(message))

        self.request = replace(
            tool_call,
            args=vault.fill_args(tool_call.args, subject),
            blobs=self._blobs,
            on_progress=show_masked,
            sample=None if sample is None else self._mask_sampler(sample),
        )

    async def mask_result(self, result: ToolResult | Question) -> ToolResult | Question:
        """Return the tool's result or question, masked."""
        if isinstance(result, Question):
            return await asyncio.to_thread(self._mask_question, result)
        contents = [await self._mask_part(part) for part in result.contents]
        return replace(result, contents=tuple(contents))

    def _mask_question(self, tool_question: Question) -> Question:
        schema = map_texts(tool_question.requested_schema, self._vault.mask_unrecorded)
        return Question(message=self._vault.mask_unrecorded(tool_question.message), requested_schema=schema)

    async def _mask_part(self, part: ResultContent) -> ResultContent:
        if isinstance(part, TextPart):
            text = part.text
            masked = (
                self._vault.mask(text)
                if len(text) < _LONG_TEXT_CHARACTERS
                else await asyncio.to_thread(self._vault.mask, text)
            )
            return part if masked == text else TextPart(text=masked)
        return self._mask_file(part)

    def _mask_file(self, part: BlobPart) -> BlobPart:
        name = None if part.name is None else self._vault.mask(part.name)
        return part.model_copy(update={"name": name, "size": self._blobs.sizes.get(part.sha256, part.size)})

    def _mask_sampler(self, sample: Sampler) -> Sampler:
        async def masked_sample(sample_request: SampleRequest) -> Sample:
            return await sample(await asyncio.to_thread(self._mask_request, sample_request))

        return masked_sample

    def _mask_request(self, sample_request: SampleRequest) -> SampleRequest:
        mask = self._vault.mask_unrecorded
        messages: list[Message] = []
        for message in sample_request.messages:
            contents = [
                TextPart(text=mask(part.text)) if isinstance(part, TextPart) else part for part in message.contents
            ]
            messages.append(message.model_copy(update={"contents": tuple(contents)}))
        return replace(sample_request, messages=messages, instruction=mask(sample_request.instruction))


def has_placeholder(parts: Iterable[ToolCallPart]) -> bool:
    """Return whether the arguments of one of these calls contain a placeholder."""
    return any(_PLACEHOLDER.search(text) for part in parts for text in texts_in(part.args))


def _code_arguments(args: JsonObject, subject: Subject | None) -> Iterable[str]:
    """Yield the arguments that may be interpreted as code: scripts, texts after `-c`, and texts of several words."""
    if subject is None:
        return
    for name in filter(None, (subject.script, subject.program)):
        yield from texts_in(args.get(name))
    previous = ""
    for word in texts_in(args.get(subject.arguments)) if subject.arguments else ():
        if re.fullmatch(_CODE_OPTION, previous) or not _PLAIN.fullmatch(_PLACEHOLDER.sub("", word)):
            yield word
        previous = word


def _is_distinctive(value: str) -> bool:
    """Return whether a value may be masked in any text: it is long enough, and not a plain word."""
    return len(value) >= _MIN_KNOWN_CHARACTERS and not value.isalpha()
