"""docs/python.md: it is made of the docstrings, and each of its examples runs and passes the type checkers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from pages import ROOT, section
from python_page import EXAMPLES, PAGE, PARTS, page

import perstack

ASKS = {"tools": [{"name": "askUser", "input": {"question": "Which sea?"}}]}
SCRIPT = {
    "writer": [{"text": "snow falls on the log"}],
    "guide": [ASKS, {"text": "Two days in Camogli."}],
    "census": [{"text": '{"name": "Lyon", "people": 0}'}, {"text": '{"name": "Lyon", "people": 520000}'}],
    "clerk": [{"tools": [{"name": "in_stock", "input": {"article": "A-7"}}]}, {"text": "Twelve."}],
}
DEFINITION = """
[provider]
providerName = "scripted"

[prices."scripted/scripted"]
input = 1.0
output = 1.0

[experts.writer]
instruction = "Write what the query names."

[experts.guide]
instruction = "Plan a journey."
ask = true

[experts.census]
instruction = "Find out how many people live in the city of the query."
"""
PRINTED = {
    "first_job.py": f"finishRun\ncompleted snow falls on the log {perstack.__version__}\n",
    "stream.py": "asks: Which sea?\naskUser: In Liguria\nTwo\n days\n in\n Camogli.\ncompleted: Two days in Camogli.\n",
    "later.py": "completed Two days in Camogli.\n",
    "result.py": "Lyon 520000\n",
    "no_file.py": "Twelve.\n",
    "mistakes.py": "the caller: there is no Expert 'wirter' in ",
}
WRONG = """
from pydantic import BaseModel
import perstack

class City(BaseModel):
    name: str

def calls(host: perstack.Host) -> tuple[object, ...]:
    parsed: perstack.ParsedJob[City] = host.run_sync("a", "q", output=City, job_id="a")
    plain: perstack.JobSummary = perstack.run_sync("a", "q", labels={"a": "b"}, storage="sqlite:a.db")
    other: perstack.ParsedJob[City] = host.run_sync("a", "q")  # wrong
    host.run_sync("a", "q", job_id=3)  # wrong
    perstack.run_sync("a", "q", lables={})  # wrong
    perstack.run_sync("a", "q", output=City, storage=3)  # wrong
    return parsed, plain, other

async def later(host: perstack.Host) -> tuple[object, ...]:
    answered: perstack.ParsedJob[City] = await host.answer("yes", output=City, question_id="a")
    resumed: perstack.ParsedJob[City] = await host.resume("a", output=City, max_steps=3)
    continued: perstack.ParsedJob[City] = await host.continue_job("a", "q", output=City)
    plain: perstack.JobSummary = await host.resume()
    await host.answer("yes", output=City(name="a"))  # wrong
    await host.resume(max_steps="3")  # wrong
    await host.submit("a", "q", priority="3")  # wrong
    return answered, resumed, continued, plain
"""
HTTP = ("web_fastapi.py", "web_django.py")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project on a model that plays a script, in any process."""
    (tmp_path / "perstack.toml").write_text(DEFINITION)
    experts = {key: {"turns": turns, "repeat": True} for key, turns in SCRIPT.items()}
    (tmp_path / "script.json").write_text(json.dumps({"experts": experts}))
    monkeypatch.setenv("PERSTACK_PLUGINS", "perstack.testing.plugin")
    monkeypatch.setenv("PERSTACK_SCRIPT", str(tmp_path / "script.json"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_is_made_of_the_docstrings() -> None:
    assert PAGE.read_text() == page(), "python tests/support/python_page.py"


def test_every_public_name_is_on_the_page_once_and_in_an_example() -> None:
    names = [name for _, names, _ in PARTS.values() for name in names]
    assert sorted(names) == sorted(perstack.__all__)
    code = "".join(path.read_text() for path in EXAMPLES.glob("*.py"))
    assert [name for name in names if name not in code] == []
    assert {name for _, _, names in PARTS.values() for name in names} == {path.name for path in EXAMPLES.glob("*.py")}
    assert {*PRINTED, *HTTP} == {path.name for path in EXAMPLES.glob("*.py")}


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_should(name: str, folder: Path) -> None:
    done = subprocess.run([sys.executable, EXAMPLES / name], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    if name == "mistakes.py":
        assert done.stdout.startswith(PRINTED[name])
    else:
        assert done.stdout.endswith(PRINTED[name])


@pytest.fixture(scope="module", params=[["mypy", "--strict"], ["pyright"]], ids=["mypy", "pyright"])
def checked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return what a type checker says of the examples, wrong arguments, and a match that forgets an event.

    One run for all of them: a start takes longer than the examples.
    """
    folder = tmp_path_factory.mktemp("checked")
    whole = (EXAMPLES / "stream.py").read_text()
    partial = whole.replace("        case DelegateStarted():\n", "        case DelegateStarted() if event.query:\n")
    assert partial != whole
    (folder / "wrong.py").write_text(WRONG)
    (folder / "partial.py").write_text(partial)
    missing = [] if find_spec("django") else ["web_django.py"]
    examples = sorted(str(path) for path in EXAMPLES.glob("*.py") if path.name not in missing)
    done = subprocess.run(
        [sys.executable, "-m", *request.param, *examples, str(folder / "wrong.py"), str(folder / "partial.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    return [line.strip() for line in done.stdout.splitlines() if " error: " in line or " - error" in line]


def test_the_examples_pass_the_type_checkers(checked: list[str]) -> None:
    assert [line for line in checked if "/checked" not in line] == []


def test_a_wrong_argument_is_an_error_of_the_type_checkers(checked: list[str]) -> None:
    found = {int(line.split(":")[1]) for line in checked if "wrong.py:" in line}
    wanted = {number for number, line in enumerate(WRONG.splitlines(), 1) if line.endswith("# wrong")}
    assert found == wanted, checked


def test_an_event_that_a_match_forgets_is_an_error_of_the_type_checkers(checked: list[str]) -> None:
    (error,) = [line for line in checked if "partial.py:" in line]
    assert "DelegateStarted" in error


def test_a_job_is_read_as_server_sent_events_and_its_question_answered_in_fastapi(folder: Path) -> None:
    code = f"""
import json, runpy
from fastapi.testclient import TestClient

def read(text):
    lines = [dict(line.split(": ", 1) for line in part.splitlines()) for part in text.strip().split("\\n\\n")]
    return [(line["event"], json.loads(line["data"])) for line in lines]

with TestClient(runpy.run_path({str(EXAMPLES / "web_fastapi.py")!r})["app"]) as client:
    with client.stream("GET", "/events", params={{"query": "Go."}}) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        (kind, asked), = read("".join(reply.iter_text()))
    assert (kind, asked["text"]) == ("Question", "Which sea?"), asked
    given = {{"question": asked["id"], "text": "In Liguria"}}
    done = client.post("/answers", json=given).json()
    assert (done["status"], done["text"]) == ("completed", "Two days in Camogli."), done
    again = client.post("/answers", json=given)
    assert again.status_code == 409, again.text
    assert client.post("/answers", json={{**given, "question": "nobody-1-1"}}).status_code == 422
    events = read(client.get("/events", params={{"query": "Go."}}).text)
    assert [kind for kind, _ in events] == ["Question"], events
"""
    _run(code)


def test_a_question_is_answered_over_http_in_django(folder: Path) -> None:
    pytest.importorskip("django")
    code = f"""
import asyncio, json, sys
sys.path.insert(0, {str(EXAMPLES)!r})
import web_django
from django.test import AsyncClient, Client

async def work() -> None:
    client = AsyncClient()
    asked = (await client.post("/jobs", json.dumps({{"query": "Go."}}), "application/json")).json()
    assert (asked["status"], asked["asks"]["text"]) == ("stoppedByInteractiveTool", "Which sea?"), asked
    given = json.dumps({{"question": asked["asks"]["question"], "text": "In Liguria"}})
    done = (await client.post("/answers", given, "application/json")).json()
    assert (done["id"], done["status"], done["text"]) == (asked["id"], "completed", "Two days in Camogli."), done
    assert (await client.post("/answers", given, "application/json")).status_code == 409

asyncio.run(work())
asked = Client().post("/jobs", json.dumps({{"query": "Go."}}), "application/json").json()
assert asked["asks"]["text"] == "Which sea?", "a server without an event loop will do"
"""
    _run(code)


def _run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr


def test_the_two_web_applications_have_less_than_fifty_lines() -> None:
    assert all(len((EXAMPLES / name).read_text().splitlines()) < 50 for name in HTTP)


@pytest.mark.parametrize("record", [perstack.JobSummary, perstack.Overrides, perstack.Expert, perstack.Project])
def test_every_field_of_a_record_is_on_the_page_with_its_type_and_meaning(record: type) -> None:
    part = section(PAGE.read_text(), f"### {record.__name__}")
    rows = dict(re.findall(r"^\| `(\w+)` \| `[^`]+` \| (.+) \|$", part, re.M))
    names = {"key": "name"} if record is perstack.Expert else {}
    assert {names.get(name, name) for name in getattr(record, "__pydantic_fields__", {})} <= {*rows}
    assert all(re.search(r"\w{3}", meaning) for meaning in rows.values()), rows
