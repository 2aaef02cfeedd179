"""The pytest plugin: its fixture, the tests of a definition file, and what it costs where nobody uses it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

DEFINITION = """
[experts.guest]
instruction = "[[guest]] asks."
ask = true

[[experts.guest.tests]]
name = "asks"
query = "q"
model = "script.json"
answers = ["Tea"]
expect.called = ["askUser"]

[[experts.guest.tests]]
name = "fails"
query = "q"
model = "script.json"
expect.files = { "none.md" = "" }
"""
SCRIPT = {
    "experts": {
        "*": {"turns": [{"tools": [{"name": "askUser", "input": {"question": "Tea?"}}]}, {"text": "Served.\u001b[2J"}]}
    }
}
TESTS = """
import asyncio

import pytest

from perstack import UsageError
from perstack.testing.scripted import text, tool, turn

ASK = [turn(tool("askUser", {"question": "Tea?"}), usage=(100, 10)), text("Served.")]


def test_good(perstack_host):
    bench = perstack_host(ASK)
    ran = bench.run("guest", "q", answers=["Tea"])
    ran.expect(called=["askUser(question=Tea*)"], result_contains=["Served"], result_matches="^S", max_steps=2)
    waits = bench.run("guest", "q")
    waits.expect(status="waiting")
    assert (ran.cost, len(ran.called("askUser")), len(bench.script.requests)) == ("unknown", 1, 3)
    with pytest.raises(AssertionError, match="none.md is missing"):
        ran.read("none.md")
    with pytest.raises(UsageError, match="must be a file in the workspace"):
        ran.expect(files={"../x": ""})


def test_bad(perstack_host):
    perstack_host("script.json").run("guest", "q").expect(files={"none.md": ""}, max_cost=0)


def test_async(perstack_host):
    async def main():
        bench = perstack_host(ASK)
        ran = await bench.arun("guest", "q")
        async with bench.host() as host:
            assert (await host.job(ran.summary.id)).question == "Tea?"

    asyncio.run(main())
"""


def pytest_in(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    (folder / "perstack.toml").write_text(DEFINITION)
    (folder / "script.json").write_text(json.dumps(SCRIPT))
    (folder / "test_it.py").write_text(TESTS)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={folder}/temp", *args],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_fixture_runs_experts_and_says_all_that_is_not_as_expected(tmp_path: Path) -> None:
    done = pytest_in(tmp_path)
    assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert "AssertionError: status is `waiting`, not `completed`: Tea?" in done.stdout
    assert "none.md is missing" in done.stdout
    assert "perstack log test-1 --storage file:" in done.stdout


def test_the_tests_of_a_definition_are_collected_where_it_is_named_and_nowhere_else(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, "perstack.toml", "-rA")
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert re.search(r"PASSED .*perstack\.toml::guest: asks", done.stdout)
    assert "status is `waiting`" in done.stdout
    assert "none.md is missing" in done.stdout
    (tmp_path / "perstack.toml").write_text(DEFINITION.replace("answers", "repeats"))
    wrong = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "perstack.toml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "experts.guest.tests[0].repeats: must be a whole number" in wrong.stdout


def test_where_nobody_uses_it_next_to_nothing_is_imported() -> None:
    look = "import sys, pytest; before = set(sys.modules); import perstack.testing.pytest_plugin;"
    shown = "print(*sorted(name for name in set(sys.modules) - before if not name.startswith('importlib')))"
    done = subprocess.run([sys.executable, "-c", look + shown], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {
        "perstack",
        "perstack.testing",
        "perstack.testing.pytest_plugin",
        "perstack.version",
    }
