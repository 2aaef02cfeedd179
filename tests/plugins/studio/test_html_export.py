"""`perstack export --format html`: a Job as one file that refers to nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from hosts import Bench, expert, wait_for
from long_jobs import long_job
from terminal import TEAM, Terminal, reply

from perstack.testing.scripted import text, tool, turn
from perstack_studio.html_export import MAX_BYTES, html_of_job

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)> [a](javascript:alert(1)) \u202e"


def _refers_outside(page: str) -> list[str]:
    attributes = re.findall(r"<[^>]*?\b(?:href|src|action|srcset|poster)=\"([^\"]*)\"", page)
    return [
        *(value for value in attributes if not value.startswith("#")),
        *re.findall(r"url\(|@import|<script|<link", page),
    ]


def test_a_job_is_exported_as_one_file(terminal: Terminal) -> None:
    terminal.project(TEAM, lead=[reply(f"The **result** {HOSTILE}")])
    assert terminal.run("run", "lead", f"Say {HOSTILE}", "--provider", "scripted").code == 0

    done = terminal.run("export", "@last", "--format", "html", "--to", "job.html")

    assert done.code == 0, done.err
    page = (terminal.workspace / "job.html").read_text()
    assert "<strong>result</strong>" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<style>" in page
    assert not _refers_outside(page)
    assert not re.search("<img|<form|\u202e", page)


def test_an_unknown_format_names_all(terminal: Terminal) -> None:
    terminal.project(TEAM, lead=[reply("Done.")])
    assert terminal.run("run", "lead", "Go", "--provider", "scripted").code == 0

    result = terminal.run("export", "@last", "--format", "htm")

    assert result.code == 2
    assert "html, json, jsonl" in result.err


def test_other_formats_do_not_import_the_studio(terminal: Terminal) -> None:
    terminal.project(TEAM, lead=[reply("Done.")])
    assert terminal.run("run", "lead", "Go", "--provider", "scripted").code == 0
    shown = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "perstack", "export", "@last", "--format", "json"],
        cwd=terminal.workspace, env=terminal.env, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "perstack_studio.html_export" not in shown.stderr
    assert "jinja2" not in shown.stderr


def test_a_long_job_is_below_the_limit(bench: Bench, tmp_path: Path) -> None:
    wait_for(long_job(bench, 1_000, said="I look at it again. " * 40))
    host = bench.host([], expert("writer"))

    page = wait_for(html_of_job(host, "long")).decode()

    assert len(page.encode()) < MAX_BYTES
    assert page.count('<article class="entry call"') == 999
    assert not _refers_outside(page)


def test_what_is_too_long_is_cut_or_left_out_with_a_note(bench: Bench) -> None:
    host = bench.host([turn(tool("think", {"thought": "x" * 400_000}), text="y" * 900_000), text("Done.")], expert("a"))
    wait_for(host.run("a", "Go", job_id="big"))

    page = wait_for(html_of_job(host, "big")).decode()

    assert len(page.encode()) < MAX_BYTES
    assert "more characters" in page
