"""Mask secrets in texts of models, tools and people: in recordings, and in results of a Run that masks secrets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from pydantic import JsonValue

from perstack.core.base.records import JsonObject, read_json
from perstack.core.base.secrets import Stand, is_set_secret, masked_args, masked_output, masked_variables
from perstack.core.base.text import REDACTED

_SHORTEST = 8  # minimum characters of a secret value; shorter ones may occur in any text by chance


def known_secrets(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of variables whose names mark them as secret, the longest first."""
    values = {value for name, value in env.items() if is_set_secret(name) and len(value) >= _SHORTEST}
    return tuple(sorted(values, key=lambda value: (-len(value), value)))


def _redacted(secret: str) -> str:
    return REDACTED


class Hiding:
    """Masker of known secrets, and of texts that look like secrets."""

    def __init__(self, known: Iterable[str] = (), stand: Stand = _redacted) -> None:
        """Set the known secrets; `stand` returns the replacement of a secret."""
        self._known = tuple(known)
        self._stand = stand

    def text(self, text: str) -> str:
        """Mask a text; if it is JSON, mask the values in it."""
        return masked_output(self._json(text), self._stand, self._known)

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
        """Mask an object such as a call's arguments, also by names of keys and by options of a program."""
        hidden = {name: self._value(value, name) for name, value in args.items()}
        command, options = args.get("command"), args.get("args")
        if isinstance(command, str) and isinstance(options, list) and all(isinstance(one, str) for one in options):
            words = masked_args([command, *map(str, options)], self._stand)
            hidden["args"] = [self.text(one) for one in words[1:]]
        return hidden

    def is_in(self, data: bytes) -> bool:
        """Return whether the bytes contain a known secret."""
        return any(secret.encode("utf-8", "surrogatepass") in data for secret in self._known)

    def _value(self, value: JsonValue, name: str = "") -> JsonValue:
        match value:
            case str():
                return self.text(
                    masked_variables({"secret": value}, self._stand)["secret"] if is_set_secret(name) else value
                )
            case list():
                texts = [one for one in value if isinstance(one, str)]
                if len(texts) == len(value):
                    return [self.text(one) for one in masked_args(texts, self._stand)]
                return [self._value(one, name) for one in value]
            case dict():
                return self.args(value)
            case _:
                return value
