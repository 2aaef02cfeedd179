"""Nothing from a model, a tool, a file, a definition or an address is markup in a page of the studio.

Each payload is put wherever a page shows text. Every page is then read by an HTML parser: it may have the elements and
attributes of the templates and of rendered Markdown, and no other; no address in it may lead out of the studio.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from urllib.parse import quote, urlsplit

import pytest
from studio_server import StudioServer, Visitor, serving_studio
from terminal import Terminal, reply, trusting

from perstack_studio.studio import make_templates
from perstack_studio.words import cleaned, markdown

SCRIPTS = ("alert(1)", "fetch('//evil.example')", "document.cookie", "parent.location='//evil.example'")
EVENTS = ("onerror", "onload", "onclick", "onfocus", "ontoggle", "onmouseover", "onanimationstart", "onbeforeprint")
ELEMENTS = (
    "img src=x",
    "svg",
    "body",
    "details open",
    "video src=x",
    "audio src=x",
    "input autofocus",
    "iframe src=//evil.example",
    "object data=//evil.example",
    "embed src=//evil.example",
    "marquee",
    "math",
    "a href=#",
    "form action=//evil.example",
)
SCHEMES = (
    "javascript:alert(1)",
    "JaVaScRiPt:alert(1)",
    "java\tscript:alert(1)",
    "\x01javascript:alert(1)",
    "vbscript:x",
    "data:text/html,<script>alert(1)</script>",
    "data:image/svg+xml;base64,PHN2Zy8+",
    "file:///etc/passwd",
    "//evil.example/x",
    "https://evil.example/?q=secret",
    "blob:x",
    "&#106;avascript:alert(1)",
    "view-source:x",
)
PAYLOADS: tuple[str, ...] = (
    *(f"<script>{code}</script>" for code in SCRIPTS),
    *(f"</title></textarea></pre></code></style><script>{code}</script>" for code in SCRIPTS),
    *(
        f"<{element} {EVENTS[number % len(EVENTS)]}={code}>"
        for number, element in enumerate(ELEMENTS)
        for code in SCRIPTS
    ),
    *(f'" {event}="alert(1)" x="' for event in EVENTS),
    *(f"' {event}='alert(1)' x='" for event in EVENTS),
    *(f"[text]({scheme})" for scheme in SCHEMES),
    *(f"![text]({scheme})" for scheme in SCHEMES),
    *(f"<{scheme}>" for scheme in SCHEMES),
    *(f'<a href="{scheme}">x</a>' for scheme in SCHEMES),
    *(f"[a]: {scheme}\n\n[a]" for scheme in SCHEMES),
    "[x](https://evil.example 'onclick=\"alert(1)\"')",
    '[x](https://evil.example/"onclick=alert(1)//)',
    "[<img src=x onerror=alert(1)>](https://evil.example)",
    "![<svg onload=alert(1)>](x)",
    "`<script>alert(1)</script>`",
    "```html\n<script>alert(1)</script>\n```",
    '```"><script>alert(1)</script>\nx\n```',
    "~~~ <b onclick=x>\nx\n~~~",
    '| <script>x</script> | b |\n| - | - |\n| <img onerror=x> | " onclick=x |',
    "> <iframe src=x>",
    "# <svg/onload=x>",
    "- <script>x</script>\n- [ ] <input autofocus>",
    "~~<b>~~",
    "<!-- --><script>x</script>",
    "<!--><script>x</script>-->",
    "<![CDATA[<script>x</script>]]>",
    "<?php echo 1 ?>",
    "<svg><style><img src=x onerror=alert(1)></style></svg>",
    "<math><mtext><table><mglyph><style><img src onerror=alert(1)>",
    "<template><script>x</script></template>",
    "<base href=//evil.example>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<style>*{background:url(//evil.example)}</style>",
    "<div style='position:fixed;inset:0;background:url(//evil.example)'>",
    "<live-entries src=//evil.example>",
    "<live-state src='/jobs/x/events'>",
    '<form method=post action=/jobs><input name=token value="">',
    "<noscript><p title='</noscript><script>x</script>'>",
    "{{ 7 * 7 }}",
    "{{ config }}",
    "{% include '/etc/passwd' %}",
    "{{ ''.__class__.__mro__ }}",
    "{# x #}",
    "${7*7}",
    "<%= 7*7 %>",
    "#{7*7}",
    "body{display:none}",
    "expression(alert(1))",
    "@import url(//evil.example)",
    "data: x\n\nevent: state\ndata: <b>",
    "\u202egnp.exe\u2066",
    "\u200fabc\u200e\u061c",
    "\x00\x01\x08\x1b[2J\x1b]0;owned\x07",
    "\x9b8m\x9d0;owned\x9c",
    "\ud800 alone",
    "\udfff",
    "\ufeff\u2028\u2029\u0085",
    "\ufffe\uffff",
    "z\u0301\u0302\u0303" * 200,
    "\U000e0001\U000e0041",
    "<" * 5000,
    "&" * 5000,
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#60;script&#62;",
    "%3Cscript%3E",
    "\\u003cscript\\u003e",
    "+ADw-script+AD4-",
    "<scr\x00ipt>alert(1)</scr\x00ipt>",
    "<scr<script>ipt>",
    "＜script＞",
    "<script/x>",
    "<\nscript>",
    "<ScRiPt>",
    "<img/src=x/onerror=alert(1)>",
    "<a\thref=x>",
    "<x" * 1000,
    "[" * 5000,
    "> " * 3000,
    "*" * 5001,
    "../" * 50,
    "/jobs/x?\r\nSet-Cookie: a=b",
    "#top",
    "?key=1",
    "\\",
    "`" * 999,
    "![](" * 800,
    "- " * 2000,
    "x" * 200_000,
    "<b>" * 40_000,
)
"""Payloads. The last ones are long: a page cuts them."""

NAMES = (
    "</td><script>alert(1)</script>",
    '" onmouseover="alert(1)',
    "<img src=x onerror=alert(1)>",
    "{{ 7 * 7 }}",
    "a\u202eb",
)
"""What is short enough for a name."""
PER_JOB = 60
EXPERTS = [f"e{number}" for number in range(-(-len(PAYLOADS) // PER_JOB))]
PROJECT = """
maxRepeats = 0
maxSteps = 300
[permissions]
ask = ["writeTextFile"]
""" + "".join(
    f"[experts.{json.dumps(key)}]\ndescription = {json.dumps(NAMES[0])}\ninstruction = {json.dumps(NAMES[2])}\n"
    "ask = true\n"
    for key in (*EXPERTS, "asker", "writer", "failing")
)
PER_KIND = 8  # pages of one kind that are looked at

ELEMENTS_OF_MARKDOWN = {
    "p",
    "strong",
    "em",
    "s",
    "code",
    "pre",
    "blockquote",
    "ul",
    "ol",
    "li",
    "hr",
    "br",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "span",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
}
ATTRIBUTES_OF_MARKDOWN = {"class", "title", "start"}


class Reader(HTMLParser):
    """The elements and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[tuple[str, str]] = set()
        self.addresses: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        for name, value in attrs:
            self.attributes.add((tag, name))
            if name in ("href", "src", "action", "formaction", "data", "poster", "xlink:href"):
                self.addresses.add(value or "")

    def handle_comment(self, data: str) -> None:
        self.elements.add("a comment")

    def unknown_decl(self, data: str) -> None:
        self.elements.add("a declaration")

    def handle_pi(self, data: str) -> None:
        self.elements.add("a processing instruction")


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    return reader


def of_templates() -> tuple[set[str], set[str]]:
    """Return the names of the elements and attributes that the templates are written with."""
    from importlib.resources import files

    text = "".join(one.read_text() for one in files("perstack_studio").joinpath("templates").iterdir() if one.is_file())
    text = re.sub(r"\{#.*?#\}", "", text, flags=re.DOTALL)
    elements = {name.lower() for name in re.findall(r"<([a-zA-Z][\w-]*)", text)}
    attributes = {name.lower() for name in re.findall(r'[\s}]([a-zA-Z][\w-]*)(?=="|[\s>{])', text)}
    return elements | ELEMENTS_OF_MARKDOWN | {"svg", "rect", "text", "line", "g", "path", "title"}, attributes


ALLOWED, ALLOWED_ATTRIBUTES = of_templates()
NEVER = {
    "script",
    "iframe",
    "object",
    "embed",
    "base",
    "style",
    "audio",
    "video",
    "math",
    "marquee",
    "noscript",
    "template",
}


def check(page: str, path: str = "") -> None:
    """Check that a page has nothing but what templates and Markdown are made of."""
    found = read(page.replace('<script type="module" src="/static/studio.js"></script>', "", 1))
    assert found.elements <= ALLOWED - NEVER, (path, found.elements - (ALLOWED - NEVER))
    names = {name for _, name in found.attributes}
    assert not {name for name in names if name.startswith("on")}, (path, names)
    assert names <= ALLOWED_ATTRIBUTES | ATTRIBUTES_OF_MARKDOWN, (path, names - ALLOWED_ATTRIBUTES)
    for address in found.addresses:
        parts = urlsplit(address)
        assert not parts.scheme, (path, address)
        assert not parts.netloc, (path, address)
        assert address.startswith(("/", "#", "?")), (path, address)
    assert "owned" not in re.sub(r"<[^>]*>", "", page) or "\x1b" not in page, path
    assert not [char for char in page if char in "\x00\x01\x08\x1b\x9b\x9d\u202e\u2066\u200f\u061c"], path


def test_there_are_two_hundred_payloads() -> None:
    assert len({*PAYLOADS}) >= 200


@pytest.mark.parametrize("number", range(len(PAYLOADS)))
def test_no_payload_is_markup_as_text_or_as_markdown(number: int) -> None:
    payload = PAYLOADS[number]
    template = make_templates().from_string(
        '<p title="{{ text }}">{{ text }}</p><pre>{{ text | json }}</pre>{{ text | short }}'
    )

    rendered = template.render(text=payload)

    check(rendered)
    found = read(str(markdown(payload)))
    assert found.elements <= ELEMENTS_OF_MARKDOWN
    assert {name for _, name in found.attributes} <= ATTRIBUTES_OF_MARKDOWN
    assert not found.addresses
    assert len(str(cleaned(payload))) <= 100_100


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StudioServer]:
    """Serve a project whose Jobs have the payloads in every text."""
    terminal = Terminal(tmp_path_factory.mktemp("hostile"))
    with trusting(terminal.workspace):
        # a script is JSON of UTF-8, which has no lone surrogates
        payloads = [payload[:20_000].encode(errors="replace").decode() for payload in PAYLOADS]
        turns = {}
        for number, key in enumerate(EXPERTS):
            mine = payloads[number * PER_JOB : (number + 1) * PER_JOB]
            turns[key] = [
                reply(
                    payload,
                    (NAMES[at % len(NAMES)] if at % 9 == 0 else "readTextFile", {"path": payload, payload[:80]: 1}),
                    thinking=payload,
                )
                for at, payload in enumerate(mine)
            ] + [reply("\n\n".join(payload[:300] for payload in mine))]
        options = [payload[:200] for payload in payloads[:8]]
        turns["asker"] = [reply("", ("askUser", {"question": "\n\n".join(payloads[:40]), "options": options}))]
        turns["writer"] = [
            reply("", ("writeTextFile", {"path": "a<b>.txt", "text": "\n".join(one[:500] for one in payloads)}))
        ]
        turns["failing"] = [{"error": {"message": NAMES[0] + NAMES[1], "status": 400}}]
        terminal.project(PROJECT, **turns)
        for key in turns:
            query = "".join(name for name in NAMES) + f" for {key}"
            result = terminal.run(
                *("run", key, query, "--provider", "scripted", "--no-input", "--job-id", f"of-{key}"),
                *("--label", f"kind={NAMES[2]}"),
            )
            assert result.code in (0, 1, 3), result.err
        # an argument of a program has no NUL, and at most 128 KiB
        shown = "\n\n".join(payload[:300].replace("\0", "") for payload in payloads)
        for reason in ("human_approval", "human_input"):
            for command in (
                ("create", f"of-{reason}", "--agent", NAMES[1], "--name", NAMES[0], "--description", shown, "--start"),
                (
                    "checkpoint",
                    f"of-{reason}",
                    "--state",
                    json.dumps({payload[:80]: payload[:80] for payload in payloads}),
                ),
                ("pause", f"of-{reason}", "--reason", reason, "--message", shown),
            ):
                result = terminal.run("task", *command)
                assert result.code == 0, result.err
        with serving_studio(terminal) as running:
            yield running


@pytest.fixture(scope="module")
def visitor(server: StudioServer) -> Visitor:
    return server.visitor()


def crawl(visitor: Visitor) -> Iterator[tuple[str, str]]:
    """Yield pages that links lead to, some of each kind, with their paths."""
    seen: set[str] = set()
    kinds: dict[str, int] = {}
    waiting = ["/", "/jobs", "/experts/asker/start", "/experts", "/costs", "/health", "/search?q=script"]
    while waiting:
        path = waiting.pop(0)
        kind = re.sub(r"of-\w+(-\d+)*|\d+|[0-9a-f]{64}", "*", path.partition("?")[0])
        kinds[kind] = kinds.get(kind, 0) + 1
        if path in seen or kinds[kind] > PER_KIND:
            continue
        seen.add(path)
        response = visitor.client.get(path)
        if response.headers.get("content-type", "").startswith("text/html"):
            yield path, response.text
            waiting += [
                unescape(one) for one in re.findall(r' href="(/[^"]*)"', response.text) if "/static/" not in one
            ]


def test_no_page_has_markup_of_a_payload(visitor: Visitor) -> None:
    paths = []
    for path, page in crawl(visitor):
        check(page, path)
        paths.append(path)

    assert any(path.startswith("/questions/") for path in paths)
    assert {"/tasks/of-human_approval/question", "/tasks/of-human_input/question"} <= {*paths}
    assert sum("/runs/" in path for path in paths) > len(EXPERTS)


@pytest.mark.parametrize("payload", [*NAMES, "javascript:alert(1)", "../" * 20, "%00", "x" * 5_000])
def test_no_address_makes_markup(visitor: Visitor, payload: str) -> None:
    text = quote(payload, safe="")
    for path in (
        f"/{text}", f"/jobs/{text}", f"/jobs/of-e0/runs/{text}", f"/jobs/of-e0/runs/of-e0-1?until={text}",
        f"/questions/{text}", f"/jobs?text={text}&expert={text}&label={text}&status={text}", f"/jobs?cost={text}",
        f"/jobs?after={text}", f"/experts/{text}/start", f"/search?q={text}", f"/tasks/{text}/question",
    ):  # fmt: skip
        response = visitor.client.get(path)
        assert response.status_code < 500, (path, response.text[:500])
        if response.headers["content-type"].startswith("text/html"):
            check(response.text, path)
