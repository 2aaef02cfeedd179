"""The demo's own check: a run that did not do the work never passes for one that did."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

DEMO = Path(__file__).resolve().parents[3] / "demo"

BODY = """\
Storages

A storage keeps the events of every Run. The filesystem storage writes one folder for each Job, with a log of events
for each Run and small files for checkpoints. The database storage keeps all Jobs in one file. Either way an event is
on the disk before the next step begins, and a torn line at the end of a log is repaired when the storage is opened.
"""

NOTE = "The database storage keeps all Jobs in **one** file."


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The demo's scripts are no package: their directory is on the path while they run, as it is here."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(DEMO))
    import check

    yield check
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(DEMO)):
            del sys.modules[name]


def _events(note: str = NOTE, *, expert: str = "writer", is_error: bool = False) -> list[dict[str, object]]:
    delegated = {"delegatedBy": {"runId": "j-1"}} if expert == "writer" else {}
    run = {"jobId": "j", "runId": "j-2", "expertKey": expert}
    call = {"type": "toolCallPart", "toolName": "writeTextFile", "args": {"path": "summary.md", "text": note}}
    return [
        {"type": "initializeRuntime"},
        {"type": "startRun", "jobId": "j", "runId": "j-1", "expertKey": "editor"},
        {"type": "startRun", **run, **delegated},
        {"type": "finishGeneration", **run, "reply": [call], "usage": {"inputTokens": 1, "outputTokens": 2}},
        {"type": "finishToolCall", **run, "toolCallId": "c", "isError": is_error},
        {"type": "finishRun", "runId": "j-1", "expertKey": "editor", "text": "Done."},
    ]


def _problems(
    demo: ModuleType,
    workspace: Path,
    note: str | None = NOTE,
    events: list[dict[str, object]] | None = None,
    exit_code: int = 0,
) -> list[str]:
    if note is not None:
        (workspace / "summary.md").write_text(note, encoding="utf-8")
    from texts import Text

    text = Text("docs/storages.md", "Storages", BODY)
    outcome = demo.Outcome(text, workspace, exit_code, events=_events(note or "") if events is None else events)
    problems: list[str] = demo.problems_of(outcome)
    return problems


def test_a_sentence_of_the_text_that_the_delegate_wrote_passes(demo: ModuleType, tmp_path: Path) -> None:
    assert _problems(demo, tmp_path) == []


def test_no_file_is_no_success_whatever_the_model_says(demo: ModuleType, tmp_path: Path) -> None:
    assert _problems(demo, tmp_path, None) == ["there is no summary.md"]


def test_a_failed_command_is_no_success_whatever_the_file_says(demo: ModuleType, tmp_path: Path) -> None:
    assert _problems(demo, tmp_path, exit_code=4) == ["perstack run ended with status 4"]


def test_a_file_that_the_delegate_did_not_write_is_no_success(demo: ModuleType, tmp_path: Path) -> None:
    (by_coordinator,) = _problems(demo, tmp_path, events=_events(expert="editor"))
    assert by_coordinator == "the Coordinator delegated nothing"
    (other_words,) = _problems(demo, tmp_path, events=_events("# Another note"))
    assert other_words == "summary.md is not what the delegate's tool wrote"
    (refused,) = _problems(demo, tmp_path, events=_events(is_error=True))
    assert refused == "the delegate's tool wrote nothing"


@pytest.mark.parametrize(
    ("note", "problem"),
    [
        ("A storage keeps events.", "only 4 words"),
        (BODY, "copy of the text"),
        ("This is a summary of the work that was done in the loop.", "words are the text's"),
        ("Red and green are colours which painters like to mix.", "words are the text's"),
    ],
)
def test_a_file_that_is_empty_copied_or_made_up_is_refused(
    demo: ModuleType, tmp_path: Path, note: str, problem: str
) -> None:
    assert any(problem in found for found in _problems(demo, tmp_path, note))


def test_there_are_ten_texts_of_fitting_length_in_this_repository(demo: ModuleType) -> None:
    import texts

    found = texts.texts()
    assert len(found) >= 10
    assert len({text.body for text in found}) == len(found)
    assert all(texts.SHORTEST <= len(text.body) <= texts.LONGEST + 200 for text in found)
    assert not any("```" in text.body for text in found)
