"""Find the spans of secrets in any text.

A secret is the value of an option, variable, header or query part whose name says so (`--token`, `API_KEY=…`,
`?key=…`), a user with a password in an address, a long random part of an address's path, a private key, or a text in
the known form of a key. A reference to a variable, `${NAME}`, is not a secret: it stands in place of one. Options of
single programs (`mysql -p…`) and formats of single files (`.netrc`) are not recognised: a list would never be complete.
Every pattern must run in linear time on any text.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator

from perstack.core.secrets.names import is_secret_name, is_set_secret

Span = tuple[int, int]

DIGEST_PREFIX = "secret-sha256:"
DIGEST = rf"{DIGEST_PREFIX}[0-9a-f]{{64}}"  # recorded in place of a secret

_VARIABLE = r"\$\{[A-Za-z_]\w*\}"
_SHELL_EXPANSION = r"(?s)[\"']?(?:\$[A-Za-z_]\w*[\"']?|(?:\$\(|`).*)"  # variable or command substitution

_URL_USER = r"(?i)([a-z][a-z0-9+.-]{0,40}://)((?:\[secret:\d{1,9}\]|[^/?#\s@:])*+)(?::([^/?#\s]*))?@"
_URL_QUERY = r"([?&#;])([\w.-]+)=([^&#;\s'\"]+)"
_SECRET_QUERY_NAMES = frozenset(("key", "sig", "signature", "code"))
_PATH_SEGMENT = r"(?<=/)[\w.~+=-]{20,}(?=[/?#'\"]|$)"

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
_PEM_START = "-----BEGIN "
_PEM_HEAD = rf"{_PEM_START}[A-Z0-9 ]{{0,40}}PRIVATE KEY(?: BLOCK)?-----"
_PEM = (  # a private key, even if its end is cut off
    rf"{_PEM_HEAD}(?:[^-$]|-(?!----(?:BEGIN|END) ))*+-----END [A-Z0-9 ]{{0,60}}-----"
    rf"|{_PEM_HEAD}(?:(?:\s|\\[nr]){{0,9}}[A-Za-z0-9+/=]{{20,}}+)*+"
    r"(?:(?:\s|\\[nr]){0,9}[A-Za-z0-9+/=]++(?=[\s\\\"']{0,9}$|[\n\r\\\"']))?"
)

_PEM_ENCODED_START = "LS0tLS1CRUdJTi"
_PEM_ENCODED = (
    rf"{_PEM_ENCODED_START}[A-Za-z0-9+/]*+"
    r"(?:\r?\n[ \t]{0,40}[A-Za-z0-9+/]{40,}+)*+"
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
_REFERENCE = r"\$(?:[A-Z_][A-Z0-9_]*(?!\w)|[{(])"  # variable or output of a command; `$` may start a password too
_IDENTIFIER = r"[A-Za-z_][A-Za-z_.]*"  # a reference to another name in a program, rather than a value
_NO_SECRETS = frozenset(
    ("string", "bytes", "none", "null", "true", "false", "bool", "boolean", "optional", "number", "unknown",
     "undefined", "required", "missing", "invalid", "expired", "empty", "hidden", "masked", "text", "value",
     "file", "option", "that", "this", "with", "from", "must", "when", "which", "used", "have", "will",
     "should", "changed", "either", "secretstr", "object", "array", "nil", "void", "default", "here", "prompt",
     "stdin", "incorrect")
)  # fmt: skip


def is_secret_value(value: str) -> bool:
    """Return False for a variable, a substitution of a shell, and the digest of a secret."""
    reference = re.search(_VARIABLE, value) or re.fullmatch(_SHELL_EXPANSION, value)
    return bool(value) and not reference and not re.search(DIGEST, value)


def spans_by_form(text: str) -> Iterator[Span]:
    """Yield the spans of secrets that can be recognized by their form: in addresses, and in the known forms of keys."""
    # A pattern is tried only on texts with a part that all its matches contain: without the first check each position
    # of a long text would be searched, and compiling these five takes 12 million instructions.
    if "://" in text:
        for match in re.finditer(_URL_USER, text):
            yield from _spans_of_user(match)
    if "=" in text:
        yield from (match.span(3) for match in re.finditer(_URL_QUERY, text) if _is_secret_query(match[2]))
    yield from (match.span() for match in re.finditer(_KEY_FORMATS, text))
    if _PEM_START in text:
        yield from (match.span() for match in re.finditer(_PEM, text))
    if _PEM_ENCODED_START in text:
        yield from (match.span() for match in re.finditer(_PEM_ENCODED, text) if _is_private_key(match[0]))
    if "//" in text:
        yield from (match.span(1) for match in re.finditer(_WEBHOOK, text))


def spans_after_names(text: str) -> Iterator[Span]:
    """Yield the spans of values that are assigned to the name of a secret, as programs print and files have them."""
    for pattern in (_ASSIGNED_NAME, _NAME_AND_VALUE_FIELDS, _OPTION_WITH_VALUE, _SET_COMMAND):
        value_end = 0  # a value is read once, because it may contain many names
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


def _is_value(name: str, between: str, value: str, kind: str, after: str) -> bool:
    """Return True if an assigned value may be a secret, not a variable, type, name in a program, or sentence."""
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


def spans_in_headers(text: str) -> Iterator[Span]:
    """Yield the spans of the credentials in HTTP headers."""
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


def _is_secret_query(name: str) -> bool:
    return is_secret_name(name) or name.casefold() in _SECRET_QUERY_NAMES or name.casefold().endswith("-signature")


def _spans_of_user(match: re.Match[str]) -> Iterator[Span]:
    scheme, password = match[1], match[3]
    if password is not None:
        if is_secret_value(password):
            yield match.span(2)  # services accept a token as the user, with any password
        yield match.span(3)
    elif scheme.casefold().startswith("http"):
        # `git` in ssh://git@host is not a secret; over HTTP a lone user is a token.
        yield match.span(2)


def spans_in_path(address: str) -> Iterator[Span]:
    """Yield the spans of the long random parts of an address's path."""
    return (match.span() for match in re.finditer(_PATH_SEGMENT, address) if _is_random(match[0]))


def _is_random(text: str) -> bool:
    if re.search(DIGEST, text) or text.startswith(DIGEST_PREFIX.rstrip(":")):
        return False
    digits = sum(char.isdigit() for char in text)
    if re.fullmatch(r"[0-9a-fA-F-]{32,}", text):
        return True
    return digits > 1 and any(char.islower() for char in text) and any(char.isupper() for char in text)
