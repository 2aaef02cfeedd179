"""Replace secrets in commands, arguments, variables, addresses, settings and outputs."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256

from pydantic import JsonValue

from perstack.core.base.records import JsonObject, read_json
from perstack.core.base.text import REDACTED, command_line, is_shell_line
from perstack.core.secrets.names import is_secret_name, is_set_secret
from perstack.core.secrets.recognition import (
    DIGEST,
    DIGEST_PREFIX,
    Span,
    is_secret_value,
    spans_after_names,
    spans_by_form,
    spans_in_headers,
    spans_in_path,
)

Substitute = Callable[[str], str]  # a function that returns the replacement of a secret

_PLACEHOLDER = r"\[redacted\]|\[secret:\d{1,9}\]"  # marks in recordings, and in Runs that mask secrets
_OPTION = r"--?[A-Za-z][\w.-]*"
_ASSIGNMENT = r"(?s)(-{0,2}[A-Za-z][\w.-]*)(=|: ?)(.+)"
_URL = r"(?i)[a-z][a-z0-9+.-]*://[^\s'\"<>]+"


def digest_of_secret(value: str) -> str:
    """Return the recorded replacement of a secret: it only shows whether two are equal."""
    return DIGEST_PREFIX + sha256(value.encode("utf-8", "surrogatepass")).hexdigest()


def masked_args(args: Sequence[str], substitute: Substitute = digest_of_secret) -> tuple[str, ...]:
    """Return a program's arguments with each secret replaced."""
    masked: list[str] = []
    is_value = False  # True after an option whose value is a secret
    for arg in args:
        masked.append(
            _mask(arg, substitute) if is_value and not re.fullmatch(_OPTION, arg) else masked_text(arg, substitute)
        )
        is_value = re.fullmatch(_OPTION, arg) is not None and is_secret_name(arg)
    return tuple(masked)


def masked_line(line: str, substitute: Substitute = digest_of_secret) -> str:
    """Return a shell line with each secret replaced."""
    pieces = re.split(r"(\s+)", line)
    pieces[::2] = masked_args(pieces[::2], substitute)
    return "".join(pieces)


def masked_command(argv: Sequence[str], substitute: Substitute = digest_of_secret) -> str:
    """Return a program and its arguments, or its `sh` line, for people, with each secret replaced."""
    return (
        masked_line(command_line(argv), substitute) if is_shell_line(argv) else " ".join(masked_args(argv, substitute))
    )


def is_secret_in(argv: Sequence[str]) -> bool:
    """Return True if a program's arguments, or its `sh` line, contain a secret."""
    return bool(secrets_in(lambda substitute: masked_command(argv, substitute)))


def masked_variables(values: Mapping[str, str], substitute: Substitute = digest_of_secret) -> dict[str, str]:
    """Return the variables with each secret replaced."""
    return {
        name: _mask(value, substitute) if is_secret_name(name) else masked_text(value, substitute)
        for name, value in values.items()
    }


def masked_address(address: str, substitute: Substitute = digest_of_secret) -> str:
    """Return a server's address with each secret replaced, also in its path."""
    return _replace(address, (*spans_by_form(address), *spans_in_path(address)), substitute)


def masked_settings(settings: JsonObject, substitute: Substitute = digest_of_secret) -> JsonObject:
    """Return settings with each secret replaced; lists may be arguments, and texts addresses."""
    return {
        name: _masked_setting(value, substitute, is_secret=is_secret_name(name)) for name, value in settings.items()
    }


def masked_words(text: str, substitute: Substitute = digest_of_secret) -> str:
    """Return a text for people, such as an error, with each secret replaced that its form alone shows."""
    return _replace(text, spans_by_form(text), substitute)


def masked_error(text: str) -> str:
    """Return an error about a server with each secret replaced, also in addresses that it quotes."""
    return masked_words(re.sub(_URL, lambda match: masked_address(match[0]), text))


def masked_output(text: str, substitute: Substitute, known: Sequence[str] = ()) -> str:
    """Return any text with each secret, and all of `known`, replaced, in linear time."""
    spans = [*spans_by_form(text), *spans_after_names(text), *spans_in_headers(text)]
    for secret in known:
        start = text.find(secret)
        while start >= 0:
            spans.append((start, start + len(secret)))
            start = text.find(secret, start + len(secret))
    return _replace(text, spans, substitute)


def masked_text(text: str, substitute: Substitute = digest_of_secret) -> str:
    """Return one argument, or any text, with each secret replaced."""
    assigned = re.fullmatch(_ASSIGNMENT, text)
    if assigned is not None and is_secret_name(assigned[1]):
        return f"{assigned[1]}{assigned[2]}{_mask(assigned[3], substitute)}"
    return masked_words(text, substitute)


def secrets_in(mask: Callable[[Substitute], object]) -> list[str]:
    """Return the secrets that a function masks: `secrets_in(lambda substitute: masked_args(args, substitute))`."""
    secrets: list[str] = []

    def note(value: str) -> str:
        secrets.append(value)
        return digest_of_secret(value)

    mask(note)
    return secrets


def has_masked(texts: Iterable[str]) -> bool:
    """Return True if one of the texts contains the replacement of a secret."""
    return any(re.search(DIGEST, text) for text in texts)


def unmask(recorded: str, secrets: Mapping[str, str]) -> str:
    """Return a recorded text with known secrets restored; `secrets` maps replacements to secrets."""
    return re.sub(DIGEST, lambda match: secrets.get(match[0], match[0]), recorded)


def shape(recorded: Iterable[str]) -> tuple[str, ...]:
    """Return recorded texts without the digests that distinguish secrets."""
    return tuple(re.sub(DIGEST, DIGEST_PREFIX, text) for text in recorded)


def _masked_setting(value: JsonValue, substitute: Substitute, *, is_secret: bool = False) -> JsonValue:
    match value:
        case dict():
            return masked_settings(value, substitute)
        case list():
            args = [item for item in value if isinstance(item, str)]
            if len(args) == len(value) and not is_secret:
                return [*masked_args(args, substitute)]
            return [_masked_setting(item, substitute, is_secret=is_secret) for item in value]
        case str():
            if is_secret:
                return _mask(value, substitute)
            return masked_address(value, substitute) if re.fullmatch(_URL, value) else masked_text(value, substitute)
        case _:
            return value


def _mask(value: str, substitute: Substitute) -> str:
    return _replace(value, ((0, len(value)),), substitute)


def _replace(text: str, spans: Iterable[Span], substitute: Substitute) -> str:
    """Return the text with the secrets in `spans` replaced: overlapping ones as one, and none that is a digest."""
    masked = [match.span() for match in re.finditer(DIGEST, text)]
    secret = [
        (start, end)
        for start, end in spans
        if is_secret_value(text[start:end]) and not (masked and _overlaps(start, end, masked))
    ]
    pieces: list[str] = []
    position = 0
    for start, end in _without_placeholders(text, _merge_spans(secret)):
        pieces += [text[position:start], substitute(text[start:end])]
        position = end
    return "".join([*pieces, text[position:]])


def _merge_spans(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _overlaps(start: int, end: int, masked: Sequence[Span]) -> bool:
    index = bisect_right(masked, (start, start))
    return any(start < last and first < end for first, last in masked[max(0, index - 1) : index + 1])


def _without_placeholders(text: str, spans: Sequence[Span]) -> Iterator[Span]:
    """Yield the sorted spans without the placeholders in them, which stay unchanged."""
    masked = [match.span() for match in re.finditer(_PLACEHOLDER, text)] if spans else []
    index = 0
    for start, end in spans:
        while index < len(masked) and masked[index][1] <= start:
            index += 1
        position, masked_index = start, index
        while masked_index < len(masked) and masked[masked_index][0] < end:
            if text[position : masked[masked_index][0]].strip():
                yield position, masked[masked_index][0]
            position = max(position, masked[masked_index][1])
            masked_index += 1
        if text[position:end].strip():
            yield position, end


_MIN_SECRET_CHARS = 8  # minimum characters of a secret value; shorter ones may occur in any text by chance


def known_secrets(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of variables whose names mark them as secret, the longest first."""
    values = {value for name, value in env.items() if is_set_secret(name) and len(value) >= _MIN_SECRET_CHARS}
    return tuple(sorted(values, key=lambda value: (-len(value), value)))


def _redact(secret: str) -> str:
    return REDACTED


class SecretMasker:
    """Masker of known secrets, and of texts that look like secrets."""

    def __init__(self, known: Iterable[str] = (), substitute: Substitute = _redact) -> None:
        self._known = tuple(known)
        self._substitute = substitute

    def text(self, text: str) -> str:
        """Mask a text; if it is JSON, mask the values in it."""
        return masked_output(self._json(text), self._substitute, self._known)

    def _json(self, text: str) -> str:
        if not text.lstrip().startswith(("{", "[")):
            return text
        try:
            value = read_json(text.encode())
        except ValueError:
            return text
        masked = self._value(value)
        return text if masked == value else json.dumps(masked, ensure_ascii=False, separators=(",", ":"))

    def args(self, args: JsonObject) -> JsonObject:
        """Mask an object such as a call's arguments, also values of secret keys and of a program's options."""
        masked = {name: self._value(value, name) for name, value in args.items()}
        command, options = args.get("command"), args.get("args")
        if (
            isinstance(command, str)
            and isinstance(options, list)
            and all(isinstance(option, str) for option in options)
        ):
            words = masked_args([command, *map(str, options)], self._substitute)
            masked["args"] = [self.text(word) for word in words[1:]]
        return masked

    def is_in(self, data: bytes) -> bool:
        """Return True if the bytes contain a known secret."""
        return any(secret.encode("utf-8", "surrogatepass") in data for secret in self._known)

    def _value(self, value: JsonValue, name: str = "") -> JsonValue:
        match value:
            case str():
                return self.text(
                    masked_variables({"secret": value}, self._substitute)["secret"] if is_set_secret(name) else value
                )
            case list():
                texts = [item for item in value if isinstance(item, str)]
                if len(texts) == len(value):
                    return [self.text(text) for text in masked_args(texts, self._substitute)]
                return [self._value(item, name) for item in value]
            case dict():
                return self.args(value)
            case _:
                return value
