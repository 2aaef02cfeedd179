"""What the models of definitions say of their keys in perstack.toml: what each means, and what may be written there.

The type and the default of a key are those of its field. Beyond them a rule holds for a definition file alone: what is
recorded was held to the rules of its day, and what is made in Python is its maker's affair.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, PydanticKnownError, core_schema

from perstack.dataclass import dataclass

FROM_FILE: Final = object()
"""The context of a validation in which rules hold."""
PART_OF_FILE: Final = object()
"""That of what is right in a table that is wrong: it is written as files have it, and has been held to the rules."""

BROKEN: Final = "brokenRule"
"""The type of the error that a broken rule is."""
EMPTY: Final = "must not be empty"


@dataclass(frozen=True, slots=True)
class Key:
    """Marks a field as a key of perstack.toml."""

    meaning: str
    name: str | None = None
    """As it is written in files, if that is not how it is recorded."""
    is_required: bool = False
    """Whether files must have it although a recorded definition need not."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What the value of a key must keep besides its type; absent values keep every rule."""

    broken: Callable[..., str | None]
    """Says what is wrong with a value, in words that follow the name of its key."""
    limit: str = ""
    """For the list of keys in the docs, if it is not clear from the meaning."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        def kept(value: object, info: core_schema.ValidationInfo[object]) -> object:
            if info.context is FROM_FILE and value is not None and (words := self.broken(value)) is not None:
                raise _refusal(words)
            return value

        return core_schema.with_info_after_validator_function(kept, handler(source))


@dataclass(frozen=True, slots=True)
class InText:
    """A value that files hold as a text."""

    read: Callable[[str], object]
    """Raises ValueError that says what is wrong with the text, in words that follow the name of its key."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        def read(value: object, info: core_schema.ValidationInfo[object]) -> object:
            if info.context not in (FROM_FILE, PART_OF_FILE):
                return value
            if not isinstance(value, str):
                raise PydanticKnownError("string_type")
            try:
                return self.read(value)
            except ValueError as error:
                raise _refusal(str(error) if value.strip() else EMPTY) from error

        return core_schema.with_info_before_validator_function(read, handler(source))


@dataclass(frozen=True, slots=True)
class AsIs:
    """A field of our own making that nothing is checked of. To check a dataclass costs 4 ms at every start."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.any_schema()


def _refusal(words: str) -> PydanticCustomError:
    return PydanticCustomError(BROKEN, "{words}", {"words": words})


def at_least(least: int) -> Rule:
    """For numbers, and for what may be a number or a word."""

    def broken(value: object) -> str | None:
        return f"must be at least {least}, not {value}" if isinstance(value, int) and value < least else None

    return Rule(broken)


def at_most(longest: int) -> Rule:
    """For texts: how many characters."""

    def broken(text: str) -> str | None:
        return f"has {len(text):,} characters: shorten it to {longest:,}" if len(text) > longest else None

    return Rule(broken, f"at most {longest:,} characters")


def _empty(value: object) -> str | None:
    if isinstance(value, str) and "\0" in value:
        return "must not contain a NUL character: leave it out"
    return None if (value.strip() if isinstance(value, str) else value) else EMPTY


NOT_EMPTY: Final = Rule(_empty)
"""For a name, a path or another text that must not be blank, nor have a NUL, which the system takes for its end; or a
list that must have items."""
