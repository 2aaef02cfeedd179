"""Secrets that stand in a command, or in the arguments, variables, address or settings of a skill, and what is recorded
in their place.

What is taken for one: the value of an option, a variable or a part of a query whose name says so (`--token`,
`API_KEY=…`, `?key=…`), a password in an address, a long random part of an address's path, and texts in the known shapes
of keys. Where a variable is named, `${NAME}`, nothing is secret: that is how to write one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256

from pydantic import JsonValue

from perstack.core.base import JsonObject
from perstack.core.shell import is_line, line_of

Stand = Callable[[str], str]
"""What stands for a secret."""

_STANDS = "secret-sha256:"
_STAND = rf"{_STANDS}[0-9a-f]{{64}}"
_VARIABLE = r"\$\{[A-Za-z_]\w*\}"
_OF_THE_SHELL = r"(?s)[\"']?(?:\$[A-Za-z_]\w*[\"']?|(?:\$\(|`).*)"
"""A variable, or the beginning of what the output of a command is put in for."""

_WORDS = frozenset(
    ("token", "secret", "password", "passwd", "passphrase", "pass", "pwd", "apikey", "authorization", "bearer",
     "credential", "credentials", "cookie", "pat")
)  # fmt: skip
_KINDS_OF_KEY = frozenset(
    ("api", "access", "account", "app", "auth", "encryption", "license", "private", "secret", "service", "shared",
     "signing", "subscription", "x")
)  # fmt: skip

_OPTION = r"--?[A-Za-z][\w.-]*"
_ASSIGNED = r"(?s)(-{0,2}[A-Za-z][\w.-]*)(=|: ?)(.+)"
_USER = r"(?i)([a-z][a-z0-9+.-]*://)([^/?#\s@:]*)(?::([^/?#\s]*))?@"
_QUERY = r"([?&#;])([\w.-]+)=([^&#;\s'\"]+)"
_IN_QUERIES = frozenset(("key", "sig", "signature", "code"))
_SEGMENT = r"(?<=/)[\w.~+=-]{20,}(?=[/?#'\"]|$)"
_URL = r"(?i)[a-z][a-z0-9+.-]*://[^\s'\"<>]+"
_SHAPES = (
    r"\b(?:sk|rk|pk)[-_][\w-]{16,}|\bgh[pousr]_\w{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}|\bxox[abeprs]-[\w-]{10,}"
    r"|\bAIza[\w-]{30,}|\bya29\.[\w-]{20,}|\bhf_\w{20,}|\bnpm_\w{20,}|\bpypi-[\w-]{20,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
)
_PEM = r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^$]*"


def digest_of_secret(value: str) -> str:
    """What is recorded of a secret: whether two are the same can be seen, and nothing else."""
    return _STANDS + sha256(value.encode("utf-8", "surrogatepass")).hexdigest()


def is_secret_name(name: str) -> bool:
    """Whether what is called so is a secret, by its last words: `--api-key`, `GITHUB_TOKEN`, but not `--token-file`."""
    words = [word.casefold() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]
    if not words:
        return False
    return words[-1] in _WORDS or (words[-1] == "key" and len(words) > 1 and words[-2] in _KINDS_OF_KEY)


def masked_args(args: Sequence[str], stand: Stand = digest_of_secret) -> tuple[str, ...]:
    """The arguments of a program, with something else in place of each secret."""
    masked: list[str] = []
    expected = False
    for arg in args:
        masked.append(_stand(arg, stand) if expected and not re.fullmatch(_OPTION, arg) else masked_text(arg, stand))
        expected = re.fullmatch(_OPTION, arg) is not None and is_secret_name(arg)
    return tuple(masked)


def masked_line(line: str, stand: Stand = digest_of_secret) -> str:
    """The same for a line for the shell."""
    pieces = re.split(r"(\s+)", line)
    pieces[::2] = masked_args(pieces[::2], stand)
    return "".join(pieces)


def masked_command(argv: Sequence[str], stand: Stand = digest_of_secret) -> str:
    """A program and its arguments, or the line that `sh` has, for people to read."""
    return masked_line(line_of(argv), stand) if is_line(argv) else " ".join(masked_args(argv, stand))


def is_secret_in(argv: Sequence[str]) -> bool:
    """Whether a secret is written out in a program's arguments, or in the line that `sh` has."""
    return bool(secrets_in(lambda stand: masked_command(argv, stand)))


def masked_variables(values: Mapping[str, str], stand: Stand = digest_of_secret) -> dict[str, str]:
    """Variables, with something else in place of each secret."""
    return {
        name: _stand(value, stand) if is_secret_name(name) else masked_text(value, stand)
        for name, value in values.items()
    }


def masked_address(address: str, stand: Stand = digest_of_secret) -> str:
    """The address of a server, with something else in place of each secret, also in its path."""
    segments = [found.span() for found in re.finditer(_SEGMENT, address) if _is_random(found[0])]
    return _replaced(address, [*_places(address), *segments], stand)


def masked_settings(settings: JsonObject, stand: Stand = digest_of_secret) -> JsonObject:
    """Settings in which lists may be arguments, and texts addresses, with something else in place of each secret."""
    return {name: _masked_setting(value, stand, is_secret=is_secret_name(name)) for name, value in settings.items()}


def masked_words(text: str, stand: Stand = digest_of_secret) -> str:
    """Words for a person, such as an error, with something else in place of what is secret in any text."""
    return _replaced(text, _places(text), stand)


def masked_error(text: str) -> str:
    """The same for an error about a server, whose address it may quote."""
    return masked_words(re.sub(_URL, lambda found: masked_address(found[0]), text))


def masked_text(text: str, stand: Stand = digest_of_secret) -> str:
    """One argument, or any text, with something else in place of each secret."""
    assigned = re.fullmatch(_ASSIGNED, text)
    if assigned is not None and is_secret_name(assigned[1]):
        return f"{assigned[1]}{assigned[2]}{_stand(assigned[3], stand)}"
    return masked_words(text, stand)


def secrets_in(mask: Callable[[Stand], object]) -> list[str]:
    """What is masked: `secrets_in(lambda stand: masked_args(args, stand))`."""
    found: list[str] = []

    def note(value: str) -> str:
        found.append(value)
        return digest_of_secret(value)

    mask(note)
    return found


def has_masked(texts: Iterable[str]) -> bool:
    """Whether something stands for a secret in one of these."""
    return any(re.search(_STAND, text) for text in texts)


def unmasked(recorded: str, secrets: Mapping[str, str]) -> str:
    """A recorded text with the secrets that are known, by what stands for them."""
    return re.sub(_STAND, lambda found: secrets.get(found[0], found[0]), recorded)


def shape(recorded: Iterable[str]) -> tuple[str, ...]:
    """Recorded texts without what tells one secret from another."""
    return tuple(re.sub(_STAND, _STANDS, text) for text in recorded)


def _masked_setting(value: JsonValue, stand: Stand, *, is_secret: bool = False) -> JsonValue:
    match value:
        case dict():
            return masked_settings(value, stand)
        case list():
            args = [one for one in value if isinstance(one, str)]
            if len(args) == len(value) and not is_secret:
                return [*masked_args(args, stand)]
            return [_masked_setting(one, stand, is_secret=is_secret) for one in value]
        case str():
            if is_secret:
                return _stand(value, stand)
            return masked_address(value, stand) if re.fullmatch(_URL, value) else masked_text(value, stand)
        case _:
            return value


def _stand(value: str, stand: Stand) -> str:
    return stand(value) if _is_secret(value) else value


def _is_secret(value: str) -> bool:
    named = re.search(_VARIABLE, value) or re.fullmatch(_OF_THE_SHELL, value)
    return bool(value) and not named and not re.search(_STAND, value)


def _places(text: str) -> Iterator[tuple[int, int]]:
    """Where something may be secret in any text; one place may lie in another, or begin in it."""
    if "://" in text:  # a long text that has none is not searched for its beginning from each of its places
        for found in re.finditer(_USER, text):
            yield from _of_a_user(found)
    yield from (found.span(3) for found in re.finditer(_QUERY, text) if _is_secret_query(found[2]))
    for known in (_SHAPES, _PEM):
        yield from (found.span() for found in re.finditer(known, text))


def _replaced(text: str, places: Iterable[tuple[int, int]], stand: Stand) -> str:
    """A text with what is secret replaced: places that overlap are one, so that no stand is part of a secret."""
    masked = [found.span() for found in re.finditer(_STAND, text)]
    secret = sorted(
        (start, end)
        for start, end in places
        if _is_secret(text[start:end]) and not any(start < after and before < end for before, after in masked)
    )
    pieces: list[str] = []
    done = 0
    while secret:
        start, end = secret.pop(0)
        while secret and secret[0][0] < end:
            end = max(end, secret.pop(0)[1])
        pieces += [text[done:start], stand(text[start:end])]
        done = end
    return "".join([*pieces, text[done:]])


def _is_secret_query(name: str) -> bool:
    return is_secret_name(name) or name.casefold() in _IN_QUERIES


def _of_a_user(found: re.Match[str]) -> Iterator[tuple[int, int]]:
    scheme, password = found[1], found[3]
    if password is not None:
        yield found.span(3)
    elif scheme.casefold().startswith("http"):
        # the user of ssh://git@host is none; over HTTP there is only a token to send so
        yield found.span(2)


def _is_random(text: str) -> bool:
    if re.search(_STAND, text) or text.startswith(_STANDS.rstrip(":")):
        return False
    digits = sum(char.isdigit() for char in text)
    if re.fullmatch(r"[0-9a-fA-F-]{32,}", text):
        return True
    return digits > 1 and any(char.islower() for char in text) and any(char.isupper() for char in text)
