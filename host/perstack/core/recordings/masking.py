"""What is taken out of a recording: what logs take for a secret in what people write, in whatever anybody wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from pydantic import JsonValue

from perstack.core.base import JsonObject
from perstack.core.json_reading import read_json
from perstack.core.messages import REDACTED
from perstack.core.secret_text import is_secret_name, masked_args, masked_variables, masked_words

_SHORTEST = 8
"""Characters of a variable's value: a shorter one may stand in any text."""
_VALUE = r"""(?:"([^"\n]{4,})"|'([^'\n]{4,})'|([^\s"',;()\[\]{}<>]{4,}))"""
_ASSIGNED = rf"""([A-Za-z][\w.-]{{0,99}})(["']?[ \t]{{0,9}}(?::|=>?)[ \t]{{0,9}}){_VALUE}"""
"""A name and its value, as programs print them and files have them: `API_KEY=…`, `password: …`, `"token": "…"`."""
_FOLDERS = frozenset(("PWD", "OLDPWD"))
"""Where a shell is and was, which are no passwords."""
_OF_CODE = r"[A-Za-z_][A-Za-z_.]*"
"""What names something else in a program, rather than being a value."""
_TYPES = frozenset(
    ("string", "bytes", "none", "null", "true", "false", "bool", "optional", "number", "unknown", "undefined")
)


def known_secrets(env: Mapping[str, str]) -> tuple[str, ...]:
    """The values of those variables whose names say that they are secret, the longest first."""
    values = {value for name, value in env.items() if _is_secret(name) and len(value) >= _SHORTEST}
    return tuple(sorted(values, key=lambda value: (-len(value), value)))


class Hiding:
    """Puts `[redacted]` in the place of secrets: those that are known, and what looks like one."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._known = tuple(known)

    def text(self, text: str) -> str:
        """A text, and the values of one that is JSON."""
        for secret in self._known:
            text = text.replace(secret, REDACTED)
        return re.sub(_ASSIGNED, _assigned, masked_words(self._json(text), _stand))

    def _json(self, text: str) -> str:
        if not text.lstrip().startswith(("{", "[")):
            return text
        try:
            value = read_json(text.encode())
        except ValueError:
            return text
        hidden = self._value(value)
        return text if hidden == value else json.dumps(hidden, ensure_ascii=False, separators=(",", ":"))

    def args(self, args: JsonObject) -> JsonObject:
        """Arguments of a call, or any object: also what a name says is secret, and options of a program."""
        return {name: self._value(value, name) for name, value in args.items()}

    def is_in(self, data: bytes) -> bool:
        """Whether a known secret stands in these bytes."""
        return any(secret.encode("utf-8", "surrogatepass") in data for secret in self._known)

    def _value(self, value: JsonValue, name: str = "") -> JsonValue:
        match value:
            case str():
                return self.text(masked_variables({name: value}, _stand)[name] if is_secret_name(name) else value)
            case list():
                texts = [one for one in value if isinstance(one, str)]
                if len(texts) == len(value):
                    return [self.text(one) for one in masked_args(texts, _stand)]
                return [self._value(one, name) for one in value]
            case dict():
                return self.args(value)
            case _:
                return value


def _is_secret(name: str) -> bool:
    return is_secret_name(name) and name not in _FOLDERS


def _assigned(found: re.Match[str]) -> str:
    name, between = found[1], found[2]
    if not _is_secret(name) or not _is_value(name, between, found[3] or found[4], found[5] or ""):
        return found[0]
    mark = '"' if found[3] else "'" if found[4] else ""
    return f"{name}{between}{mark}{REDACTED}{mark}"


def _is_value(name: str, between: str, quoted: str | None, bare: str) -> bool:
    """Whether what a secret's name is set to may be one: not a type, a name in a program, or the verdict of a test."""
    if quoted is not None:
        return not quoted.startswith("$")
    if bare.startswith(("$", REDACTED)) or bare.casefold() in _TYPES or name.casefold() == "pass":
        return False
    return name.isupper() or ":" in between or re.fullmatch(_OF_CODE, bare) is None


def _stand(secret: str) -> str:
    return REDACTED
