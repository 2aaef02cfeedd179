"""Every screen and state is unchanged, and the pictures in docs/start.md show the real program.

`PERSTACK_KEEP_SCREENS=1` writes them anew; look at each before it is committed.
"""

from __future__ import annotations

import os
import pkgutil
import re
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from hosts import Bench, wait_for
from pages import ROOT
from scenes import SCENES, Still, program_of
from terminal_app import run_app
from textual.screen import Screen

from perstack.engine.plugins import job_skills
from perstack.engine.runs import generation, tool_calls
from perstack.engine.runs import generation as tries
from perstack.system import user
from perstack.system.clock import SystemClock
from perstack_tui import screens

KEEPS = bool(os.environ.get("PERSTACK_KEEP_SCREENS"))
SMALL, MIDDLE, WIDE = (80, 24), (120, 40), (200, 50)
MORE_SIZES = {
    MIDDLE: ("approval", "draft", "refusing", "scrolled", "find", "checkpoints", "commands", "model"),
    WIDE: ("choose", "help", "work", "approval"),
}
"""Scenes with pictures of more sizes."""
SUFFIXES = {SMALL: "", MIDDLE: "-middle", WIDE: "-wide"}
IN_DOCS = {"choose", "work", "question", "approval", "tabs", "interrupted", "help"}
PICTURES = Path(__file__).parent / "pictures"


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the time zone to UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a workspace whose path always has the same length."""
    with TemporaryDirectory(prefix="", dir="/tmp") as name:
        path = Path(name) / "haiku"
        path.mkdir()
        yield path


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize(
    ("name", "size"),
    [
        *((name, SMALL) for name in SCENES),
        *((name, size) for size, names in MORE_SIZES.items() for name in names),
    ],
)
def test_a_screen_looks_as_it_did(
    name: str, size: tuple[int, int], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, clock = Bench(folder, "file:perstack"), Still()
    monkeypatch.setattr(SystemClock, "now", lambda _: clock.now())
    monkeypatch.setattr(user, "_user", lambda: "ann")
    for module in (generation, job_skills, tool_calls, tries):  # what is measured takes no time
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 0.0))
    if name == "no-color":
        monkeypatch.setenv("NO_COLOR", "1")
    (bench.workspace / "notes.md").write_text("# Notes\n\nversion 1\n")

    path = (ROOT / "docs/pictures" if name in IN_DOCS and size == SMALL else PICTURES) / f"{name}{SUFFIXES[size]}.svg"
    before = drawn_text(path.read_text()) if path.exists() and not KEEPS else None

    async def person() -> tuple[str, str]:
        app = program_of(name, bench, clock)
        async with run_app(app.host, size=size, app=app) as screen:
            await SCENES[name].scene(screen)
            assert type(app.screen).__name__ == SCENES[name].shows
            return await screen.pictured(plain, before, drawn_text)

    drawn, picture = wait_for(person(), 60)
    if KEEPS:
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(picture)
        print(f"──── {name} ────\n{drawn}")
    assert path.exists(), f"{path} is missing: PERSTACK_KEEP_SCREENS=1 writes it"
    assert drawn_text(picture) == drawn_text(path.read_text()), f"it looks like this now:\n{drawn}"


def test_every_screen_has_a_picture() -> None:
    for module in pkgutil.iter_modules(screens.__path__):
        import_module(f"{screens.__name__}.{module.name}")
    own_screens = {subclass for subclass in _subclasses(Screen) if subclass.__module__.startswith(screens.__name__)}
    names = {screen.__name__ for screen in own_screens if not screen.__subclasses__()}
    assert names | {"Screen", "CommandPalette"} == {scene.shows for scene in SCENES.values()}


def test_no_picture_is_left_of_what_there_is_no_more() -> None:
    small = {f"{name}.svg" for name in set(SCENES) - IN_DOCS}
    others = {f"{name}{SUFFIXES[size]}.svg" for size, names in MORE_SIZES.items() for name in names}
    assert {path.name for path in PICTURES.iterdir()} - small == others


def test_without_colours_a_picture_has_greys_only() -> None:
    colours = re.findall(r"#([0-9a-f]{6})\b", (PICTURES / "no-color.svg").read_text())
    window = {"ff5f57", "febc2e", "28c840", "c5c8c6"}  # the buttons and the title that are drawn around what is seen
    assert colours
    assert [colour for colour in colours if colour not in window and not colour[:2] == colour[2:4] == colour[4:]] == []


def _subclasses(kind: type[Screen[object]]) -> Iterator[type[Screen[object]]]:
    for one in kind.__subclasses__():
        yield one
        yield from _subclasses(one)


def plain(svg: str) -> str:
    """Return the picture without parts that vary, and without resources it would fetch."""
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S)
    svg = re.sub(r"terminal-\d+", "terminal", svg)
    svg = re.sub(r"<!-- Generated .*?-->\s*", "", svg).replace("Fira Code", "monospace")
    svg = re.sub(r"/tmp/\w{8}/haiku", "/tmp/________/haiku", svg)
    svg = re.sub(r"\b1m[0-9a-z]{10}(?=-\d)", "1m0000000000", svg)  # a Job's id
    return "".join(f"{line.rstrip()}\n" for line in svg.splitlines())


def drawn_text(svg: str) -> str:
    """Return the text in a picture."""
    return "\n".join(re.findall(r"<text [^>]*>([^<]*)</text>", svg))
