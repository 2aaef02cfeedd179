"""tools/names.py: one word for one type, predicates that only read, and no name in a text that does not exist."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "names.py"


@pytest.fixture(scope="module")
def names() -> ModuleType:
    spec = spec_from_file_location("names_of_the_code", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # for its dataclasses and annotations
    spec.loader.exec_module(module)
    return module


def test_each_type_of_the_glossary_has_its_word_and_no_other_has_it(names: ModuleType) -> None:
    assert names.glossary_violations() == []


def test_a_predicate_only_reads(names: ModuleType) -> None:
    assert names.acting_predicates() == []


def test_each_name_in_a_docstring_a_comment_and_a_page_exists(names: ModuleType) -> None:
    assert [*names.stale_names(), *names.stale_page_names()] == []


def test_the_glossary_is_the_table_of_the_page(names: ModuleType) -> None:
    words = names.glossary()
    assert words["JobSummary"] == "summary"
    assert len(words) > 30
    assert len(set(words.values())) == len(words)


def _write(folder: Path, text: str) -> Path:
    path = folder / "host" / "perstack" / "module.py"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_a_wrong_word_an_acting_predicate_and_a_stale_name_are_found(
    names: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '''
class Run: ...
class Other: ...
async def begin(job: Run, base_run: Run, run: Other | None) -> None:
    """Begin as `_gone` says. Raises Vanished."""
def is_done(state: list[int]) -> bool:
    state[0] = 1
    raise ValueError
'''
    module = _write(tmp_path, text)
    package = module.parent / "things"
    package.mkdir()
    (package / "__init__.py").write_text('"""Things."""')
    (package / "sorts.py").write_text(
        '"""As `things.sorts.Sort`, not as `things.Sort`, not in `things.module.Run`."""\nclass Sort: ...'
    )
    monkeypatch.setattr(names, "ROOT", tmp_path)
    monkeypatch.setattr(names, "glossary", lambda: {"Run": "run"})
    assert [line.split(": ", 1)[1] for line in names.glossary_violations()] == [
        "job: Run is not called run",
        "run: Other, but run means Run",
    ]
    assert [line.split(": ", 1)[1] for line in names.acting_predicates()] == ["is_done assigns", "is_done raises"]
    assert [line.split(": ", 1)[1] for line in names.stale_names()] == [
        "_gone",
        "Vanished",
        "things.Sort",
        "things.module.Run",
    ]
