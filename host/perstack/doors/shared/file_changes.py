"""Changes of files for people and programs: the lines of a patch, and a summary of each file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, assert_never

from perstack.core.base.records import JsonObject
from perstack.core.base.text import count, one_line, visible_text
from perstack.core.files.file_names import parse_spelling
from perstack.core.files.line_diff import Hunk, as_text
from perstack.doors.shared.text import size
from perstack.snapshots.rewind import Rewind
from perstack.snapshots.tree_diff import FileDiff, KeptReason, Side, stat_of

LineKind = Literal["file", "hunk", "+", "-", " "]  # kinds of lines: file header, hunk header, added, removed, unchanged

CHANGES = {"added": "added", "removed": "removed", "changed": "changed", "mode": "changed"}

KEPT_REASONS: dict[KeptReason, str] = {
    "notRecorded": "kept: no snapshot has recorded it",
    "ignoredThen": "kept: it was ignored at the checkpoint",
    "addedSince": "kept: it was added since",
    "inTheWay": "kept: its current content is in no snapshot",
    "unknownInside": "kept: it contains files that are in no snapshot",
    "otherFileSystem": "kept: it is on another file system",
}

_MODES = {"file": "100644", "program": "100755", "link": "120000"}
_NO_NEWLINE = b"\\ No newline at end of file"


def patch_lines(files: Iterable[FileDiff]) -> Iterator[tuple[LineKind, bytes]]:
    """Yield the lines of a patch without line breaks, in the form `git apply` takes if everything could be compared."""
    for file in files:
        if file.is_file:
            yield from _file_lines(file)


def patch_bytes(files: Iterable[FileDiff]) -> bytes:
    return b"".join(line + b"\n" for _, line in patch_lines(files))


def display_line(kind: LineKind, line: bytes) -> str:
    """Return the line for a terminal: control characters visible, and carriage returns only in lines that changed."""
    text = as_text(line)
    return visible_text(text.removesuffix("\r") if kind == " " else text)


def _lines_of_file(file: FileDiff) -> str:
    """Return `+12 −3`, or the reason why lines are not counted."""
    if file.added is not None and file.removed is not None:
        return line_counts(file.added, file.removed) or _modes(file) or "empty"
    if file.is_binary:
        return f"binary, {_sizes(file)}"
    sides = [side for side in (file.old, file.new) if side is not None]
    if any(side.kind == "leftOut" for side in sides):
        return "not recorded"
    last = sides[-1]
    match last.kind:
        case "link":
            return f"link to {last.target}"
        case "folder":
            return "folder"
        case "file" | "program":
            return _modes(file) or f"not compared, {_sizes(file)}"
        case "leftOut":
            return "not recorded"
        case _:
            assert_never(last.kind)


def line_counts(added: int, removed: int) -> str:
    """Return `+12 −3` without the part that is zero."""
    return " ".join(part for part in (f"+{added:,}" if added else "", f"−{removed:,}" if removed else "") if part)


def stat_words(files: Iterable[FileDiff]) -> str:
    """Return `+12 −3 in 2 files` for all files together."""
    stat = stat_of(files)
    return _in_files(stat.added, stat.removed, stat.files)


def _in_files(added: int, removed: int, files: int) -> str:
    return " in ".join(part for part in (line_counts(added, removed), count(files, "file")) if part)


def file_rows(files: Iterable[FileDiff]) -> list[tuple[str, str, str]]:
    """Return the change, path and lines of each file, and of each folder that contains no other change."""
    files = list(files)
    parents = {file.path[:index] for file in files for index, mark in enumerate(file.path) if mark == "/"}
    listed = [file for file in files if file.is_file or file.path not in parents]
    return [(CHANGES[file.kind], visible_text(file.path), _lines_of_file(file)) for file in listed]


def stat_json(file: FileDiff) -> JsonObject:
    """Return the file's JSON without its hunks."""
    return {name: value for name, value in file.to_json().items() if name != "hunks"}


def _file_lines(file: FileDiff) -> Iterator[tuple[LineKind, bytes]]:
    old, new = _comparable_side(file.old), _comparable_side(file.new)
    if old is not None and new is not None and (old.kind == "link") != (new.kind == "link"):
        # a change between link and file needs two patches: delete, then create
        yield from _single_patch_lines(file, old, None)
        yield from _single_patch_lines(file, None, new)
    else:
        yield from _single_patch_lines(file, old, new)


def _single_patch_lines(file: FileDiff, old: Side | None, new: Side | None) -> Iterator[tuple[LineKind, bytes]]:
    old_path, new_path = _quote_path("a/", file.path), _quote_path("b/", file.path)
    yield "file", b"diff --git %s %s" % (old_path, new_path)
    if old is None and new is not None:
        yield "file", f"new file mode {_MODES.get(new.kind, '100644')}".encode()
    elif new is None and old is not None:
        yield "file", f"deleted file mode {_MODES.get(old.kind, '100644')}".encode()
    elif old is not None and new is not None and old.kind != new.kind:
        yield "file", f"old mode {_MODES.get(old.kind, '100644')}".encode()
        yield "file", f"new mode {_MODES.get(new.kind, '100644')}".encode()
    old_label, new_label = b"/dev/null" if old is None else old_path, b"/dev/null" if new is None else new_path
    links = [side for side in (old, new) if side is not None and side.kind == "link"]
    if not links and not file.hunks:
        if file.kind != "mode" and (file.added is None or file.added or file.removed):
            yield "file", b"Binary files %s and %s differ" % (old_label, new_label)
        return
    yield "file", b"--- " + old_label
    yield "file", b"+++ " + new_label
    if links:
        yield from _link_lines(old, new)
        return
    for hunk in file.hunks:
        yield from _hunk_lines(file, hunk)


def _hunk_lines(file: FileDiff, hunk: Hunk) -> Iterator[tuple[LineKind, bytes]]:
    yield "hunk", hunk.head.encode()
    for sign, line in hunk.lines:
        kind: LineKind = "+" if sign == "+" else "-" if sign == "-" else " "
        yield kind, sign.encode() + line.removesuffix(b"\n")
        if not line.endswith(b"\n"):
            yield "hunk", _NO_NEWLINE


def _link_lines(old: Side | None, new: Side | None) -> Iterator[tuple[LineKind, bytes]]:
    yield "hunk", b"@@ -%s +%s @@" % (b"0,0" if old is None else b"1", b"0,0" if new is None else b"1")
    for kind, side in (("-", old), ("+", new)):
        if side is not None:
            yield "+" if kind == "+" else "-", kind.encode() + parse_spelling(side.target)
            yield "hunk", _NO_NEWLINE


def _comparable_side(side: Side | None) -> Side | None:
    return side if side is not None and side.kind in _MODES else None


def _quote_path(prefix: str, path: str) -> bytes:
    name = prefix.encode() + parse_spelling(path)
    is_plain = all(32 <= byte != 127 and byte not in b'"\\' for byte in name)
    if is_plain and name.decode("utf-8", "ignore").encode() == name:
        return name
    marks = {9: b"\\t", 10: b"\\n", 13: b"\\r", 34: b'\\"', 92: b"\\\\"}
    escaped = (marks.get(byte, bytes((byte,)) if 32 <= byte < 127 else b"\\%03o" % byte) for byte in name)
    return b'"' + b"".join(escaped) + b'"'


def _modes(file: FileDiff) -> str:
    if file.old is None or file.new is None or file.old.kind == file.new.kind:
        return ""
    return {"program": "executable now", "file": "not executable now"}.get(file.new.kind, "")


def _sizes(file: FileDiff) -> str:
    sizes = [size(side.size) for side in (file.old, file.new) if side is not None and side.kind in ("file", "program")]
    return " to ".join(sizes)


# The summary of a rewind, without the files themselves.

_MAX_LISTED_PATHS = 10
_DEFINITIONS = ("perstack.toml", "perstack.lock")


def definition_warnings(plan: Rewind) -> Iterator[str]:
    """Yield a warning for each file that defines Experts or permissions."""
    for file in plan.files:
        if file.path.rpartition("/")[2] in _DEFINITIONS:
            yield f"{visible_text(file.path)}: its Experts and rules are restored too"


def kept_lines(plan: Rewind) -> Iterator[str]:
    """Yield a line with the reason for each path left unchanged, up to a limit, then the number of the others."""
    for kept in plan.kept[:_MAX_LISTED_PATHS]:
        yield f"{visible_text(kept.path)} {KEPT_REASONS[kept.why]}"
    if len(plan.kept) > _MAX_LISTED_PATHS:
        yield f"… and {len(plan.kept) - _MAX_LISTED_PATHS:,} more are kept"


def removal_warning(plan: Rewind) -> str:
    """Return a line about files that the rewind removes, which others may have created; empty without any."""
    number = sum(file.kind == "removed" for file in plan.files)
    what = f"{count(number, 'file')} that {'was' if number == 1 else 'were'} added since"
    return f"this removes {what}, by the Job or by others; --keep-added keeps them" if number else ""


def nothing_to_rewind(plan: Rewind) -> str:
    """Return the message for files that are already as they were at the checkpoint."""
    return f"{one_line(plan.workspace)} is as it was at {plan.checkpoint_id}: there is nothing to rewind"
