"""Recognise secrets in commands, arguments, variables, addresses, settings and outputs, and replace them.

A secret is the value of an option, variable, header or query part whose name says so (`--token`, `API_KEY=…`,
`?key=…`), a user with a password in an address, a long random part of an address's path, a private key, or a text in
the known form of a key. A named variable, `${NAME}`, is not secret: it is how to write one. Options of single programs
(`mysql -p…`) and formats of single files (`.netrc`) are not recognised: their list has no end. Every pattern must run
in linear time on any text.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256

from pydantic import JsonValue

from perstack.core.base.records import JsonObject, read_json
from perstack.core.base.text import REDACTED, is_line, line_of

Substitute = Callable[[str], str]  # a function that returns the replacement of a secret

_DIGEST_PREFIX = "secret-sha256:"
_DIGEST = rf"{_DIGEST_PREFIX}[0-9a-f]{{64}}"
_PLACEHOLDER = r"\[redacted\]|\[secret:\d{1,9}\]"  # in recordings, and in Runs that mask secrets
_VARIABLE = r"\$\{[A-Za-z_]\w*\}"
_SHELL_EXPANSION = r"(?s)[\"']?(?:\$[A-Za-z_]\w*[\"']?|(?:\$\(|`).*)"  # variable or command substitution

_SECRET_WORDS = frozenset(
    ("token", "secret", "password", "passwd", "passphrase", "passcode", "pass", "pwd", "pw", "psk", "apikey",
     "authorization", "bearer", "credential", "credentials", "cookie", "pat")
)  # fmt: skip
_SECRET_ENDINGS = (
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "apikey",
    "secretkey",
    "accesskey",
    "privatekey",
)
_KEY_QUALIFIERS = frozenset(
    ("api", "access", "account", "app", "auth", "encryption", "hmac", "license", "master", "preshared", "private",
     "secret", "service", "shared", "signing", "subscription", "x")
)  # fmt: skip

_OPTION = r"--?[A-Za-z][\w.-]*"
_ASSIGNMENT = r"(?s)(-{0,2}[A-Za-z][\w.-]*)(=|: ?)(.+)"
_URL_USER = r"(?i)([a-z][a-z0-9+.-]{0,40}://)((?:\[secret:\d{1,9}\]|[^/?#\s@:])*+)(?::([^/?#\s]*))?@"
_URL_QUERY = r"([?&#;])([\w.-]+)=([^&#;\s'\"]+)"
_SECRET_QUERY_NAMES = frozenset(("key", "sig", "signature", "code"))
_PATH_SEGMENT = r"(?<=/)[\w.~+=-]{20,}(?=[/?#'\"]|$)"
_URL = r"(?i)[a-z][a-z0-9+.-]*://[^\s'\"<>]+"
# Patterns are tried at each position of a text of any size. To stay linear, each starts where a run of its
# characters starts, is bounded, or never backtracks (`*+`).
_KEY_FORMATS = (
    r"(?<![A-Za-z0-9])(?:"
    r"sk-(?=[A-Za-z_-]{0,200}+[0-9])[\w-]{16,}+|sk-[A-Za-z]{20,}+(?![\w-])|[srp]k_(?:live|test|prod)_\w{10,}+|whsec_[\w+/=]{16,}+"
    r"|gh[pousr]_\w{20,}+|github_pat_\w{20,}+|gl(?:pat|dt|rt|cbt|ptt|ft|soat|imt|agent|oas|ffct)-[\w.-]{16,}+"
    r"|xox[abeoprs](?:\.xox[a-z])?-[\w-]{10,}+|xapp-\d-[\w-]{10,}+|xai-[A-Za-z0-9]{20,}+"
    r"|A(?:KIA|SIA|BIA|CCA)[A-Z0-9]{16}(?![A-Za-z0-9])(?:[\s,:;|\"']{1,10}[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=]))?"
    r"|AIza[\w-]{30,}+|ya29\.[\w.-]{20,}+|GOCSPX-[\w-]{20,}+|1//0[\w-]{30,}+"
    r"|(?:hf|npm|gsk|r8|glsa|shpat|shpca|shppa|shpss|lin_api|figd|dckr_pat|do[opr]_v1|rubygems|sntry[su]|pul|nvapi|pplx"
    r"|sbp|vercel|PMAK|NRAK|tvly)[_-](?=[A-Za-z_-]{0,200}+[0-9])[\w-]{20,}+"
    r"|pypi-[\w-]{20,}+|hv[sbr]\.[\w-]{20,}+|SG\.[\w-]{16,64}\.[\w-]{16,}+|AT(?:ATT3|BB|CTT3)[\w=-]{20,}+"
    r"|AGE-SECRET-KEY-1[A-Z0-9]{50,}+|key-[0-9a-f]{32}(?![\w-])|SK[0-9a-f]{32}(?![\w-])|tskey-\w{1,20}-[\w-]{10,}+"
    r"|\w{3}8Q~[\w.~-]{31,34}|\d{8,10}:AA[\w-]{33}(?![\w-])"
    r"|(?:ntn|rnd|secret)_(?=[A-Za-z]{0,60}+[0-9])[A-Za-z0-9]{28,}+|dapi[0-9a-f]{32}(?:-\d)?(?![\w-])"
    r"|sl\.(?=[\w-]{130})[\w-]++|EAA[A-Za-z0-9]{40,}+"
    r")"
    r"|(?<![\w-])eyJ[\w-]{8,}+\.[\w-]{8,}+\.[\w-]*+"
    r"|\$(?:1|2[abxy]?|5|6|y|apr1|argon2(?:id?|d))\$[\w./$=,+-]{20,}+|\{S?SHA(?:256|512)?\}[A-Za-z0-9+/]{20,}+=*+"
)
_WEBHOOK = (
    r"(?i)//(?:hooks\.slack\.com/(?:services|workflows|triggers)"
    r"|(?:\w{1,20}\.)?discord(?:app)?\.com/api/webhooks|[\w-]{0,60}\.webhook\.office\.com/webhookb2)/([^\s\"'<>]{16,}+)"
)
_PEM_HEAD = r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_PEM = (  # a private key, even if its end is cut off
    rf"{_PEM_HEAD}(?:[^-$]|-(?!----(?:BEGIN|END) ))*+-----END [A-Z0-9 ]{{0,60}}-----"
    rf"|{_PEM_HEAD}(?:(?:\s|\\[nr]){{0,9}}[A-Za-z0-9+/=]{{20,}}+)*+"
    r"(?:(?:\s|\\[nr]){0,9}[A-Za-z0-9+/=]++(?=[\s\\\"']{0,9}$|[\n\r\\\"']))?"
)

_PEM_ENCODED = (
    r"LS0tLS1CRUdJTi[A-Za-z0-9+/]*+(?:\r?\n[ \t]{0,40}[A-Za-z0-9+/]{40,}+)*+"
    r"(?:(?:\r?\n[ \t]{0,40}[A-Za-z0-9+/]{1,80}+)?={1,2}+)?"
)
"""A text in base64, perhaps in lines, that begins as a PEM file does: keys in kubeconfig files and in Secrets."""

_QUOTE = r"(?:\\{0,3}[\"'])"
_START = r"(?:(?<![\w.-])|(?<=\x1b\[\dm)|(?<=\x1b\[\d\dm)|(?<=\x1b\[\d;\d\dm))"  # start of a word, even a coloured one
_NAME = rf"{_START}(-{{0,2}}[A-Za-z_][\w.-]*+(?:[ ][A-Za-z][\w-]*+){{0,2}})"
_BLANK = r"(?:[ \t\xa0]|\x1b\[[0-9;]{0,9}m)"
_TYPE_ANNOTATION = r":[ \t]{1,9}[A-Za-z_][\w.|]{0,40}+(?:\[[\w., |]{0,40}+\])?[ \t]{1,9}=(?=[ \t]{0,9}[\"'])"
_ASSIGNED_NAME = rf"{_NAME}{_QUOTE}?\]?{_BLANK}{{0,9}}(?:{_TYPE_ANNOTATION}|:=|=>?|[:\uff1a]){_BLANK}{{0,9}}"
"""A name and its assignment, as printed by programs and written in files: `API_KEY=`, `secret key: `, `"token": `."""
_NAME_AND_VALUE_FIELDS = (  # an assignment in two fields: `- name: DB_PASSWORD`, `value: `
    r"(?i)(?<![\w.-])(?:name|key)[\"']?\s{0,3}[:=]\s{0,3}[\"']?([\w.-]{1,100}+)[\"']?[,;\s]{1,40}+"
    r"[\"']?value[\"']?\s{0,3}[:=]\s{0,3}"
)
# an option whose value is the next word
_OPTION_WITH_VALUE = rf"(?<![\w.-])(-{{1,2}}[A-Za-z][\w.-]*+){_QUOTE}?,?[ \t]{{1,9}}"
_SET_COMMAND = r"(?<![\w.-])(?:setx|setenv|set -[gxU]{1,3})[ \t]{1,9}([A-Za-z_]\w{0,99}+)[ \t]{1,9}"
_VALUE = (
    r"(?:\\{1,3}([\"'])(?P<escaped>[^\"'\\\n]{4,}+)"
    r'|"(?P<double>(?:[^"\\\n]|\\.){4,}+)'
    r"|'(?P<single>(?:[^'\\\n]|\\.){4,}+)"
    r"|[|>][-+]?[ \t]*+\n[ \t]++(?P<block>[^\n]++)|(?P<bare>(?:[^\s\"',;()\[\]{}<>\\]|\\(?![nrt\"'])){4,}+))"
)
_HEADER = (
    rf"(?i)(?<![\w-])((?:proxy-|x-)?authorization|(?:set-)?cookie){_QUOTE}?[ \t]{{0,9}}[:=][ \t]{{0,9}}{_QUOTE}?"
    r"(?:(basic|bearer|token|digest|negotiate|ntlm|apikey|api-key|bot|hawk|oauth|aws4-hmac-sha256|key)[ \t]{1,9})?"
    r"((?<=(?:digest|.oauth|..hawk) )[^\n\r]{1,8000}+|[^\s\"'\\][^\n\r\"'\\]{0,8000}+)"
)
_HEADER_NAME = r"(?i)-{0,2}(?:(?:proxy-|x-)?authorization|(?:set-)?cookie)"
# variables for the current and previous folder, which are not passwords
_FOLDER_VARIABLES = frozenset(("PWD", "OLDPWD"))
_PAGINATION_WORDS = frozenset(("page", "next", "continuation", "sync", "start", "pagination", "nextpage"))
_REFERENCE = r"\$(?:[A-Z_][A-Z0-9_]*(?!\w)|[{(])"  # variable or output of a command; `$` may start a password too
_IDENTIFIER = r"[A-Za-z_][A-Za-z_.]*"  # a reference to another name in a program, rather than a value
_NO_SECRETS = frozenset(
    ("string", "bytes", "none", "null", "true", "false", "bool", "boolean", "optional", "number", "unknown",
     "undefined", "required", "missing", "invalid", "expired", "empty", "hidden", "masked", "text", "value",
     "file", "option", "that", "this", "with", "from", "must", "when", "which", "used", "have", "will",
     "should", "changed", "either", "secretstr", "object", "array", "nil", "void", "default", "here", "prompt",
     "stdin", "incorrect")
)  # fmt: skip


def digest_of_secret(value: str) -> str:
    """Return the recorded replacement of a secret: it only shows whether two are equal."""
    return _DIGEST_PREFIX + sha256(value.encode("utf-8", "surrogatepass")).hexdigest()


def is_secret_name(name: str) -> bool:
    """Return True if the last words of a name denote a secret: `--api-key`, `GITHUB_TOKEN`, not `--token-file`."""
    words = [word.casefold() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]
    if not words:
        return False
    if words[-2:] == ["key", "base"]:  # of Rails: SECRET_KEY_BASE
        words = words[:-1]
    is_key = words[-1] == "key" and len(words) > 1 and words[-2] in _KEY_QUALIFIERS
    return is_key or words[-1] in _SECRET_WORDS or words[-1].endswith(_SECRET_ENDINGS)


def masked_args(args: Sequence[str], substitute: Substitute = digest_of_secret) -> tuple[str, ...]:
    """Return a program's arguments with each secret replaced."""
    masked: list[str] = []
    expected = False
    for arg in args:
        masked.append(
            _mask(arg, substitute) if expected and not re.fullmatch(_OPTION, arg) else masked_text(arg, substitute)
        )
        expected = re.fullmatch(_OPTION, arg) is not None and is_secret_name(arg)
    return tuple(masked)


def masked_line(line: str, substitute: Substitute = digest_of_secret) -> str:
    """Return a shell line with each secret replaced."""
    pieces = re.split(r"(\s+)", line)
    pieces[::2] = masked_args(pieces[::2], substitute)
    return "".join(pieces)


def masked_command(argv: Sequence[str], substitute: Substitute = digest_of_secret) -> str:
    """Return a program and its arguments, or its `sh` line, for people, with each secret replaced."""
    return masked_line(line_of(argv), substitute) if is_line(argv) else " ".join(masked_args(argv, substitute))


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
    segments = [match.span() for match in re.finditer(_PATH_SEGMENT, address) if _is_random(match[0])]
    return _replace(address, [*_places(address), *segments], substitute)


def masked_settings(settings: JsonObject, substitute: Substitute = digest_of_secret) -> JsonObject:
    """Return settings with each secret replaced; lists may be arguments, and texts addresses."""
    return {
        name: _masked_setting(value, substitute, is_secret=is_secret_name(name)) for name, value in settings.items()
    }


def masked_words(text: str, substitute: Substitute = digest_of_secret) -> str:
    """Return a text for a person, such as an error, with everything replaced that is a secret in any text."""
    return _replace(text, _places(text), substitute)


def masked_error(text: str) -> str:
    """Return an error about a server, which may quote its address, with each secret replaced."""
    return masked_words(re.sub(_URL, lambda match: masked_address(match[0]), text))


def masked_output(text: str, substitute: Substitute, known: Sequence[str] = ()) -> str:
    """Return any text with each secret, and all of `known`, replaced, in linear time."""
    spans = [*_places(text), *_set_places(text), *_header_places(text)]
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
    return any(re.search(_DIGEST, text) for text in texts)


def unmask(recorded: str, secrets: Mapping[str, str]) -> str:
    """Return a recorded text with known secrets restored; `secrets` maps replacements to them."""
    return re.sub(_DIGEST, lambda match: secrets.get(match[0], match[0]), recorded)


def shape(recorded: Iterable[str]) -> tuple[str, ...]:
    """Return recorded texts without the digests that distinguish secrets."""
    return tuple(re.sub(_DIGEST, _DIGEST_PREFIX, text) for text in recorded)


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


def _is_secret(value: str) -> bool:
    reference = re.search(_VARIABLE, value) or re.fullmatch(_SHELL_EXPANSION, value)
    return bool(value) and not reference and not re.search(_DIGEST, value)


def _places(text: str) -> Iterator[tuple[int, int]]:
    if "://" in text:  # without this check each position of a long text would be searched
        for match in re.finditer(_URL_USER, text):
            yield from _of_a_user(match)
    yield from (match.span(3) for match in re.finditer(_URL_QUERY, text) if _is_secret_query(match[2]))
    for pattern in (_KEY_FORMATS, _PEM):
        yield from (match.span() for match in re.finditer(pattern, text))
    yield from (match.span() for match in re.finditer(_PEM_ENCODED, text) if _is_private_key(match[0]))
    yield from (match.span(1) for match in re.finditer(_WEBHOOK, text))


def _set_places(text: str) -> Iterator[tuple[int, int]]:
    value_end = 0  # a value is read once, because it may contain many names
    for pattern in (_ASSIGNED_NAME, _NAME_AND_VALUE_FIELDS, _OPTION_WITH_VALUE, _SET_COMMAND):
        value_end = 0
        for match in re.finditer(pattern, text):
            name = _own_name(match[1])
            if match.end() < value_end or not is_set_secret(name) or re.fullmatch(_HEADER_NAME, name):
                continue
            value = re.compile(_VALUE).match(text, match.end())
            if value is None or value.lastgroup is None:
                continue
            value_end = value.end()
            if _is_value(
                name,
                match[0][len(match[1]) :],
                value[value.lastgroup],
                value.lastgroup,
                text[value_end : value_end + 2],
            ):
                yield value.span(value.lastgroup)


def _own_name(name: str) -> str:
    """Return the name without preceding words: `DB_PASSWORD` of `export DB_PASSWORD`, but `secret key` as a whole."""
    last = name.rpartition(" ")[2]
    return last if is_set_secret(last) else name


def is_set_secret(name: str) -> bool:
    """Return True if what a program or file assigns to this name is a secret."""
    words = [word.casefold() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name[-100:])]
    if name in _FOLDER_VARIABLES or (len(words) > 1 and words[-1] == "token" and words[-2] in _PAGINATION_WORDS):
        return False
    return is_secret_name(name[-100:]) or (name.isupper() and name.endswith("_AUTH"))


def _is_value(name: str, between: str, value: str, kind: str, after: str) -> bool:
    """Return True if an assigned value may be a secret: no variable, type, name in a program, or sentence."""
    if re.match(_REFERENCE, value) or (kind == "bare" and value.casefold() in _NO_SECRETS):
        return False
    if kind != "bare":
        return True
    is_name = re.fullmatch(r"[A-Za-z_-]+", value) is not None
    is_sentence = not name.isupper() and "=" not in between and re.fullmatch(r" [A-Za-z]", after) is not None
    if is_name and (is_sentence or _repeats(name, value)):
        return False
    if between.strip() == "":  # an option
        return not value.startswith("-") and not (is_name and value.isupper())
    if name.casefold() == "pass" and not name.startswith("-"):  # perhaps the verdict of a test
        return not name.isupper() and _has_digits_and_letters(value) and "test" not in value.casefold()
    if name.isupper() or name.startswith("-") or ":" in between or re.fullmatch(_IDENTIFIER, value) is None:
        return True
    return value.isalpha() and after[:1] in ("", "\n", "\r", ";", "&")  # a line of a settings file


def _has_digits_and_letters(value: str) -> bool:
    return any(char.isdigit() for char in value) and any(char.isalpha() for char in value)


def _repeats(name: str, value: str) -> bool:
    """Return True if a value only repeats its name: `token: AuthToken`, `--password PASSWORD`."""
    last = re.split(r"[\W_]+", name)[-1].casefold()
    return len(last) > 2 and value.casefold().endswith(last)


def _header_places(text: str) -> Iterator[tuple[int, int]]:
    for match in re.finditer(_HEADER, text):
        is_cookie = match[1].casefold().endswith("cookie")
        if match[3].startswith("$") or (is_cookie and "=" not in match[3]):
            continue
        if is_cookie or match[2]:
            yield match.span(3)
        else:
            word = match[3].split()[0]
            is_code = "=" in match[0][: match.start(3) - match.start()] and re.fullmatch(r"[A-Za-z_.(]+", word)
            if len(word) > 3 and word.casefold() not in _NO_SECRETS and not is_code:
                yield match.start(3), match.start(3) + len(word)


def _is_private_key(encoded: str) -> bool:
    start = "".join(encoded[:120].split()).rstrip("=")[:80]
    head = b64decode(start[: len(start) // 4 * 4]).decode("ascii", "replace")
    return re.match(_PEM_HEAD, head) is not None


def _replace(text: str, spans: Iterable[tuple[int, int]], substitute: Substitute) -> str:
    """Return the text with secrets replaced; overlapping ones are merged, so that no replacement is within one."""
    masked = [match.span() for match in re.finditer(_DIGEST, text)]
    secret = [
        (start, end)
        for start, end in spans
        if _is_secret(text[start:end]) and not (masked and _overlaps(start, end, masked))
    ]
    pieces: list[str] = []
    position = 0
    for start, end in _without_placeholders(text, _merge_spans(secret)):
        pieces += [text[position:start], substitute(text[start:end])]
        position = end
    return "".join([*pieces, text[position:]])


def _merge_spans(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _overlaps(start: int, end: int, masked: Sequence[tuple[int, int]]) -> bool:
    index = bisect_right(masked, (start, start))
    return any(start < last and first < end for first, last in masked[max(0, index - 1) : index + 1])


def _without_placeholders(text: str, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the sorted positions without placeholders: what is masked already stays unchanged."""
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


def _is_secret_query(name: str) -> bool:
    return is_secret_name(name) or name.casefold() in _SECRET_QUERY_NAMES or name.casefold().endswith("-signature")


def _of_a_user(match: re.Match[str]) -> Iterator[tuple[int, int]]:
    scheme, password = match[1], match[3]
    if password is not None:
        if _is_secret(password):
            yield match.span(2)  # services accept a token as the user, with any password
        yield match.span(3)
    elif scheme.casefold().startswith("http"):
        # `git` in ssh://git@host is no secret; over HTTP a lone user is a token.
        yield match.span(2)


def _is_random(text: str) -> bool:
    if re.search(_DIGEST, text) or text.startswith(_DIGEST_PREFIX.rstrip(":")):
        return False
    digits = sum(char.isdigit() for char in text)
    if re.fullmatch(r"[0-9a-fA-F-]{32,}", text):
        return True
    return digits > 1 and any(char.islower() for char in text) and any(char.isupper() for char in text)


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
        """Set the known secrets; `substitute` returns the replacement of a secret."""
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
        """Mask an object such as a call's arguments, also by names of keys and by options of a program."""
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
        """Return whether the bytes contain a known secret."""
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
