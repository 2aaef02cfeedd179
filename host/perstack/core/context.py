"""How a Run is kept within its model's context window: as perstack.toml says it, and as a Run is held to it."""

from typing import Annotated, Literal, TypeVar

from pydantic import Field

from perstack.core.base import Fact, falsy
from perstack.core.keys import NOT_EMPTY, Key, Rule, at_least

COMPACT_AT = 0.8
KEEP_RESULTS = 10
KEEP_RECENT = 0.3


def wrong_share(share: float) -> str | None:
    """What is wrong with a share of the context window."""
    return None if 0 < share < 1 else f"must be a share of the context window between 0 and 1, not {share}"


def _is_none(value: object) -> bool:
    return value is None


class CompactionExpert(Fact):
    """The Expert whose instruction and model write the summaries."""

    expert: Annotated[str, NOT_EMPTY]


Compaction = Literal["auto", "off"] | CompactionExpert


class ContextKeys(Fact):
    """The keys on the context window, of an Expert and of a whole file."""

    context_window: Annotated[
        int | None,
        at_least(1_000),
        Key("tokens that the model's context can hold; if not given, as its provider or published lists say"),
        Field(exclude_if=_is_none),
    ] = None
    compact_at: Annotated[
        float | None,
        Rule(wrong_share),
        Key("the share of the context window from which on old content is shortened; 0.8 if not given"),
        Field(exclude_if=_is_none),
    ] = None
    keep_results: Annotated[
        int | None,
        at_least(1),
        Key("how many of the latest steps keep the results of read-only tools whole; 10 if not given"),
        Field(exclude_if=_is_none),
    ] = None
    keep_recent: Annotated[
        float | None,
        Rule(wrong_share),
        Key("the share of the context window whose latest turns are never summarised; 0.3 if not given"),
        Field(exclude_if=_is_none),
    ] = None
    compaction: Annotated[
        Compaction | None,
        Key(
            "whether old turns are shortened and summarised when the context is nearly full: `auto`, which is taken if"
            " not given, `off`, or `{ expert = NAME }`, whose instruction and model write the summary"
        ),
        Field(exclude_if=_is_none),
    ] = None


class ContextPolicy(Fact):
    """What a Run does when its model's context is nearly full."""

    window: int | None = None
    """Tokens that the context can hold, if the definition says so."""
    compact_at: float = Field(default=COMPACT_AT, exclude_if=lambda value: value == COMPACT_AT)
    """The share of the window from which on something is done."""
    keep_results: int = Field(default=KEEP_RESULTS, exclude_if=lambda value: value == KEEP_RESULTS)
    """How many of the latest turns keep their results whole."""
    keep_recent: float = Field(default=KEEP_RECENT, exclude_if=lambda value: value == KEEP_RECENT)
    """The share of the window whose latest turns are never summarised."""
    is_off: bool = Field(default=False, exclude_if=falsy)
    """Whether nothing is done: the model sees all, and an overflow ends the Run."""
    expert: str | None = None
    """The Expert whose instruction and model write the summaries; None: the Run's own model."""
    offers_pin: bool = Field(default=False, exclude_if=falsy)
    """Whether the model is offered the tool `pin` from the beginning."""


def policy_of(own: ContextKeys, shared: ContextKeys, asked: Compaction | None = None) -> ContextPolicy:
    """What holds for an Expert: what the caller asked for, its own keys, those of the file, and the defaults."""
    written = next((one for one in (asked, own.compaction, shared.compaction) if one is not None), None)
    return ContextPolicy(
        window=_first(own.context_window, shared.context_window),
        compact_at=_first(own.compact_at, shared.compact_at) or COMPACT_AT,
        keep_results=_first(own.keep_results, shared.keep_results) or KEEP_RESULTS,
        keep_recent=_first(own.keep_recent, shared.keep_recent) or KEEP_RECENT,
        is_off=written == "off",
        expert=written.expert if isinstance(written, CompactionExpert) else None,
        offers_pin=written is not None and written != "off",
    )


def turned(policy: ContextPolicy, asked: Compaction) -> ContextPolicy:
    """The same with compaction as a caller asks for it."""
    expert = asked.expert if isinstance(asked, CompactionExpert) else None
    return policy.model_copy(update={"is_off": asked == "off", "expert": expert})


_N = TypeVar("_N", int, float)


def _first(own: _N | None, shared: _N | None) -> _N | None:
    return shared if own is None else own
