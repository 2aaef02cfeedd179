"""A Job as one HTML file: its page and its conversations, by the templates of the studio, without server or script.

The file refers to nothing outside: what a template links to becomes a place in the file, or plain text. Texts are cut
until the file is smaller than `MAX_BYTES`, the longest first; then entries in the middle are left out, with a note.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

from markupsafe import Markup
from pydantic import JsonValue

from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.log_rows import run_label
from perstack.dataclass import dataclass
from perstack.errors import PerstackError
from perstack.host import Host
from perstack_studio.conversation import CallEntry, Conversation, ConversationEntry
from perstack_studio.studio import make_templates
from perstack_studio.views.job import JobState

MAX_BYTES = 1_000_000
# maximum characters of a text, tried until the file is small enough
_TEXT_LIMITS = (100_000, 8_000, 2_000, 800, 300, 120)
_MAX_ENTRIES = 6_000  # maximum entries of a Run, halved until the file is small enough
_STATIC = Path(__file__).with_name("static")

# Expressions suffice to find tags: the studio's templates escape all other text, so each `<` begins a tag of theirs.
_LINK = re.compile(r'<a\b[^>]*?\bhref="(?P<address>[^"]*)"[^>]*>(?P<text>.*?)</a>', re.DOTALL)
_RUN = re.compile(r"/jobs/[^/]+/runs/([^/?#]+)\Z")
_IMAGE = re.compile(r'<img\b[^>]*?\balt="([^"]*)"[^>]*>')
_FORM = re.compile(r"<form\b.*?</form>", re.DOTALL)
_BLANKS = re.compile(r"\n\s*\n")


@dataclass(frozen=True, slots=True)
class ExportedRun:
    """The conversation of a Run in the file."""

    id: str
    label: str
    entries: tuple[ConversationEntry, ...]
    damage: str  # why the log cannot be read after the last entry; empty if it can


@dataclass(frozen=True, slots=True)
class EntryGroup:
    """Entries of a Run that follow each other, after some that are left out."""

    left_out: int
    entries: tuple[ConversationEntry, ...]


async def html_of_job(host: Host, job_id: str) -> bytes:
    """Return a Job as one HTML file. Raises NotFound and StorageError."""
    summary = await host.job(job_id)
    state = JobState.of(summary, await host.jobs.tree_of(summary))
    runs = [await _export_run(host, summary.id, run.id, run_label(run.expert_key, run.id)) for run in summary.runs]
    return await asyncio.to_thread(_render_file, summary, state, runs, host.clock.now())


async def _export_run(host: Host, job_id: str, run_id: str, label: str) -> ExportedRun:
    conversation, damage, after = Conversation(), "", 0
    try:
        while lines := await host.jobs.events(run_id, job_id=job_id, after=after, limit=1_000):
            for line in lines:
                conversation.apply(line.seq, line.event)
            after += len(lines)
    except PerstackError as error:
        damage = str(error)
    return ExportedRun(run_id, label, tuple(conversation.entries), damage)


def _render_file(summary: JobSummary, state: JobState, runs: list[ExportedRun], now: int) -> bytes:
    template = make_templates().get_template("export.html")
    style = "\n".join((_STATIC / name).read_text("utf-8") for name in ("tokens.css", "studio.css"))
    style = re.sub(r"@import[^;]*;", "", style)
    content, max_entries = b"", _MAX_ENTRIES
    for limit in (*_TEXT_LIMITS, *[_TEXT_LIMITS[-1]] * 8):
        groups = [(run, _group_entries(run.entries, limit, max_entries)) for run in runs]
        text = template.render(summary=summary, job=state, runs=groups, style=Markup(style), now=now)  # noqa: S704 - ours
        content = _resolve_links(text, {run.id for run in runs}).encode(errors="replace")
        if len(content) < MAX_BYTES:
            return content
        if limit == _TEXT_LIMITS[-1]:
            max_entries //= 2
    return content


def _group_entries(entries: tuple[ConversationEntry, ...], limit: int, max_entries: int) -> tuple[EntryGroup, ...]:
    """Return the exported entries with shortened texts: all, or the first and last ones around a gap."""
    end_size = max(1, max_entries // 2)
    left_out = max(0, len(entries) - 2 * end_size)
    if not left_out:
        return (EntryGroup(0, tuple(_shorten_entry(entry, limit) for entry in entries)),)
    first, last = entries[:end_size], entries[len(entries) - end_size :]
    return EntryGroup(0, tuple(_shorten_entry(entry, limit) for entry in first)), EntryGroup(
        left_out, tuple(_shorten_entry(entry, limit) for entry in last)
    )


def _shorten_entry(entry: ConversationEntry, limit: int) -> ConversationEntry:
    return replace(
        entry,
        text=_cut(entry.text, limit),
        call_entry=None if entry.call_entry is None else _shorten_call(entry.call_entry, limit),
    )


def _shorten_call(call_entry: CallEntry, limit: int) -> CallEntry:
    def shorten(value: JsonValue) -> JsonValue:
        match value:
            case str():
                return _cut(value, limit)
            case list():
                return [shorten(item) for item in value]
            case dict():
                return {_cut(key, limit): shorten(item) for key, item in value.items()}
            case _:
                return value

    def shorten_args(value: dict[str, JsonValue] | None) -> dict[str, JsonValue] | None:
        return None if value is None else {_cut(key, limit): shorten(item) for key, item in value.items()}

    lines = max(3, limit // 40)
    diff = call_entry.diff[:lines] + (
        (f" … {len(call_entry.diff) - lines:,} more lines",) if len(call_entry.diff) > lines else ()
    )
    return replace(
        call_entry,
        args=shorten_args(call_entry.args),
        changed_args=shorten_args(call_entry.changed_args),
        raw_args=_cut(call_entry.raw_args, limit),
        result=_cut(call_entry.result, limit),
        decision=_cut(call_entry.decision, limit),
        problem=_cut(call_entry.problem, limit),
        diff=tuple(_cut(line, limit) for line in diff),
    )


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} … {len(text) - limit:,} more characters"


def _resolve_links(text: str, runs: set[str]) -> str:
    """Turn links to exported Runs into links within the file; remove images, forms and all other links."""

    def internal_link(match: re.Match[str]) -> str:
        run_path = _RUN.search(match["address"])
        if run_path is not None and run_path[1] in runs:
            return f'<a href="#{run_path[1]}">{match["text"]}</a>'
        return match["text"]

    text = _IMAGE.sub(r"<em>\1</em>", _FORM.sub("", text))
    return _BLANKS.sub("\n", _LINK.sub(internal_link, text))
