"""Texts in pages. Text of a model, tool, file or name is never markup.

Every text that a template shows passes `cleaned` and is then escaped, so a template need not distinguish hostile texts.
Markdown is rendered without HTML, within bounds. A link in it leads nowhere: its address is shown beside its text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from perstack.core.base.text import count, duration, one_line, plain_text
from perstack.core.base.usage import Usage, cost_text
from perstack.doors.shared.status_phrases import run_status_of, status_of
from perstack.doors.shared.text import age_text, local_time, minute, shorten, size

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.renderer import RendererHTML
    from markdown_it.token import Token
    from markdown_it.utils import EnvType, OptionsDict

MAX_TEXT_CHARS = 100_000  # maximum characters of one text in a page; the raw event has all of it
_MAX_MARKDOWN_CHARS = 40_000  # maximum characters of rendered Markdown; longer texts are shown as written
_MAX_BRACKETS = 1_000  # maximum `[` in rendered Markdown: for each the parser may search the whole text
_MAX_LEVEL = 20  # maximum nesting of blocks

COLOUR_BY_STATUS: Mapping[str, str] = {
    "queued": "quiet",
    "running": "live",
    "completed": "good",
    "stoppedByInteractiveTool": "asks",
    "stoppedByDelegate": "live",
    "stoppedByMaxSteps": "warn",
    "stoppedByBudget": "warn",
    "stoppedByInterrupt": "warn",
    "stoppedByError": "bad",
}
"""CSS class of the mark of each status."""


def cleaned(value: object) -> object:
    """Return a text without control and bidirectional characters, cut at the limit; other values unchanged."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return cut(plain_text(value))


def cut(text: str) -> str:
    """Return the text, cut at `MAX_TEXT_CHARS` with a note of the omitted number of characters."""
    if len(text) <= MAX_TEXT_CHARS:
        return text
    return f"{text[:MAX_TEXT_CHARS]} … {len(text) - MAX_TEXT_CHARS:,} more characters are in the event"


def filters() -> dict[str, Callable[..., object]]:
    return {
        "age": age_text,
        "cost": cost,
        "count": count,
        "duration": duration,
        "json": as_json,
        "markdown": markdown,
        "minute": minute,
        "run_status": run_status_of,
        "second": second,
        "short": short,
        "size": size,
        "diff": diff_lines,
        "status": status_of,
        "status_class": status_class,
        "tokens": tokens,
    }


def cost(usage: Usage, unpriced_tokens: int = 0) -> str:
    """Return the cost of a usage; empty if nothing was used."""
    return cost_text(usage, unpriced_tokens)


def short(text: str, width: int = 100) -> str:
    """Return the text on one line, in `width` cells."""
    return shorten(one_line(plain_text(text)), width)


def status_class(status: str) -> str:
    """Return the CSS class of the mark of a status."""
    return COLOUR_BY_STATUS.get(status, "quiet")


def as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def second(milliseconds: int) -> str:
    """Return a time of day with seconds, in this machine's time zone."""
    return local_time(milliseconds).strftime("%H:%M:%S")


def tokens(usage: Usage) -> str:
    """Return the tokens of a usage, with the cached ones."""
    cached = f", {usage.cached_input_tokens:,} cached" if usage.cached_input_tokens else ""
    return f"{usage.total_tokens:,} tokens ({usage.input_tokens:,} in{cached}, {usage.output_tokens:,} out)"


def markdown(text: str) -> Markup:
    """Return the Markdown of a model as HTML; a very long or deeply nested text as it is written."""
    text = plain_text(text)
    if len(text) <= _MAX_MARKDOWN_CHARS and text.count("[") <= _MAX_BRACKETS:
        parser = _parser()
        block_tokens = parser.parse(text)
        for token in block_tokens:
            token.attrs.pop("style", None)  # of a table's column: the policy of pages forbids inline style
        if all(token.level <= _MAX_LEVEL for token in block_tokens):
            return Markup(parser.renderer.render(block_tokens, parser.options, {}))  # noqa: S704 - without HTML
    return Markup("<pre class=text>{}</pre>").format(cut(text))


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": _MAX_LEVEL, "breaks": True})
    parser.enable(["strikethrough", "table"]).disable("reference")
    parser.add_render_rule("link_open", _open_link)
    parser.add_render_rule("link_close", _close_link)
    parser.add_render_rule("image", _image)
    return parser


def _open_link(_: RendererHTML, tokens: Sequence[Token], at: int, options: OptionsDict, env: EnvType) -> str:
    return f'<span class="address" title="{escape(str(tokens[at].attrGet("href") or ""))}">'


def _close_link(_: RendererHTML, tokens: Sequence[Token], at: int, options: OptionsDict, env: EnvType) -> str:
    opening = _link_address(tokens, at)
    return f"</span> <code class=address>{escape(str(opening))}</code>"


def _link_address(tokens: Sequence[Token], at: int) -> object:
    """Return the address of the link that a closing token ends. Links do not nest."""
    links = (token for token in reversed(tokens[:at]) if token.type == "link_open")
    return next((link.attrGet("href") for link in links), "")


def _image(_: RendererHTML, tokens: Sequence[Token], at: int, options: OptionsDict, env: EnvType) -> str:
    token = tokens[at]
    return f"<code class=address>![{escape(token.content)}]({escape(str(token.attrGet('src') or ''))})</code>"


def diff_class(line: str) -> str:
    """Return the CSS class of a line of a unified diff."""
    if line.startswith(("+++", "---", "diff ", "index ", "new file", "deleted file", "rename ", "old mode")):
        return "head"
    return {"+": "add", "-": "remove", "@": "place"}.get(line[:1], "")


def diff_lines(lines: Iterable[str]) -> list[tuple[str, str]]:
    """Return CSS class and text of each line of a diff."""
    return [(diff_class(line), line) for line in lines]
