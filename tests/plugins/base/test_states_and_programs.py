"""File tools keep off the state of every project, at any depth, and only read what the host runs."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SECRET = "the canary sings"
CHANGES: dict[str, dict[str, Any]] = {
    "writeTextFile": {"text": "changed"},
    "appendTextFile": {"text": "changed"},
    "editTextFile": {"oldText": "canary", "newText": "changed"},
    "deleteFile": {},
}
STATES = ["sub/perstack/job.json", "a/b/perstack/jobs/x/job.json", "sub/perstack/.rewinds/a.json", "perstack/x"]


def plant(workspace: Path, name: str, text: str = SECRET) -> Path:
    path = workspace / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def refused(answer: Any) -> bool:
    return answer.is_error and ("off limits" in answer.text or "may only read" in answer.text)


@pytest.mark.parametrize("name", STATES)
def test_the_state_of_a_project_is_neither_read_nor_changed(tools: Any, workspace: Path, name: str) -> None:
    path = plant(workspace, name)
    plant(workspace, f"{name.partition('perstack/')[0]}perstack.toml", "")
    for tool, args in {**CHANGES, "readTextFile": {}, "getFileInfo": {}, "createDirectory": {}}.items():
        assert refused(tools(tool, name, **args)), tool
        assert refused(tools(tool, name.replace("perstack/", "PERSTACK/"), **args)) or "PERSTACK" in name, tool
    assert refused(tools("moveFile", source=name, destination="mine"))
    assert refused(tools("listDirectory", str(Path(name).parent)))
    assert path.read_text() == SECRET


@pytest.mark.parametrize(
    "name", ["sub/perstack/jobs/j/job.json", "perstack/x/perstack/tasks/t", "Sub/PERSTACK/.rewinds/j"]
)
def test_a_state_cannot_be_made_before_its_definition(tools: Any, workspace: Path, name: str) -> None:
    assert refused(tools("writeTextFile", name, text="{}"))
    assert refused(tools("createDirectory", name))
    assert not (workspace / name).exists()


def test_a_state_cannot_be_moved_into_its_place(tools: Any, workspace: Path) -> None:
    plant(workspace, "sub/perstack.toml", "")
    plant(workspace, "evil/jobs/j/job.json")
    plant(workspace, "box/perstack/jobs/j")
    plant(workspace, "plain/notes.md")
    assert refused(tools("moveFile", source="evil", destination="sub/perstack"))
    assert refused(tools("moveFile", source="evil", destination="later/perstack"))
    assert refused(tools("moveFile", source="plain", destination="sub/perstack"))
    assert refused(tools("moveFile", source="evil/jobs", destination="later/perstack/jobs"))
    assert refused(tools("moveFile", source="box", destination="sub/box"))
    assert refused(tools("moveFile", source="sub", destination="moved"))
    assert refused(tools("deleteDirectory", "sub", recursive=True))
    (workspace / "link").symlink_to("evil")
    assert tools("moveFile", source="link", destination="later/perstack").is_error
    assert not (workspace / "later").is_symlink()


def test_a_state_is_known_through_a_link_and_not_listed(tools: Any, workspace: Path) -> None:
    plant(workspace, "sub/perstack.toml", "")
    plant(workspace, "sub/perstack/own.txt")
    plant(workspace, "other/perstack.toml", "")
    plant(workspace, "kept/own.txt")
    (workspace / "way").symlink_to("sub")
    (workspace / "other/perstack").symlink_to("../kept")
    assert refused(tools("readTextFile", "way/perstack/own.txt"))
    assert refused(tools("writeTextFile", "other/perstack/own.txt", text="x"))
    assert [item["name"] for item in tools("listDirectory", "sub").json["items"]] == ["perstack.toml"]
    assert refused(tools("exec", command="sh", args=["-c", "echo x > sub/perstack/own.txt"]))


@pytest.mark.parametrize(
    ("address", "place"), [("file:data/state", "data/state/j"), ("sqlite:./s.db", "s.db-wal"), ("file:../x", "../x/j")]
)
def test_a_state_that_a_definition_names_is_known(tools: Any, workspace: Path, address: str, place: str) -> None:
    plant(workspace, "sub/perstack.toml", f'storage = "{address}"\n')
    inside = not place.startswith("..")  # a place beside the project is not on the way
    assert refused(tools("writeTextFile", f"sub/{place}", text="x")) == inside
    if place.startswith("data"):
        plant(workspace, "evil/state/j")
        assert refused(tools("moveFile", source="evil", destination="sub/data"))
    plant(workspace, "sub/perstack.toml", 'storage = "file:elsewhere"\n')
    assert refused(tools("writeTextFile", "sub/elsewhere/j", text="x"))


@pytest.mark.parametrize(
    "name", ["src/perstack/core/x.py", "perstack2/jobs/x", "jobs/perstack", "src/perstack/.gitignore"]
)
def test_other_files_of_such_names_are_ordinary(tools: Any, workspace: Path, name: str) -> None:
    assert not tools("writeTextFile", name, text="here").is_error
    assert tools("readTextFile", name).json["content"] == "here"


PROGRAMS = ["check.py", "tools/check.py", "a/b/run"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_read_and_not_changed(tools: Any, workspace: Path, name: str) -> None:
    path = plant(workspace, name)
    run = replace(tools, read_only=(path,))
    assert run("readTextFile", name).json["content"] == SECRET
    for spelling in (name, f"./none/../{name}", str(path), name.upper(), name.replace("c", "\uff43")):
        for tool, args in CHANGES.items():
            answer = run(tool, spelling, **args)
            assert answer.is_error, (tool, spelling)
    plant(workspace, "mine")
    assert refused(run("moveFile", source=name, destination="taken"))
    assert run("moveFile", source="mine", destination=name).is_error
    top = name.split("/")[0]
    if top != name:
        assert refused(run("moveFile", source=top, destination="taken"))
        assert refused(run("deleteDirectory", top, recursive=True))
    assert refused(run("exec", command="sh", args=["-c", f"echo x > {name}"]))
    assert path.read_text() == SECRET


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_missing_program_is_not_made(tools: Any, workspace: Path, name: str) -> None:
    run = replace(tools, read_only=(workspace / name,))
    plant(workspace, f"evil/{Path(name).name}")
    assert refused(run("writeTextFile", name, text="x"))
    assert refused(run("createDirectory", name))
    assert refused(run("moveFile", source=f"evil/{Path(name).name}", destination=name))
    if name == "tools/check.py":
        assert refused(run("moveFile", source="evil", destination="tools"))
    assert not (workspace / name).exists()


def test_a_program_is_known_through_links_of_both_kinds(tools: Any, workspace: Path) -> None:
    path = plant(workspace, "tools/check.py")
    (workspace / "soft").symlink_to("tools/check.py")
    (workspace / "hard").hardlink_to(path)
    (workspace / "way").symlink_to("tools")
    run = replace(tools, read_only=(workspace / "way/check.py",))
    for name in ("soft", "hard", "way/check.py", "tools/check.py"):
        assert refused(run("appendTextFile", name, text="changed")), name
    assert refused(run("deleteFile", "way"))
    assert refused(run("moveFile", source="tools", destination="other"))
    assert path.read_text() == SECRET


def test_a_rule_that_names_a_program_opens_it(tools: Any, workspace: Path) -> None:
    path = plant(workspace, "out.md")
    run = replace(tools, read_only=(path,), opens=("out.md",))
    assert not run("writeTextFile", "out.md", text="result").is_error
    assert path.read_text() == "result"


def spellings(name: str) -> st.SearchStrategy[str]:
    """Return other ways to write a path that some file system takes for it."""
    part = st.sampled_from(["", "./", "x/../", "//", "./x/y/../../"])
    case = st.sampled_from([str, str.upper, str.title, lambda text: unicodedata.normalize("NFKC", text)])
    joiner = st.sampled_from(["", "\u200b", "\u00ad"])
    return st.builds(
        lambda before, change, mark, between: before + f"/{between}".join(
            mark.join((change(piece)[:1], change(piece)[1:])) for piece in name.split("/")
        ),
        part, case, joiner, part.filter(lambda text: not text.startswith("/")),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["sub/perstack/jobs/j", "check.py", "perstack/j", "sub/.env", "sub/perstack.toml"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_spelling_of_a_protected_path_is_changed(tools: Any, workspace: Path, name: str, data: Any) -> None:
    path = plant(workspace, name)
    run = replace(tools, read_only=(workspace / "check.py",))
    spelling = data.draw(spellings(name))
    tool = data.draw(st.sampled_from(sorted(CHANGES)))
    run(tool, spelling, **CHANGES[tool])
    run("moveFile", source=spelling, destination="taken")
    assert path.read_text() == SECRET
    answer = run("writeTextFile", spelling, text="changed")
    assert answer.is_error, spelling
