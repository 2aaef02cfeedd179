"""Split the body of a reply into the data of its events, without regard to its content type.

The first line decides: server-sent events; JSON documents, alone, in lines or in one array; or a page or text, which
is an error. Each generator yields the empty string when bytes of an event have come but not yet its end, so that the
client can tell a slow event from silence.

Server-sent events are read as WHATWG's HTML standard says, section "Server-sent events", with these additions: a block
of lines without field names is an event if it is JSON, or if the body ends with it, since proxies put their errors
there; the name of an event completes data that has no `type`.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import AsyncGenerator, AsyncIterable, Iterator
from http import HTTPStatus

from pydantic import JsonValue

from perstack.core.base.text import one_line
from perstack.errors import ProviderError
from perstack.http_providers.errors import bad_response, error_from_status, error_message_in
from perstack.http_providers.replies import END_MARK

_LINE_END = re.compile(r"\r\n|\n|\r")
_FIELD = re.compile(r"(data|event|id|retry)(?::|\Z)|:")
_MAY_BE_FIELD = re.compile(r"[A-Za-z_-]*:|(data|event)\Z")
_BETWEEN = re.compile(r"[\s,\[\]]*(?:(?:data|event):[^{\[]*)?")  # text that may precede a document among others
_DECODER = json.JSONDecoder()
_MAX_PING_CHARS = 1_000
_MAX_TEXT_BYTES = 65_536  # maximum bytes that are kept of a page or text in place of a reply
_TITLE = re.compile(r"<(title|h1)[^>]*>(.*?)</\1>", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.IGNORECASE | re.DOTALL)
_STATUS = re.compile(r"\b([45]\d\d)\b")
_BY_PHRASE = {status.phrase.lower(): status.value for status in HTTPStatus if status.value >= 400}


async def server_sent_events(body: AsyncIterable[bytes]) -> AsyncGenerator[str]:
    """Yield the data of each event. Raises ProviderError for a page or text in place of a reply."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    reader: _Events | _Documents | _PlainText | None = None
    start = ""
    async for chunk in body:
        text = decoder.decode(chunk)
        if reader is None:
            start += text
            reader = _reader_for(start)
            if reader is None:
                continue
            text = start.lstrip("\ufeff")
        has_event = False
        for data in reader.feed(text):
            has_event = True
            yield data
        if not has_event and reader.is_inside:
            yield ""
    text = decoder.decode(b"", final=True)
    if reader is None:
        reader, text = _reader_for(f"{start}{text}\n") or _Events(), f"{start}{text}".lstrip("\ufeff")
    for data in reader.feed(text):
        yield data
    for data in reader.end():
        yield data


def _reader_for(start: str) -> _Events | _Documents | _PlainText | None:
    """Return the reader for a body that begins like this; None if it is too early to say."""
    text = start.lstrip("\ufeff \t\r\n")
    if not text:
        return None
    if text[0] in "{[":
        return _Documents()
    if text[0] == "<":
        return _PlainText(is_page=True)
    line = _LINE_END.split(text, 1)[0]
    if _MAY_BE_FIELD.match(line):
        return _Events()
    return _PlainText(is_page=False) if line != text or len(text) > _MAX_TEXT_BYTES else None


class _Events:
    """Parser of server-sent events."""

    def __init__(self) -> None:
        self._line: list[str] = []  # pieces of a line without its end
        self._has_return = False  # True if the latest line has ended with a carriage return: a line feed may follow
        self._data: list[str] = []
        self._name = ""
        self._stray: list[str] = []  # lines without a field's name

    @property
    def is_inside(self) -> bool:
        """True if more of an event has arrived than a ping contains."""
        is_data = bool(self._data) or (bool(self._line) and self._line[0].startswith("data"))
        return is_data and sum(map(len, (*self._data, *self._line))) > _MAX_PING_CHARS

    def feed(self, text: str) -> Iterator[str]:
        """Yield the data of the events that are complete now."""
        if not text:
            return
        if self._has_return:
            text = text.removeprefix("\n")
        self._has_return = text.endswith("\r")
        *lines, rest = _LINE_END.split(text)
        if lines and self._line:
            lines[0] = "".join((*self._line, lines[0]))
            self._line.clear()
        for line in lines:
            if line.startswith("data: ") and not self._stray:  # nearly all lines
                self._data.append(line[6:])
            else:
                yield from self._take(line)
        if rest:
            self._line.append(rest)

    def end(self) -> Iterator[str]:
        """Yield the data of an event that the end of the body completes, and remaining text."""
        yield from self._take("".join(self._line))
        stray = "\n".join(self._stray).strip()
        yield from self._take("")
        if stray and next(_documents_in(stray), None) is None:
            yield stray

    def _take(self, line: str) -> list[str]:
        """Return the data of the events that end with this line."""
        if line and not _FIELD.match(line):
            self._stray.append(line)
            return []
        ended: list[str] = []
        if self._stray:
            ended += (document for _, document in _documents_in("\n".join(self._stray)))
            self._stray = []
        if not line:
            if self._data:
                ended.append(_add_event_name("\n".join(self._data), self._name))
                self._data = []
            self._name = ""
            return ended
        field, _, value = line.partition(":")
        if field == "data":
            self._data.append(value.removeprefix(" "))
        elif field == "event":
            self._name = value.strip()
        return ended


def _add_event_name(data: str, name: str) -> str:
    """Return data with the name of its event, for servers that report an error or a type by the name alone."""
    is_error = name == "error"
    if not is_error and (name in ("", "message") or '"type"' in data or data.strip() == END_MARK):
        return data
    document: JsonValue
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = {"message": data} if is_error else {}
    if not is_error:
        return json.dumps({"type": name, **document}) if isinstance(document, dict) else data
    has_error = isinstance(document, dict) and (document.get("error") or document.get("type") == "error")
    return data if has_error else json.dumps({"type": "error", "error": document})


class _Documents:
    """Parser of JSON documents that follow each other, or are elements of one array."""

    is_inside = True

    def __init__(self) -> None:
        self._rest: list[str] = []
        self._size = 0
        self._next_size = 0  # characters before the next attempt to parse, so that long documents are parsed seldom

    def feed(self, text: str) -> Iterator[str]:
        """Yield the documents that are complete now."""
        self._rest.append(text)
        self._size += len(text)
        if self._size >= self._next_size and text.rstrip().endswith(("}", "]")):
            yield from self._take()
            self._next_size = self._size if self._size < _MAX_TEXT_BYTES else self._size * 5 // 4

    def end(self) -> Iterator[str]:
        """Yield the remaining documents, and then the remaining text unchanged."""
        yield from self._take()
        rest = "".join(self._rest).strip()
        if rest:
            yield rest

    def _take(self) -> Iterator[str]:
        rest, position = "".join(self._rest), 0
        for end, document in _documents_in(rest):
            yield document
            position = end
        self._rest = [rest[position:]]
        self._size = len(self._rest[0])


def _documents_in(text: str) -> Iterator[tuple[int, str]]:
    """Yield the JSON objects at the beginning of a text, each with the position after it."""
    position = 0
    while (between := _BETWEEN.match(text, position)) is not None and text.startswith("{", between.end()):
        try:
            end = _DECODER.raw_decode(text, between.end())[1]
        except (ValueError, RecursionError):
            return
        yield end, text[between.end() : end]
        position = end


class _PlainText:
    """A page or text in place of a reply."""

    is_inside = False

    def __init__(self, *, is_page: bool) -> None:
        self._is_page = is_page
        self._text = ""

    def feed(self, text: str) -> Iterator[str]:
        self._text += text[: _MAX_TEXT_BYTES - len(self._text)]
        return iter(())

    def end(self) -> Iterator[str]:
        raise _page_error(self._text) if self._is_page else _text_error(self._text)


def _page_error(page: str) -> ProviderError:
    """Return the error for a web page: a proxy's page names a status, others come from a wrong address."""
    title = _TITLE.search(page)
    words = one_line(_TAG.sub(" ", title[2] if title else page))[:200]
    status = _status_in(words)
    if status is not None:
        return error_from_status(f"a proxy answered in place of the endpoint: {words}", status)
    detail = f'"{words}"' if words else "without a title"
    message = f"the endpoint answered with a web page, not with a reply ({detail}): check the base URL"
    return bad_response(message, retryable=False)


def _text_error(text: str) -> ProviderError:
    words = one_line(error_message_in(text.encode()))
    status = _status_in(words)
    message = f"the endpoint answered with text, not with a reply: {words}"
    return bad_response(message, retryable=True) if status is None else error_from_status(message, status)


def _status_in(words: str) -> int | None:
    """Return the HTTP status that a short text names, by number or by its phrase."""
    number = _STATUS.search(words)
    if number is not None:
        return int(number[1])
    return next((status for phrase, status in _BY_PHRASE.items() if words.lower().startswith(phrase)), None)
